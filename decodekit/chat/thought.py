r"""Thoughts: the reasoning before an answer, in what is read and in what is written.

    Qwen3      begin "<think>\n"      end "\n</think>\n\n"
    GLM 5      begin "<think>"        end "</think>", and the prompt ends with the begin
    gpt-oss    begin "<|channel|>analysis<|message|>"    end "<|end|><|start|>assistant"
               answer "<|channel|>final<|message|>"

Which these are is read off the chat template (`template_thought`). Whether a text begins inside of a thought is told by
its prompt (`Thought.behind`). A constraint holds behind the thought (`Thought.before`), and `ThoughtSplit` divides a
text, as it grows, into its thought and its answer.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from decodekit.constraints.coercion import coerce
from decodekit.constraints.composition.combinators import Concat, OneOf, Part
from decodekit.constraints.composition.composed import Special
from decodekit.constraints.composition.tags import Reasoned
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.special import spellings
from decodekit.constraints.tool_calls import Tools
from decodekit.constraints.tool_calls.literals import BLANKS, num_held
from decodekit.errors import OptionError
from decodekit.vocabulary import Vocabulary

TAGS: Final = re.compile(r"<[^<>]+>|\[[^\[\]\s]+\]")
"""What most marks are made of."""


@dataclass(frozen=True, slots=True)
class Thought:
    """The marks around the thought of an answer.

        llm.generate(messages, constraint=Invoice, reasoning=dk.Thought("<think>", "</think>"))

    Args:
        begin: what opens it. Blanks at its ends are written where it is closed for the model, and not asked of it.
        end: what closes it.
        answer: what stands before each answer, also before one without a thought; empty in most families.
        is_open: whether the prompt ends inside of it. Otherwise a model may also answer without a thought.

    Raises:
        OptionError: a begin or an end of blanks alone.
    """

    begin: str = "<think>\n"
    end: str = "\n</think>\n\n"
    answer: str = ""
    is_open: bool = False

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            given: object = getattr(self, name)
            if not isinstance(given, str) or not given.strip():
                raise OptionError(f"{name}={given!r:.60} marks nothing", at="Thought", hint='"<think>", "</think>"')

    @property
    def opener(self) -> str:
        """The begin, without blanks."""
        return self.begin.strip()

    @property
    def closer(self) -> str:
        """The end, without blanks."""
        return self.end.strip()

    def behind(self, prompt: str) -> Thought | None:
        """The thought of a text behind a prompt: open if the prompt ends inside of one, None if its thought is over.

        The end of the prompt suffices, as long as the longest of begin, end and answer.
        """
        written = prompt.rstrip()
        if written.endswith(self.opener):
            return replace(self, is_open=True)
        _, begun, rest = written.rpartition(self.opener)
        # The turn of somebody else may end as a thought does, so the end counts that is the first behind a begin.
        is_first = bool(begun) and rest.partition(self.closer)[1:] == (self.closer, "")
        is_over = written.endswith(self.closer) and (is_first or len(TAGS.findall(self.closer)) == 1)
        is_over |= bool(self.answer) and written.endswith(self.answer.strip())
        return None if is_over else replace(self, is_open=False)

    def within(self, text: str) -> Thought | None:
        """The thought of a text that goes on with an answer that has begun: open if it has a begin and no end."""
        if not text.strip():
            return self
        is_open = text.rfind(self.opener) > text.rfind(self.closer)
        return replace(self, is_open=True) if is_open else None

    def before(self, constraint: Constraint, vocabulary: Vocabulary) -> Constraint:
        """A thought, and behind it a text of the constraint; where the prompt has begun none, it may be left out."""
        answer = self._answer(constraint, self.answer, vocabulary)
        begin = "" if self.is_open else _marks(self.opener, vocabulary)
        reasoned = Reasoned(answer, begin, _marks(self.closer, vocabulary))
        return reasoned if self.is_open else OneOf(reasoned, answer)

    def closing(self, constraint: Constraint, vocabulary: Vocabulary) -> Constraint:
        """The end of a thought as the template writes it, and behind it a text of the constraint."""
        return coerce(self._answer(constraint, self.end + self.answer, vocabulary))

    def _answer(self, constraint: Part, mark: str, vocabulary: Vocabulary) -> Part:
        """A text of the constraint behind a mark; calls without what stands before content: their format has it."""
        if isinstance(constraint, OneOf) and any(isinstance(one, Tools) for one in constraint.options):
            return OneOf(*(self._answer(one, mark, vocabulary) for one in constraint.options))
        if isinstance(constraint, Tools):
            mark = mark.removesuffix(self.answer)
        return Concat(*_marks(mark, vocabulary), constraint) if mark else constraint


def _marks(text: str, vocabulary: Vocabulary) -> tuple[str | Special, ...]:
    """A text as texts and special tokens: those of the vocabulary that have no bytes."""
    special = {name for name, token in vocabulary.special_tokens.items() if token in spellings(vocabulary)}
    names = sorted((name for name in special if name in text), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return tuple(Special(piece) if piece in special else piece for piece in pieces if piece)


class ThoughtSplit:
    """One text, as it grows, as its thought and its answer.

    The thought has no blanks at its ends. The answer is the rest of the text behind the blanks after the thought; where
    the end of the thought is a word ("assistant"), a blank behind it belongs to the answer (" to=tools.f"). Without a
    thought all is answer.

    Attributes:
        content_at: how many characters stand before the answer, as far as it is known.
        has_thought: whether the text has a thought, maybe an empty one.
    """

    def __init__(self, thought: Thought | None) -> None:
        self._thought = thought or Thought()
        self._held = self._blanks = ""
        self._is_begun = False
        self.content_at = 0
        self.has_thought = thought is not None and thought.is_open
        self._state: str = "content" if thought is None else "thought" if thought.is_open else "begin"

    @property
    def is_answering(self) -> bool:
        """Whether all that comes is answer."""
        return self._state == "content"

    @property
    def is_over(self) -> bool:
        """Whether the thought is over, or there is none."""
        return self._state in ("answer", "content")

    def push(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """The parts of the thought and of the answer that have become certain."""
        reasoning = content = ""
        self._held += text
        if self._state == "begin":
            self._find_begin(is_last)
        if self._state == "thought":
            reasoning = self._thought_so_far(is_last)
        if self._state == "answer":
            self._find_answer(is_last)
        if self._state == "content":
            content, self._held = self._held, ""
        return reasoning, content

    def _drop(self, num_characters: int) -> None:
        self._held = self._held[num_characters:]
        self.content_at += num_characters

    def _find_begin(self, is_last: bool) -> None:
        opener, answer = self._thought.opener, self._thought.answer.strip()
        begun = self._held.lstrip(BLANKS)
        if begun.startswith(opener):
            self._drop(len(self._held) - len(begun) + len(opener))
            self._state, self.has_thought = "thought", True
        elif answer and begun.startswith(answer):
            self._state = "answer"
        elif is_last or not (opener.startswith(begun) or answer.startswith(begun)):
            self._state = "content"

    def _thought_so_far(self, is_last: bool) -> str:
        closer = self._thought.closer
        thought, found, _ = self._held.partition(closer)
        if not found and not is_last:
            thought = thought[: len(thought) - num_held(thought, closer)]
        self._drop(len(thought) + len(found))
        piece = self._blanks + thought
        if not self._is_begun:
            piece = piece.lstrip(BLANKS)
        said = piece.rstrip(BLANKS)
        self._blanks, self._is_begun = piece[len(said) :], self._is_begun or bool(said)
        if found:
            self._state, self._blanks = "answer", ""
        return said

    def _find_answer(self, is_last: bool) -> None:
        mark = self._thought.answer.strip()
        is_word = self.has_thought and self._thought.closer[-1].isalnum()
        rest = self._held if is_word else self._held.lstrip(BLANKS)
        if not is_last and (not rest or (len(rest) < len(mark) and mark.startswith(rest))):
            return
        self._drop(len(self._held) - len(rest) + (len(mark) if mark and rest.startswith(mark) else 0))
        self._state = "content"


class ThoughtTokens:
    """A counter of the tokens of a text that stand before its answer, where it has a thought.

    `texts` says what each token adds to the text.
    """

    def __init__(self, thought: Thought | None, texts: Sequence[bytes | None]) -> None:
        self._split, self._texts = ThoughtSplit(thought), texts
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, tokens: Sequence[int]) -> int:
        """The number of the next tokens that do."""
        number, content = 0, ""
        while number < len(tokens) and not self._split.is_answering:
            _, content = self._split.push(self._decode(self._texts[tokens[number]] or b""))
            number += 0 if content else 1
        return number if self._split.has_thought or not self._split.is_over else 0
