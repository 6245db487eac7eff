"""Forms in which a chat template reads messages and writes calls, found by rendering it."""
