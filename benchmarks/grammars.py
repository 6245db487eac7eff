"""Token masks under context-free grammars beside llguidance's and XGrammar's: the same grammars, texts and tokens.

    python -m benchmarks.grammars [--tokenizer FOLDER] [--repeats 3] [--engines decodekit llguidance xgrammar]

The grammars are in `benchmarks/grammars`, written so that all engines can do them; llguidance and decodekit read them
as they are, XGrammar gets them in its own notation. The texts are the accepted examples of the library's grammars of
these names and random members; a text that an engine refuses is counted and left out for all. An engine compiles a
grammar once, then reads every text with a matcher of its own: per token the mask, then the token. Times are CPU times
of this process in microseconds, after each engine has made masks of another grammar. Repetitions start with a grammar
that is compiled anew, each in another order of the engines; an engine whose first pass takes minutes has no other.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import decodekit as dk
from benchmarks import record
from decodekit.constraints.grammar.lark import lark_tree as tree
from decodekit.constraints.grammar.lark.lark_syntax import parse as parse_lark
from decodekit.constraints.grammar.source import Source
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.regex.syntax import parse as parse_regex
from decodekit.constraints.regex.tree import Alternation, Chars, Concatenation, Quantified, Tree
from decodekit.vocabulary import Vocabulary

FOLDER = Path(__file__).parent / "grammars"
LIBRARY = Path(__file__).parent.parent / "grammars"
GRAMMARS = {"json": "json", "arithmetic": "arithmetic", "sql": "sql", "python": "python_expression"}
SLOW_S = 60.0  # an engine whose first pass takes longer is not asked again


class Session(Protocol):
    """One text under one grammar."""

    def mask(self) -> None:
        """Compute the allowed tokens."""

    def commit(self, token: int) -> bool:
        """Take a token; False if it is not allowed."""

    def is_whole(self) -> bool:
        """Whether the text may end."""


Compiled = Callable[[], Session]


class Decodekit:
    """Our engine."""

    def __init__(self, tokenizer: Any) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.bitmask = np.zeros((1, self.vocabulary.num_mask_words), np.int32)

    def compile(self, text: str) -> Compiled:
        """Not by `dk.compile`, which would give the grammar of the last repetition."""
        grammar = CompiledGrammar(dk.Grammar(text, syntax="lark"), self.vocabulary)
        return lambda: _DecodekitSession(grammar.matcher(), self.bitmask)


class _DecodekitSession:
    def __init__(self, matcher: Any, bitmask: npt.NDArray[np.int32]) -> None:
        self.matcher, self.bitmask = matcher, bitmask

    def mask(self) -> None:
        self.matcher.fill_bitmask(self.bitmask)

    def commit(self, token: int) -> bool:
        return bool(self.matcher.accept(token))

    def is_whole(self) -> bool:
        return bool(self.matcher.is_accepting)


class LLGuidance:
    """llguidance, with the grammar in Lark's language."""

    def __init__(self, tokenizer: Any) -> None:
        self.lib = importlib.import_module("llguidance")
        self.tokenizer = importlib.import_module("llguidance.hf").from_tokenizer(tokenizer, n_vocab=len(tokenizer))
        self.words = np.zeros((len(tokenizer) + 31) // 32, np.int32)

    def compile(self, text: str) -> Compiled:
        """A matcher that is copied for every text.

        Raises:
            ValueError: llguidance refuses the grammar.
        """
        grammar = json.dumps({"grammars": [{"lark_grammar": text}]})
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return lambda: _LLGuidanceSession(matcher.deep_copy(), self.words)


class _LLGuidanceSession:
    def __init__(self, matcher: Any, words: npt.NDArray[np.int32]) -> None:
        self.matcher, self.pointer, self.num_bytes = matcher, words.ctypes.data, words.nbytes

    def mask(self) -> None:
        self.matcher.unsafe_compute_mask_ptr(self.pointer, self.num_bytes)

    def commit(self, token: int) -> bool:
        return bool(self.matcher.consume_token(token))

    def is_whole(self) -> bool:
        return bool(self.matcher.is_accepting())


class XGrammar:
    """XGrammar, with the grammar in its notation."""

    def __init__(self, tokenizer: Any) -> None:
        xgrammar = importlib.import_module("xgrammar")
        self.lib = xgrammar
        self.info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self.bitmask = xgrammar.allocate_token_bitmask(1, self.info.vocab_size)

    def compile(self, text: str) -> Compiled:
        """Without a cache, as every repetition compiles anew."""
        compiler = self.lib.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        grammar = compiler.compile_grammar(to_ebnf(text))
        return lambda: _XGrammarSession(self.lib.GrammarMatcher(grammar), self.bitmask)


class _XGrammarSession:
    def __init__(self, matcher: Any, bitmask: Any) -> None:
        self.matcher, self.bitmask = matcher, bitmask

    def mask(self) -> None:
        self.matcher.fill_next_token_bitmask(self.bitmask)

    def commit(self, token: int) -> bool:
        return bool(self.matcher.accept_token(token))

    def is_whole(self) -> bool:
        return bool(self.matcher.is_completed())


ENGINES: dict[str, Callable[[Any], Any]] = {"decodekit": Decodekit, "llguidance": LLGuidance, "xgrammar": XGrammar}


def to_ebnf(text: str) -> str:
    """A Lark grammar without templates, imports and lookaround in the notation of XGrammar and llama.cpp."""
    module = parse_lark(Source(text))
    blanks = "blanks " if module.ignored else ""  # before every terminal, and at the end
    lines = [f"root ::= {_rule_name('start')} {blanks}"]
    if module.ignored:
        lines.append(f"blanks ::= ({' | '.join(map(_ebnf, module.ignored))})*")
    lines += (f"{_rule_name(d.name)} ::= {_ebnf(d.body, '' if d.is_terminal else blanks)}" for d in module.definitions)
    return "\n".join(lines) + "\n"


def _rule_name(name: str) -> str:
    return f"t{name}" if name.lstrip("_").isupper() else f"r{name}"


def _ebnf(item: tree.Term, blanks: str = "") -> str:
    if isinstance(item, tree.Name):
        return f"({blanks}{_rule_name(item.name)})" if tree.is_terminal_name(item.name) else _rule_name(item.name)
    if isinstance(item, tree.Quoted):
        letters = [sorted({c.lower(), c.upper()}) if item.ignores_case else [c] for c in item.text]
        if all(len(some) == 1 for some in letters):
            return f"({blanks}{json.dumps(item.text)})"
        classes = ("[" + "".join(_class_char(ord(c)) for c in some) + "]" for some in letters)
        return f"({blanks}{' '.join(classes)})"
    if isinstance(item, tree.Pattern):
        return f"({blanks}{_of_regex(parse_regex(item.pattern, 'python', item.flags))})"
    if isinstance(item, tree.Series):
        return "(" + " ".join(_ebnf(part, blanks) for part in item.items) + ")" if item.items else '""'
    if isinstance(item, tree.Options):
        return "(" + " | ".join(_ebnf(option, blanks) for option in item.options) + ")"
    if isinstance(item, tree.Counted):
        return _counted(_ebnf(item.item, blanks), item.min, item.max)
    raise TypeError(f"{type(item).__name__} has no place in a grammar of this benchmark")


def _of_regex(item: Tree) -> str:
    if isinstance(item, Chars):
        return "[" + "".join(f"{_class_char(low)}-{_class_char(high)}" for low, high in item.ranges) + "]"
    if isinstance(item, Concatenation):
        return "(" + " ".join(map(_of_regex, item.items)) + ")" if item.items else '""'
    if isinstance(item, Alternation):
        return "(" + " | ".join(map(_of_regex, item.options)) + ")"
    if isinstance(item, Quantified):
        return _counted(_of_regex(item.item), item.min, item.max)
    raise TypeError(f"{type(item).__name__} has no place in a pattern of this benchmark")


def _counted(item: str, low: int, high: int | None) -> str:
    if (low, high) in ((0, None), (1, None), (0, 1)):
        return f"{item}{'+' if low else '*' if high is None else '?'}"
    return f"{item}{{{low},{'' if high is None else high}}}"


def _class_char(code: int) -> str:
    if code < 0x80 and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"


def texts_of(name: str, text: str, num_members: int) -> list[str]:
    """Examples of the library, and random members of the grammar of this benchmark."""
    examples = json.loads((LIBRARY / f"{GRAMMARS[name]}.examples.json").read_text(encoding="utf-8"))["accepts"]
    grammar = dk.Grammar(text, syntax="lark")
    members = [dk.sample_text(grammar, seed=seed, size=60) for seed in range(num_members)]
    return [*dict.fromkeys([*examples, *members])]


def read_texts(compiled: Compiled, texts: list[list[int]]) -> tuple[list[float], list[bool]]:
    """Microseconds per token (mask and commit) over all texts, and which texts were read to their end."""
    times: list[float] = []
    whole: list[bool] = []
    for tokens in texts:
        session, is_read = compiled(), True
        for token in tokens:
            start = time.process_time_ns()
            session.mask()
            is_read = session.commit(token)
            times.append((time.process_time_ns() - start) / 1000)
            if not is_read:
                break
        whole.append(is_read and session.is_whole())
    return times, whole


def figures(times: list[float]) -> dict[str, float]:
    """Mean and percentiles, microseconds."""
    return {
        "mean": round(float(np.mean(times)), 1),
        **{f"p{p}": round(float(np.percentile(times, p)), 1) for p in (50, 90, 99)},
        "max": round(max(times), 1),
    }


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="folder of a Hugging Face tokenizer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--members", type=int, default=100, help="random texts of each grammar")
    parser.add_argument("--engines", nargs="+", choices=sorted(ENGINES), default=list(ENGINES))
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    missing = [name for name in options.engines if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; pip install them, or choose others with --engines")
    engines = {name: ENGINES[name](tokenizer) for name in options.engines}
    for engine in engines.values():
        read_texts(engine.compile('start: ("a" | start "b")+ / [a-z]*/'), [tokenizer.encode("ab abc")])
    rows: list[dict[str, Any]] = []
    rng = random.Random(0)
    for name in GRAMMARS:
        text = (FOLDER / f"{name}.lark").read_text(encoding="utf-8")
        tokens = [tokenizer.encode(one, add_special_tokens=False) for one in texts_of(name, text, options.members)]
        times: dict[str, list[float]] = {key: [] for key in engines}
        compiling: dict[str, list[float]] = {key: [] for key in engines}
        accepted: dict[str, list[bool]] = {}
        slow: set[str] = set()
        for repetition in range(options.repeats + 1):
            common = [one for n, one in enumerate(tokens) if all(read[n] for read in accepted.values())]
            for key in rng.sample(list(engines), len(engines)):
                if key in slow:
                    continue
                start = time.process_time_ns()
                compiled = engines[key].compile(text)
                compiled().mask()
                compiling[key].append((time.process_time_ns() - start) / 1e6)
                found, whole = read_texts(compiled, common if repetition else tokens)
                if repetition:
                    times[key] += found
                else:  # only to see which texts all engines accept
                    accepted[key] = whole
                    if sum(found) > SLOW_S * 1e6:
                        slow.add(key)
                        times[key] = found
        rows += (
            {
                "grammar": name,
                "engine": key,
                "texts": len(common),
                "of": len(tokens),
                "accepted": sum(accepted[key]),
                "tokens": sum(map(len, common)),
                "first mask ms": round(float(np.median(compiling[key])), 2),
                **figures(times[key]),
            }
            for key in engines
        )
        print(name, "done", flush=True)
    table = Table(title="microseconds per token, mask and commit; CPU time")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=160).print(table)
    if not options.no_record:
        about = {
            "engine_versions": {name: importlib.metadata.version(name) for name in engines if name != "decodekit"},
            "tokenizer": f"{Path(options.tokenizer).name}, {len(tokenizer):,} tokens",
            "repeats": options.repeats,
            "clock": "CPU time of the process",
        }
        record.write("grammars", rows, **about)


if __name__ == "__main__":
    main()
