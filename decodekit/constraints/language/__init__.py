"""Regular languages of bytes. Knows no token and no schema.

`ir` has the expressions and their derivatives, `emptiness` decides whether one has a word, `blocks` and `words` are
lists of words, `registry` names the languages whose walks are kept on disk, `wording` says what may follow in English.
"""
