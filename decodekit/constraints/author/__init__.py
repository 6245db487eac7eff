"""For those who write constraints: members, explanations, an outline, what of a schema is enforced."""
