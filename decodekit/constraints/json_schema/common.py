"""The lexical languages that nearly every JSON text passes through, whatever its schema: their walks are kept on disk.

They are the states inside of a string that is free or only must not be empty; a maximum length beyond the longest token
makes no difference to a walk. Outside of strings few bytes may follow, so no walks are needed there.
"""

from __future__ import annotations

from decodekit.constraints import ir
from decodekit.constraints.json_schema import text
from decodekit.constraints.languages import register

register("json-string", ir.concat(text.BODY, text.QUOTE))
register("json-string-not-empty", ir.concat(text.length(1, None), text.QUOTE))
