"""The code that `model.generate(custom_generate=FOLDER, trust_remote_code=True)` of transformers runs: decodekit."""

from __future__ import annotations

from typing import Any

from decodekit.integrations.folder import generate_with


def generate(model: Any, **arguments: Any) -> Any:
    """The texts of `model.generate`, decoded by decodekit, whose options may be among the arguments."""
    return generate_with(model, arguments)
