"""Tokens that need no forward pass of their own, on real JSON Schemas: forced, taken as canonical, drafted.

    python -m benchmarks.forced [--limit 600 | --all] [--seed 1] [--timeout 10] [--tokenizer FOLDER]

The valid instances of MaskBench's development split, as `json.dumps` writes them, stand for what a model would write:
each is divided by the tokenizer (Tekken, or the one of ``--tokenizer``) and walked as the generation loop would walk it
if the model took just these tokens. So nothing is timed, no model is asked, and the figures do not depend on the
machine. ``"compact"`` texts have no blanks, and the constraint allows none; ``"any"`` texts have those of `json.dumps`,
and the constraint allows blanks wherever JSON does.

Ways: ``forced`` takes tokens that are the only ones allowed, ``canonical`` also bytes that are the only ones allowed,
``draft`` takes what is forced and verifies a `GrammarDraft`. A run of ``forced`` or ``canonical`` that is not what
stands in the text is a run that the tokenizer would not have written: there must be none. Where llguidance is
installed, its own fast-forward tokens (`compute_ff_tokens`) go the same way.

JSON forces few bytes: every character of a key may be an escape (``"\\u006eame"`` is the key ``name``), and a
constraint allows what JSON does. Ways with ``needed`` walk under ``JsonSchema(escapes="needed")``, which allows none
where JSON needs none, as llguidance does.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import multiprocessing
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import record
from benchmarks.masks import DEV, TEKKEN, load_runner, make_tokenizer
from decodekit.constraints import JsonSchema, compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.decoding.loop.append import canonical_run
from decodekit.errors import DecodekitError
from decodekit.speculation import Context, GrammarDraft
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.speculation.verification import num_equal
from decodekit.vocabulary import Vocabulary

Count = Mapping[str, int]
Examined = dict[str, list[Count | None]]  # by way, for each text what the walk counted; None where it is refused

SEPARATORS: Final = {"compact": (",", ":"), "any": (", ", ": ")}
ORDERS: Final = ("any", "declared")
ESCAPES: Final = ("any", "needed")
WAYS: Final = ("forced", "canonical", "draft")
PEER: Final = "llguidance"
PUBLISHED: Final = {
    "share": 0.127,
    "of": "forced tokens in MaskBench, as llguidance's documentation has it; Llama 3 tokenizer",
    "source": "https://github.com/guidance-ai/llguidance/blob/main/docs/fast_forward.md",
}


# ------------------------------------------------------------------------------------------------------------- walking


def walk(
    tokens: Sequence[int],
    accept: Callable[[int], bool],
    run_after: Callable[[Sequence[int]], Sequence[int]],
    draft_after: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> Count | None:
    """Go along a text as the generation loop does, and count what costs no forward pass; None if it is refused.

    Args:
        tokens: the text; its end is not counted.
        accept: takes a token if it is allowed.
        run_after: what is taken unseen after a beginning of the text.
        draft_after: what is offered after it, where nothing is taken unseen.
    """
    text: list[int] = []

    def take(some: Sequence[int]) -> bool:
        text.extend(some)
        return all(map(accept, some))

    count = Counter(num_tokens=len(tokens))
    while len(text) < len(tokens):
        run = run_after(text)
        num_right = num_equal(run, tokens[len(text) :])
        count["num_runs"] += bool(run)
        count["num_noncanonical_runs"] += num_right < len(run)
        count["num_unseen"] += num_right
        if not take(run[:num_right]):
            return None
        if len(text) == len(tokens):
            break
        if draft_after is not None:
            draft = draft_after(text)
            num_right = num_equal(draft, tokens[len(text) :])
            count["num_offered"] += len(draft)
            # The pass that verifies a draft gives one token more, unless the text is over.
            count["num_accepted"] += num_right - (len(text) + num_right == len(tokens))
            if not take(draft[:num_right]):
                return None
        count["num_forwards"] += 1
        if not take(tokens[len(text) : len(text) + 1]):
            return None
    assert count["num_unseen"] + count["num_accepted"] + count["num_forwards"] == len(tokens)
    return count


def walk_matcher(way: str, matcher: Matcher, tokens: Sequence[int], canonical: Canonical) -> Count | None:
    """`walk` in one of the `WAYS`; None if the constraint refuses the text."""

    def run_after(text: Sequence[int]) -> Sequence[int]:
        if way != "canonical":
            return matcher.forced_tokens()
        return canonical_run(matcher.fork(), list(text), canonical, limit=len(tokens) - len(text))

    memory: dict[Any, Any] = {}

    def draft_after(text: Sequence[int]) -> Sequence[int]:
        context = Context((), text, matcher, canonical, memory)
        [draft] = GrammarDraft().propose([context], [len(tokens) - len(text)])
        return draft.tokens[: context.num_legal(draft.tokens)]

    count = walk(tokens, matcher.accept, run_after, draft_after if way == "draft" else None)
    return count if matcher.is_accepting else None


class Peer:
    """llguidance on the same texts.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        own = importlib.import_module(f"{PEER}.hf").from_tokenizer(tokenizer)
        self._new = partial(importlib.import_module(PEER).LLMatcher, own, log_level=0)

    def walks(self, schema: Any, whitespace: str, texts: Sequence[Sequence[int]]) -> list[Count | None]:
        """Its counts for each text; None where it refuses the schema or the text."""
        own = {"whitespace_flexible": whitespace == "any", "item_separator": ",", "key_separator": ":"}
        schema = {**schema, "x-guidance": own} if isinstance(schema, dict) else schema
        first = self._new(json.dumps({"grammars": [{"json_schema": schema}]}))
        return [None if first.is_error() else self._walk(first.deep_copy(), tokens) for tokens in texts]

    def _walk(self, matcher: Any, tokens: Sequence[int]) -> Count | None:
        count = walk(tokens, matcher.consume_token, lambda text: matcher.compute_ff_tokens())
        return count if matcher.is_accepting() else None


