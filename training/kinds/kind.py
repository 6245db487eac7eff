"""What a document kind consists of: a schema, random values, and wordings for training and for evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from training.values import ValueSource
from training.wording import Phrasings, Wordings, read_wordings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Value = str | int | bool | Decimal | None | list[str] | list[dict[str, "Value"]]
Record = dict[str, Value]


@dataclass(frozen=True)
class Kind:
    """One kind of document.

    `draw` gives a record in the order of the schema and the extra values that phrasings may mention.
    `aliases` are other names that a user's own schema may give to a field. `money` names the fields that are
    amounts; `currency` is stated by any of them.
    """

    name: str
    draw: Callable[[ValueSource], tuple[Record, dict[str, str]]]
    training: Wordings
    held_out: Wordings
    aliases: Mapping[str, Phrasings]
    money: tuple[str, ...] = ()

    @cached_property
    def wider(self) -> Wordings:
        """All training wordings: the core that stands here and those of `wordings/<kind>.toml`."""
        return self.training.joined(read_wordings(self.name))

    @cached_property
    def withheld(self) -> frozenset[str]:
        """Labels (in small letters) and words of booleans and enums that training must not come upon by variation."""
        labels = {label.lower() for labels in self.held_out.labels.values() for label in labels}
        states = self.held_out.state_words.values()
        return frozenset(labels | {word for values in states for words in values.values() for word in words})

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the kind: `examples/<kind>/schema.json` is its only source."""
        loaded: dict[str, Any] = json.loads((EXAMPLES / self.name / "schema.json").read_text(encoding="utf-8"))
        return loaded
