"""The thoughts of a call: which of its texts may have one, and where its constraint begins.

prompt ends with "<think>"          a thought, its end, and then a text of the constraint
... with "<think></think>"          a text of the constraint
... with "<|im_start|>assistant"    either; with ``reasoning=None`` the second
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.template_thought import BUDGETS, thought_of
from decodekit.chat.thought import Thought
from decodekit.chat.tools import content_begins
from decodekit.constraints import compile
from decodekit.constraints.composition.combinators import Text
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.matching.compiler import CompiledElsewhere
from decodekit.constraints.matching.cut_matcher import CutMatcher
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.special import token_texts
from decodekit.constraints.tool_calls import Tools
from decodekit.decoding.request.prompt import Prompt, is_messages
from decodekit.errors import OptionError
from decodekit.strategy.options.generate_options import GenerateOptions
from decodekit.vocabulary import Vocabulary

_SLACK: Final = 8
"""Tokens at the end of a prompt beyond those of the longest mark."""


@dataclass(frozen=True, eq=False)
class Reasoning:
    """The reasoning that the texts of a call may have.

    Args:
        thought: what stands around a thought.
        vocabulary: of the tokens.
        constraint: of the answers; None for free text.
        max_tokens: of a thought; None for any number.
        is_asked: whether it was asked for. Otherwise only conversations that end inside of a thought have one.
        budget: the variable of the chat template that tells the model `max_tokens`, with it; empty if there is none.

    Attributes:
        texts: what each token adds to a free text: its bytes, or its name in the marks of a thought.
    """

    thought: Thought
    vocabulary: Vocabulary
    constraint: Constraint | None
    max_tokens: int | None
    is_asked: bool
    budget: Mapping[str, Any] = field(default_factory=dict)
    texts: Sequence[bytes | None] = field(init=False)

    def __post_init__(self) -> None:
        marks = self.thought.begin + self.thought.end + self.thought.answer
        names = {token for name, token in self.vocabulary.special_tokens.items() if name in marks}
        named = token_texts(self.vocabulary)
        data_of = enumerate(self.vocabulary.token_bytes)
        texts = (
            [named[token] if token in names else data for token, data in data_of]
            if names
            else self.vocabulary.token_bytes
        )
        object.__setattr__(self, "texts", texts)
        if isinstance(self.constraint, Tools):  # whose format has what stands before content
            object.__setattr__(self, "thought", replace(self.thought, answer=""))

    def chat(self, chat: TemplateArguments, prompt: Prompt) -> TemplateArguments:
        """The arguments of the chat template for a prompt, with the budget of its thought."""
        if not self.budget or not is_messages(prompt):
            return chat
        return replace(chat, options={**chat.options, **self.budget})

    def thought_behind(self, prompt: Prompt, token_ids: Sequence[int], chat: TemplateArguments) -> Thought | None:
        """The thought of the text behind a prompt; None if it has none.

        Args:
            prompt: as it was given.
            token_ids: of it.
            chat: the arguments of the chat template.
        """
        if is_messages(prompt) and chat.options.get("continue_final_message"):
            content: Any = prompt[-1].get("content") or ""
            parts = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
            found = self.thought.within("".join(parts))
        else:
            found = self.thought.behind(self._end_of(token_ids))
        is_taken = self.is_asked or (is_messages(prompt) and found is not None and found.is_open)
        return found if is_taken else None

    def _end_of(self, token_ids: Sequence[int]) -> str:
        """The end of a prompt, special tokens by name."""
        num_tokens = len(self.thought.begin) + len(self.thought.end) + len(self.thought.answer) + _SLACK
        names = {token: name for name, token in self.vocabulary.special_tokens.items()}
        some = [
            self.vocabulary.token_bytes[token] or names.get(token, "").encode() for token in token_ids[-num_tokens:]
        ]
        return b"".join(some).decode(errors="replace")

    def matcher(self, thought: Thought) -> Matcher | None:
        """The matcher of a text with this thought; None where all of it is free."""
        if self.constraint is None and self.max_tokens is None:
            return None
        answer = Text() if self.constraint is None else self.constraint
        first = compile(thought.before(answer, self.vocabulary), self.vocabulary).matcher()
        if self.max_tokens is None:
            return first
        then = compile(thought.closing(answer, self.vocabulary), self.vocabulary).matcher()
        opener = b"" if thought.is_open else thought.opener.encode()
        return CutMatcher(first, then, self.max_tokens, opener, thought.closer.encode())


def reasoning_of(
    options: GenerateOptions, constraint: Any, vocabulary: Vocabulary, tokenizer: Any, chat: TemplateArguments
) -> Reasoning | None:
    """The reasoning that the texts of a call may have; None if they are taken as they are.

    Raises:
        OptionError: thoughts are to be bounded that the chat template has not, or stand before a constraint that
            another engine reads.
    """
    given, most = options.reasoning, options.max_reasoning_tokens
    is_asked = given is not None or most is not None
    if given == "none" or (constraint is None and not is_asked):
        return None
    thought = given if isinstance(given, Thought) else thought_of(tokenizer, chat)
    if thought is None:
        if most is None:
            return None
        cause = f"max_reasoning_tokens={most}: the chat template of the tokenizer has no thoughts"
        raise OptionError(cause, at="max_reasoning_tokens", hint='reasoning=Thought("<think>", "</think>")')
    if thought.answer and thought.answer.strip() in content_begins(constraint):
        thought = replace(thought, answer="")  # the constraint has it, before a content and not before calls
    if isinstance(constraint, CompiledElsewhere):
        if not is_asked:
            return None
        raise OptionError("a thought cannot stand before a constraint of another engine", at="reasoning")
    names = frozenset[str]() if most is None or not chat.can_write(tokenizer) else chat.variables_of(tokenizer)
    budget: dict[str, Any] = {name: most for name in BUDGETS if name in names and name not in chat.options}
    return Reasoning(thought, vocabulary, constraint, most, is_asked, budget)
