"""What a constraint costs per generated token: asked about single tokens, with masks, and in llguidance and XGrammar.

    python -m benchmarks.constrained [--schemas 60] [--texts 60] [--batch 1 8 64] [--likes 1.0 0.99 0.9]

No model runs: a stand-in hands out logits that prefer the next token of a known instance, so that all engines are asked
about the same tokens. With probability 1 - q it prefers a token that the constraint forbids. *Cold*: schemas of
MaskBench's development split, each met for the first time; *warm*: texts of one schema after each other.

decodekit's figure is CPU time of the whole loop with the constraint, less that of the same loop in free text, per
token: questions, masks, their use and the steps of the matcher, all overhead included; forced tokens are not taken
unseen. What the stand-in takes for its logits is left out of both. The figure is below zero where free text would have
taken longer to draw its tokens than it took to find out that they may come. A peer's figure is the time of its own
calls: fill a mask, apply it to logits with the peer's own kernel, and advance; what its loop would add is not counted.
The vocabularies are Mistral's: Tekken with 131,072 tokens, and the SentencePiece model of 32,000 before it.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import importlib
import importlib.util
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.closing import forget
from benchmarks.masks import DEV, make_tokenizer
from benchmarks.own_schemas import SCHEMAS
from decodekit.constraints import CompiledGrammar, JsonSchema, as_constraint, compile
from decodekit.constraints.author.members import sample_texts
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Masking, Settings
from decodekit.errors import DecodekitError
from decodekit.strategy import Greedy, Sample, Strategy, lead_of
from decodekit.testing.toy import ToyLM
from decodekit.vocabulary import Vocabulary

STRATEGIES: Final[dict[str, Strategy]] = {
    "greedy": Greedy(),
    "sampled": Sample(temperature=0.8, top_k=50, top_p=0.95, min_p=0.05),
    "top-p": Sample(top_p=0.95),
}
WAYS: Final[tuple[Masking, ...]] = ("asked", "always")
NUM_ROWS: Final = 16  # different rows of background logits
PREFERRED: Final = 24.0  # above the background, whose standard deviation is 2
MAX_TOKENS: Final = 200  # of an instance


@dataclass(frozen=True)
class Text:
    """An instance of a schema as tokens, the end of the text included."""

    schema: Any
    tokens: tuple[int, ...]
    liked: tuple[int, ...]  # what the model prefers at each position


class Replay(ToyLM):
    """A toy model whose logits prefer the tokens of known texts; a prompt is the number of a text."""

    def __init__(self, texts: Sequence[Text], vocabulary: Vocabulary) -> None:
        self.texts, self.vocab_size, self.eos_token_ids = texts, vocabulary.size, vocabulary.eos_token_ids
        generator = torch.Generator().manual_seed(0)
        self.background = 2 * torch.randn(NUM_ROWS, vocabulary.size, generator=generator)
        self.forward_s = 0.0  # CPU seconds

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """The logits, timed."""
        begin = time.process_time()
        logits = super().forward(*arguments, **options)
        self.forward_s += time.process_time() - begin
        return logits

    def logits_after(self, prefix: Sequence[int]) -> Tensor:
        """Logits after the number of a text and some tokens, float32 [V]."""
        known, position = self.texts[prefix[0]], len(prefix) - 1
        row = self.background[position % NUM_ROWS].clone()
        if position < len(known.tokens):
            row[known.tokens[position]] = PREFERRED
            if known.liked[position] != known.tokens[position]:
                row[known.liked[position]] = PREFERRED + 6
        return row


def instances(tokenizer: Any, num_schemas: int, seed: int) -> Iterator[tuple[Any, list[int]]]:
    """Valid instances of schemas of the development split, one each, as tokens; what an engine refuses is left out."""
    with gzip.open(DEV, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(seed).shuffle(rows)
    found = 0
    for row in rows:
        data = next((test["data"] for test in row["tests"] if test.get("valid")), None)
        if found == num_schemas or data is None:
            continue
        tokens = tokenizer.encode(json.dumps(data, ensure_ascii=False), add_special_tokens=False)
        if 8 <= len(tokens) <= MAX_TOKENS:
            found += 1
            yield row["schema"], tokens


def written(tokenizer: Any, num_texts: int) -> Iterator[tuple[Any, list[int]]]:
    """Texts of one of the project's own schemas."""
    schema = SCHEMAS["orders"]
    for text, _ in zip(sample_texts(as_constraint(schema), size=200), range(num_texts), strict=False):
        yield schema, tokenizer.encode(text, add_special_tokens=False)[:MAX_TOKENS]


