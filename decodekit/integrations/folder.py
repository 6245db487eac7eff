"""The function behind the folder `hub`, which `custom_generate` of transformers takes by its path.

    model.generate(**inputs, custom_generate=str(dk.integrations.folder.FOLDER), trust_remote_code=True, constraint=...)

A folder is handed everything that the call was given, so that options of decodekit stand beside those of `generate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from decodekit.errors import UselessOptionError
from decodekit.integrations.hf import hf
from decodekit.strategy.options.generate_options import GenerateKeywords

FOLDER: Final = Path(__file__).parent / "hub"
"""What to give as ``custom_generate``, or to upload to the hub."""


def generate_with(model: Any, arguments: Mapping[str, Any]) -> Any:
    """`model.generate` by decodekit. What both have, such as ``temperature``, is an option of `generate`.

    Raises:
        UselessOptionError: ``synced_gpus``, which belongs to a loop of transformers.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.pop("synced_gpus", False):
        raise UselessOptionError("synced_gpus has no effect: rows are not kept in step", at="synced_gpus")
    theirs = set(inspect.signature(type(model).generate).parameters) | set(vars(model.generation_config))
    named = set(GenerateKeywords.__annotations__) - theirs
    bound = {name: given.pop(name) for name in [*given] if name in named or name in ("tokenizer", "streamer")}
    return model.generate(**given, custom_generate=hf(**bound))
