"""What commands share: their options, streams and exit codes."""