def compiled(schema: Any, vocabulary: Vocabulary) -> CompiledGrammar:
    """A schema as MaskBench's instances need it."""
    return compile(JsonSchema(schema, whitespace="any", escapes="any", numbers="any", order="any"), vocabulary)


def texts_of(pairs: Iterable[tuple[Any, list[int]]], vocabulary: Vocabulary, like: float, seed: int) -> list[Text]:
    """The instances that the engine accepts, with what a model prefers that knows them with the probability `like`."""
    rng, (eos, *_) = random.Random(seed), sorted(vocabulary.eos_token_ids)
    found = []
    for schema, tokens in pairs:
        try:
            matcher = compiled(schema, vocabulary).matcher()
        except DecodekitError:
            continue
        whole, liked = [*tokens, eos], list[int]()
        for token in whole:
            other = next(
                (t for t in (rng.randrange(vocabulary.size) for _ in range(20)) if not matcher.validate([t])), token
            )
            liked.append(token if rng.random() < like else other)
            if not matcher.accept(token):
                break
        else:
            found.append(Text(schema, tuple(whole), tuple(liked)))
    return found


def looped(
    texts: Sequence[Text],
    grammars: Sequence[CompiledGrammar | None],
    vocabulary: Vocabulary,
    batch: int,
    settings: Settings,
) -> tuple[float, int, int, int]:
    """CPU seconds of the loop without its model, tokens, masks, questions."""
    model = Replay(texts, vocabulary)
    requests = [
        Request((index,), None if grammar is None else grammar.matcher(), seed=index)
        for index, grammar in enumerate(grammars)
    ]
    num_tokens = num_masks = num_questions = 0
    begin = time.process_time()
    for update in decode_texts(model, settings, batch, requests):
        if update.result is not None:
            num_tokens += len(update.result.token_ids)
            num_masks += update.result.stats.num_masks
            num_questions += update.result.stats.num_questions
    return time.process_time() - begin - model.forward_s, num_tokens, num_masks, num_questions


