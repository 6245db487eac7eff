"""Regular languages of bytes. Knows no token and no schema.

`node` says what a language is to the engine and decides whether it has a word, `ir` has the expressions and their
derivatives, `blocks` and `words` are lists of words, `registry` names the languages whose walks are kept on disk,
`phrases` says in English what may follow.
"""
