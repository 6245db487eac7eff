"""The parts that commands share: options, streams and exit codes."""