class LLGuidance:
    """llguidance, and its kernel for torch."""

    def __init__(self, tokenizer: Any) -> None:
        self.lib = importlib.import_module("llguidance")
        self.kernel = importlib.import_module("llguidance.torch")
        self.tokenizer = importlib.import_module("llguidance.hf").from_tokenizer(tokenizer, n_vocab=len(tokenizer))

    def compile(self, schema: Any) -> Callable[[], Any]:
        """What makes matchers; raises ValueError for what it refuses."""
        matcher = self.lib.LLMatcher(self.tokenizer, json.dumps({"grammars": [{"json_schema": schema}]}), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return lambda: matcher.deep_copy()

    def fill(self, matcher: Any, bitmask: Tensor, row: int) -> None:
        """The mask of a row."""
        self.kernel.fill_next_token_bitmask(matcher, bitmask, row)

    def apply(self, logits: Tensor, bitmask: Tensor) -> None:
        """All rows, in place."""
        self.kernel.apply_token_bitmask_inplace(logits, bitmask)

    def advance(self, matcher: Any, token: int) -> bool:
        """One token."""
        return bool(matcher.consume_token(token))


class XGrammar:
    """XGrammar, any white space and strict mode off as MaskBench has it, and its kernel for a CPU."""

    def __init__(self, tokenizer: Any) -> None:
        self.lib = importlib.import_module("xgrammar")
        info = self.lib.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self.compiler = self.lib.GrammarCompiler(info, max_threads=1)

    def compile(self, schema: Any) -> Callable[[], Any]:
        """What makes matchers; raises RuntimeError for what it refuses."""
        grammar = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        return lambda: self.lib.GrammarMatcher(grammar)

    def fill(self, matcher: Any, bitmask: Tensor, row: int) -> None:
        """The mask of a row."""
        matcher.fill_next_token_bitmask(bitmask, row)

    def apply(self, logits: Tensor, bitmask: Tensor) -> None:
        """All rows, in place."""
        self.lib.apply_token_bitmask_inplace(logits, bitmask)

    def advance(self, matcher: Any, token: int) -> bool:
        """One token."""
        return bool(matcher.accept_token(token))


PEERS: Final = {"llguidance": LLGuidance, "xgrammar": XGrammar}


def of_peer(peer: Any, texts: Sequence[Text], vocab_size: int, batch: int) -> tuple[dict[str, float], int]:
    """Seconds of filling, applying and advancing, over the texts that the peer takes; and their tokens."""
    num_tokens, seconds = 0, {"fill": 0.0, "apply": 0.0, "advance": 0.0}
    waiting, rows = list(texts), list[tuple[Any, Text, int]]()
    bitmask = torch.full((batch, -(-vocab_size // 32)), -1, dtype=torch.int32)
    logits = torch.zeros(batch, vocab_size)
    for size in (batch, max(1, batch - 1), max(1, batch // 2)):  # kernels are compiled by first calls, also per shape
        peer.apply(logits[:size], bitmask[:size])
    makers = {id(text.schema): _maker(peer, text.schema) for text in texts}
    while waiting or rows:
        while waiting and len(rows) < batch:
            text = waiting.pop(0)
            if (new := makers[id(text.schema)]) is not None:
                rows.append((new(), text, 0))
        if not rows:
            break
        times = [_clocks()]
        for row, (matcher, _, _) in enumerate(rows):
            peer.fill(matcher, bitmask, row)
        times.append(_clocks())
        peer.apply(logits[: len(rows)], bitmask[: len(rows)])
        times.append(_clocks())
        going = []
        for matcher, text, place in rows:
            if peer.advance(matcher, text.tokens[place]):
                num_tokens += 1
                if place + 1 < len(text.tokens):
                    going.append((matcher, text, place + 1))
        times.append(_clocks())
        for name, begin, end in zip(seconds, times, times[1:], strict=False):
            seconds[name] += min(after - before for before, after in zip(begin, end, strict=True))
        rows = going
    return seconds, num_tokens


def _clocks() -> tuple[float, float]:
    """Seconds of the wall, which other work adds to, and of the process, which threads add to; the smaller counts."""
    return time.perf_counter(), time.process_time()


def _maker(peer: Any, schema: Any) -> Callable[[], Any] | None:
    try:
        made: Callable[[], Any] = peer.compile(schema)
    except (ValueError, RuntimeError):
        return None
    return made


def measured(
    texts: Sequence[Text], vocabulary: Vocabulary, batch: int, strategy: str, *, is_cold: bool, repeats: int
) -> dict[str, Any]:
    """Microseconds of the constraint per token, asked and always masked; medians of runs between runs of free text."""
    chosen = STRATEGIES[strategy]
    base = Settings(
        vocabulary, chosen.pipeline, chosen.select, MAX_TOKENS + 1, fast_forward="off", lead=lead_of(chosen)
    )
    looped(texts[:2], [None] * 2, vocabulary, batch, base)  # compiled code is loaded
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    row: dict[str, Any] = {}
    for _ in range(repeats):
        free = looped(texts, [None] * len(texts), vocabulary, batch, base)
        for way in WAYS:
            if is_cold:
                forget()
            grammars = {id(text.schema): compiled(text.schema, vocabulary) for text in texts}
            gc.collect()
            own = [grammars[id(text.schema)] for text in texts]
            if not is_cold:
                looped(texts[:10], own[:10], vocabulary, batch, replace(base, masks=way))
            seconds, num_tokens, num_masks, num_questions = looped(
                texts, own, vocabulary, batch, replace(base, masks=way)
            )
            costs[way].append(1e6 * (seconds / num_tokens - free[0] / free[1]))
            if way == "asked":
                row |= {"num_tokens": num_tokens, "without_mask": round(1 - num_masks / num_tokens, 4)}
                row["questions_per_token"] = round(num_questions / num_tokens, 3)
    return {**row, **{f"{way}_us": round(statistics.median(found), 1) for way, found in costs.items()}}


def main() -> None:
    """Measure, print, write ``results/constrained.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=60, help="schemas that are met cold, one instance each")
    parser.add_argument("--texts", type=int, default=60, help="texts of the schema that is met warm")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64], help="rows")
    parser.add_argument("--likes", type=float, nargs="+", default=[1.0, 0.99, 0.9], help="how often the model is right")
    parser.add_argument("--strategies", nargs="+", default=["greedy", "sampled"], choices=list(STRATEGIES))
    parser.add_argument("--vocabularies", nargs="+", default=list(VOCABULARIES), choices=list(VOCABULARIES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    average = os.getloadavg()[0]
    torch.set_num_threads(1)
    found = [row for name in arguments.vocabularies for row in rows_of(name, arguments)]
    record.write(
        "constrained",
        found,
        question="CPU microseconds of a constraint per generated token in the loop",
        tokenizers="Tekken and the SentencePiece model of mistral_common",
        load_average=round(average, 2),
    )


def rows_of(name: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one vocabulary; each is printed."""
    tokenizer, vocabulary = load(name)
    peers = {peer: kind(tokenizer) for peer, kind in PEERS.items() if importlib.util.find_spec(peer)}
    for temper in ("cold", "warm"):
        pairs = list(
            instances(tokenizer, arguments.schemas, arguments.seed)
            if temper == "cold"
            else written(tokenizer, arguments.texts)
        )
        for like in arguments.likes:
            texts = texts_of(pairs, vocabulary, like, arguments.seed)
            for batch in arguments.batch:
                of_peers: dict[str, float] = {}
                for peer, engine in peers.items() if like == arguments.likes[0] else ():
                    parts, num_tokens = of_peer(engine, texts, vocabulary.size, batch)
                    of_peers |= {f"{peer}_{part}_us": round(1e6 * one / num_tokens, 1) for part, one in parts.items()}
                    of_peers[f"{peer}_tokens"] = num_tokens
                for strategy in arguments.strategies:
                    own = measured(
                        texts, vocabulary, batch, strategy, is_cold=temper == "cold", repeats=arguments.repeats
                    )
                    case = {"vocabulary": name, "temper": temper, "like": like, "batch": batch, "strategy": strategy}
                    row = {**case, **own, **of_peers}
                    print(row, flush=True)
                    yield row


def load(name: str) -> tuple[Any, Vocabulary]:
    """A tokenizer, and its vocabulary."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="decodekit-constrained-") as folder:
        VOCABULARIES[name](Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


def make_sentencepiece(folder: Path) -> None:
    """Write the SentencePiece tokenizer with 32,000 tokens of Mistral 7B into a folder, without a prefix space."""
    import mistral_common
    import sentencepiece
    from transformers import LlamaTokenizer
    from transformers.convert_slow_tokenizer import generate_merges

    model = str(Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1")
    pieces = sentencepiece.SentencePieceProcessor(model_file=model)
    ids = {pieces.id_to_piece(index): index for index in range(pieces.get_piece_size())}
    scores = {piece: pieces.get_score(index) for piece, index in ids.items()}
    LlamaTokenizer(vocab=ids, merges=generate_merges(ids, scores), add_prefix_space=False).save_pretrained(folder)


VOCABULARIES: Final[dict[str, Callable[[Path], None]]] = {"tekken": make_tokenizer, "sentencepiece": make_sentencepiece}


if __name__ == "__main__":
    main()
