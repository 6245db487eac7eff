"""From prompts to texts: sequences, the step that advances them, the batch that keeps the rows of a cache busy.

Read `step` first: whatever is decoded goes through it. `batch` decides who takes part in a step; `stopping` and
`streaming` decide what of the tokens is text, and when it ends.
"""
