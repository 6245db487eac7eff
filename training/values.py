"""Random values: people, firms, places, codes, dates, amounts.

Free text is split by content: a string whose CRC-32 is divisible by eight is *reserved*. Training never draws a
reserved string and the evaluation draws nothing else, so no name, code or title of the evaluation was ever seen.
"""

from __future__ import annotations

import datetime
import random
import zlib
from collections.abc import Callable
from decimal import Decimal

from training.lexicon import (
    CITIES,
    COLOUR_SHADES,
    COLOURS,
    COMPANY_SUFFIXES,
    COMPANY_WORDS,
    FIRST_NAMES,
    GOODS_NOUNS,
    JOB_AREAS,
    LAST_NAMES,
    MAIL_DOMAINS,
    PHRASE_WORDS,
    SYLLABLE_CODAS,
    SYLLABLE_NUCLEI,
    SYLLABLE_ONSETS,
)

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def is_reserved(text: str) -> bool:
    """Whether a string belongs to the evaluation alone."""
    return zlib.crc32(text.encode()) % 8 == 0


class ValueSource:
    """Draws values from one random generator, on one side of the reserved split."""

    def __init__(self, rng: random.Random, *, reserved: bool) -> None:
        self.rng = rng
        self.reserved = reserved

    def fresh(self, draw: Callable[[], str]) -> str:
        """The first string of this source's side that `draw` gives."""
        while True:
            text = draw()
            if is_reserved(text) == self.reserved:
                return text

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.rng.random() < probability

    def maybe(self, value: str | None, probability: float) -> str | None:
        """The value with the given probability, else None."""
        return value if self.chance(probability) else None

    def word(self, syllables: int | None = None) -> str:
        """An invented lower-case word."""
        count = syllables or self.rng.choice((2, 2, 2, 3))
        parts = [self.rng.choice(SYLLABLE_ONSETS) + self.rng.choice(SYLLABLE_NUCLEI) for _ in range(count)]
        return "".join(parts) + self.rng.choice(SYLLABLE_CODAS)

    def proper(self) -> str:
        """An invented capitalised word."""
        return self.word().capitalize()

    def phrase(self) -> str:
        """One to three lower-case words, listed or invented: what a service or a skill may be called."""
        count = self.rng.choice((1, 2, 2, 2, 3))
        listed = self.rng.choice((PHRASE_WORDS, JOB_AREAS, GOODS_NOUNS))
        return " ".join(self.rng.choice(listed) if self.chance(0.65) else self.word() for _ in range(count))

    def acronym(self) -> str:
        """Two to four capitals."""
        return "".join(self.rng.choice("ABCDEFGHIJKLMNOPRSTUVWXZ") for _ in range(self.rng.randint(2, 4)))

    def person(self) -> str:
        """A full name: listed or invented parts, now and then an initial or a double name."""

        def draw() -> str:
            first = self.rng.choice(FIRST_NAMES) if self.chance(0.6) else self.proper()
            last = self.rng.choice(LAST_NAMES) if self.chance(0.45) else self.proper()
            kind = self.rng.random()
            if kind < 0.05:
                return f"{first} {self.rng.choice('ABCDEFGHJKLMPRSTVW')}. {last}"
            if kind < 0.09:
                return f"{first} {last}-{self.rng.choice(LAST_NAMES)}"
            if kind < 0.12:
                return f"{first} {self.rng.choice(('van', 'de', 'von', 'di', 'el', 'Mc', 'O', 'la'))} {last}"
            if kind < 0.15:
                return f"{first} {self.rng.choice(FIRST_NAMES)} {last}"
            return f"{first} {last}"

        return self.fresh(draw)

    def company(self) -> str:
        """A firm: invented or listed words with or without a legal form."""

        def draw() -> str:
            head = self.proper() if self.chance(0.6) else self.rng.choice(COMPANY_WORDS)
            kind = self.rng.random()
            if kind < 0.35:
                return f"{head} {self.rng.choice(COMPANY_SUFFIXES)}"
            if kind < 0.55:
                return f"{head} {self.rng.choice(COMPANY_WORDS)}"
            if kind < 0.7:
                return f"{head} {self.rng.choice(COMPANY_WORDS)} {self.rng.choice(COMPANY_SUFFIXES)}"
            if kind < 0.8:
                return f"{head} & {self.proper()}"
            if kind < 0.87:
                return f"{self.rng.choice(LAST_NAMES)} & {self.rng.choice(('Sons', 'Partners', 'Co', 'Daughters'))}"
            if kind < 0.93:
                return head + self.rng.choice(("Tech", "Soft", "Works", "Lab", "Net", "Med", "Line"))
            return head

        return self.fresh(draw)

    def city(self) -> str:
        """A town, listed or invented."""

        def draw() -> str:
            if self.chance(0.5):
                return self.rng.choice(CITIES)
            kind = self.rng.random()
            if kind < 0.6:
                return self.proper()
            if kind < 0.8:
                return self.proper() + self.rng.choice(("burg", "ville", "ton", "stad", "field", "haven", "berg"))
            return f"{self.rng.choice(('New', 'San', 'Bad', 'Port', 'Saint', 'North', 'Upper'))} {self.proper()}"

        return self.fresh(draw)

    def email(self, person: str) -> str:
        """An address, usually made from the name."""
        first, last = plain(person.split(" ")[0]), plain(person.split(" ")[-1])

        def draw() -> str:
            host = self.rng.choice(MAIL_DOMAINS) if self.chance(0.3) else self.word()
            if self.chance(0.1):
                host += "-" + self.word(1)
            ending = self.rng.choice(("com", "org", "net", "de", "eu", "io", "co.uk", "fr", "example", "ch", "it"))
            user = self.rng.choice(
                (f"{first}.{last}", f"{first[0]}.{last}", first, f"{first}_{last}", f"{first[0]}{last}",
                 f"{last}.{first}", f"{first}{self.rng.randint(1, 99)}", self.word(), f"info.{self.word()}")
            )  # fmt: skip
            return f"{user}@{host}.{ending}"

        return self.fresh(draw)

    def digits(self, count: int) -> str:
        """A run of digits without a leading zero."""
        return str(self.rng.randint(1, 9)) + "".join(self.rng.choice("0123456789") for _ in range(count - 1))

    def phone(self) -> str:
        """A telephone number in one of several spellings."""

        def draw() -> str:
            d = self.digits
            return self.rng.choice(
                (
                    f"+{d(2)} {d(2)} {d(self.rng.randint(6, 8))}",
                    f"+{d(2)} {d(3)} {d(3)} {d(self.rng.randint(3, 4))}",
                    f"({d(3)}) {d(3)}-{d(4)}",
                    f"{d(3)}-{d(3)}-{d(4)}",
                    f"0{d(2)} {d(4)} {d(4)}",
                    f"0{d(3)}/{d(6)}",
                    f"+{d(1)} {d(3)} {d(3)} {d(2)} {d(2)}",
                    f"0{d(4)} {d(6)}",
                )
            )

        return self.fresh(draw)

    def code(self, prefixes: tuple[str, ...]) -> str:
        """An identifier such as INV-2041 or TK/88-A."""

        def letters(count: int) -> str:
            return "".join(self.rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))

        def draw() -> str:
            head = self.rng.choice(prefixes) if self.chance(0.6) else letters(self.rng.randint(1, 3))
            year = self.rng.randint(2019, 2027)
            number = self.digits(self.rng.randint(2, 6))
            return self.rng.choice(
                (f"{head}-{number}", f"{head}{number}", f"{head}-{year}-{number}", f"{head}/{year}/{number}",
                 f"{year}-{number}", number, f"{head}-{letters(2)}{self.digits(3)}", f"{head}_{number}",
                 f"{head}-{number}-{letters(1)}", f"{head}.{number}")
            )  # fmt: skip

        return self.fresh(draw)

    def date(self) -> str:
        """A day as ISO 8601."""
        day = datetime.date(2019, 1, 1) + datetime.timedelta(days=self.rng.randrange(3650))
        return day.isoformat()

    def time(self) -> str:
        """A time of day as HH:MM."""
        return f"{self.rng.randint(7, 21):02d}:{self.rng.choice(('00', '00', '15', '30', '30', '45', '10'))}"

    def amount(self, low: float, high: float) -> Decimal:
        """A price with two decimals or none, log-uniform between the bounds."""
        value = low * (high / low) ** self.rng.random()
        kind = self.rng.random()
        if kind < 0.2:
            return Decimal(max(1, round(value)))
        if kind < 0.3:
            return Decimal(max(1, round(value))).quantize(Decimal("0.01"))
        if kind < 0.4:
            return (Decimal(int(value)) + Decimal("0.99")).quantize(Decimal("0.01"))
        return Decimal(repr(value)).quantize(Decimal("0.01"))

    def colour(self) -> str:
        """A colour, plain or shaded."""
        if self.chance(0.6):
            return self.rng.choice(COLOURS)  # too few to split; the only open string that is not reserved
        return self.fresh(lambda: f"{self.rng.choice(COLOUR_SHADES)} {self.rng.choice(COLOURS)}")

    def several(self, draw: Callable[[], str], low: int, high: int) -> list[str]:
        """Between low and high different strings."""
        found: list[str] = []
        target = self.rng.randint(low, high)
        while len(found) < target:
            text = draw()
            if text not in found:
                found.append(text)
        return found


