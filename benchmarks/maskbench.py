"""decodekit's constraint engine as a plug-in of a MaskBench-style runner.

    PYTHONPATH=. python .../maskbench.py --engine benchmarks.maskbench:Engine --tokenizer FOLDER --data dev.jsonl.gz

The runner hands over a vocabulary (`size`, `eos_token_id`, `token_bytes`), compiles JSON Schemas and asks for the mask
before every token of some instances. Nothing is prepared here that depends on a schema.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from decodekit.constraints import CompiledGrammar, JsonSchema, allocate_bitmask
from decodekit.constraints import compile as compile_constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.matching.matcher import Matcher
from decodekit.vocabulary import Vocabulary


class BenchVocabulary(Protocol):
    """What the runner knows of a tokenizer."""

    size: int
    eos_token_id: int
    token_bytes: Sequence[bytes | None]


class Engine:
    """Schemas of one vocabulary.

    Args:
        vocab: the runner's vocabulary.
        format: ``"assert"`` or ``"annotate"``: whether known formats limit strings.
        whitespace, order, escapes, numbers: as `JsonSchema` takes them. By default everything that JSON allows: the
            instances of MaskBench are texts of other hands.

    The runner's attribute ``remotes`` (documents by URI), where it has one, is the registry for references.
    """

    def __init__(
        self,
        vocab: BenchVocabulary,
        format: str = "assert",
        whitespace: str = "any",
        order: str = "any",
        escapes: str = "any",
        numbers: str = "any",
    ) -> None:
        self._vocabulary = Vocabulary(vocab.token_bytes, [vocab.eos_token_id], vocab.size)
        # As in any server: what is loaded by now stays, so the garbage collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        self._options: dict[str, Any] = {
            "format": format, "whitespace": whitespace, "order": order, "escapes": escapes, "numbers": numbers
        }  # fmt: skip
        self._registry: Mapping[str, object] | None = getattr(vocab, "remotes", None) or None

    def compile(self, schema: Any) -> Callable[[], Session]:
        """A factory of sessions.

        Raises:
            ConstraintError: the schema is malformed, not supported, too large or not satisfiable.
        """
        constraint = JsonSchema(schema, registry=self._registry, **self._options)
        grammar = compile_constraint(constraint, self._vocabulary)
        return lambda: Session(grammar)


class Session:
    """One text under one schema."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._matcher: Matcher = grammar.matcher()
        self._rows = allocate_bitmask(1, grammar.vocabulary.size)
        self._row: Int32Array = self._rows[0]

    def mask(self) -> Int32Array:
        """The allowed tokens, int32 [words], the bit of the end-of-text token where the text may end."""
        self._matcher.fill_bitmask(self._rows)
        return self._row

    def commit(self, token: int) -> bool:
        """Go on with a token; False if it is not allowed."""
        return self._matcher.accept(token)

    def reset(self) -> None:
        """Begin again."""
        self._matcher = self._grammar.matcher()

    def error(self) -> str | None:
        """Nothing can go wrong silently."""
        return None
