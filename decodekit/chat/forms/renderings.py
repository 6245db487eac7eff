r"""Renderings of a chat template for turns of the model, compared where conversations differ in one thing.

    user, and the generation prompt   ...<|im_start|>assistant\n<think>\n
    user, and the model says "hi"     ...<|im_start|>assistant\n<think>\n\n</think>\n\nhi<|im_end|>\n
    user, and the model calls a tool  ...<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>...<|im_end|>\n

What all of them begin with is the conversation so far and the *head* of the turn; behind it stands the *lead*, which is
the rest of a thought that holds nothing; at the other side, the *end* of the turn. Between the two is the response.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from decodekit.chat.forms.message_form import REASONING_NAMES, Message, MessageForm
from decodekit.chat.forms.prompt_outline import PromptOutline, shared_begin, shared_end
from decodekit.constraints.tool_calls import ToolCall
from decodekit.errors import ChatTemplateError

USER: Final = "uqzaskedx"
CONTENT: Final = "cqzsaidx"
THOUGHT: Final = "tqzthoughtx"
TOOLS: Final = ("nqzfirstx", "nqzsecondx", "nqzthirdx")
IDS: Final = ("iqzfirsta", "iqzsecndb", "iqzthirdc")
KEYS: Final = ("kqzfirstx", "kqzsecondx", "kqzthirdx")
VALUES: Final = ("vqzfirstx", "vqzsecondx", "vqzthirdx")
"""Words that no template has, and none the beginning of another. Mistral takes identifiers of nine letters alone."""

MARK: Final = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Z][A-Z_ ]*\]")
"""``<tool_call>``, ``<|im_end|>``, ``[TOOL_CALLS]``."""
_UNDIVIDED: Final = re.compile(rf"{MARK.pattern}|<[^<>\s]*$|^[^<>\s]{{0,40}}>|\w+")
_EMPTY_THOUGHT: Final = re.compile(rf"\s*({MARK.pattern})\s*({MARK.pattern})")


class Renderings:
    """The renderings of a template in Jinja for turns of the model.

    Args:
        template: in place of the tokenizer's own: its text, or the name of one of several.


    Raises:
        ChatTemplateError: the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        if not hasattr(tokenizer, "get_chat_template") or not (template or getattr(tokenizer, "chat_template", None)):
            cause = "the tokenizer has no chat template in Jinja, which would tell how tools are called"
            raise ChatTemplateError(cause, at="format", hint='a format by name, such as "hermes"')
        self.refusals: list[str] = []  # what the template raised, in order
        self._tokenizer = tokenizer
        self._tools = [_definition(name) for name in TOOLS]
        self._written: dict[str, str | None] = {}
        self.template = str(tokenizer.get_chat_template(template, self._tools))

    @property
    def added_tokens(self) -> frozenset[str]:
        """The texts that the tokenizer looks for before it divides what is between them."""
        return frozenset(str(text) for text in self._tokenizer.get_added_vocab())

    def text(self, messages: Sequence[Message], has_prompt: bool = False) -> str | None:
        """A conversation, with the generation prompt or without; None where the template refuses it."""
        key = repr((messages, has_prompt))
        if key not in self._written:
            try:
                self._written[key] = self._rendered(messages, has_prompt)
            except Exception as error:  # a template is a program of the model's author and raises what it likes
                self._written[key] = None
                self.refusals.append(f"{type(error).__name__}: {str(error)[:200]}")
        return self._written[key]

    def _rendered(self, messages: Sequence[Message], has_prompt: bool) -> str:
        told = {"chat_template": self.template, "add_generation_prompt": has_prompt, "tokenize": False}
        try:
            return str(self._tokenizer.apply_chat_template([*messages], tools=self._tools, **told))
        except Exception as error:  # some write calls, and cannot write tools
            try:
                return str(self._tokenizer.apply_chat_template([*messages], **told))
            except Exception:
                raise error from None

    @cached_property
    def form(self) -> MessageForm | None:
        """The form in which calls come through; None if they do in none."""
        outline = PromptOutline([_ASKED, _answer("", (call_of(0),), "")], self.template)
        form, lost = outline.find(lambda messages: self._rendered(messages, has_prompt=False))
        return None if lost else form

    def turn(self, content: str = "", calls: Sequence[ToolCall] = (), thought: str = "") -> str | None:
        """A turn behind its head, up to the end of the text; None where the template refuses it."""
        if self.form is None:
            return None
        turn = self._behind_user(self.text(self.form.of([_ASKED, _answer(content, calls, thought)])))
        return None if turn is None or not turn.startswith(self._head) else turn[len(self._head) :]

    def response(self, content: str = "", calls: Sequence[ToolCall] = ()) -> str | None:
        """A turn without head, lead and end; None where the template refuses it, or writes it in another way."""
        turn = self.turn(content, calls)
        if turn is None:
            return None
        lead, end = self._lead_of_calls if calls else self.lead, self.ends[bool(calls)]
        if not turn.startswith(lead) or not turn[len(lead) :].endswith(end):
            return None
        rest = turn[len(lead) : len(turn) - len(end)]
        return rest[len(_empty_thought(rest)) :]

    def called(self, arguments: dict[str, Any]) -> str:
        """The response that is one call with such arguments; empty where there is none."""
        return self.response("", (call_of(0, arguments),)) or ""

    @cached_property
    def thought_before_calls(self) -> str:
        """The thought that holds nothing before calls, where there is none before a content, nor in the prompt."""
        empty = _empty_thought((self.turn(calls=(call_of(0),)) or "")[len(self.lead) :])
        return "" if empty.strip() in self.prompt else empty

    @cached_property
    def prompt(self) -> str:
        """The text behind the words of the user where the model is to go on."""
        return self._behind_user(self.text((self.form or MessageForm()).of([_ASKED]), has_prompt=True)) or ""

    @cached_property
    def lead(self) -> str:
        """The text with which turns begin behind their head, though it is neither content nor calls."""
        lead = common_begin(turn for turn in (self.turn(CONTENT), *self._calling) if turn is not None)
        thinking = self.turn(CONTENT, thought=THOUGHT) or ""
        known = self.prompt + (thinking.partition(CONTENT)[0] if THOUGHT in thinking else "")
        place = 0
        for found in re.finditer(rf"{MARK.pattern}|\w+|\s+|.", lead):
            known += _empty_thought(lead[found.start() :])
            if found[0].strip() and found[0] not in known:
                break
            place = found.end()
        return lead[:place]

    @cached_property
    def _lead_of_calls(self) -> str:
        """The same of turns with calls, which may begin with more blanks."""
        turns = [turn[len(self.lead) :] for turn in self._calling]
        shared = common_begin(turns) if len({*turns}) > 1 else ""
        return self.lead + shared[: len(shared) - len(shared.lstrip())]

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The texts that close turns: those without calls, and those with."""
        said = _behind(self.turn(CONTENT) or "", CONTENT)
        one, two = (self.turn(calls=calls) or "" for calls in ((call_of(0),), (call_of(0), call_of(1))))
        called, called_twice = _behind(one, VALUES[0]), _behind(two, VALUES[0])
        if not said or not called:
            return "", ""
        both = _behind((self.turn(CONTENT, (call_of(0),)) or "").partition(TOOLS[0])[0], CONTENT)
        only = said[len(common_begin([said, both]).rstrip()) :] if both else ""  # what does not stand before calls
        only = only if only.strip() else ""
        shared = common_end([said, called])
        if not shared and (shared := common_end([said, called_twice])):
            return only or shared, shared  # the end of a single call is missing
        if shared:
            # Behind the end, a template may write the head of another turn.
            first = MARK.search(shared)
            mark = first[0] if first else shared
            return only or _from_first(said, shared, mark), _from_first(called, shared, mark)
        # What follows the first of two calls as well as the last is of the call.
        least = len(common_begin([_behind(two.partition(TOOLS[1])[0], VALUES[0]), called])) if TOOLS[1] in two else 0
        eos = str(getattr(self._tokenizer, "eos_token", None) or "\0")
        return only or _end_of(said, 0, eos), _end_of(called, least, eos)

    @cached_property
    def _calling(self) -> list[str]:
        turns = (self.turn(calls=(call_of(0),)), self.turn(CONTENT, (call_of(0),)))
        return [turn for turn in turns if turn is not None]

    @cached_property
    def _head(self) -> str:
        """The text between the words of the user and a turn."""
        form = self.form or MessageForm()
        said = (CONTENT, ()), ("", (call_of(0),)), (CONTENT, (call_of(0),))
        texts = [self.text(form.of([_ASKED]), has_prompt=True)]
        texts += [self.text(form.of([_ASKED, _answer(content, calls, "")])) for content, calls in said]
        return common_begin(rest for rest in map(self._behind_user, texts) if rest is not None)

    @staticmethod
    def _behind_user(text: str | None) -> str | None:
        """The text behind the words of the user, and the mark that closes the one before them."""
        if text is None or USER not in text:
            return None
        before, _, rest = text.rpartition(USER)
        begin = re.search(rf"({MARK.pattern})\s*$", before[-90:])
        end = re.match(rf"\s*({MARK.pattern})", rest)
        return rest[end.end() :] if begin and end and is_pair(begin[1], end[1]) else rest


_ASKED: Final[Message] = {"role": "user", "content": USER}


def _answer(content: str, calls: Sequence[ToolCall], thought: str) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if thought:
        message |= dict.fromkeys(REASONING_NAMES, thought)
    if calls:
        functions = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in calls]
        message["tool_calls"] = [{"type": "function", "id": id, "function": function} for id, function in functions]
    return message


def call_of(number: int, arguments: dict[str, Any] | None = None, name_of_id: str | None = None) -> ToolCall:
    """A call of a tool by number, from 0 on; with an argument that is a word."""
    arguments = {KEYS[0]: VALUES[0]} if arguments is None else arguments
    return ToolCall(TOOLS[number], arguments, name_of_id or IDS[number])


def _definition(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": "string", "description": "x"} for key in KEYS}}
    function = {"name": name, "description": "x", "parameters": {**parameters, "required": [KEYS[0]]}}
    return {"type": "function", "function": function}


# --- texts in common --------------------------------------------------------------------------------------------------


def common_begin(texts: Iterable[str]) -> str:
    """The common beginning of all texts: a whole one of them, or less the piece of a mark or of a word."""
    listed = [*texts]
    shared = shared_begin(listed)
    if shared in listed:
        return shared
    return shared[: min((whole_places(text, len(shared))[0] for text in listed), default=0)]


def common_end(texts: Iterable[str]) -> str:
    """The common end of all texts, in the same way."""
    listed = [*texts]
    shared = shared_end(listed)
    if shared in listed:
        return shared
    rests = (len(text) - whole_places(text, len(text) - len(shared))[1] for text in listed)
    return shared[len(shared) - min(rests, default=len(shared)) :]


def whole_places(text: str, place: int) -> tuple[int, int]:
    """The nearest places up to a place and from it on at which neither a mark nor a word is divided."""
    around = (found.span() for found in _UNDIVIDED.finditer(text) if found.start() < place < found.end())
    return next(around, (place, place))


def _empty_thought(text: str) -> str:
    """The empty thought at the beginning of a text, which opens something and closes it; empty without one."""
    found = _EMPTY_THOUGHT.match(text)
    return found[0] if found and is_pair(found[1], found[2]) else ""


def is_pair(one: str, other: str) -> bool:
    """Whether a mark opens what another one closes: ``<think>`` and ``</think>``."""
    return one != other and _without_side(one) == _without_side(other)


def _without_side(mark: str) -> str:
    return re.sub(r"START|END|begin|end|[/|]", "", mark).casefold()


def _behind(text: str, word: str) -> str:
    return text[text.rindex(word) + len(word) :] if word in text else ""


def _end_of(text: str, least: int, eos: str) -> str:
    """The end of a turn that shares none with others: from the token that ends texts on, or the last mark."""
    places = [text.find(eos, least), *(found.start() for found in MARK.finditer(text) if found.start() >= least)]
    return _with_blanks(text, places[0] if places[0] >= 0 else places[-1]) if max(places) >= 0 else ""


def _from_first(text: str, end: str, mark: str) -> str:
    """The end of a text from where its first mark stands first."""
    place = text.find(mark)
    return end if place < 0 or place >= len(text) - len(end) else _with_blanks(text, place)


def _with_blanks(text: str, place: int) -> str:
    """A text from a place on, with the blanks before it."""
    return text[len(text[:place].rstrip()) :]
