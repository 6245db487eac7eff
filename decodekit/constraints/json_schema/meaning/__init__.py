"""The meaning of keywords: from a conjunction of schemas to the set of values that satisfies it."""
