"""Conversations: messages by the chat template of a tokenizer, with what the template is to be told besides.

    TemplateArguments(tools=[...], options={"enable_thinking": False}).encode(tokenizer, messages, "prompt 0")

Three kinds of tokenizers write conversations: those of transformers, by a template in Jinja; those of transformers
around mistral-common, and those of mistral-common itself, by a program. **What they write is all that the model
reads**: they write the beginning-of-sequence token themselves, and none is added.

**What is said arrives, or it is an error.** Messages are given in the form that the template reads, which is found by
rendering (`prompt_outline`), and a content that is not in what was written is refused by name.

What a message spells is text, also where it spells ``<|im_end|>``: the template is given the message with a mark behind
the first character of the spelling, and whatever it does to the message, the mark shows the place in what it writes
(see `quoting`). Programs write special tokens by number and read all contents as text.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from decodekit.chat.forms.message_form import Message, is_structured, place_of, plain, text_of
from decodekit.chat.forms.prompt_outline import Found, PromptOutline, first_unwritten
from decodekit.errors import ChatTemplateError, DecodekitError, OptionError, UselessOptionError
from decodekit.models.encoding import encode_text
from decodekit.quoting import Controls, QuotedText, controls_of

OWN_OPTIONS: Final = frozenset({"continue_final_message", "chat_template"})
"""Options of `apply_chat_template` that may stand beside the variables of a template."""

_GIVEN: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables of templates that are not for `chat_template_kwargs`."""

