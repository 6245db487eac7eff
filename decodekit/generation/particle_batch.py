"""Particles over a stream of prompts: N sequences of a prompt side by side, each with a weight.

A particle is a `Sequence` in a row of its own, as in a `Batch`. The prompt is read once and copied. The particles of a
prompt take one token at a time, together. Where they are drawn anew, those that are continued stay in their rows, and
the rows of the others become copies (one `Cache.reorder` for all prompts of a step). Particle i draws with the noise of
number i, and who is drawn anew is keyed by the number of tokens, so that what comes out is a function of the prompt,
its constraint and its seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import ConstraintError, DeadEndError, DecodekitError, DecodingError
from decodekit.generation.batch import (
    PREFILL_TOKENS,
    Result,
    Update,
    admit,
    is_satisfied,
    rounded,
    token_budget,
)
from decodekit.generation.buffers import Masks, TokenTable
from decodekit.generation.drawing import Place, measure, noise_keys, non_finite, scores
from decodekit.generation.memory import new_cache
from decodekit.generation.particles import (
    NO_DRAW,
    Draw,
    ParticleOptions,
    ancestors,
    effective_sample_size,
    log_mean,
    rejection_draw,
    settled,
    shares,
)
from decodekit.generation.rows import begin_rows
from decodekit.generation.sequence import Sequence
from decodekit.generation.sharing import copy_rows
from decodekit.generation.stats import ParticleStats
from decodekit.generation.step import forward
from decodekit.generation.taking import take
from decodekit.sampling import Candidates, sample
from decodekit.sampling.functions import apply_bitmask
from decodekit.sampling.noise import Stream, gumbel, uniforms
from decodekit.sampling.selectors import is_faulty

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from decodekit.generation.sequence import Request
    from decodekit.generation.settings import NoiseKeys, Settings
    from decodekit.models.causal_lm import Cache, CausalLM


@dataclass(eq=False)
class Population:
    """The particles of one prompt.

    Args:
        request: what is continued.
        particles: N sequences; those that go on have the same number of tokens.
        log_weights: [N], since particles were drawn anew last; -inf for what is no legal text and cannot become one.
        log_evidence: logarithm of the product of the mean weights of the times before.
    """

    request: Request
    particles: list[Sequence]
    log_weights: list[float]
    log_evidence: float = 0.0
    num_resamplings: int = 0
    num_asked: int = 0
    error: DecodekitError | None = None

    @property
    def is_done(self) -> bool:
        """Whether no particle goes on."""
        return self.error is not None or all(one.finish_reason is not None for one in self.particles)

    def kill(self, place: int) -> None:
        """Particle `place` has no legal continuation, or what it came to is refused."""
        self.log_weights[place] = -math.inf
        if self.particles[place].finish_reason is None:
            self.particles[place].finish("dead_end")

    def uniforms(self, stream: Stream, position: int) -> NDArray[np.float64]:
        """One number of each particle, float64 [N]."""
        requests = [particle.request for particle in self.particles]
        numbers = stream.of([request.sequence for request in requests])
        return uniforms([request.seed for request in requests], numbers, [position] * len(requests))

    def stats(self) -> ParticleStats:
        """What became of the particles."""
        return ParticleStats(
            self.log_evidence + log_mean(self.log_weights),
            effective_sample_size(self.log_weights),
            self.num_resamplings,
            self.num_asked,
        )


class ParticleBatch:
    """Continues the prompts of a stream with particles, several prompts at a time; one update each, at the end.

    Args:
        model: the model.
        settings: what texts are; its pipeline gives the law that is conditioned.
        options: of the particles.
        num_prompts: most prompts at a time; each has `num_particles` rows of the cache.
        requests: what to continue, as for `Batch`.
    """

    def __init__(
        self,
        model: CausalLM,
        settings: Settings,
        options: ParticleOptions,
        num_prompts: int,
        requests: Iterable[Request | DecodekitError],
    ) -> None:
        self._model = model
        self._settings = settings
        self._options = options
        self._num_prompts = num_prompts
        self._num_rows = num_prompts * options.num_particles
        self._queue = enumerate(requests)
        self._free = list(range(0, self._num_rows, options.num_particles))[::-1]  # the first row of each place
        self._cache: Cache | None = None
        # A guard is asked about the tokens that are drawn, and is no part of a mask.
        self._masks = Masks(self._num_rows, settings.vocabulary.num_mask_words, can_redraw=True)
        self._table = TokenTable(self._num_rows) if settings.pipeline.needs_history else None

    def run(self) -> Iterator[Update]:
        """Continue all requests."""
        running: list[Population] = []
        while True:
            admitted, answers = self._admit(self._num_prompts - len(running))
            yield from answers
            running += admitted
            if running:
                self._step(running)
            elif not answers:
                return
            for population in running:
                if population.is_done:
                    self._free.append(population.particles[0].row)
                    yield self._update(population)
            running = [population for population in running if not population.is_done]

    def _admit(self, num_free: int) -> tuple[list[Population], list[Update]]:
        """Take requests as long as there are rows, and read their prompts; what needs no model is answered at once."""
        admitted, answers = admit(
            self._queue, num_free, self._begin, lambda one: self._update(one) if one.is_done else None
        )
        if admitted:
            self._read_prompts(admitted)
        return admitted, answers

    def _begin(self, index: int, request: Request | DecodekitError) -> Population:
        """Particles at the beginning; they are done where the empty text is the only one."""
        if isinstance(request, DecodekitError):
            raise request
        matcher = request.matcher
        max_tokens = token_budget(index, request, self._model, self._settings)
        num_particles = self._options.num_particles
        particles = [
            Sequence(index, replace(request, sequence=number), max_tokens, self._settings.stop)
            for number in range(request.sequence * num_particles, (request.sequence + 1) * num_particles)
        ]
        if matcher is not None and matcher.is_accepting and not matcher.can_continue:
            for particle in particles:
                particle.finish("complete")
        return Population(request, particles, [0.0] * num_particles)

    @torch.inference_mode()
    def _read_prompts(self, populations: list[Population]) -> None:
        """Give every particle a row that has read its prompt but for the last token; a prompt is read once."""
        if self._cache is None:
            longest = max(len(one.request.prompt) + min(one.particles[0].max_tokens, 256) for one in populations)
            self._cache = new_cache(
                self._model, self._num_rows, rounded(longest), f"num_particles={len(populations[0].particles)}"
            )
        for population in populations:
            for row, particle in enumerate(population.particles, self._free.pop()):
                particle.row = row
                if self._table is not None:
                    self._table.begin(particle)
        particles = [particle for population in populations for particle in population.particles]
        begin_rows(self._cache, {particle.row: particle.request for particle in particles})
        readers = [population.particles[0] for population in populations]
        for reader in readers:
            reader.pending = list(reader.request.prompt[:-1])
        while unread := [reader for reader in readers if reader.pending]:
            forward(unread, self._model, self._cache, max(1, PREFILL_TOKENS // len(unread)))
        for particle in particles:
            particle.pending = [particle.request.prompt[-1]]
        first = {id(population): population.particles[0].row for population in populations}
        copy_rows(
            self._cache,
            [(first[id(population)], one.row) for population in populations for one in population.particles],
        )

    @torch.inference_mode()
    def _step(self, populations: list[Population]) -> None:
        """Let every particle that goes on take a token; draw particles anew where their weights are uneven."""
        assert self._cache is not None
        live = [
            (population, place)
            for population in sorted(populations, key=lambda one: one.particles[0].row)  # neighbours are read in place
            for place, particle in enumerate(population.particles)
            if particle.finish_reason is None
        ]
        sequences = [population.particles[place] for population, place in live]
        logits = forward(sequences, self._model, self._cache)  # [L, V]
        bitmask = self._allowed(live)
        draws = self._draw(live, logits, bitmask)
        for (population, place), draw in zip(live, draws, strict=True):
            try:
                self._take(population, place, draw)
            except DecodekitError as error:  # the guard is a program of the user's
                population.error = error
        self._record(sequences, logits, bitmask)
        pairs = [pair for population in populations if not population.is_done for pair in self._resampled(population)]
        copy_rows(self._cache, pairs)

    def _allowed(self, live: list[tuple[Population, int]]) -> Tensor | None:
        """The masks of the particles, int32 [L, W], where weights or log-probabilities need them.

        A constraint that outgrows its bounds is the error of its population.
        """
        if self._options.method == "awrs" and self._settings.num_alternatives is None:
            return None
        sequences = [population.particles[place] for population, place in live]
        bitmask = self._masks.fill(sequences, [[] for _ in sequences])
        for (population, _), sequence in zip(live, sequences, strict=True):
            population.error = population.error or sequence.error
        return bitmask

    def _draw(self, live: list[tuple[Population, int]], logits: Tensor, bitmask: Tensor | None) -> list[Draw]:
        """A legal token of each particle with its weight; an error of one is that of its population."""
        places = [Place(population.particles[place]) for population, place in live]
        for i, peak in enumerate(logits.amax(dim=-1).tolist()):
            if not math.isfinite(peak):  # the maximum of a row with NaN is NaN
                live[i][0].error = non_finite(self._settings, str(places[i]), logits[i : i + 1])
        try:
            law = scores(places, logits, None, self._settings, self._table)
        except DecodingError as error:  # of a processor, whatever the place
            for population, _ in live:
                population.error = population.error or error
            return [NO_DRAW] * len(live)
        rows = law.dense() if isinstance(law, Candidates) else law
        for i, is_bad in enumerate(is_faulty(rows).tolist()):
            if is_bad and live[i][0].error is None:
                history = None
                if self._table is not None:
                    history = self._table.history([places[i].sequence], [()], logits.device)
                live[i][0].error = non_finite(self._settings, str(places[i]), logits[i : i + 1], history)
        keys = noise_keys(places)
        if self._options.method == "awrs":
            return self._draw_by_rejection(live, rows, keys)
        assert bitmask is not None
        return masked_draws(rows, bitmask.to(rows.device), keys)

    def _draw_by_rejection(self, live: list[tuple[Population, int]], rows: Tensor, keys: NoiseKeys) -> list[Draw]:
        rows = rows.cpu()  # tokens are looked at one by one
        noise = gumbel(keys.seeds, keys.sequences, keys.positions, rows.shape[-1], rows.device)
        draws: list[Draw] = []
        for (population, place), row, own_noise in zip(live, rows, noise, strict=True):
            draw = NO_DRAW
            if population.error is None:
                try:
                    draw = rejection_draw(row, own_noise, self._judge(population, population.particles[place]))
                except DecodekitError as error:
                    population.error = error
            draws.append(draw)
        return draws

    def _judge(self, population: Population, particle: Sequence) -> Callable[[int], bool]:
        """What says whether a token may follow the text of a particle."""
        matcher, predicate, vocabulary = particle.matcher, self._options.predicate, self._settings.vocabulary
        texts = vocabulary.token_bytes if matcher is None else matcher.token_texts
        text = b"" if predicate is None else b"".join(texts[token] or b"" for token in particle.token_ids)

        def is_legal(token: int) -> bool:
            population.num_asked += 1
            if token >= len(texts) or (matcher is not None and not matcher.validate([token])):
                return False
            if predicate is None:
                return True
            whole = text + (texts[token] or b"")
            try:
                return bool(predicate(whole, token in vocabulary.eos_token_ids))
            except Exception as error:
                raise ConstraintError(
                    f"the predicate failed: {type(error).__name__}: {error}",
                    at=f"prompt {particle.index}, {whole[:80]!r}",
                ) from error

        return is_legal

    def _take(self, population: Population, place: int, draw: Draw) -> None:
        """Continue particle `place` with what was drawn."""
        if population.error is not None:
            return
        particle = population.particles[place]
        is_refused = (
            draw.token is not None
            and self._options.method == "smc"  # rejection has asked already
            and particle.matcher is not None
            and particle.matcher.has_guard
            and particle.matcher.refusal(draw.token) is not None
        )
        if draw.token is None or is_refused:
            particle.num_guard_refusals += is_refused
            population.kill(place)
            return
        population.log_weights[place] += draw.log_weight
        take(particle, draw.token, self._settings, self._table)
        population.error = particle.error
        if particle.finish_reason == "length" and particle.matcher is not None:
            population.kill(place)  # not ended: its weight is that of a beginning, even where it might end

    def _record(self, sequences: list[Sequence], logits: Tensor, bitmask: Tensor | None) -> None:
        """Note the log-probabilities of the tokens that were taken, if they are wanted; logits [L, V], masks [L, W]."""
        num_alternatives = self._settings.num_alternatives
        rows = [row for row, one in enumerate(sequences) if len(one.logprobs) < len(one.token_ids)]
        if num_alternatives is None or not rows:
            return
        tokens = [sequences[row].token_ids[-1] for row in rows]
        index = torch.tensor(rows)
        masks = None if bitmask is None else bitmask[index]
        entries = measure(logits[index.to(logits.device)], tokens, num_alternatives, masks)
        for row, entry in zip(rows, entries, strict=True):
            sequences[row].logprobs.append(entry)

    def _resampled(self, population: Population) -> list[tuple[int, int]]:
        """Draw the particles anew if their weights are uneven; the rows to copy, and to where."""
        options, weights = self._options, population.log_weights
        # Equal weights have the size N but for rounding.
        if effective_sample_size(weights) >= options.threshold * options.num_particles * (1 - 1e-9):
            return []
        position = max(len(particle.token_ids) for particle in population.particles)
        numbers = population.uniforms(Stream.RESAMPLING, position)
        sources = settled(ancestors(shares(weights), numbers, options.resample))
        before = population.particles
        population.particles = [
            one if source == place else self._continued(before[source], one)
            for place, (one, source) in enumerate(zip(before, sources, strict=True))
        ]
        population.log_evidence += log_mean(weights)
        population.log_weights = [0.0] * options.num_particles
        population.num_resamplings += 1
        moved = [
            (before[source], one) for one, source in zip(before, sources, strict=True) if one is not before[source]
        ]
        return [(source.row, one.row) for source, one in moved if source.finish_reason is None]

    def _continued(self, source: Sequence, replaced: Sequence) -> Sequence:
        """A particle with the text of `source`, and the row and the noise of the one that it replaces."""
        particle = Sequence(source.index, replaced.request, source.max_tokens, self._settings.stop, replaced.row)
        matcher = particle.matcher = None if source.matcher is None else source.matcher.fork()
        particle.token_ids, particle.logprobs = list(source.token_ids), list(source.logprobs)
        particle.pending = list(source.pending)
        texts = self._settings.vocabulary.token_bytes if matcher is None else matcher.token_texts
        particle.new_text = "".join(particle.stream.push(texts[token] or b"") for token in particle.token_ids)
        particle.num_forwards, particle.started_at = source.num_forwards, source.started_at
        particle.num_guard_refusals, particle.mask_s = source.num_guard_refusals, source.mask_s
        if source.finish_reason is not None:
            particle.finish(source.finish_reason)
        if self._table is not None:
            self._table.begin(particle)
        return particle

    def _update(self, population: Population) -> Update:
        """The end of a population: the text that is handed out, and all others."""
        weights, particles = population.log_weights, population.particles
        error = population.error
        if error is None and max(weights) == -math.inf:
            cut = [particle for particle in particles if particle.finish_reason == "length"]
            if cut:
                whole = (one for one in cut if is_satisfied("length", one.matcher))
                return self._answer(population, next(whole, cut[0]), None)
            error = DeadEndError(
                "no particle came to a text that the constraint accepts",
                at=f"prompt {particles[0].index}",
                hint="more particles, a higher temperature or no truncation: the law that is conditioned has no mask",
            )
        if error is not None:
            longest = max(particles, key=lambda one: len(one.token_ids))
            longest.finish_reason, longest.error = "dead_end" if isinstance(error, DeadEndError) else "error", error
            return self._answer(population, longest, None)
        # The same text may have come in several divisions into tokens: its weight is theirs together.
        texts: dict[str, float] = {}
        for particle, share in zip(particles, shares(weights).tolist(), strict=True):
            texts[particle.new_text] = texts.get(particle.new_text, 0.0) + share
        order = sorted(range(len(particles)), key=lambda i: (-texts[particles[i].new_text], -weights[i]))
        if self._options.returns == "draw":
            numbers = population.uniforms(Stream.CHOICE, 0)
            drawn = ancestors(shares(weights), numbers, "multinomial")[0]
            order.sort(key=lambda i: i != drawn)  # stable
        found: dict[str, Sequence] = {}
        for i in order:
            if weights[i] > -math.inf:
                found.setdefault(particles[i].new_text, particles[i])
        first, *others = (self._answer(population, particle, texts[text]) for text, particle in found.items())
        assert first.result is not None
        return replace(first, result=replace(first.result, others=tuple(others)))

    def _answer(self, population: Population, particle: Sequence, share: float | None) -> Update:
        # Nothing is known before the end.
        stats = replace(particle.stats(time.perf_counter()), ttft_s=None, particles=population.stats())
        assert particle.finish_reason is not None
        tokens = tuple(particle.token_ids)
        reason = particle.finish_reason
        result = Result(
            tokens,
            reason,
            particle.error,
            tuple(particle.logprobs),
            stats,
            share,
            is_satisfied=is_satisfied(reason, particle.matcher),
        )
        return Update(particle.index, particle.new_text, tokens, result)


def masked_draws(rows: Tensor, bitmask: Tensor, keys: NoiseKeys) -> list[Draw]:
    """A token of each row from its masked law, weighted by the mass that the mask leaves.

    Args:
        rows: float32 [L, V], processed without a mask.
        bitmask: int32 [L, W], the allowed tokens.
        keys: of the noise.
    """
    masked = apply_bitmask(rows, bitmask)
    log_mass = (masked.logsumexp(dim=-1) - rows.logsumexp(dim=-1)).tolist()  # 0 exactly where all is allowed
    legal = [row for row, mass in enumerate(log_mass) if mass > -math.inf]  # a row of -inf has NaN
    draws = [NO_DRAW] * len(log_mass)
    if legal:
        tokens = sample(masked[torch.tensor(legal, device=rows.device)], *_of(keys, legal)).tolist()
        for row, token in zip(legal, tokens, strict=True):
            draws[row] = Draw(token, log_mass[row])
    return draws


def _of(keys: NoiseKeys, rows: list[int]) -> tuple[list[int], list[int], list[int]]:
    some = keys.of(rows)
    return some.seeds, some.sequences, some.positions
