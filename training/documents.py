"""Documents: a random record of a kind, written down as an e-mail, a form, a table or a few words.

    document = make_document(KINDS["invoice"], random.Random(7))
    document.text, document.value

The same seed gives the same document. `held_out_wordings` takes the phrasings that training never uses;
`reserved_values` takes the strings that training never draws.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from training.kinds.kind import Kind, Record, Value
from training.values import ValueSource, spell_date, spell_list, spell_money, spell_number
from training.wording import (
    GENERIC_STATEMENTS,
    LABEL_FRAMES,
    Wordings,
    blur,
    choose_alternatives,
    fill,
    mentioned_fields,
    stated_fields,
    vary_case,
)

CORE_SHARE = 0.4
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MISSING_MARKS = ("n/a", "-", "none", "unknown", "not given", "?", "N/A", "not specified", "")
_SEPARATORS = (": ", ": ", ": ", ":", " - ", " = ", " : ", "\t", " | ", " -> ", ":  ")


@dataclass(frozen=True)
class Document:
    """A text, the kind it belongs to, and the record that should be read from it."""

    kind: str
    text: str
    record: Record

    @property
    def value(self) -> Any:
        """The record as JSON values (decimals as floats)."""
        return json.loads(to_json(self.record))


def to_json(value: Value | Record) -> str:
    """Compact JSON that keeps the spelling of decimals, so that 40.20 can be copied as it stands."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{to_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(to_json(item) for item in value) + "]"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


