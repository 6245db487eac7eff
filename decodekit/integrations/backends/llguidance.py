"""llguidance (https://github.com/guidance-ai/llguidance), read with version 1.9: a lexer of derivatives, an Earley
parser, and a walk over the trie of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.integrations.backends.peer import MatcherText, form_of, load, refused, token_ids_by_bytes
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class LLGuidance:
    """llguidance as a `Peer`.

    Args:
        whitespace_flexible, whitespace_pattern, item_separator, key_separator, coerce_one_of, lenient: its options for
            JSON; None leaves them as they are there.
    """

    whitespace_flexible: bool | None = None
    whitespace_pattern: str | None = None
    item_separator: str | None = None
    key_separator: str | None = None
    coerce_one_of: bool | None = None
    lenient: bool | None = None
    name: ClassVar[str] = "llguidance"

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], LLGuidanceText]:
        """A matcher that is copied for every text; raises what `Peer.compile` raises."""
        lib = load("llguidance", "llguidance")
        form = form_of(constraint, self.name, ("schema", "pattern", "lark", "gbnf"))
        options = {name: value for name, value in asdict(self).items() if value is not None}
        try:
            if form.kind == "schema":
                grammar = lib.LLMatcher.grammar_from_json_schema(form.text, overrides=options or None)
            elif form.kind == "pattern":
                grammar = lib.LLMatcher.grammar_from_regex(form.text)
            else:
                text = form.text
                if form.kind == "gbnf":
                    text = load("llguidance.gbnf_to_lark", "llguidance").gbnf_to_lark(text)
                grammar = lib.LLMatcher.grammar_from_lark(text)
        except ValueError as error:
            raise refused(self.name, error) from error
        if not vocabulary.eos_token_ids:
            raise refused(self.name, "it needs an end-of-sequence token, and the vocabulary has none")
        first = lib.LLMatcher(tokenizer_of(vocabulary), grammar, log_level=0)
        if first.is_error():
            raise refused(self.name, first.get_error())
        return lambda: LLGuidanceText(first.deep_copy())


@lru_cache(maxsize=4)
def tokenizer_of(vocabulary: Vocabulary) -> Any:
    """The vocabulary as llguidance has it. Texts are divided greedily, which masks do not depend on."""
    lib = load("llguidance", "llguidance")
    token_of, longest = token_ids_by_bytes(vocabulary)

    class Tokens(SimpleNamespace):
        def __call__(self, text: bytes | str) -> list[int]:
            """The longest tokens first; bytes that no token begins with are left out."""
            data = text.encode() if isinstance(text, str) else text
            tokens, position = [], 0
            while position < len(data):
                ends = range(min(position + longest, len(data)), position, -1)
                end = next((end for end in ends if data[position:end] in token_of), None)
                if end is not None:
                    tokens.append(token_of[data[position:end]][0])
                position = position + 1 if end is None else end
            return tokens

    eos = sorted(vocabulary.eos_token_ids)
    tokens = Tokens(
        eos_token_id=eos[0],
        bos_token_id=None,
        tokens=[data or b"" for data in vocabulary.token_bytes],
        special_token_ids=[token for token, data in enumerate(vocabulary.token_bytes) if data is None],
    )
    return lib.LLTokenizer(lib.TokenizerWrapper(tokens), n_vocab=vocabulary.size, eos_token=eos)


class LLGuidanceText(MatcherText):
    """A text in llguidance."""

    __slots__ = ()

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self.matcher.is_accepting())

    def fill(self, words: Int32Array) -> None:
        """The allowed tokens."""
        self.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def accept(self, token: int) -> bool:
        """Go on with a token; a refusal leaves no error behind, as `consume_token` would."""
        return bool(self.matcher.try_consume_tokens([token]))

    def fork(self) -> LLGuidanceText:
        """A copy."""
        return LLGuidanceText(self.matcher.deep_copy())

    def forced_text(self) -> bytes:
        """Its fast-forward bytes."""
        return bytes(self.matcher.compute_ff_bytes())
