"""Regular expressions, of Python and of ECMA-262, as constraints.

`syntax` reads a pattern into a `tree`, `regex` turns the tree into a language. `charclasses` holds Unicode's sets of
characters, `pattern_search` searches for patterns with back-references.
"""
