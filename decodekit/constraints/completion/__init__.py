"""The least text that completes a beginning, as bytes and as tokens, and the longest text of a constraint."""
