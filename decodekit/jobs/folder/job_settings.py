"""The settings that decide the text of a job's results, as one comparable value with a fingerprint.

Batch size, sharding, limits and the inputs are not part of it: they decide which documents are done and how fast,
never what a document's result is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from decodekit.records.fingerprints import differences, digest


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything that the value of a result depends on, besides the document.

    Attributes:
        weights: fingerprint of configuration and parameters.
        dtype: number type of the parameters, such as ``"float32"``.
        tokenizer: fingerprint of the tokenizer: what its tokens are, and how it divides a text.
        schema_source: what was given as schema: a file, ``module.py:Class``, or fields.
        constraint: what is asked for beyond the schema, such as a guard; see `JobSchema.beyond`.
        programs: what the strategy brings along that its options do not say; see `programs_of`.
        chat_template: fingerprint of the template of the tokenizer, where the prompt is a chat; else empty.
        reading: how the schema is read and its texts are written; see `JobSchema.reading`.
        prompt: the template, with ``{text}`` and perhaps ``{schema}``.
        is_chat: whether the filled template is sent as a user's message through the chat template.
        strategy: ``{"name": "sample", "temperature": 0.7}``: the decoding strategy and the options that were given.
        seed: base of the per-document seeds.
        version: version of decodekit.
    """

    model: str
    weights: str
    dtype: str
    tokenizer: str
    schema_source: str
    schema: Mapping[str, Any] | bool
    prompt: str
    is_chat: bool
    strategy: Mapping[str, Any]
    max_new_tokens: int
    on_length: str
    seed: int
    version: str
    constraint: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    chat_template: str = ""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    # Where the schema and the model came from is for people; what they are is in the other fields. So a folder that
    # was moved, or a schema file given by another path, is still the same job.
    _NOT_COMPARED = ("schema_source", "model")
    _LATER = ("constraint", "reading", "programs", "chat_template", "chat_template_kwargs")

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits over all compared fields."""
        return digest(self._compared(), length=8)

    def _compared(self) -> dict[str, object]:
        return {
            name: value
            for name, value in asdict(self).items()
            # Jobs that were made before there were these have none.
            if name not in self._NOT_COMPARED and (value or name not in self._LATER)
        }

    def differences(self, other: JobSettings) -> list[str]:
        """The compared fields that differ, each as ``"name was A, now B"`` with `other` as the newer one."""
        return differences(self._compared(), other._compared())

    @property
    def strategy_text(self) -> str:
        """The strategy on one line, such as ``sample(temperature=0.7)``."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.strategy.items() if name != "name")
        return f"{self.strategy['name']}({options})"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values, the form of `job.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSettings:
        """The inverse of `to_json`; raises KeyError for a missing field."""
        names = (one.name for one in fields(cls))
        return cls(**{name: data[name] for name in names if name in data or name not in cls._LATER})


def document_seed(seed: int, document_id: str) -> int:
    """The seed of one document: it depends on nothing but the job's seed and the document's id.

    So a document gets the same text in whatever order, batch, shard or resumed run it is done.
    """
    data = f"{seed}:{document_id}".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1  # 63 bits: a torch int64


def shard_of(document_id: str, num_shards: int) -> int:
    """The shard, 0 to `num_shards` - 1, of a document: by its id, so that added documents move no other."""
    data = document_id.encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[8:16], "big") % num_shards
