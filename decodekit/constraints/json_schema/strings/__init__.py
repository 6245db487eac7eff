"""Strings of JSON: their spelled forms, escapes, patterns and formats, as languages."""
