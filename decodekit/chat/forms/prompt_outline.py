"""The outline of a conversation: its roles, calls and results, with marks in place of what is said.

A template says nothing of the form in which it reads messages: one that loops over parts writes nothing of a text, and
nobody hears of it. So the form is found by rendering the outline:

    outline       user "zq0x", assistant calls zq1x({"zq2x": "zq3x"}), tool "zq4x"
    first form    "... zq0x ... <call>zq1x ..."                               the arguments are missing: another form
    next form     "... zq0x ... <call>zq1x {"zq2x": "zq3x"} ... zq4x"         all is there

The plainest forms come first. What depends on the words of a text shows in what was written of the conversation itself
(`first_unwritten`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from decodekit.chat.forms.message_form import (
    EMPTY,
    NINE,
    REASONING_NAMES,
    Message,
    MessageForm,
    Null,
    is_blank,
    is_structured,
    text_of,
)

Render: TypeAlias = Callable[[list[Message]], str]

_READ: Final = frozenset(("role", "content", "tool_calls", "tool_call_id", "name", *REASONING_NAMES))
THOUGHT_END: Final = re.compile(r"</[^<>\s]*(?:think|thought|reason)[^<>\s]*>|\[/THINK\]|<\|END_THINKING\|>", re.I)
"""Ends of thoughts, as templates name them that cut thoughts off."""
_WORD: Final = re.compile(r"(?<![<\[/|\w])\w")
_WORDS: Final = re.compile(r"(?<![<\[/|\w])[a-z0-9]+")


class Wanted(NamedTuple):
    """Something that a template has to write, by its mark in the outline."""

    mark: str
    message: int  # its number
    what: str


Found: TypeAlias = tuple[MessageForm, tuple[Wanted, ...]]
"""A form, and what comes through in none."""


class PromptOutline:
    """A conversation, as `plain` gives it, with marks in place of what is said, which `source`, the template, has not.

    Attributes:
        key: equal for conversations of one outline.
        messages: the outline, plain.
        wanted: what has to be written.
    """

    def __init__(self, messages: Sequence[Message], source: str) -> None:
        begin = next(begin for number in itertools.count() if (begin := "zq" + "z" * number) not in source)
        self._marks = (f"{begin}{number}x" for number in itertools.count())
        self._pattern = re.compile(rf"{begin}\d+x")
        self._filling = next(self._marks)
        self.wanted: list[Wanted] = []
        self._ids: dict[str, str] = {}
        made = [self._outlined(message, place) for place, message in enumerate(messages)]
        self.messages = [one for one, _ in made]
        self.key = tuple(key for _, key in made)

    def _mark(self, place: int, what: str = "") -> str:
        mark = next(self._marks)
        if what:
            self.wanted.append(Wanted(mark, place, what))
        return mark

    def _outlined(self, message: Message, place: int) -> tuple[Message, tuple[Any, ...]]:
        content, says = self._content(message["content"], place)
        others = {name: one for name, one in message.items() if name not in _READ}
        made: Message = {**others, "role": message["role"], "content": content}
        key: list[Any] = [message["role"], says, repr(others) if others else ""]
        for name in (*REASONING_NAMES, "name"):
            if name in message:
                made[name] = message[name] and self._mark(place)
                key.append((name, bool(message[name])))
        if message.get("tool_call_id"):
            made["tool_call_id"] = self._id(message["tool_call_id"])
            key.append("result")
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [self._call(call, place) for call in calls]
            key += ["id" in call and bool(NINE.fullmatch(str(call["id"]))) for call in calls]
            key += ["id" in call for call in calls]
        return made, tuple(key)

    def _content(self, content: Any, place: int) -> tuple[Any, Any]:
        if is_structured(content):
            mark = self._mark(place, "the content")
            return ({mark: mark} if isinstance(content, dict) else [mark]), type(content).__name__
        if is_blank(content):
            return "", "blank"
        if isinstance(content, str):
            return self._mark(place, "the content"), "text"
        texts = [part["text"] for part in content]
        marked = [self._mark(place, "the content") if text.strip() else "" for text in texts]
        return [{"type": "text", "text": text} for text in marked], tuple(map(bool, marked))

    def _call(self, call: Message, place: int) -> Message:
        name = self._mark(place, "the name of a tool that is called")
        arguments = {self._mark(place, "the arguments of a call"): self._mark(place, "the arguments of a call")}
        made = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {**made, "id": self._id(call["id"])} if "id" in call else made

    def _id(self, given: Any) -> str:
        if given not in self._ids:
            mark = next(self._marks)
            self._ids[given] = mark.ljust(9, "a") if NINE.fullmatch(str(given)) else f"call_of_{mark}"
        return self._ids[given]

    def find(self, render: Render) -> Found:
        """The plainest form in which all that is wanted is written; without one, that which loses least.

        What a template raises for every form is left to whoever renders the conversation itself.
        """
        losing: list[Found] = []
        for form in self._forms(render):
            lost = self._lost(form, render)
            if lost:
                losing.append((form, tuple(lost)))
            elif lost is not None:
                return self._least(form, render), ()
        return min(losing, key=lambda found: len(found[1]), default=(MessageForm(), ()))

    def _forms(self, render: Render) -> Iterator[MessageForm]:
        """Forms that may be, the plainest first."""
        roles = {self.messages[one.message]["role"] for one in self.wanted if one.what == "the content"}
        missing = self._lost(MessageForm(), render)
        some = roles if missing is None else {self.messages[one.message]["role"] for one in missing} & roles
        calling = [message for message in self.messages if "tool_calls" in message]
        roles |= {message["role"] for message in calling}
        listed = list(dict.fromkeys(map(frozenset, ([], some, roles, *([role] for role in sorted(roles)[:4])))))
        is_both = any(not is_blank(message["content"]) for message in calling)
        is_value = any(is_structured(message["content"]) for message in self.messages)
        is_in_parts = any(isinstance(one["content"], list) and len(one["content"]) > 1 for one in self.messages)
        choices: list[tuple[list[Any], Any]] = [  # each with whether it matters, beyond the first
            (listed, True),
            (["value", "text"], calling),
            ([*EMPTY], calling),
            (["given", "nine", "numbered"], calling),
            ([False, True], is_both),
            (["value", "text"], is_value),
            ([False, True], is_in_parts),
        ]
        numbered = [[*enumerate(some if matters else some[:1])] for some, matters in choices]
        for chosen in sorted(itertools.product(*numbered), key=lambda some: sum(number for number, _ in some)):
            yield MessageForm(*(one for _, one in chosen))

    def _lost(self, form: MessageForm, render: Render) -> list[Wanted] | None:
        """The contents that a form loses; None if the template refuses it."""
        written = _rendered(form.of(self.messages), render)
        return None if written is None else [one for one in self.wanted if not _is_right(one, written)]

    def _least(self, form: MessageForm, render: Render) -> MessageForm:
        """The form of calls alone for which least is written: some templates write an empty message before them.

        Others leave out the end of the turn, which is seen beside the same calls behind a content: what follows the
        content there has to follow here.
        """
        calling = [message for message in self.messages if "tool_calls" in message]
        said = [
            {**message, "content": self._filling} if message in calling and is_blank(message["content"]) else message
            for message in self.messages
        ]
        filled = _rendered(replace(form, is_divided=False).of(said), render) if calling else None
        if filled is None or (written := _rendered(form.of(self.messages), render)) is None:
            return form
        best, marks, end = (len(written), form), {*self._pattern.findall(written)}, len(shared_end((written, filled)))
        for other in (replace(form, empty=empty) for empty in EMPTY):
            text = _rendered(other.of(self.messages), render)
            if text is None or len(text) >= best[0] or not marks.issubset(self._pattern.findall(text)):
                continue
            if len(shared_end((text, filled))) >= end and not self._lost(other, render):
                best = len(text), other
        return best[1]


def _rendered(messages: list[Message], render: Render) -> str | None:
    try:
        return render(messages)
    except Exception:  # a template is a program of the model's author and raises what it likes
        return None


def _is_right(one: Wanted, written: str) -> bool:
    """Whether a mark stands in a text, and not in a value of Python that the template did not mean to write."""
    if one.mark not in written:
        return False
    if one.what == "the content":
        return f"'text': '{one.mark}" not in written and f"'{one.mark}':" not in written
    return f"'{one.mark}':" not in written and f'\\"{one.mark}' not in written


def shared_begin(texts: Iterable[str]) -> str:
    """The common beginning of all texts."""
    columns = enumerate(zip(*(listed := [*texts]), strict=False))
    return min(listed, key=len, default="")[: next((place for place, letters in columns if len({*letters}) > 1), None)]


def shared_end(texts: Iterable[str]) -> str:
    """The common end of all texts."""
    return shared_begin(text[::-1] for text in texts)[::-1]


def first_unwritten(messages: Sequence[Message], written: str, render: Render, unused: Callable[[], str]) -> int | None:
    """The number of a message of which something is not in the text that was written; None if all is.

    Contents are looked for as they are. Of what is not found (a template may escape it, or trim its lines), the words
    have to be there, and another rendering with marks in its lines says whether they are its own: letters that
    `unused` gives, which none of the messages has.
    """
    suspects = {
        number: texts
        for number, texts in enumerate(map(_said, messages))
        if not all(text.strip() in written for text in texts)
    }
    if not suspects:
        return None
    known, text = {*_WORDS.findall(written.casefold())}, written.casefold()
    for number, said in suspects.items():
        words = {*_WORDS.findall(" ".join(said).casefold())} - known
        if not all(word in text for word in words):
            return number
    mark, marked = unused(), [*messages]
    for number, said in suspects.items():
        content = _each_line_marked(messages[number]["content"], mark, said)
        marked[number] = {**messages[number], "content": content}
    num_marks = sum(text_of(marked[number]["content"]).count(mark) for number in suspects)
    again = _rendered(marked, render)  # None for what the marks did to it
    return None if again is not None and again.count(mark) >= num_marks else next(iter(suspects))


def _said(message: Message) -> list[str]:
    """The texts of a message in its form, without a thought before them."""
    content = message.get("content", "")
    if isinstance(content, Null) or is_structured(content):
        return []
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    for number, text in enumerate(texts if message["role"] == "assistant" else ()):
        if ends := [match.end() for match in THOUGHT_END.finditer(text)]:
            texts = [*[""] * number, text[ends[-1] :], *texts[number + 1 :]]
    return texts


def _each_line_marked(content: Any, mark: str, said: list[str]) -> Any:
    """A content with a mark behind the first letter of each line that begins no tag, in what is said in it."""
    if isinstance(content, list):
        parts = zip(content, said, strict=True)
        return [{**part, "text": _each_line_marked(part["text"], mark, [text])} for part, text in parts]
    lines = (_WORD.sub(lambda found: found[0] + mark, line, count=1) for line in said[0].splitlines(keepends=True))
    return content.removesuffix(said[0]) + "".join(lines)
