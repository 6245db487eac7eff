"""The lexical languages that nearly every JSON text passes through, whatever its schema: their walks are kept on disk.

They are the states inside of a string that is free or only must not be empty, with any escapes and with the needed ones
alone; a maximum length beyond the longest token makes no difference to a walk. Outside of strings few bytes may follow,
so no walks are needed there.
"""

from __future__ import annotations

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.escapes import spelled
from decodekit.constraints.language import ir
from decodekit.constraints.language.registry import register

for _name, _body in (("json-string", text.BODY), ("json-string-not-empty", text.length(1, None))):
    register(_name, ir.concat(_body, text.QUOTE))
    register(f"{_name}-spared", spelled(ir.concat(_body, text.QUOTE), "needed"))
