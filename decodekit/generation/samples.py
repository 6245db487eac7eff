"""Single texts, and several samples of a prompt: a row for each text.

Sample i has the text that it has when it is decoded alone with the number i: its noise is keyed by that number, and
nothing else of it knows of the others. The samples of a prompt share the reading of it (`generation.sharing`), also
where there are fewer rows than samples: a sample that comes later finds the prompt in the row of one that came before,
as long as no other request has taken it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Final

from decodekit.errors import DecodekitError, LengthError
from decodekit.generation.append import append_forced
from decodekit.generation.driver import CacheRows, Driver, Group, Policy
from decodekit.generation.masks import StepMasks
from decodekit.generation.results import Result, Update, with_others
from decodekit.generation.sequence import Request, Sequence
from decodekit.generation.settings import Settings
from decodekit.generation.step import step
from decodekit.models.causal_lm import CausalLM

MAX_ROWS: Final = 64
"""Most rows of a cache for samples, unless there are more prompts than that: further samples wait for their turn."""


class Texts(Policy[Group]):
    """Every text by itself, as `generation.step` has it."""

    def __init__(self, model: CausalLM, settings: Settings, num_samples: int = 1) -> None:
        super().__init__(model, settings)
        self.num_samples = num_samples
        self.is_prompt_shared = num_samples > 1
        left_out = settings.left_out if settings.masks_ending else None
        self._masks = StepMasks(settings.vocabulary.num_mask_words, settings.can_redraw, left_out)

    def begin(self, sequence: Sequence) -> Group:
        """The text, with what is forced at its beginning."""
        begin_text(sequence, self.settings)
        return Group([sequence])

    def step(self, groups: Rows[Group], rows: CacheRows) -> None:
        """One token or more for each text."""
        sequences = [group.sequence for group in groups]
        step(sequences, self.model, rows.cache, self.settings, self._masks, rows.table)


def begin_text(sequence: Sequence, settings: Settings) -> None:
    """Take what is forced at the beginning of a text, maybe all; `LengthError` if no text of the constraint fits."""
    if settings.must_close and sequence.matcher is not None:
        least = len(sequence.matcher.completion(settings.left_out))
        if least > sequence.max_tokens:
            is_cut = sequence.max_tokens < settings.max_new_tokens  # by the context of the model
            raise LengthError(
                f"no text of the constraint fits into {sequence.max_tokens:,} tokens: the least known has {least:,}",
                at=f"prompt {sequence.index}",
                hint="a shorter prompt" if is_cut else "a larger max_new_tokens",
            )
    is_empty = sequence.finish_reason is not None
    if not is_empty:
        append_forced(sequence, settings, None)
    if sequence.finish_reason is not None and not is_empty:  # all of the text is forced
        sequence.first_token_at = time.perf_counter()


def decode(
    model: CausalLM,
    settings: Settings,
    num_prompts: int,
    requests: Iterable[Request | DecodekitError],
    num_samples: int = 1,
) -> Iterator[Update]:
    """Decode a stream of requests, `num_samples` texts of each.

    The text of the first sample is handed out as it grows. The last update of a request comes when all its samples have
    ended; its result is that of the first, with those of the others, in their order, in `Result.others`.

    Args:
        num_prompts: most prompts at a time.
        requests: what to continue, as for `Driver`.
        num_samples: texts of each request, at least 1.
    """
    num_rows = max(num_prompts, min(num_prompts * num_samples, MAX_ROWS))
    updates = Driver(Texts(model, settings, num_samples), num_rows, requests).run()
    return updates if num_samples == 1 else gathered(updates, num_samples)


def gathered(updates: Iterable[Update], num_samples: int) -> Iterator[Update]:
    """Updates by sample as updates by request; see `decode`."""
    requests: dict[int, tuple[list[list[str]], dict[int, Result]]] = {}
    for update in updates:
        texts, results = requests.setdefault(update.index, ([[] for _ in range(num_samples)], {}))
        number = update.sequence % num_samples
        texts[number].append(update.text)
        if number == 0 and (update.text or update.token_ids):
            yield replace(update, result=None)
        if update.result is not None:
            results[number] = update.result
        if len(results) == num_samples:
            del requests[update.index]
            whole = with_others(
                Update(update.index, "".join(text), results[i].token_ids, results[i], i) for i, text in enumerate(texts)
            )
            yield Update(update.index, "", (), whole.result)
