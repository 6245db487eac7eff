"""decodekit inside of other people's loops: transformers' `generate`, and the logits processors of engines.

`prefix_matchers` says which tokens may follow sequences that are known by their tokens alone; every logits processor
here is made of it.
"""
