"""A constraint over a vocabulary: compiled once, followed by a matcher for each text."""
