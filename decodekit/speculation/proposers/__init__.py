"""Proposers: where drafts come from."""
