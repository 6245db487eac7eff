"""Jobs: many documents in, validated JSON out, in a folder that survives being killed."""