class Writer:
    """Writes one record in one set of wordings."""

    def __init__(
        self, kind: Kind, record: Record, extras: dict[str, str], wordings: Wordings, source: ValueSource
    ) -> None:
        self.kind = kind
        self.record = record
        self.extras = extras
        self.wordings = wordings
        self.source = source
        self.rng = source.rng
        currency = record.get("currency", extras.get("currency"))
        self.currency = currency if isinstance(currency, str) else "EUR"
        self.item_style = self.rng.choice(wordings.item_styles) if wordings.item_styles else ""

    def spell(self, name: str) -> str:
        """The text of a field, or of something mentioned in passing."""
        if name.startswith("noise_"):
            return self._noise(name)
        if name in self.extras:
            return self.extras[name]
        return self._spell_value(name, self.record[name])

    def _spell_value(self, name: str, value: Value) -> str:
        if isinstance(value, bool) or value is None:
            raise ValueError(f"{self.kind.name}.{name}: {value!r} has no spelling; it needs a phrase")
        if isinstance(value, str):
            return spell_date(value, self.rng) if _ISO_DATE.fullmatch(value) else value
        if isinstance(value, list):
            if value and isinstance(value[0], dict):
                return self._spell_items([item for item in value if isinstance(item, dict)])
            return spell_list([str(item) for item in value], self.rng)
        if name in self.kind.money:
            return spell_money(value, self.currency, self.rng)
        return spell_number(value, self.rng)

    def item_texts(self, items: Iterable[Record]) -> list[str]:
        """One text per line of an invoice, all in one style."""
        has_currency = self.rng.random() < 0.4
        texts = []
        for item in items:
            price = item["unit_price"]
            assert isinstance(price, Decimal)
            spelled = spell_money(price, self.currency, self.rng) if has_currency else spell_number(price, self.rng)
            values = {"item": str(item["name"]), "quantity": str(item["quantity"]), "price": spelled}
            texts.append(fill(self.item_style, values.__getitem__, self.rng))
        return texts

    def _spell_items(self, items: list[Record]) -> str:
        texts = self.item_texts(items)
        if len(texts) == 1:
            return texts[0]
        glue = self.rng.choice(("; ", "; ", ", ", " and "))
        return glue.join(texts) if glue != " and " else "; ".join(texts[:-1]) + " and " + texts[-1]

    def _noise(self, name: str) -> str:
        rng = self.rng
        if name in self.extras:
            return self.extras[name]
        draws: dict[str, Callable[[], str]] = {
            "noise_date": lambda: spell_date(self.source.date(), rng),
            "noise_count": lambda: str(rng.randint(2, 90)),
            "noise_minutes": lambda: str(rng.randint(1, 18) * 5),
            "noise_year": lambda: str(rng.randint(1950, 2024)),
            "noise_code": lambda: self.source.code(("K", "KD", "Z", "CU", "AB")),
        }
        return draws[name]()

    def is_usable(self, phrasing: str) -> bool:
        """Whether everything that a phrasing mentions in passing is there."""
        return all(
            name.startswith("noise_") or name in self.extras or self.record.get(name) not in (None, [])
            for name in mentioned_fields(phrasing)
        )

    def _state(self, name: str) -> str | None:
        """A phrase that says the value of a boolean or an enum."""
        states = self.wordings.states.get(name)
        if states is None:
            return None
        if self.wordings.is_open and self.rng.random() < 0.2:
            return self._generic(name)
        usable = [p for p in states[_state_key(self.record[name])] if self.is_usable(p)]
        return fill(self.rng.choice(usable), self.spell, self.rng)

    def _generic(self, name: str) -> str:
        """A statement that would fit any field, with one of this field's labels."""
        rng = self.rng
        label = rng.choice(self.wordings.labels["salary" if name == "salary_min" else name])
        words = self.wordings.state_words.get(name)
        if words is not None:
            value = self._state_word(name)
        elif name == "salary_min":
            value = f"{self.spell('salary_min')} {rng.choice(('to', '-', 'up to', 'and'))} {self.spell('salary_max')}"
        else:
            value = self.spell(name)
        spelled = {"label": label.lower() if rng.random() < 0.85 else label, "value": value}
        return fill(rng.choice(GENERIC_STATEMENTS), spelled.__getitem__, rng)

    def prose(self, fields: set[str], missing: set[str], num_distractors: int) -> list[str]:
        """Sentences, in random order, that together state all the fields."""
        rng = self.rng
        sentences: list[str] = []
        remaining = {name for name in fields if name not in self.wordings.states and name != "currency"}
        for name in sorted(fields - remaining - {"currency"}):
            phrase = self._state(name)
            if phrase:
                sentences.append(phrase)
        if self.wordings.is_open:
            for name in sorted(remaining - {"salary_max"}):
                if rng.random() < 0.22:
                    sentences.append(self._generic(name))
                    remaining -= {"salary_min", "salary_max"} if name == "salary_min" else {name}
        while remaining:
            fitting = [
                (p, len(found))
                for p in self.wordings.sentences
                if (found := set(stated_fields(p))) and found <= remaining and self.is_usable(p)
            ]
            if not fitting:
                raise ValueError(f"{self.kind.name}: no sentence states any of {sorted(remaining)}")
            phrasing = rng.choices([p for p, _ in fitting], weights=[count**1.5 for _, count in fitting])[0]
            remaining -= set(stated_fields(phrasing))
            if self.wordings.is_open and rng.random() < 0.25:
                phrasing = blur(choose_alternatives(phrasing, rng), rng)
            sentences.append(fill(phrasing, self.spell, rng))
        for name in sorted(missing):  # never in the order of a set: it differs between processes, and draws follow
            absences = [p for p in self.wordings.absences.get(name, ()) if self.is_usable(p)]
            if absences and rng.random() < 0.3:
                sentences.append(fill(rng.choice(absences), self.spell, rng))
        usable = [p for p in self.wordings.distractors if self.is_usable(p)]
        sentences += [fill(phrasing, self.spell, rng) for phrasing in rng.sample(usable, num_distractors)]
        rng.shuffle(sentences)
        return sentences

    def _label(self, key: str) -> str:
        """A name of a field on a form."""
        rng = self.rng
        label = rng.choice(self.wordings.labels[key])
        if not self.wordings.is_open or rng.random() > 0.25:
            return label
        if rng.random() < 0.5:
            return vary_case(label, rng)
        spelled = {"label": label.lower() if rng.random() < 0.7 else label}
        framed = fill(rng.choice(LABEL_FRAMES), spelled.__getitem__, rng)
        framed = framed[0].upper() + framed[1:]
        return label if framed.lower() in self.kind.withheld else framed

    def _state_word(self, name: str) -> str:
        """The value of a boolean or an enum, as it stands behind a label."""
        word = self.rng.choice(self.wordings.state_words[name][_state_key(self.record[name])])
        if not self.wordings.is_open:
            return word
        varied = vary_case(word, self.rng)
        return word if varied in self.kind.withheld else varied

    def labelled(self, fields: set[str], missing: set[str]) -> list[tuple[str, str]]:
        """Pairs of label and value, in the order of the schema."""
        rng = self.rng
        pairs: list[tuple[str, str]] = []
        spells_currency = "currency" in fields and rng.random() < 0.25
        for name in self.record:
            if name in ("salary_max", "currency"):
                continue  # written together with salary_min, and with the amounts
            label_key = "salary" if name == "salary_min" else name
            if name in fields:
                label = self._label(label_key)
                words = self.wordings.state_words.get(name)
                value = self.record[name]
                if words is not None:
                    text = self._state_word(name)
                elif name == "salary_min":
                    low, high = self.spell("salary_min"), self.spell("salary_max")
                    text = rng.choice((f"{low} - {high}", f"{low} to {high}", f"from {low} to {high}", f"{low}-{high}"))
                elif spells_currency and name in self.kind.money and isinstance(value, Decimal):
                    text = spell_number(value, rng)
                elif name == "weight_kg":
                    text = self.spell(name) + rng.choice((" kg", " kg", "", " kilograms"))
                else:
                    text = self.spell(name)
                pairs.append((label, text))
            elif name in missing and rng.random() < 0.3:
                pairs.append((self._label(label_key), rng.choice(_MISSING_MARKS)))
        if spells_currency:
            pairs.append((rng.choice(("Currency", "Currency code", "Prices in")), self.currency))
        return pairs

    def form(self, fields: set[str], missing: set[str]) -> str:
        """Lines of label and value, or a table of two columns."""
        rng = self.rng
        pairs = self.labelled(fields, missing)
        if rng.random() < 0.5:
            rng.shuffle(pairs)
        if rng.random() < 0.12:
            return "\n".join(f"| {label} | {value} |" for label, value in pairs)
        separator = rng.choice(_SEPARATORS)
        bullet = rng.choice(("", "", "", "", "- ", "* "))
        upper = rng.random() < 0.1
        return "\n".join(
            f"{bullet}{label.upper() if upper else label}{separator}{value}".rstrip() for label, value in pairs
        )

    def fragments(self, fields: set[str]) -> str:
        """One line such as "Invoice A-17, total 40.20 EUR."."""
        rng = self.rng
        pairs = self.labelled(fields, set())
        first, rest = pairs[0], pairs[1:]
        rng.shuffle(rest)
        head = f"{rng.choice(self.wordings.nouns)} {first[1]}" if rng.random() < 0.6 else f"{first[0]} {first[1]}"
        glue = rng.choice((", ", ", ", "; ", " / ", ". "))
        joiner = rng.choice((" ", " ", ": "))
        return glue.join([head, *(f"{label.lower()}{joiner}{value}" for label, value in rest)]) + rng.choice(
            (".", "", "")
        )