# ------------------------------------------------------------------------------------------------------------- schemas


@dataclass(frozen=True)
class Division:
    """How texts are divided into tokens.

    Args:
        encode: token ids of a text, without special tokens.
        vocabulary: of the tokenizer.
        canonical: of the same.
    """

    encode: Callable[[str], list[int]]
    vocabulary: Vocabulary
    canonical: Canonical


def instances(tests: Sequence[Mapping[str, Any]], whitespace: str) -> Iterator[str]:
    """The texts of the valid instances, but for those that are no Unicode."""
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False, separators=SEPARATORS[whitespace])
        if test["valid"] and text.encode(errors="replace").decode() == text:
            yield text


def examine(row: Mapping[str, Any], division: Division, peer: Peer | None, timeout_s: float) -> Examined | None:
    """The walks of a schema's instances; None if it is refused. The process ends if a compilation takes too long."""
    examined: Examined = {}
    for whitespace in SEPARATORS:
        texts = [division.encode(text) for text in instances(row["tests"], whitespace)]
        for order, escapes in itertools.product(ORDERS, ESCAPES):
            signal.setitimer(signal.ITIMER_PROF, timeout_s)
            try:
                options: Any = {"whitespace": whitespace, "order": order, "escapes": escapes, "numbers": "any"}
                grammar = compile(JsonSchema(row["schema"], format="annotate", **options), division.vocabulary)
                signal.setitimer(signal.ITIMER_PROF, 10 * timeout_s)
                for way in WAYS:
                    name = " ".join([whitespace, order, way, *(["needed"] if escapes == "needed" else [])])
                    examined[name] = [
                        walk_matcher(way, grammar.matcher(), tokens, division.canonical) for tokens in texts
                    ]
            except DecodekitError:
                return None
        signal.setitimer(signal.ITIMER_PROF, 10 * timeout_s)
        if peer is not None:
            examined[f"{whitespace} {PEER}"] = peer.walks(row["schema"], whitespace, texts)
    return examined


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a process of its own; ``"timeout"`` if its CPU time ran out."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work()))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGPROF:
            return "timeout"
        raise SystemExit(f"a process ended with {process.exitcode}; its message is above") from None
    finally:
        process.join()


# ------------------------------------------------------------------------------------------------------------- figures


