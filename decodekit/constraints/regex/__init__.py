"""Regular expressions, of Python and of ECMA-262, as constraints.

`syntax` reads a pattern into a `tree`, `lowering` turns the tree into a language; `charclasses` and `casefolding` hold
what Unicode says.
"""
