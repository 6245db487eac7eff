"""From prompts to texts: sequences, the step that advances them, the scheduler that keeps the rows of a cache busy.

Read `step` first: what is decoded token by token goes through it. Then `scheduler`: the life of a request, whatever the
search; `lane`: the rows of one cache, and how prompts are read; `sharing` and `prefixes`: what is read once for many.
What rows do is said by a `policy`: `samples`, `beam_search`, `contrastive_search`, `particle_filter`. A step stands on
`positions` (where a token is wanted), `drawing` (from logits to tokens), `masks`, `token_table`, `append`, `budget` and
`backtracking`; `stopping` decides what of the tokens is text, and when it ends.
To add a search, write a `policy.Policy`, and a strategy whose `policy` makes it (`strategy.search_options`).
"""