def plain(text: str) -> str:
    """Lower-case ASCII letters of a name, for an address."""
    table = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "é": "e", "è": "e", "ø": "o", "å": "a", "ñ": "n", "ç": "c"}
    kept = "".join(table.get(c, c) for c in text.lower())
    return "".join(c for c in kept if c.isascii() and c.isalpha()) or "x"


def spell_date(iso: str, rng: random.Random) -> str:
    """An ISO date in one of the spellings that documents use."""
    day = datetime.date.fromisoformat(iso)
    month = MONTHS[day.month - 1]
    kind = rng.random()
    if kind < 0.3:
        return iso
    if kind < 0.6:
        return f"{day.day} {month} {day.year}"
    if kind < 0.85:
        return f"{month} {day.day}, {day.year}"
    if kind < 0.95:
        return f"{day.day} {month[:3]} {day.year}"
    return f"{day.day:02d}.{day.month:02d}.{day.year}"


def spell_number(value: Decimal | int, rng: random.Random) -> str:
    """A number as it stands in a document: large ones sometimes with thousands separators."""
    if value >= 1000 and rng.random() < 0.3:
        return f"{value:,}"
    return str(value)


def spell_money(value: Decimal | int, currency: str, rng: random.Random) -> str:
    """An amount with its currency as a code, a sign or a word."""
    number = spell_number(value, rng)
    signs = {"EUR": "€", "USD": "$", "GBP": "£"}
    words = {"EUR": "euros", "USD": "dollars", "GBP": "pounds", "CHF": "francs"}
    kind = rng.random()
    if kind < 0.45 or (currency == "CHF" and kind < 0.9):
        return f"{number} {currency}" if rng.random() < 0.6 else f"{currency} {number}"
    if kind < 0.9:
        if currency == "EUR" and rng.random() < 0.4:
            return f"{number} €"
        return f"{signs[currency]}{number}"
    return f"{number} {words[currency]}"


def spell_list(items: list[str], rng: random.Random) -> str:
    """Several things in a row."""
    if len(items) == 1:
        return items[0]
    kind = rng.random()
    if kind < 0.55:
        return ", ".join(items[:-1]) + " and " + items[-1]
    if kind < 0.85:
        return ", ".join(items)
    if kind < 0.93:
        return ", ".join(items[:-1]) + " & " + items[-1]
    return " / ".join(items)
