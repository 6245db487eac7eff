"""Regular expressions, of Python and of ECMA-262, as constraints.

`syntax` reads a pattern into a `tree`, `regex_language` turns the tree into a language. `charclasses` and `case_rules`
hold Unicode's sets of characters, `pattern_search` searches for patterns with back-references.
"""