def _state_key(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_document(
    kind: Kind, record: Record, extras: dict[str, str], wordings: Wordings, source: ValueSource, only: set[str] | None
) -> str:
    """The text of a record; `only` limits what is said to some fields."""
    rng = source.rng
    writer = Writer(kind, record, extras, wordings, source)
    most = min(14, sum(map(writer.is_usable, wordings.distractors)))
    fields = {name for name, value in record.items() if value is not None and value != []}
    missing = set(record) - fields
    if only is not None:
        fields &= only
        missing &= only
    # What is false may go without saying.
    fields -= {name for name in record if name in fields and record[name] is False and rng.random() < 0.25}
    missing -= {"salary_max"}
    if not fields - {"currency"}:
        return " ".join(writer.prose(fields, missing, 2))
    layout = rng.random()
    if (only is not None and rng.random() < 0.5) or layout < 0.06:
        return writer.fragments(fields) if rng.random() < 0.5 else " ".join(writer.prose(fields, missing, 0))
    if layout < 0.58:
        # A few documents are long: almost everything in them is beside the point.
        num_distractors = most if rng.random() < 0.06 else min(most, rng.choice((0, 1, 1, 2, 2, 3, 4)))
        body = _flow(writer.prose(fields, missing, num_distractors), rng)
    elif layout < 0.84:
        body = writer.form(fields, missing)
        if rng.random() < 0.3:
            body += "\n" + rng.choice(("", "\n")) + " ".join(writer.prose(set(), missing, rng.randint(1, 2)))
    else:
        inseparable = [{"salary_min", "salary_max"} & fields, {"currency", *kind.money} & fields]
        units = [{name} for name in sorted(fields) if not any(name in group for group in inseparable)]
        units += [group for group in inseparable if group]
        rng.shuffle(units)
        cut = rng.randint(1, max(1, len(units) - 1))
        on_form = set().union(*units[:cut])
        parts = [writer.form(on_form, set())]
        parts.append(_flow(writer.prose(fields - on_form, missing, rng.randint(0, 2)), rng))
        rng.shuffle(parts)
        body = rng.choice(("\n", "\n\n")).join(part for part in parts if part)
    return _frame(body, wordings, rng)


def _flow(sentences: list[str], rng: random.Random) -> str:
    """Sentences as one paragraph, two paragraphs, or a list."""
    kind = rng.random()
    if kind < 0.7 or len(sentences) < 3:
        return " ".join(sentences)
    if kind < 0.82:
        cut = rng.randint(1, len(sentences) - 1)
        return " ".join(sentences[:cut]) + rng.choice(("\n", "\n\n")) + " ".join(sentences[cut:])
    if kind < 0.92:
        return "\n".join(sentences)
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _frame(body: str, wordings: Wordings, rng: random.Random) -> str:
    """A title, an opening, a closing: each now and then."""
    if rng.random() < 0.25:
        body = choose_alternatives(rng.choice(wordings.openings), rng) + rng.choice(("\n", "\n\n", " ")) + body
    if rng.random() < 0.25:
        title = choose_alternatives(rng.choice(wordings.titles), rng)
        body = rng.choice(("", "", "# ", "Subject: ", "*** ")) + title + rng.choice(("\n", "\n\n")) + body
    if rng.random() < 0.2:
        body += rng.choice(("\n", "\n\n", " ")) + choose_alternatives(rng.choice(wordings.closings), rng)
    return body


def training_wordings(kind: Kind, rng: random.Random) -> Wordings:
    """The core or all of a kind's training wordings; the core is small, so each of its phrasings is seen more often."""
    return kind.training if rng.random() < CORE_SHARE else kind.wider


def make_document(
    kind: Kind, rng: random.Random, *, held_out_wordings: bool = False, reserved_values: bool = False
) -> Document:
    """A random document of a kind with all fields of its schema."""
    source = ValueSource(rng, reserved=reserved_values)
    record, extras = kind.draw(source)
    if held_out_wordings:
        wordings = kind.held_out
    elif reserved_values:  # evaluation: the core phrasings as they are written
        wordings = replace(kind.training, is_open=False)
    else:
        wordings = training_wordings(kind, rng)
    return Document(kind.name, write_document(kind, record, extras, wordings, source, None), record)


def make_partial_document(kind: Kind, rng: random.Random) -> Document:
    """A training document whose record has only some fields, half of the time under other names.

    It teaches that the keys asked for decide what is read, so that a user's own smaller schema works too.
    """
    source = ValueSource(rng, reserved=False)
    record, extras = kind.draw(source)
    chosen = set(rng.sample(list(record), rng.randint(1, min(4, len(record)))))
    only: set[str] | None = None
    if rng.random() < 0.75:
        only = set(chosen)
        if only & {"salary_min", "salary_max"}:
            only |= {"salary_min", "salary_max"}
        if "currency" in only:
            only |= set(kind.money)
        if only & set(kind.money) and "currency" in record:
            only |= {"currency"}
    text = write_document(kind, record, extras, training_wordings(kind, rng), source, only)
    is_renamed = rng.random() < 0.5
    partial: Record = {}
    for name, value in record.items():
        if name in chosen:
            key = rng.choice(kind.aliases[name]) if is_renamed and name in kind.aliases else name
            partial[key] = value
    return Document(kind.name, text, partial)
