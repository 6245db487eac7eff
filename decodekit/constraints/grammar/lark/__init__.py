"""Grammars in Lark's language: read into a tree, its definitions resolved, lowered to rules."""
