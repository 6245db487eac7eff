"""Wordings: the phrasings that a document kind is written in, and how a phrasing becomes text.

A phrasing is a string with `{field}` where a value goes, `{~name}` where a value is mentioned in passing (it does not
count as stated there) and `<this|that|>` where any one of the alternatives is taken.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Phrasings = tuple[str, ...]

_ALTERNATIVES = re.compile(r"<([^<>]*)>")
_PLACEHOLDER = re.compile(r"\{(~?)(\w+)\}")


@dataclass(frozen=True)
class Wordings:
    """Everything that a kind can say, on one side of the split between training and held-out wordings.

    `sentences` state values; `states` say the value of a boolean or an enum, by field and value as text; `labels` are
    field names on forms; `absences` say that a value is missing; `distractors` say something else entirely.
    """

    sentences: Phrasings
    states: Mapping[str, Mapping[str, Phrasings]]
    labels: Mapping[str, Phrasings]
    state_words: Mapping[str, Mapping[str, Phrasings]]
    absences: Mapping[str, Phrasings]
    distractors: Phrasings
    titles: Phrasings
    openings: Phrasings
    closings: Phrasings
    nouns: Phrasings = field(default=())
    item_styles: Phrasings = field(default=())

    def all_phrasings(self) -> set[str]:
        """Every whole phrase (labels and single words left out)."""
        found = {*self.sentences, *self.distractors, *self.titles, *self.openings, *self.closings}
        for group in (*self.states.values(),):
            for phrasings in group.values():
                found.update(phrasings)
        for phrasings in self.absences.values():
            found.update(phrasings)
        return found


def stated_fields(phrasing: str) -> tuple[str, ...]:
    """The fields that a phrasing states."""
    return tuple(name for mark, name in _PLACEHOLDER.findall(phrasing) if not mark)


def mentioned_fields(phrasing: str) -> tuple[str, ...]:
    """The values that a phrasing mentions in passing."""
    return tuple(name for mark, name in _PLACEHOLDER.findall(phrasing) if mark)


def choose_alternatives(phrasing: str, rng: random.Random) -> str:
    """Take one alternative in every `<a|b>`."""
    while _ALTERNATIVES.search(phrasing):
        phrasing = _ALTERNATIVES.sub(lambda found: rng.choice(found.group(1).split("|")), phrasing)
    return re.sub(r"  +", " ", phrasing)


def fill(phrasing: str, spell: Callable[[str], str], rng: random.Random) -> str:
    """A phrasing with its alternatives taken and its values written in."""
    return _PLACEHOLDER.sub(lambda found: spell(found.group(2)), choose_alternatives(phrasing, rng))
