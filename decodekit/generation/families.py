"""Several samples of a prompt: they decode side by side, and come back together.

Sample i has the text that it has when it is decoded alone with the number i: its noise is keyed by that number, and
nothing else of it knows of the others. Their prompt is read once (`generation.sharing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from decodekit.generation.batch import Batch, Result, Update

if TYPE_CHECKING:
    from decodekit.errors import DecodekitError
    from decodekit.generation.sequence import Request
    from decodekit.generation.settings import Settings
    from decodekit.models.causal_lm import CausalLM

MAX_ROWS: Final = 64
"""Most rows of a cache for samples, unless there are more prompts than that: further samples wait for their turn."""


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
        model: the model.
        settings: how tokens are taken.
        num_prompts: most prompts at a time.
        requests: what to continue, as for `Batch`.
        num_samples: texts of each request, at least 1.
    """
    num_rows = max(num_prompts, min(num_prompts * num_samples, MAX_ROWS))
    updates = Batch(model, settings, num_rows, requests, num_samples).run()
    return updates if num_samples == 1 else gathered(updates, num_samples)


@dataclass(slots=True)
class _Sample:
    text: list[str] = field(default_factory=list)
    result: Result | None = None


def gathered(updates: Iterable[Update], num_samples: int) -> Iterator[Update]:
    """Updates by sample as updates by request; see `decode`."""
    families: dict[int, list[_Sample]] = {}
    for update in updates:
        samples = families.setdefault(update.index, [_Sample() for _ in range(num_samples)])
        number = update.sequence % num_samples
        samples[number].text.append(update.text)
        samples[number].result = update.result
        if number == 0 and (update.text or update.token_ids):
            yield replace(update, result=None)
        if update.result is not None and all(sample.result is not None for sample in samples):
            del families[update.index]
            first, *others = (
                Update(update.index, "".join(sample.text), sample.result.token_ids, sample.result, i)
                for i, sample in enumerate(samples)
                if sample.result is not None
            )
            assert first.result is not None
            yield Update(update.index, "", (), replace(first.result, others=tuple(others)))
