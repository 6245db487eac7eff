"""Beam search over a stream of prompts: the hypotheses of a prompt are rows of the cache, side by side.

A prompt is read once, into the first of its rows. A hypothesis stays in the row of the one that it continues, and where
one is continued twice, a row that has become free is made a copy of it (`Cache.reorder`, once for all prompts of a
step). What a hypothesis scores is a function of its prompt alone, whatever else is in the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError
from decodekit.generation.batch import (
    PREFILL_TOKENS,
    Result,
    Update,
    admit,
    is_satisfied,
    rounded,
    token_budget,
)
from decodekit.generation.beam import Beam, Beams, Candidate, Hypothesis, hamming_penalty
from decodekit.generation.drawing import measure, non_finite
from decodekit.generation.memory import new_cache
from decodekit.generation.padding import right_padded, similar_lengths
from decodekit.generation.rows import begin_rows
from decodekit.generation.stats import Stats
from decodekit.generation.stopping import FinishReason, finish_reason
from decodekit.generation.streaming import TextStream
from decodekit.sampling import History
from decodekit.sampling.noise import gumbel
from decodekit.sampling.pipeline import is_faulty

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.generation.sequence import Request, TokenLogprob
    from decodekit.generation.settings import Settings
    from decodekit.models.causal_lm import Cache, CausalLM


@dataclass(eq=False)
class Search:
    """The beams of one prompt.

    Args:
        index: number of the request, counted from 0.
        request: what is continued.
        groups: searches that know of each other; one without diversity.
        rows: its rows of the cache; the first has read the prompt.
    """

    index: int
    request: Request
    groups: list[Beams]
    rows: range = range(0)
    error: DecodekitError | None = None
    started_at: float = field(default_factory=time.perf_counter)
    num_forwards: int = 0
    best: Hypothesis | None = None
    """The best hypothesis of the step before, to be shown where no text was found."""

    @property
    def live(self) -> list[Hypothesis]:
        """The hypotheses of all groups."""
        return [hypothesis for beams in self.groups for hypothesis in beams.live]

    @property
    def is_done(self) -> bool:
        """Whether all groups are, or something failed."""
        return self.error is not None or all(beams.is_done for beams in self.groups)


class BeamBatch:
    """Searches the prompts of a stream, several at a time. Its updates come at the end of a prompt, one each.

    Args:
        model: the model.
        settings: what texts are; its pipeline is that of the beams.
        beam: the search.
        num_prompts: most prompts at a time; each has `num_beams` rows of the cache.
        requests: what to continue, as for `Batch`.
    """

    def __init__(
        self,
        model: CausalLM,
        settings: Settings,
        beam: Beam,
        num_prompts: int,
        requests: Iterable[Request | DecodekitError],
    ) -> None:
        self._model = model
        self._settings = settings
        self._beam = beam
        self._num_prompts = num_prompts
        self._queue = enumerate(requests)
        self._free = [range(i * beam.num_beams, (i + 1) * beam.num_beams) for i in reversed(range(num_prompts))]
        self._cache: Cache | None = None

    def run(self) -> Iterator[Update]:
        """Search all requests; one update each, as they are done."""
        running: list[Search] = []
        while True:
            admitted, answers = self._admit(self._num_prompts - len(running))
            yield from answers
            if admitted:
                self._first_step(admitted)
            if running:
                self._next_step(running)
            if not (admitted or answers or running):
                return
            running += admitted
            for search in running:
                if search.is_done:
                    self._free.append(search.rows)
                    yield self._update(search)
            running = [search for search in running if not search.is_done]

    @torch.inference_mode()
    def _first_step(self, searches: list[Search]) -> None:
        """Read the prompts; every group begins with the empty hypothesis."""
        logits = self._prefill(searches)
        self._step(searches, [row.expand(len(search.groups), -1) for search, row in zip(searches, logits, strict=True)])

    @torch.inference_mode()
    def _next_step(self, searches: list[Search]) -> None:
        """Read the tokens that were taken last."""
        self._place(searches)
        self._step(searches, self._read(searches))

    def _admit(self, num_free: int) -> tuple[list[Search], list[Update]]:
        """Take requests as long as there are rows; those that need no model are answered at once."""
        admitted, answers = admit(
            self._queue, num_free, self._begin, lambda search: self._update(search) if search.is_done else None
        )
        if admitted:
            if self._cache is None:
                longest = max(len(s.request.prompt) + min(s.groups[0].max_tokens, 256) for s in admitted)
                self._cache = new_cache(
                    self._model,
                    self._num_prompts * self._beam.num_beams,
                    rounded(longest),
                    f"num_beams={self._beam.num_beams}",
                )
            for search in admitted:
                search.rows = self._free.pop()
                for beams in search.groups:
                    beams.live = [replace(beams.live[0], row=search.rows[0])]
            begin_rows(self._cache, {row: search.request for search in admitted for row in search.rows})
        return admitted, answers

    def _begin(self, index: int, request: Request | DecodekitError) -> Search:
        """A search at its start; it is done where the empty text is the only one."""
        if isinstance(request, DecodekitError):
            raise request
        max_tokens = token_budget(index, request, self._model, self._settings)
        root = Hypothesis((), 0.0, -1, None if request.matcher is None else request.matcher.fork())
        num_eos = len(self._settings.vocabulary.eos_token_ids)
        groups = [Beams(self._beam, max_tokens, num_eos, [root]) for _ in range(self._beam.num_beam_groups)]
        search = Search(index, request, groups)
        if root.matcher is not None and root.matcher.is_accepting and not root.matcher.can_continue:
            for beams in groups:
                beams.live, beams.is_done = [], True
            groups[0].finished = [replace(root, finish_reason="complete")]
        return search

    def _prefill(self, searches: list[Search]) -> list[Tensor]:
        """Read every prompt once; the logits [1, V] of what follows each."""
        assert self._cache is not None
        logits: dict[int, Tensor] = {}
        for indices in similar_lengths([len(search.request.prompt) for search in searches], PREFILL_TOKENS):
            chunk = max(1, PREFILL_TOKENS // len(indices))
            longest = max(len(searches[i].request.prompt) for i in indices)
            for start in range(0, longest, chunk):
                some = [i for i in indices if len(searches[i].request.prompt) > start]
                reading = [searches[i].request.prompt[start : start + chunk] for i in some]
                rows = [searches[i].rows[0] for i in some]
                tokens = right_padded(reading, self._model.device)
                out = self._model.forward(tokens, [len(part) for part in reading], self._cache, rows)
                for place, i in enumerate(some):
                    logits[i] = out[place : place + 1]
                    searches[i].num_forwards += 1
        return [logits[i] for i in range(len(searches))]

    def _place(self, searches: list[Search]) -> None:
        """Give every hypothesis a row of its own that has read what it has."""
        assert self._cache is not None
        order = list(range(self._cache.num_rows))
        for search in searches:
            parents = {hypothesis.row for hypothesis in search.live}
            free = [row for row in search.rows if row not in parents]
            taken: set[int] = set()
            for beams in search.groups:
                for place, hypothesis in enumerate(beams.live):
                    if hypothesis.row in taken:
                        row = free.pop(0)
                        order[row] = hypothesis.row
                        beams.live[place] = replace(hypothesis, row=row)
                    taken.add(hypothesis.row)
        if order != list(range(len(order))):
            self._cache.reorder(torch.tensor(order))

    def _read(self, searches: list[Search]) -> list[Tensor]:
        """Read the last token of every live hypothesis; the logits [B, V] of what follows those of each search."""
        assert self._cache is not None
        live = [hypothesis for search in searches for hypothesis in search.live]
        order = sorted(range(len(live)), key=lambda place: live[place].row)  # neighbouring rows are read in place
        rows = [live[place].row for place in order]
        tokens = torch.tensor([[live[place].token_ids[-1]] for place in order], device=self._model.device)
        every = rows == list(range(self._cache.num_rows))
        logits = self._model.forward(tokens, [1] * len(rows), self._cache, None if every else rows)
        places = torch.tensor(np.argsort(order), device=logits.device)
        for search in searches:
            search.num_forwards += 1
        return list(torch.split(logits[places], [len(search.live) for search in searches]))

    def _step(self, searches: list[Search], logits: list[Tensor]) -> None:
        """Continue the hypotheses of every search by a token.

        Args:
            searches: those that take part.
            logits: of each, float32 [B, V] for its B live hypotheses.
        """
        for search, rows in zip(searches, logits, strict=True):
            try:
                self._advance(search, rows)
            except DecodekitError as error:  # a constraint may outgrow its bounds
                search.error = error

    def _advance(self, search: Search, logits: Tensor) -> None:
        if not math.isfinite(logits.amax().item()):  # the maximum of a row with NaN is NaN
            raise non_finite(self._settings, _place(search), logits)
        law = self._log_probs(search, logits)
        search.best = search.live[0]
        first, before = 0, list[Beams]()
        for beams in search.groups:
            if beams.is_done:
                continue
            rows = slice(first, first + len(beams.live))
            first = rows.stop
            penalty = hamming_penalty(before, self._beam.diversity_penalty, logits.shape[1])
            candidates = beams.candidates(
                law[rows],
                None if penalty is None else penalty.to(logits.device),
                self._noise(search, beams, logits) if self._beam.do_sample else None,
            )
            reasons = [self._reason_after(beams, candidate) for candidate in candidates]
            beams.advance(candidates, reasons, self._measured(candidates, logits[rows]))
            before.append(beams)

    def _log_probs(self, search: Search, logits: Tensor) -> Tensor:
        """Processed log-probabilities of what may follow each live hypothesis, float32 [B, V]."""
        live, pipeline = search.live, self._settings.pipeline
        history = None
        if pipeline.needs_history:
            prompts = [search.request.prompt] * len(live)
            history = History.from_lists(prompts, [hypothesis.token_ids for hypothesis in live], logits.device)
        mask = None
        if search.request.matcher is not None:
            words = np.zeros((len(live), self._settings.vocabulary.num_mask_words), dtype=np.int32)
            for row, hypothesis in enumerate(live):
                assert hypothesis.matcher is not None
                hypothesis.matcher.fill_bitmask(words, row)
            mask = torch.from_numpy(words).to(logits.device)
        own = torch.log_softmax(logits.float(), dim=-1)
        law = pipeline(own, history, mask)
        if not bool(is_faulty(law).any()):
            return law
        if pipeline.first_fault(own, history, mask) is not None:
            raise non_finite(self._settings, _place(search), own, history, mask)
        # A truncation of a row without tokens divides 0 by 0. Such a hypothesis has no continuation.
        return law.masked_fill(law.isnan(), -math.inf)

    def _noise(self, search: Search, beams: Beams, logits: Tensor) -> Tensor:
        """Gumbel noise [B, V], keyed by seed, sample, rank of the hypothesis, and position."""
        num_live, request = len(beams.live), search.request
        numbers = [request.sequence * self._beam.num_beams + rank for rank in range(num_live)]
        position = len(beams.live[0].token_ids)
        return gumbel([request.seed] * num_live, numbers, [position] * num_live, logits.shape[1], logits.device)

    def _measured(self, candidates: Sequence[Candidate], logits: Tensor) -> list[TokenLogprob]:
        """The log-probabilities of the tokens of candidates under the model's own law, if they are wanted."""
        if self._settings.num_alternatives is None or not candidates:
            return []
        parents = torch.tensor([candidate.beam for candidate in candidates], device=logits.device)
        return measure(logits[parents], [candidate.token for candidate in candidates], self._settings.num_alternatives)

    def _reason_after(self, beams: Beams, candidate: Candidate) -> FinishReason | None:
        """Why the text of a candidate ends with it; None if it goes on."""
        hypothesis, token = beams.live[candidate.beam], candidate.token
        matcher = hypothesis.matcher
        if matcher is not None and not matcher.accept(token):
            raise RuntimeError(f"{type(matcher).__name__} refused token {token}, which its own mask allowed")
        is_stopped = bool(self._settings.stop) and self._text((*hypothesis.token_ids, token), matcher).is_stopped
        reason = finish_reason(
            token,
            eos_token_ids=self._settings.vocabulary.eos_token_ids,
            matcher=matcher,
            is_stopped=is_stopped,
            num_tokens=len(hypothesis.token_ids) + 1,
            max_tokens=beams.max_tokens,
        )
        if matcher is not None:
            matcher.rollback(1)
        return reason

    def _text(self, token_ids: Sequence[int], matcher: Matcher | None) -> Text:
        """The text of tokens, as far as it is certain before the end."""
        texts = self._settings.vocabulary.token_bytes if matcher is None else matcher.token_texts
        stream = TextStream(self._settings.stop)
        certain = "".join(stream.push(texts[token] or b"") for token in token_ids)
        return Text(certain, stream.is_stopped, stream)

    def _update(self, search: Search) -> Update:
        """The end of a search."""
        now = time.perf_counter()
        found = sorted((one for beams in search.groups for one in beams.finished), key=self._beam.rank, reverse=True)
        error = search.error
        if error is None and not found:
            error = DeadEndError(
                "no beam has a token that may follow, and none is complete",
                at=f"prompt {search.index}",
                hint="more beams, a wider constraint, or fewer forbidden tokens",
            )
        if error is not None:
            reason: FinishReason = "dead_end" if isinstance(error, DeadEndError) else "error"
            best = search.best or Hypothesis((), 0.0, -1, search.request.matcher)
            return self._answer(search, replace(best, finish_reason=reason), now, error)
        first, *others = (self._answer(search, one, now) for one in found[: self._beam.num_return_sequences])
        assert first.result is not None
        return replace(first, result=replace(first.result, others=tuple(others)))

    def _answer(
        self, search: Search, hypothesis: Hypothesis, now: float, error: DecodekitError | None = None
    ) -> Update:
        text = self._text(hypothesis.token_ids, hypothesis.matcher)
        assert hypothesis.finish_reason is not None
        result = Result(
            hypothesis.token_ids,
            hypothesis.finish_reason,
            error,
            hypothesis.logprobs,
            Stats(
                num_prompt_tokens=len(search.request.prompt),
                num_generated_tokens=len(hypothesis.token_ids),
                num_forwards=search.num_forwards,
                ttft_s=None,  # nothing is certain before the end
                duration_s=now - search.started_at,
            ),
            hypothesis.score(self._beam.length_penalty),
            is_satisfied=is_satisfied(hypothesis.finish_reason, hypothesis.matcher),
        )
        return Update(search.index, text.certain + text.stream.close(), hypothesis.token_ids, result)


class Text(NamedTuple):
    """The text of a hypothesis."""

    certain: str
    is_stopped: bool
    stream: TextStream


def _place(search: Search) -> str:
    return f"prompt {search.index}, step {len(search.live[0].token_ids)}"
