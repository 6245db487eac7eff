"""JSON Schema as a constraint: drafts 4 to 2020-12, enforced byte by byte.

`document` reads schemas, `meaning` turns them into sets of `values` and `strings`, `frames` unfolds these into texts,
`guard` judges what a mask cannot, `messages` says it in English.
"""

from decodekit.constraints.json_schema.schema import JsonSchema as JsonSchema
