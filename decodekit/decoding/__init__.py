"""From prompts to texts: sequences, the step that advances them, the scheduler that keeps the rows of a cache busy.

Read `loop.step` first: what is decoded token by token goes through it, by passes of the host or of a device. Then
`loop.scheduler`: the life of a request, whatever the search; `loop.batch`: the rows of one cache, and how prompts are
read; `prefixes`: what is read once for many. What rows do is said by a `loop.decoder`: `loop.step`, or one of
`search`. A step stands on `lazy_masks` (what the constraint allows), `draws` (from logits to tokens), `loop.append` and
`request.budget`; `request.stopping` decides what of the tokens is text, and when it ends.
To add a search, write a `decoder.Decoder`, and a strategy whose `decoder` makes it (`strategy.searches`).
"""
