"""From a network of frames to token masks, lazily: what is reachable is made when a text reaches it.

`automaton` numbers lexical states and `configurations` the sets of control states; `recogniser` steps them byte by
byte. `trie` and `token_index` hold the vocabulary, `runner` and `gpu` walk it, `masks` makes the bitmask.
"""
