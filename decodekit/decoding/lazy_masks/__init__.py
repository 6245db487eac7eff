"""Constraints in the loop: questions about single tokens, masks where these do not settle it, deferral, rollback."""