def summary(way: str, of: str, counts: Sequence[Count | None]) -> dict[str, object]:
    """The figures of one way over the texts that it accepts."""
    accepted = [count for count in counts if count is not None]
    total: Counter[str] = sum((Counter(count) for count in accepted), Counter())

    def share(number: int, whole: int) -> float | None:
        return round(number / whole, 4) if whole else None

    return {
        "way": way,
        "instances": of,
        "num_instances": len(accepted),
        "num_refused": len(counts) - len(accepted),
        "num_tokens": total["num_tokens"],
        "share_unseen": share(total["num_unseen"], total["num_tokens"]),
        "share_saved": share(total["num_unseen"] + total["num_accepted"], total["num_tokens"]),
        "num_runs": total["num_runs"],
        "num_noncanonical_runs": total["num_noncanonical_runs"],
        "num_offered": total["num_offered"],
        "draft_acceptance_rate": share(total["num_accepted"], total["num_offered"]),
    }


def summaries(examined: Sequence[Examined]) -> list[dict[str, object]]:
    """Every way over what it accepts itself, and over what all ways with the same blanks accept."""
    rows: list[dict[str, object]] = []
    for whitespace in SEPARATORS:
        ways = [way for way in examined[0] if way.startswith(f"{whitespace} ")]
        counts = {way: [count for one in examined for count in one[way]] for way in ways}
        common = [all(several) for several in zip(*counts.values(), strict=True)]
        rows += [summary(way, "all that it accepts", counts[way]) for way in ways]
        for way in ways:
            shared = [count for count, is_common in zip(counts[way], common, strict=True) if is_common]
            rows.append(summary(way, "accepted in every way", shared))
    return rows


def main() -> None:
    """Walk, print the table, write ``results/forced.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=600, help="schemas of the development split (default: 600)")
    parser.add_argument("--all", action="store_true", help="all 6,825 of them")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1, the sample of the masks)")
    parser.add_argument("--timeout", type=float, default=10.0, help="CPU seconds per compilation (default: 10)")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; without it, Tekken is made")
    arguments = parser.parse_args()

    from transformers import PreTrainedTokenizerFast

    schemas, _ = load_runner().load_jobs(str(DEV), None if arguments.all else arguments.limit, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="decodekit-forced-") as name:
        folder = arguments.tokenizer or Path(name)
        if arguments.tokenizer is None:
            make_tokenizer(folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # a text that looks like a special token is a text

    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    division = Division(encode, vocabulary, Canonical(encode, vocabulary))
    # What every schema shares is made before the forks.
    examine({"schema": True, "tests": [{"data": {"a": 1}, "valid": True}]}, division, None, 10 * arguments.timeout)
    signal.setitimer(signal.ITIMER_PROF, 0)
    peer = Peer(tokenizer) if importlib.util.find_spec(PEER) is not None else None
    gc.freeze()

    outcomes: Counter[str] = Counter()
    examined: list[Examined] = []
    for line in track(schemas, description="schemas"):
        row = json.loads(line)
        answer = in_child(partial(examine, row, division, peer, arguments.timeout))
        outcome = answer if answer == "timeout" else "refused" if answer is None else "walked"
        outcomes[outcome] += 1
        if outcome == "walked":
            examined.append(answer)
    rows = summaries(examined)
    table = Table(title="tokens without a forward pass of their own")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="left" if heading in ("way", "instances") else "right")
    for values in rows:
        table.add_row(*("" if value is None else str(value) for value in values.values()))
    Console(width=200).print(table, dict(outcomes))
    record.write(
        "forced",
        rows,
        num_schemas=len(schemas),
        sample="all" if arguments.all else f"the first {arguments.limit} after a shuffle with seed {arguments.seed}",
        schemas=dict(outcomes),
        timeout_cpu_s=arguments.timeout,
        tokenizer=f"mistral_common {TEKKEN}" if arguments.tokenizer is None else arguments.tokenizer.name,
        engine_versions={} if peer is None else {PEER: importlib.metadata.version(PEER)},
        published=PUBLISHED,
    )


if __name__ == "__main__":
    main()
