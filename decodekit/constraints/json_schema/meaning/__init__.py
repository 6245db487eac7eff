"""What the keywords of a schema say: from a conjunction of schemas to the set of values that satisfies it."""
