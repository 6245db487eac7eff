"""XGrammar (https://github.com/mlc-ai/xgrammar), read with version 0.2.8: pushdown automata, with masks prepared for
what does not depend on the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.integrations.backends.peer import MatcherText, form_of, load, refused
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class XGrammar:
    """XGrammar as a `Peer`; its options for JSON."""

    any_whitespace: bool = True
    indent: int | None = None
    separators: tuple[str, str] | None = None
    strict_mode: bool = True
    max_whitespace_cnt: int | None = None
    any_order: bool = False
    name: ClassVar[str] = "xgrammar"

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], XGrammarText]:
        """Its compiled grammar, without a cache: ours keeps it. Raises what `Peer.compile` raises."""
        lib = load("xgrammar", "xgrammar")
        form = form_of(constraint, self.name, ("schema", "pattern", "lark", "gbnf"))
        compiler = lib.GrammarCompiler(tokenizer_of(vocabulary), max_threads=1, cache_enabled=False)
        try:
            if form.kind == "schema":
                grammar = compiler.compile_json_schema(form.text, **asdict(self))
            else:
                method = {"pattern": "compile_regex", "lark": "compile_lark", "gbnf": "compile_grammar"}[form.kind]
                grammar = getattr(compiler, method)(form.text)
        except Exception as error:  # it has errors of its own for each front end, and RuntimeError for all else
            raise refused(self.name, error) from error
        return lambda: XGrammarText(lib.GrammarMatcher(grammar))


@lru_cache(maxsize=4)
def tokenizer_of(vocabulary: Vocabulary) -> Any:
    """The vocabulary as XGrammar has it: bytes as they are, those of no bytes never text."""
    lib = load("xgrammar", "xgrammar")
    rows = [data or b"" for data in vocabulary.token_bytes]
    eos = sorted(vocabulary.eos_token_ids)
    return lib.TokenizerInfo(rows, lib.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=eos)


class XGrammarText(MatcherText):
    """A text in XGrammar."""

    __slots__ = ()

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self.matcher.is_completed())

    def fill(self, words: Int32Array) -> None:
        """The allowed tokens; it says False where all are, and writes nothing."""
        import torch

        if not self.matcher.fill_next_token_bitmask(torch.from_numpy(words)[None], 0):
            words[:] = -1

    def accept(self, token: int) -> bool:
        """Go on with a token."""
        return bool(self.matcher.accept_token(token))

    def fork(self) -> XGrammarText:
        """A copy."""
        return XGrammarText(self.matcher.fork())

    def forced_text(self) -> bytes:
        """Its jump-forward string."""
        return str(self.matcher.find_jump_forward_string()).encode()
