"""A stand-in for `decodekit.LLM` that answers at once, and short ways to make jobs with it."""

from __future__ import annotations

import heapq
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from decodekit.cli.jobs import extract as extract_module
from decodekit.constraints import JsonSchema
from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.decoding.request.stats import Stats
from decodekit.errors import DeadEndError, LengthError
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import scan
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.folder.job_folder import JobFolder, JobSettings
from decodekit.jobs.job_runner import JobRunner, LocalExecutor, RunSummary
from decodekit.jobs.validation import OutputValidator
from decodekit.llm import LLM, Completion
from decodekit.vocabulary import Vocabulary

BYTES = Vocabulary([bytes([number]) for number in range(256)], {10})
SCHEMA = {
    "type": "object",
    "properties": {
        "first": {"type": "string"},
        "words": {"type": "integer", "minimum": 1},
        "seed": {"type": "integer"},
    },
    "required": ["first", "words", "seed"],
    "additionalProperties": False,
}


def make_settings(**changes: Any) -> JobSettings:
    values: dict[str, Any] = {
        "model": "fake",
        "weights": "0" * 16,
        "dtype": "float32",
        "tokenizer": "1" * 16,
        "schema_source": "schema.json",
        "schema": SCHEMA,
        "prompt": "{text}\n",
        "is_chat": False,
        "strategy": {"name": "greedy"},
        "max_new_tokens": 64,
        "on_length": "error",
        "seed": 0,
        "version": "0.0",
    }
    return JobSettings(**(values | changes))


class FakeLLM:
    """Writes JSON about a prompt: its first word, how many words, and the seed that came with it.

    A prompt with CUT in it is cut at the limit, with DEAD comes to a dead end, with WRONG breaks the schema, with
    GARBLED is no JSON. Prompts finish out of order, as those of a real batch do.

    Args:
        delay_s: time per step; every row of the batch makes one token per step.
    """

    def __init__(self, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.model = SimpleNamespace(name="fake", dtype="torch.float32", device=SimpleNamespace(type="cpu"))
        self.tokenizer = SimpleNamespace(chat_template=None)
        self.vocabulary = BYTES
        self.seen: list[str] = []

    def as_completed(
        self, prompts: Iterable[str], *, seed: Iterable[int], batch_size: int | None, **options: Any
    ) -> Iterator[tuple[int, Completion]]:
        queue = zip(count(), prompts, seed, strict=False)
        running: list[tuple[int, int, str, int]] = []  # (step at which it is finished, number, prompt, seed)
        step = 0
        while True:
            while len(running) < (batch_size or 8) and (entry := next(queue, None)) is not None:
                number, prompt, own_seed = entry
                self.seen.append(prompt)
                heapq.heappush(running, (step + 1 + len(prompt) * 7 % 11, number, prompt, own_seed))
            if not running:
                return
            step += 1
            if self.delay_s:
                time.sleep(self.delay_s)
            while running and running[0][0] <= step:
                _, number, prompt, own_seed = heapq.heappop(running)
                yield number, answer(prompt, own_seed, str(options.get("on_length", "error")))


class Deadly(FakeLLM):
    """Ends its process at a prompt with POISON, and raises at one with RAISE."""

    def as_completed(
        self, prompts: Iterable[str], *, seed: Iterable[int], batch_size: int | None, **options: Any
    ) -> Iterator[tuple[int, Completion]]:
        given = list(prompts)
        if any("POISON" in prompt for prompt in given):
            os._exit(1)
        if any("RAISE" in prompt for prompt in given):
            raise RuntimeError("an own processor is broken")
        yield from super().as_completed(given, seed=seed, batch_size=batch_size, **options)


def marked(folder: Path) -> FakeLLM:
    """A model whose worker leaves its process number behind."""
    (folder / str(os.getpid())).touch()
    return FakeLLM(delay_s=0.004)


def answering_at_once(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """A model that answers at once, in place of any that `extract` loads."""
    fake = FakeLLM()
    monkeypatch.setattr(extract_module, "load_model", lambda name, dtype, device_map: fake)
    return fake


def answer(prompt: str, seed: int, on_length: str = "error") -> Completion:
    words = prompt.split()
    text = json.dumps({"first": words[0], "words": len(words), "seed": seed % 1000}, ensure_ascii=False)
    reason, error = "stop", None
    if "CUT" in prompt:
        text, reason = text[:9], "length"
        error = LengthError("the text was cut at 9 tokens", at="prompt 3, after 'x'") if on_length == "error" else None
    elif "DEAD" in prompt:
        text, reason, error = text[:5], "dead_end", DeadEndError("no token is allowed", at="prompt 3")
    elif "WRONG" in prompt:
        text = '{"first":"<b>","words":0,"seed":1}'
    elif "GARBLED" in prompt:
        text = "{"
    token_ids = tuple(text.encode())
    logprobs = tuple(TokenLogprob(token, -0.125) for token in token_ids)
    stats = Stats(len(words), len(token_ids), len(token_ids), 0.001, 0.002)
    return Completion(text, token_ids, None, reason, error, logprobs, stats)  # type: ignore[arg-type]


def expected_value(text: str, seed: int) -> Any:
    return json.loads(answer(text.strip(), seed).text)


def run_job(
    folder: Path,
    inputs: Sequence[Path],
    llm: FakeLLM | LLM,
    *,
    settings: JobSettings | None = None,
    batch_size: int = 8,
    retries: bool = False,
    fresh: bool = False,
    force: bool = False,
    **options: Any,
) -> RunSummary:
    settings = settings or make_settings()
    sources = [Input(str(path)) for path in inputs]
    entries = scan(sources).entries
    call: dict[str, Any] = {"on_length": settings.on_length}
    if isinstance(llm, LLM):
        call |= {"constraint": JsonSchema(settings.schema), "max_new_tokens": settings.max_new_tokens}
    executor = LocalExecutor(llm, batch_size=batch_size, options=call)  # type: ignore[arg-type]
    prompt = Prompt(settings.prompt, settings.is_chat, settings.schema)
    runner_options = {name: options.pop(name) for name in ("max_failures", "observer", "vocabulary") if name in options}
    job, _ = JobFolder.create_or_resume(folder, settings, fresh=fresh, force=force)
    with job:
        job.add_inputs(sources)
        runner = JobRunner(job, prompt, OutputValidator(settings.schema), **runner_options)
        return runner.run(entries, executor, retries=retries, **options)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def row_set(path: Path) -> set[str]:
    """The lines of a ledger as a set; equal lines would be one, so compare the number too."""
    return set(path.read_text(encoding="utf-8").splitlines())


def words(number: int) -> str:
    """A text of a few words, different for every number."""
    return " ".join(re.findall("..?", f"{number * 2654435761 % 2**32:08x}")[: 1 + number % 4]) + f" n{number}"
