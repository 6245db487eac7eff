"""Sequential Monte Carlo over texts: weights that make up for what masking locally does wrong.

A mask makes every text legal and changes the distribution: a token that the constraint forces costs nothing, however
unlikely the model holds it, so that texts with likely beginnings and unlikely ends come too often. The distribution
that is meant is that of the model given that the constraint holds,

    target(y) = P(y) / Z  for the legal texts y,    P(y) = product of P_t(y_t | y_<t),    Z = sum of P(y) over them.

P_t is the processed distribution of one position *without* the mask: biases and penalties, temperature, truncations. It
must not know the constraint, or the mass that a mask leaves of it would not be a probability of the model. So here, and
only here, a truncation comes before the mask: what top-k leaves may be all illegal, and then the prefix has no legal
continuation under P. A text ends with an end-of-sequence token, whose probability counts, or where the constraint
leaves nothing else, which costs nothing.

N particles each draw their tokens from the masked distribution, and are weighted by what the mask leaves, w *= Z_t
(Lew et al. 2023, "Sequential Monte Carlo steering of large language models using probabilistic programs"; Loula et al.
2025, "Syntactic and semantic control of large language models via sequential Monte Carlo"). When the weights become
uneven, the particles are drawn anew, with replacement, in proportion to them. Then the mean weight, times those of the
times before, is an unbiased estimate of Z, and for every function f of a text the weighted mean of f times that
estimate is one of Z E[f(y)] (Del Moral 2004; also where the weights say when to draw anew). The distribution of one
text that is drawn from the particles tends to the target as N grows; its bias is of order 1/N.

Say ``yes`` and ``no`` are legal, and the model begins with ``y`` at 0.6, ``n`` at 0.2, and follows ``y`` with ``es`` at
0.1, ``n`` with ``o`` at 0.9. Masking gives ``yes`` with 0.6 / 0.8 = 0.75. As particles, both weigh 0.8 after the first
token, then ``yes`` 0.08 and ``no`` 0.72: together 0.06 to 0.18, as 0.6 * 0.1 to 0.2 * 0.9 under the model.

A particle is a `TextRow` in a row of its own. The prompt is read once and copied. The particles of a prompt take one
token at a time, together. Where they are drawn anew, those that are continued stay in their rows, and the rows of the
others become copies (one `Cache.reorder` for all prompts of a step). Particle i draws with the noise of number i, and
who is drawn anew is keyed by the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decodekit.decoding.draws.row_draws import Outputs, non_finite, record
from decodekit.decoding.lazy_masks.positions import Position, noise_keys
from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.append import append_token
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.host_pass import forward
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.prefixes.shared_rows import copy_rows
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.decoding.request.stats import ParticleStats
from decodekit.decoding.request.trace_recorder import trace
from decodekit.decoding.request.updates import Update, is_satisfied, update_of, with_others
from decodekit.decoding.search.weighted_draws import (
    NO_DRAW,
    Draw,
    Resample,
    ancestors,
    effective_sample_size,
    log_mean,
    masked_draws,
    rejection_draw,
    settled,
    shares,
)
from decodekit.errors import ConstraintError, DeadEndError, DecodekitError, DecodingError
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling.noise import Stream, gumbel, uniforms
from decodekit.sampling.selectors import is_faulty
from decodekit.sampling.tolerances import MARGIN

Method: TypeAlias = Literal["smc", "awrs"]
Returns: TypeAlias = Literal["draw", "best"]
Predicate: TypeAlias = Callable[[bytes, bool], bool]
"""Whether a text is legal so far, or (second argument) as a whole."""


@dataclass(frozen=True)
class ParticleOptions:
    """The options by which particles are drawn and weighted; see `strategy.Particles`."""

    num_particles: int = 8
    method: Method = "smc"
    resample: Resample = "systematic"
    threshold: float = 0.5
    returns: Returns = "draw"
    predicate: Predicate | None = None


@dataclass(eq=False)
class Population(Group):
    """The particles of one prompt: N sequences; those that go on have the same number of tokens.

    Args:
        log_weights: [N], since particles were drawn anew last; -inf for what is not a legal text and cannot become one.
        log_evidence: logarithm of the product of the mean weights of the times before.
    """

    log_weights: list[float] = field(default_factory=list)
    log_evidence: float = 0.0
    num_resamplings: int = 0
    num_asked: int = 0

    def kill(self, place: int) -> None:
        """Particle `place` has no legal continuation, or what it came to is refused."""
        self.log_weights[place] = -math.inf
        if self.sequences[place].finish_reason is None:
            self.sequences[place].finish("dead_end")

    def uniforms(self, stream: Stream, position: int) -> NDArray[np.float64]:
        """One number of each particle, float64 [N]."""
        requests = [particle.request for particle in self.sequences]
        numbers = stream.of([request.sequence for request in requests])
        return uniforms([request.seed for request in requests], numbers, [position] * len(requests))

    def stats(self) -> ParticleStats:
        """Statistics of the particles."""
        return ParticleStats(
            self.log_evidence + log_mean(self.log_weights),
            effective_sample_size(self.log_weights),
            self.num_resamplings,
            self.num_asked,
        )


class ParticleFilter(Decoder[Population]):
    """A row for each particle of a prompt; one update for each prompt, at the end."""

    is_prompt_shared = True

    def __init__(self, model: CausalLM, settings: Settings, options: ParticleOptions) -> None:
        super().__init__(model)
        self.settings = settings
        self.num_rows = options.num_particles
        self.option = f"num_particles={options.num_particles}"
        self._options = options
        # A guard is asked about the tokens that are drawn, and is no part of a mask.
        self._masks = StepMasks(settings.vocabulary.num_mask_words, can_redraw=True)

    def begin(self, sequence: TextRow) -> Population:
        """Particles at the beginning; they are done where the empty text is the only one."""
        request, num_particles = sequence.request, self._options.num_particles
        first = request.sequence * num_particles
        requests = [replace(request, sequence=number) for number in range(first, first + num_particles)]
        return Population([sequence.fork(one, -1) for one in requests], [0.0] * num_particles)

    def step(self, groups: Sequence[Population], rows: CacheRows) -> None:
        """Let every particle that goes on take a token; draw particles anew where their weights are uneven."""
        live = [
            (population, place)
            for population in groups
            for place, particle in enumerate(population.sequences)
            if particle.finish_reason is None
        ]
        sequences = [population.sequences[place] for population, place in live]
        logits = forward(sequences, self.model, rows.cache)  # [L, V]
        bitmask = self._allowed(live)
        draws = self._draw(live, logits, bitmask, rows)
        num_before = [len(particle.token_ids) for particle in sequences]
        for (population, place), draw in zip(live, draws, strict=True):
            try:
                self._take(population, place, draw, rows)
            except DecodekitError as error:  # the guard is a program of the user's
                population.error = error
        taken = [(one, one.token_ids[num:], i) for i, (one, num) in enumerate(zip(sequences, num_before, strict=True))]
        record(taken, logits, bitmask, self.settings)
        trace(taken, logits, bitmask, self.settings)
        copy_rows(
            rows.cache,
            [pair for population in groups if not population.is_done for pair in self._resampled(population, rows)],
        )

    def _allowed(self, live: list[tuple[Population, int]]) -> Tensor | None:
        """The masks [L, W] where weights or log-probabilities need them; what fails is the error of its population."""
        if self._options.method == "awrs" and self.settings.num_alternatives is None:
            return None
        sequences = [population.sequences[place] for population, place in live]
        bitmask = self._masks.fill(sequences, [[] for _ in sequences])
        for (population, _), sequence in zip(live, sequences, strict=True):
            population.error = population.error or sequence.error
        return bitmask

    def _draw(
        self, live: list[tuple[Population, int]], logits: Tensor, bitmask: Tensor | None, rows: CacheRows
    ) -> list[Draw]:
        """A legal token of each particle with its weight; an error of one is that of its population."""
        positions = [Position(population.sequences[place]) for population, place in live]
        outputs = Outputs(positions, logits, None, self.settings, rows.table)
        for i, peak in enumerate(logits.amax(dim=-1).tolist()):
            if not math.isfinite(peak):  # the maximum of a row with NaN is NaN
                live[i][0].error = non_finite(self.settings, str(positions[i]), logits[i : i + 1])
        try:
            processed = outputs.scores()
        except DecodingError as error:  # of a processor, whatever the position
            for population, _ in live:
                population.error = population.error or error
            return [NO_DRAW] * len(live)
        for i, is_bad in enumerate(is_faulty(processed).tolist()):
            if is_bad and live[i][0].error is None:
                live[i][0].error = non_finite(
                    self.settings, str(positions[i]), logits[i : i + 1], outputs.at([i]).history()
                )
        keys = noise_keys(positions)
        if self._options.method == "awrs":
            return self._draw_by_rejection(live, processed, keys)
        assert bitmask is not None
        return masked_draws(processed, bitmask.to(processed.device), keys)

    def _draw_by_rejection(self, live: list[tuple[Population, int]], rows: Tensor, keys: NoiseKeys) -> list[Draw]:
        rows = rows.cpu()  # tokens are looked at one by one
        noise = gumbel(*keys, rows.shape[-1], rows.device)
        draws: list[Draw] = []
        for (population, place), row, own_noise in zip(live, rows, noise, strict=True):
            draw = NO_DRAW
            if population.error is None:
                try:
                    draw = rejection_draw(row, own_noise, self._judge(population, population.sequences[place]))
                except DecodekitError as error:
                    population.error = error
            draws.append(draw)
        return draws

    def _judge(self, population: Population, particle: TextRow) -> Callable[[int], bool]:
        """The judge of tokens behind the text of a particle."""
        matcher, predicate, vocabulary = particle.matcher, self._options.predicate, self.settings.vocabulary
        texts = self.settings.texts if matcher is None else matcher.token_texts
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

    def _take(self, population: Population, place: int, draw: Draw, rows: CacheRows) -> None:
        """Continue particle `place` with what was drawn."""
        if population.error is not None:
            return
        particle = population.sequences[place]
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
        append_token(particle, draw.token, self.settings, rows.table)
        population.error = particle.error
        if particle.finish_reason == "length" and particle.matcher is not None:
            population.kill(place)  # not ended: its weight is that of a beginning, even where it might end

    def _resampled(self, population: Population, rows: CacheRows) -> list[tuple[int, int]]:
        """Draw the particles anew if their weights are uneven; the rows to copy, and to where."""
        options, weights = self._options, population.log_weights
        # Equal weights have the size N but for rounding, which differs from batch to batch.
        if effective_sample_size(weights) >= options.threshold * options.num_particles * (1 - MARGIN):
            return []
        before = population.sequences
        numbers = population.uniforms(Stream.RESAMPLING, max(len(particle.token_ids) for particle in before))
        copies = []
        population.sequences = [*before]
        for place, number in enumerate(settled(ancestors(shares(weights), numbers, options.resample))):
            if number == place:
                continue
            source, one = before[number], before[place]
            twin = population.sequences[place] = source.fork(one.request, one.row)
            if rows.table is not None:
                rows.table.begin(twin)
            if source.finish_reason is None:
                copies.append((source.row, one.row))
        population.log_evidence += log_mean(weights)
        population.log_weights = [0.0] * options.num_particles
        population.num_resamplings += 1
        return copies

    def again(self, group: Population) -> Population:
        """The particles begin anew."""
        first = group.sequence
        request = replace(first.request, sequence=first.request.sequence // self._options.num_particles)
        return self.begin(TextRow(first.index, request, first.max_tokens, first.settings))

    def fail(self, group: Population, error: DecodekitError) -> None:
        """End the particles with an error, and with the longest text."""
        group.error = error

    def update(self, population: Population) -> Update | None:
        """The end of a population: the text that is handed out, and all others."""
        if not population.is_done:
            return None
        weights, particles = population.log_weights, population.sequences
        error = population.error
        if error is None and max(weights) == -math.inf:
            cut = [particle for particle in particles if particle.finish_reason == "length"]
            if cut:
                whole = (one for one in cut if is_satisfied("length", one.matcher))
                return self._ended(population, next(whole, cut[0]), None)
            error = DeadEndError(
                "no particle came to a text that the constraint accepts",
                at=f"prompt {particles[0].index}",
                hint="more particles, a higher temperature or no truncation: "
                "the distribution that is conditioned has no mask",
            )
        if error is not None:
            longest = max(particles, key=lambda one: len(one.token_ids))
            longest.finish_reason, longest.error = "dead_end" if isinstance(error, DeadEndError) else "error", error
            return self._ended(population, longest, None)
        # The same text may have come in several divisions into tokens: its weight is theirs together.
        texts: dict[str, float] = {}
        for particle, share in zip(particles, shares(weights).tolist(), strict=True):
            texts[particle.new_text] = texts.get(particle.new_text, 0.0) + share
        order = sorted(range(len(particles)), key=lambda i: (-texts[particles[i].new_text], -weights[i]))
        if self._options.returns == "draw":
            numbers = population.uniforms(Stream.CHOICE, 0)
            drawn = ancestors(shares(weights), numbers, "multinomial")[0]
            order.sort(key=lambda i: i != drawn)  # stable
        found: dict[str, TextRow] = {}
        for i in order:
            if weights[i] > -math.inf:
                found.setdefault(particles[i].new_text, particles[i])
        return with_others(self._ended(population, particle, texts[text]) for text, particle in found.items())

    def _ended(self, population: Population, particle: TextRow, share: float | None) -> Update:
        update = update_of(particle)
        assert update.result is not None
        # Nothing is known before the end.
        stats = replace(update.result.stats, ttft_s=None, particles=population.stats())
        return replace(update, result=replace(update.result, stats=stats, score=share))
