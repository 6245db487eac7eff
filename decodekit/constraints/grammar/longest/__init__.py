"""Grammars whose texts are divided by a lexer that takes the longest terminal first."""
