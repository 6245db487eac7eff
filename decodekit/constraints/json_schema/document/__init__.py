"""Schemas as documents: drafts, references, pointers, and which keywords are supported."""
