"""The guard of a schema: a judge of whole values, for the keywords that a mask cannot enforce."""