_COMPARED: Final = frozenset({"role", "type"})
_BRACKETED: Final = re.compile(r"[<\[{].+[>\]}]")  # not a line feed, nor the word "user"
_TRANSFORMERS_TAG: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_OF_MISTRAL: Final = ("reasoning_effort",)
_MANY_OUTLINES: Final = 1024
_outlines: WeakKeyDictionary[Any, dict[Any, Found]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class TemplateArguments:
    """The arguments of a chat template beside the messages.

    Args:
        tools: definitions of tools in OpenAI's form.
        options: variables of the template, such as ``enable_thinking``; and ``continue_final_message``, which lets the
            model go on with the last message, or ``chat_template``, another template or the name of one.
        split_special_tokens: whether special tokens that a prompt spells are text: of messages and of what else the
            template is told (those that it writes itself are special), of a plain text as a whole. None: those of
            messages are, those of a plain text are not.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    split_special_tokens: bool | None = None

    def __bool__(self) -> bool:
        return bool(self.tools or self.options)

    @property
    def names(self) -> str:
        """The names of the arguments, for errors."""
        return ", ".join([*(["tools"] if self.tools else []), *self.options])

    def faults(self, tokenizer: Any) -> list[DecodekitError]:
        """Faults: arguments that the template of a tokenizer does not read."""
        if not self or not self.can_write(tokenizer):
            return []  # a conversation is refused by name, and nothing else can be told anything
        reads = self.variables_of(tokenizer)
        found: list[DecodekitError] = []
        if self.tools and "tools" not in reads:
            cause = "tools= has no effect: the chat template of the tokenizer reads no tools"
            hint = "the tools in a message, and constraint=dk.tools(...) for the calls"
            found.append(UselessOptionError(cause, at="tools", hint=hint))
        for name in self.options:
            if name in _GIVEN:
                cause = f"{name} is not for chat_template_kwargs"
                hint = "tools=" if name == "tools" else "continue_final_message" if "prompt" in name else "the prompt"
                found.append(OptionError(cause, at="chat_template_kwargs", hint=hint))
            elif name not in reads and name not in OWN_OPTIONS:
                known = sorted(one for one in reads - _GIVEN if not one.endswith("_token"))
                cause = f"{name} has no effect: the chat template of the tokenizer does not read it"
                hint = f"its variables: {', '.join(known)}" if known else "leaving it out: it has no variables"
                found.append(UselessOptionError(cause, at="chat_template_kwargs", hint=hint))
        return found

    def encode(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]], at: str) -> list[int]:
        """Token ids of a conversation, with the beginning of an answer at the end; errors as of `written`."""
        written = self.written(tokenizer, messages, at)
        return encode_text(tokenizer, written, at, add_special_tokens=False) if isinstance(written, str) else written

    def written(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]], at: str) -> str | list[int]:
        """A conversation as a text, or in tokens where the tokenizer has no text for its special ones.

        Raises:
            ChatTemplateError: there is no chat template, or it refuses the messages, or leaves out what they say.
            TokenizerError: a message spells a special token, and the tokenizer cannot read it as text.
        """
        if not self.can_write(tokenizer):
            raise ChatTemplateError(
                "messages were given and the tokenizer has no chat template",
                at=at,
                hint="one text as prompt, a chat model, or setting tokenizer.chat_template",
            )
        if not self._has_text(tokenizer):
            return [int(token) for token in self._rendered(tokenizer, [dict(message) for message in messages], at)]
        said = self._in_form(tokenizer, messages, at)
        controls = self._controls(tokenizer)
        mark, told, marked = "", self, said
        texts = _texts_of([*self._parts(), said])
        if controls is not None and (places := _spelled(controls, texts)):
            mark = _unused([*texts, str(self._template(tokenizer))])
            tools, options, marked = _with_marks([*self._parts(), said], places, mark)
            told = replace(self, tools=tools, options={**self.options, **options})
        written = str(told._rendered(tokenizer, marked, at))
        pieces = written.split(mark) if mark else [written]
        ends = itertools.accumulate(map(len, pieces[:-1]))
        text = "".join(pieces)
        self._check_written(tokenizer, said, text, at)
        return QuotedText(text, [(end - 1, end) for end in ends], controls) if mark else text

    def _rendered(self, tokenizer: Any, messages: list[Message], at: str) -> Any:
        try:
            return self._written(tokenizer, messages)
        except Exception as error:  # a template is a program of the model's author and raises what it likes
            raise ChatTemplateError(
                f"the chat template of the tokenizer refuses the messages: {type(error).__name__}: {str(error)[:500]}",
                at=at,
            ) from error

    def _in_form(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]], at: str) -> list[Message]:
        """Messages in the form that the template reads; a `ChatTemplateError` if there is none."""
        source = self._source(tokenizer)
        said = plain(messages, source, at)
        outline = PromptOutline(said, source)
        key = source, repr(self.options), bool(self.tools), outline.key
        try:
            known = _outlines.setdefault(tokenizer, {})
        except TypeError:  # what cannot be remembered
            known = {}
        if key not in known:
            if len(known) >= _MANY_OUTLINES:
                known.clear()
            known[key] = outline.find(lambda one: str(self._written(tokenizer, one)))
        form, lost = known[key]
        if lost:
            raise self._left_out(said, lost[0].message, lost[0].what, at)
        return form.of(said)

    def _check_written(self, tokenizer: Any, said: list[Message], written: str, at: str) -> None:
        """Raise the `ChatTemplateError` of a content that depends on its words and is not in what was written."""

        def unused() -> str:
            return _unused([*_texts_of([*self._parts(), said]), self._source(tokenizer), written])

        number = first_unwritten(said, written, lambda one: str(self._written(tokenizer, one)), unused)
        if number is not None:
            raise self._left_out(said, number, "the content", at)

    @staticmethod
    def _left_out(said: list[Message], number: int, what: str, at: str) -> ChatTemplateError:
        content = said[number].get("content", "")
        cause = f"the chat template of the tokenizer leaves out {what} (role {said[number]['role']!r})"
        hint = "calls in the contents of messages, as texts; or a template that writes them"
        if what == "the content":
            cause += f": {(content if is_structured(content) else text_of(content))!r:.60}"
            hint = "another order or other roles, or a template that writes it"
        return ChatTemplateError(cause, at=place_of(at, number), hint=hint)

    def source(self, tokenizer: Any) -> str | None:
        """The text of the template; None where there is none, or a program in its place."""
        return self._source(tokenizer) if self._has_text(tokenizer) else None

    def _source(self, tokenizer: Any) -> str:
        if hasattr(tokenizer, "get_chat_template"):
            with contextlib.suppress(ValueError):  # several templates, and none for this
                return str(tokenizer.get_chat_template(self.options.get("chat_template"), [*self.tools] or None))
        return str(self._template(tokenizer))

    def _parts(self) -> list[Any]:
        """The arguments of the template besides the messages, as values with texts of others in them."""
        return [[*self.tools], {name: one for name, one in self.options.items() if name not in OWN_OPTIONS}]

    def _template(self, tokenizer: Any) -> Any:
        return self.options.get("chat_template") or getattr(tokenizer, "chat_template", None)

    def _controls(self, tokenizer: Any) -> Controls | None:
        """The tokens that messages cannot spell; None where they may, or where a program writes the conversation.

        Besides special tokens these are what the template writes around turns: some tokenizers do not call it special.
        """
        if self.split_special_tokens is False or not self._has_text(tokenizer):
            return None
        template = self._template(tokenizer)
        own = TemplateArguments(options={"chat_template": template} if "chat_template" in self.options else {})

        def around_turns(added: list[str]) -> list[str]:
            turns = [{"role": role, "content": "-"} for role in ("user", "assistant", "user")]
            try:
                written = str(tokenizer.apply_chat_template(turns, tokenize=False, **own.options)) if added else ""
            except Exception:  # a template is a program of the model's author, and may want other turns
                return []
            return [token for token in added if token in written and _BRACKETED.fullmatch(token)]

        return controls_of(tokenizer, around_turns, key=repr(template))

    def _written(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str | Sequence[int]:
        tools = [dict(tool) for tool in self.tools] or None
        if hasattr(tokenizer, "encode_chat_completion"):
            from mistral_common.protocol.instruct.request import ChatCompletionRequest

            request = ChatCompletionRequest.from_openai([dict(one) for one in messages], tools, **self.options)
            return tokenizer.encode_chat_completion(request).tokens  # type: ignore[no-any-return]
        continues = bool(self.options.get("continue_final_message"))
        told = {"tools": tools, "add_generation_prompt": not continues, **self.options}
        if self._has_text(tokenizer):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **told))
        ids: Any = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **told)
        return [*(ids[0] if ids and not isinstance(ids[0], int) else ids)]

    def can_write(self, tokenizer: Any) -> bool:
        """Whether a tokenizer can write conversations, by itself or by the template that is told."""
        return has_chat_template(tokenizer) or self._has_text(tokenizer)

    def _has_text(self, tokenizer: Any) -> bool:
        """Whether there is a template in Jinja."""
        is_told = "chat_template" in self.options and hasattr(tokenizer, "apply_chat_template")
        return bool(getattr(tokenizer, "chat_template", None)) or is_told

    def variables_of(self, tokenizer: Any) -> frozenset[str]:
        """The names that the template of a tokenizer reads."""
        if not self._has_text(tokenizer):
            return frozenset({"tools", *_OF_MISTRAL})
        return variables(self._source(tokenizer))


NO_ARGUMENTS: Final = TemplateArguments()


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each of its texts changed; all but keys, roles and types that are words: templates compare these."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        changed = {}
        for key, one in value.items():
            is_word = key in _COMPARED and isinstance(one, str) and one.isidentifier()
            name = change(key) if isinstance(key, str) and not key.isidentifier() else key
            changed[name] = one if is_word else _each_text(one, change)
        return changed
    return [_each_text(one, change) for one in value] if isinstance(value, list | tuple) else value


def _texts_of(value: Any) -> list[str]:
    """The texts of a value, in the order in which `_each_text` meets them."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _each_text(value, note)
    return found


def _spelled(controls: Controls, texts: Sequence[str]) -> dict[int, list[int]]:
    """The places of spelled control tokens: by number of the text, those behind their first characters.

    A template may trim texts and put them side by side, so a spelling may begin in one and go on in another.
    """
    if controls.pattern is None:
        return {}
    stripped = [text.strip() for text in texts]
    begins = [0, *itertools.accumulate(map(len, stripped))]
    places: dict[int, list[int]] = {}
    for match in controls.pattern.finditer("".join(stripped)):
        number = bisect.bisect_right(begins, match.start()) - 1
        skipped = len(texts[number]) - len(texts[number].lstrip())
        places.setdefault(number, []).append(match.start() - begins[number] + skipped + 1)
    return places


def _unused(texts: Sequence[str]) -> str:
    """Letters that none of the texts has, and no end of which is their beginning: they are found where they are put."""
    every = "\0".join(texts)
    return next(mark for number in itertools.count() if (mark := f"zq{number}x") not in every)


def _with_marks(value: Any, places: Mapping[int, Sequence[int]], mark: str) -> Any:
    numbers = itertools.count()

    def marked(text: str) -> str:
        ends = [0, *places.get(next(numbers), ()), len(text)]
        return mark.join(text[begin:end] for begin, end in itertools.pairwise(ends))

    return _each_text(value, marked)


def has_chat_template(tokenizer: Any) -> bool:
    """Whether a tokenizer can write conversations."""
    return bool(getattr(tokenizer, "chat_template", None)) or any(
        hasattr(one, "encode_chat_completion")
        for one in (tokenizer, getattr(tokenizer, "tokenizer", None))  # of mistral-common, and transformers' around it
    )


def variables(template: str) -> frozenset[str]:
    """The variables that a template in Jinja reads and does not set.

    Where transformers' dialect of Jinja has changed, every word of the template.
    """
    from jinja2 import Environment, TemplateError, meta

    try:
        environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # parsed, never rendered
        return frozenset(meta.find_undeclared_variables(environment.parse(_TRANSFORMERS_TAG.sub("", template))))
    except TemplateError:
        return frozenset(re.findall(r"\w+", template))
