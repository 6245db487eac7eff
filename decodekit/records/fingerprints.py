"""Whether two runs would find the same: digests of what decides it, and what differs, in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodekit.llm import LLM
    from decodekit.models.causal_lm import CausalLM


def digest(value: object, *, length: int) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:length]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], outer: str = "") -> list[str]:
    """The differences of two sets of settings, each as ``"name was A, now B"``; nested ones by ``name.inner``."""
    found: list[str] = []
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new and old[name] == new[name]:
            continue
        if name in _NESTED and isinstance(old.get(name), Mapping) and isinstance(new.get(name), Mapping):
            found += differences(old[name], new[name], f"{outer}{name}.")
        else:
            was, now = (_short(side[name]) if name in side else "absent" for side in (old, new))
            found.append(f"{outer}{name} was {was}, now {now}")
    return found


_NESTED = ("strategies", "tasks", "max_new_tokens", "machine", "versions", "reading", "programs")
"""Settings whose parts are told apart; of others, such as a schema, a digest tells them apart."""


def _short(value: object) -> str:
    if isinstance(value, dict) or (isinstance(value, list) and len(repr(value)) > 60):
        return f"#{digest(value, length=4)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… #{digest(value, length=4)}"


def tokenizer_fingerprint(llm: LLM) -> str:
    """16 hexadecimal digits over a tokenizer: the bytes of its tokens, and all that decides how a text is divided.

    A tokenizer that is not one of transformers is known by its tokens and a text that it divides.
    """
    backend = getattr(llm.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        divides: object = hashlib.sha256(backend.to_str().encode()).hexdigest()
    else:
        divides = list(llm.tokenizer(_PROBE)["input_ids"]) if callable(llm.tokenizer) else None
    return digest([llm.vocabulary.fingerprint, divides], length=16)


_PROBE = 'The 12 naïve  dogs’ eyes:\n\t{"é": [3.50, null]} 東京 — e\u0301'


def weights_fingerprint(model: CausalLM) -> str:
    """16 hexadecimal digits over the configuration of a model and a sample of its parameters.

    The sample is the shape and the first values of every parameter: cheap for a model of any size, and different after
    any training. A model that is not one of transformers is known by its name alone.
    """
    module = getattr(model, "model", None)
    if module is None or not hasattr(module, "named_parameters"):
        return digest([model.name], length=16)
    config = module.config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(name, None)  # where it was loaded from and by what; the number type is a setting of its own
    result = hashlib.sha256(repr(sorted(config.items(), key=str)).encode())
    for name, parameter in module.named_parameters():
        # A parameter that is offloaded has no values here.
        sample = [] if parameter.is_meta else parameter.detach().flatten()[:8].float().tolist()
        result.update(f"{name} {tuple(parameter.shape)} {sample}".encode())
    return result.hexdigest()[:16]
