"""E2, E3, E4 and E11: texts follow their exact law, whoever guesses and however guesses are verified.

A vocabulary of five letters and an end, logits that depend on the last token, texts of three tokens. The law is the
product of the laws along each text, computed on one row at a time without drafts. Seeds are fixed, so a run gives the
same figures every time; under the right law a case falls below the threshold with odds of 1 in 10,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from decodekit.constraints import Constraint, Regex, compile
from decodekit.decoding.draws import guesses, rejection
from decodekit.decoding.draws import row_draws as drawing
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.positions import Drawn, Position
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.sampling import Pipeline, apply_bitmask
from decodekit.sampling.noise import Stream
from decodekit.speculation import (
    Adaptive,
    Chain,
    Context,
    Draft,
    DraftModel,
    GrammarDraft,
    Joined,
    PromptLookup,
    Proposer,
    Suffix,
)
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.speculation.verification import Verify
from decodekit.strategy import Mirostat, Sample, Strategy
from decodekit.vocabulary import Vocabulary
from tests.decoding.pairs import THRESHOLD, p_value
from tests.reference.generation import TableLM
from tests.reference.speculation import text_law
from tests.sizes import few, thinned

V, NUM_TOKENS = 6, 3
VOCABULARY = Vocabulary([*(bytes([c]) for c in b"abcde"), None], [5])
NO_END = Vocabulary([bytes([c]) for c in b"abcdef"], [])  # the end is a letter: free texts have three tokens
PROMPT = [0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 1]
FEW, SOME, MANY = 400, 1000, 200_000
REGEX = Regex("[a-c][b-e]?(a|e)|de?|e(a|b)c")
CANONICAL = Canonical(lambda text: [b"abcde".index(byte) for byte in text.encode()], VOCABULARY)


def table(salt: int, scale: float = 1.5) -> torch.Tensor:
    return torch.randn(V, V, generator=torch.Generator().manual_seed(salt)) * scale


TARGET, OTHER = table(1), table(2, 1.0)


@dataclass(frozen=True, eq=False)
class Drawing:
    """Draws from the softmax of a table, whatever the constraint and the target think of it, and says so.

    Args:
        laws: [V, V], the probabilities after each token.
        num_tokens: of a draft.
        is_argmax: takes the likeliest token and pretends to have drawn it.
    """

    laws: torch.Tensor
    num_tokens: int = 2
    is_argmax: bool = False

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        drafts = []
        for context, limit in zip(contexts, limits, strict=True):
            number = len(drawn_before)
            rng = context.memory.setdefault(self, np.random.default_rng(number))
            drawn_before.append(number)
            tokens, last = [], [*context.prompt, *context.text][-1]
            laws = []
            for _ in range(min(limit, self.num_tokens)):
                laws.append(self.laws[last])
                last = (
                    int(laws[-1].argmax())
                    if self.is_argmax
                    else int((rng.random() < laws[-1].cumsum(0)).int().argmax())
                )
                tokens.append(last)
            drafts.append(Draft(tokens, torch.stack(laws) if laws else None))
        return drafts


drawn_before: list[int] = []


def p_of_texts(
    strategy: Strategy,
    proposer: Proposer | None,
    verify: Verify = "coupled",
    constraint: Constraint | None = None,
    num_samples: int = SOME,
    is_guessed: bool = True,
    **options: Any,
) -> float:
    """χ² of the texts that come out of the loop against their law."""
    vocabulary = NO_END if constraint is None else VOCABULARY
    matcher = None if constraint is None else compile(constraint, VOCABULARY).matcher()
    law = text_law(strategy, lambda token: TARGET[token], PROMPT, NUM_TOKENS, matcher)
    assert sum(law.values()) == pytest.approx(1)
    settings = Settings(
        vocabulary,
        strategy.pipeline,
        strategy.select,
        NUM_TOKENS,
        proposer=proposer,
        verify=verify,
        mirostat=strategy.mirostat,
        canonical=None if constraint is None else CANONICAL,
        **options,
    )
    requests = (Request(PROMPT, matcher, seed=seed) for seed in range(num_samples))
    drawn_before.clear()
    found: Counter[tuple[int, ...]] = Counter()
    num_accepted = 0
    for update in decode_texts(TableLM(TARGET), settings, 2000, requests):
        if update.result is not None:
            found[update.result.token_ids] += 1
            num_accepted += sum(update.result.stats.acceptance_histogram)
    assert found.total() == num_samples
    assert proposer is None or (num_accepted > 0) == is_guessed
    texts = [*law, *(text for text in found if text not in law)]
    return p_value(
        np.array([found[text] for text in texts], dtype=float), np.array([law.get(text, 0.0) for text in texts])
    )


@dataclass(frozen=True)
class Likely:
    """Guesses the likeliest token that is legal, and so on: chosen and not drawn."""

    num_tokens: int = 2

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft(self._tokens(context, min(limit, self.num_tokens)))
            for context, limit in zip(contexts, limits, strict=True)
        ]

    def _tokens(self, context: Context, limit: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < limit:
            order = TARGET[[*context.prompt, *context.text, *tokens][-1]].argsort(descending=True).tolist()
            legal = [token for token in order if context.num_legal([*tokens, token]) > len(tokens)]
            if not legal:
                break
            tokens.append(legal[0])
        return tokens


@dataclass(frozen=True)
class Wrong:
    """Guesses the same tokens always."""

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [Draft([2, 4][:limit]) for limit in limits]


PROPOSERS: dict[str, Callable[[], Proposer | None]] = {
    "none": lambda: None,
    "lookup": PromptLookup,
    "suffix": Suffix,
    "likely": Likely,
    "wrong": Wrong,
    "draft": lambda: DraftModel(TableLM(OTHER), 2),
    "same": lambda: DraftModel(TableLM(TARGET), 2),
    "short": lambda: DraftModel(TableLM(OTHER), 1),
    "chain": lambda: Chain((PromptLookup(min_ngram=2), DraftModel(TableLM(OTHER), 2))),
    "joined": lambda: Joined((PromptLookup(min_ngram=2, num_tokens=1), DraftModel(TableLM(OTHER), 1))),
    "drawing": lambda: Drawing(OTHER.softmax(-1)),
}
VERIFIERS: list[Verify] = ["coupled", "rejection"]


@few(2)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("name", PROPOSERS)
def test_three_tokens(name: str, verify: Verify) -> None:
    assert p_of_texts(Sample(), PROPOSERS[name](), verify, num_samples=1000) > THRESHOLD


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("name", PROPOSERS)
def test_three_tokens_200_000_times(name: str, verify: Verify) -> None:
    """E3 at its full size: about a minute each."""
    assert p_of_texts(Sample(), PROPOSERS[name](), verify, num_samples=MANY) > THRESHOLD


def test_adaptive_lengths_follow_the_law() -> None:
    assert p_of_texts(Sample(), Adaptive(DraftModel(TableLM(OTHER), 2)), num_samples=3000) > THRESHOLD


STRATEGIES: list[Strategy] = [
    Sample(temperature=0.7, top_k=3),
    Sample(top_p=0.8, min_p=0.05),
    Sample(repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3),
    Sample(temperature=1.3, logit_bias={1: 1.0, 0: -1.0}, no_repeat_ngram_size=2),
    Sample(dry_multiplier=0.8, dry_allowed_length=1, typical_p=0.9, xtc_probability=0.5, xtc_threshold=0.2),
    Mirostat(tau=1.2, eta=0.5),
]


NAMES = ["likely", "draft", "drawing"]


def verifier(name: str) -> Verify:
    """Drafts that are drawn are verified by rejection, drafts that are not by coupled match."""
    return "coupled" if name == "likely" else "rejection"


@few(2)
@thinned("name", NAMES, keep=["likely", "drawing"])
@pytest.mark.parametrize("constraint", [None, REGEX], ids=["free", "regex"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_processors_and_constraints(strategy: Strategy, constraint: Constraint | None, name: str) -> None:
    """E4; N = 400."""
    assert p_of_texts(strategy, PROPOSERS[name](), verifier(name), constraint, FEW) > THRESHOLD


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("constraint", [None, REGEX], ids=["free", "regex"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_processors_and_constraints_30_000_times(strategy: Strategy, constraint: Constraint | None, name: str) -> None:
    assert p_of_texts(strategy, PROPOSERS[name](), verifier(name), constraint, 30_000) > THRESHOLD


@few(2)
@pytest.mark.parametrize("options", [{}, {"fast_forward": "off"}, {"num_alternatives": 0}], ids=repr)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("name", ["draft", "drawing"])
def test_a_constraint_alone(name: str, verify: Verify, options: dict[str, Any]) -> None:
    """With what is forced taken unseen, asked of the model, and as a draft."""
    assert p_of_texts(Sample(), PROPOSERS[name](), verify, REGEX, FEW, **options) > THRESHOLD


def test_scaffolding() -> None:
    scaffolded = Regex("[ab]c[de]|d[abc]")  # after a and b, c is the only byte
    for fast_forward in ("off", "exact"):
        is_guessed = fast_forward == "off"
        p = p_of_texts(
            Sample(), GrammarDraft(), "coupled", scaffolded, FEW, is_guessed=is_guessed, fast_forward=fast_forward
        )
        assert p > THRESHOLD


@few(1)
@pytest.mark.parametrize(("width", "num_samples"), [(8, 30_000), (5000, 2000)])
def test_one_position(width: int, num_samples: int) -> None:
    """E2 for the rejection test: eight tokens, two laws with zeros; also in rows so wide that compiled code draws."""
    generator = torch.Generator().manual_seed(0)
    scores, other = torch.full((2, width), -torch.inf)
    scores[:8], other[:8] = torch.randn(2, 8, generator=generator) * 1.5
    scores[[1, 5]], other[[2, 5]] = -torch.inf, -torch.inf
    law = other.softmax(-1)
    sequence: Any = None
    counted, num_kept = np.zeros(8), 0
    for start in range(0, num_samples, 1000):
        keys = NoiseKeys([*range(start, start + 1000)], [0] * 1000, [3] * 1000)
        own = keys.of(range(1000), Stream.DRAFT)
        drafted = rejection.sample(other.expand(1000, width).clone(), own.seeds, own.sequences, own.positions).tolist()
        places = [Position(sequence, (), Drawn(token, law)) for token in drafted]
        found = rejection.verified([0] * 1000, places, scores.expand(1000, width), keys)
        counted += np.bincount(found, minlength=8)
        num_kept += sum(one == other for one, other in zip(found, drafted, strict=True))
    p = scores[:8].double().softmax(-1).numpy()
    assert p_value(counted, p) > THRESHOLD
    share = np.minimum(p, law[:8].numpy()).sum()  # of the tokens that are kept
    assert abs(num_kept / num_samples - share) < 4.5 * (share * (1 - share) / num_samples) ** 0.5  # odds 1 in 10^5


# E11: one rule broken, the functions above must notice


def argmax_with_softmax_q(monkeypatch: pytest.MonkeyPatch) -> float:
    return p_of_texts(Sample(), Drawing(OTHER.softmax(-1), is_argmax=True), "rejection")


def penalties_blind_to_the_draft(monkeypatch: pytest.MonkeyPatch) -> float:
    own = TokenTable.history
    monkeypatch.setattr(
        TokenTable, "history", lambda self, rows, drafts, device: own(self, rows, [()] * len(drafts), device)
    )
    return p_of_texts(STRATEGIES[2], PROPOSERS["same"](), "rejection")


def mask_after_top_p(monkeypatch: pytest.MonkeyPatch) -> float:
    own = Pipeline.narrow

    def narrow(self: Pipeline, logits: Any, history: Any = None, mask: Any = None) -> Any:
        rows = own(self, logits, history, None)
        rows = rows if isinstance(rows, torch.Tensor) else rows.dense()
        return rows if mask is None else apply_bitmask(rows, mask)

    strategy = Sample(top_p=0.9)
    matcher = compile(REGEX, VOCABULARY).matcher()
    law = text_law(strategy, lambda token: TARGET[token], PROMPT, NUM_TOKENS, matcher)
    monkeypatch.setattr(Pipeline, "narrow", narrow)
    monkeypatch.setitem(globals(), "text_law", lambda *arguments: law)
    return p_of_texts(strategy, PROPOSERS["drawing"](), "rejection", REGEX)


def one_noise_stream(monkeypatch: pytest.MonkeyPatch) -> float:
    """Draft, test and residual look up the same numbers."""
    monkeypatch.setattr(Stream, "of", lambda self, sequences: [one + (1 << 60) for one in sequences])
    return p_of_texts(Sample(), PROPOSERS["draft"](), "rejection")


def one_noise_for_all_positions(monkeypatch: pytest.MonkeyPatch) -> float:
    own = drawing.noise_keys

    def keys(places: Sequence[Position]) -> NoiseKeys:
        right = own(places)
        return NoiseKeys(right.seeds, right.sequences, [0] * len(places))

    monkeypatch.setattr(drawing, "noise_keys", keys)
    return p_of_texts(Sample(), PROPOSERS["wrong"]())


def residual_that_is_p(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(rejection, "residual", lambda p, q: p)
    return p_of_texts(Sample(), PROPOSERS["draft"](), "rejection")


def illegal_tokens_dropped(monkeypatch: pytest.MonkeyPatch) -> float:
    """What is drawn and illegal ends the draft without a test."""
    own = rejection.drawn_tokens
    monkeypatch.setattr(guesses, "drawn_tokens", lambda draft, num_read, size: own(draft, num_read, size)[:num_read])
    return p_of_texts(Sample(), PROPOSERS["drawing"](), "rejection", REGEX, 3000)


def all_drafts_kept(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(rejection, "is_accepted", lambda p, q, uniforms: uniforms * q <= q)
    return p_of_texts(Sample(), PROPOSERS["draft"](), "rejection")


@few(3)
@pytest.mark.parametrize(
    "control",
    [
        argmax_with_softmax_q,
        penalties_blind_to_the_draft,
        mask_after_top_p,
        one_noise_stream,
        one_noise_for_all_positions,
        residual_that_is_p,
        illegal_tokens_dropped,
        all_drafts_kept,
    ],
)
def test_a_broken_rule_is_noticed(
    control: Callable[[pytest.MonkeyPatch], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert control(monkeypatch) < THRESHOLD
