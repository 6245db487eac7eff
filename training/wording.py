"""Wordings: the phrasings that a document kind is written in, and how a phrasing becomes text.

The core of a kind's wordings stands in its module; `kinds/wordings/<kind>.toml` holds many more for training alone,
written by somebody who did not know the held-out ones.

A phrasing is a string with `{field}` where a value goes, `{~name}` where a value is mentioned in passing (it does not
count as stated there) and `<this|that|>` where any one of the alternatives is taken.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.lexicon import FILLERS

Phrasings = tuple[str, ...]

# Statements that fit any field, with one of its labels. Training only: they make the set of wordings open.
GENERIC_STATEMENTS: Phrasings = (
    "The {label} is {value}.",
    "{value} is the {label}.",
    "As {label} we <have|noted|wrote down> {value}.",
    "<We|They|I> <have|noted|wrote down|put down|know|got> {value} as <the |>{label}.",
    "The {label} <was given as|was entered as|has been set to|reads|says|would be|will be|was|should be> {value}.",
    "<For|Regarding|Concerning|About|As for|As to> the {label}<:|, it is|, we have|, put|, write> {value}.",
    "Under {label} <you find|it says|we read|one reads|stands> {value}.",
    "<Please note|Note|Mind|Remember|Mark> the {label}<:|,|, which is> {value}.",
    "{value} <was entered|stands|is noted|is written|was given|counts> as <the |>{label}.",
    "{value} <serves as|acts as|goes down as|is listed as> <the |>{label}.",
    "<Its|Our|Your|Their|Her|His|My> {label} <is|was|will be|remains> {value}.",
    "With {value} <as|for> <the |>{label} <all is said|we go on|it is settled|everything is clear>.",
    "<What|Which> {label}? {value}.",
    "{label}? {value}<.|!|>",
    "The {label}, <by the way|of course|as always|as agreed>, is {value}.",
    "<It|Here it|The paper|The page|The text|The note> <says|reads|shows|gives> {value} <for|as|under> <the |>{label}.",
    "<One|You> <can|may|will> <find|read|see> {value} <as|for|under> <the |>{label}.",
    "When asked for the {label}, <they said|she said|he said|the answer was> {value}.",
    "<If you need|In case you need|Should you need> the {label}<, it is|, take|:> {value}.",
    "<Also|Then|Next|Finally|Besides>, the {label}<:| is| was> {value}.",
)
# What may stand around a label on a form, and still name the same field. Training only, too.
LABEL_FRAMES: Phrasings = (
    "{label} <given|noted|here|so far|now|below|as agreed|on file|in short|stated|as known>",
    "<Our|Your|Their|My|This|The|Known|Actual|Current|Stated|Main|Exact|Given|Full> {label}",
    "{label} <of it|of this|of that|in question|in full|as entered|for us|for you|asked for|to note>",
    "<About|Which|What|Regarding|Re|Now|Also|As for> {label}",
    "{label} <(required)|(optional)|(see below)|no. 1|*|(please fill in)>",
)
WIDER = Path(__file__).parent / "kinds" / "wordings"
_ALTERNATIVES = re.compile(r"<([^<>]*)>")
_PLACEHOLDER = re.compile(r"\{(~?)(\w+)\}")


@dataclass(frozen=True)
class Wordings:
    """Everything that a kind can say, on one side of the split between training and held-out wordings.

    An open set also takes statements that fit any field, and blurs a part of its sentences (training only).
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
    is_open: bool = False

    def joined(self, other: Wordings) -> Wordings:
        """The phrasings of both; open if one of them is."""

        def join(mine: Any, theirs: Any) -> Any:
            if isinstance(mine, Mapping):
                return {key: join(mine.get(key, ()), theirs.get(key, ())) for key in {**mine, **theirs}}
            if isinstance(mine, bool):
                return mine or theirs
            if not mine and isinstance(theirs, Mapping):
                return theirs
            return tuple(dict.fromkeys((*mine, *theirs)))

        return Wordings(**{name: join(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__})

    def all_phrasings(self) -> set[str]:
        """Every whole phrase (labels and single words left out)."""
        found = {*self.sentences, *self.distractors, *self.titles, *self.openings, *self.closings}
        for group in (*self.states.values(),):
            for phrasings in group.values():
                found.update(phrasings)
        for phrasings in self.absences.values():
            found.update(phrasings)
        return found


def read_wordings(kind_name: str) -> Wordings:
    """The wider training wordings of a kind."""
    loaded = tomllib.loads((WIDER / f"{kind_name}.toml").read_text(encoding="utf-8"))
    return Wordings(**loaded, is_open=True)


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


def blur(phrasing: str, rng: random.Random) -> str:
    """Replace, drop or add a word here and there, so that no single turn of phrase is relied upon.

    Words beside a value stay: another word there could be taken for a part of it.
    """
    words = phrasing.split(" ")
    result: list[str] = []
    for index, word in enumerate(words):
        is_beside_value = any("{" in near for near in words[max(0, index - 1) : index + 2])
        chance = rng.random()
        if chance > 0.15 or is_beside_value or not word.isalpha():
            result.append(word)
        elif chance > 0.05:
            result.append(rng.choice(FILLERS))
        if rng.random() < 0.04 and not is_beside_value:
            result.append(rng.choice(FILLERS))
    return " ".join(result)


def vary_case(text: str, rng: random.Random) -> str:
    """The text in capitals, small letters, as a title or as it is."""
    kind = rng.random()
    if kind < 0.55:
        return text
    return text.upper() if kind < 0.75 else text.lower() if kind < 0.85 else text.capitalize()


def fill(phrasing: str, spell: Callable[[str], str], rng: random.Random) -> str:
    """A phrasing with its alternatives taken and its values written in."""
    return _PLACEHOLDER.sub(lambda found: spell(found.group(2)), choose_alternatives(phrasing, rng))
