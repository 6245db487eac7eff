"""The option `contrast` through the front door: every strategy, drafts, constraints, batches, and what is refused."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.errors import (
    ContextLengthError,
    DecodekitError,
    ModelError,
    OptionError,
    UselessOptionError,
    VocabularyMismatchError,
)
from decodekit.llm import LLM
from decodekit.models.wrappers.contrast_model import AmateurLM
from decodekit.models.wrappers.guidance import GuidedLM
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import CONTEXT_LENGTH
from tests.reference.beam import best_texts
from tests.reference.contrast import amateurish_row, exit_logits, guided_row, layered_row
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer
from tests.reference.models import plain_logits
from tests.sizes import few, thinned

PROMPTS = ["the né other", "a", "x y z x y z x y z x", "other the a"]
PATTERN = r"(ab|é|x[yz]){2,5}-\d{1,3}[a-f](né)?"


@functools.cache
def llm(name: str = "llama") -> LLM:
    return LLM(architectures.build(name), small_tokenizer())


def contrasts(name: str = "llama") -> dict[str, Any]:
    return {
        "guidance": dk.Guidance(2.0),
        "negative prompt": dk.Guidance(1.5, "x other a"),
        "negative prompts": dk.Guidance(1.5, ["a", "the the", "x", "né"]),
        "dola": dk.DoLa([0, 1, 2]),
        "dola high": dk.DoLa("high"),
        "amateur": dk.Amateur(llm("qwen3" if name == "llama" else "llama")),
    }


@few(1)
@thinned(
    "names",
    [("llama", kind) for kind in contrasts()]
    + [(name, kind) for name in ("gpt2", "falcon") for kind in ("negative prompts", "dola")],
    keep=[("llama", "dola high"), ("falcon", "negative prompts")],
)
def test_speed_options_and_batches_change_no_text(names: tuple[str, str]) -> None:
    name, kind = names
    contrast = contrasts(name)[kind]
    drafts: list[Any] = ["prompt-lookup", dk.DraftModel(llm("qwen2"), num_tokens=3), dk.EarlyExit(1)]
    if name == "falcon":
        drafts = drafts[:2]
    for strategy in (dk.Greedy, functools.partial(dk.Sample, temperature=1.3, top_p=0.9, seed=5)):
        expected = llm(name).generate(PROMPTS, strategy=strategy(contrast=contrast), max_new_tokens=14)
        texts = [one.token_ids for one in expected]
        plain = llm(name).generate(PROMPTS, strategy=strategy(), max_new_tokens=14)
        assert texts != [one.token_ids for one in plain]  # a contrast is not without effect
        one_by_one = llm(name).generate(PROMPTS, strategy=strategy(contrast=contrast), max_new_tokens=14, batch_size=1)
        assert [one.token_ids for one in one_by_one] == texts
        for draft, batch_size in zip(drafts, itertools.cycle((3, 1)), strict=False):
            drafted = llm(name).generate(
                PROMPTS, strategy=strategy(contrast=contrast, speculate=draft), max_new_tokens=14, batch_size=batch_size
            )
            assert [one.token_ids for one in drafted] == texts, draft
            assert sum(one.stats.num_draft_tokens for one in drafted) > 0


@few(1)
@thinned("kind", contrasts(), keep=["negative prompts", "dola high", "amateur"])
def test_constraints_hold_and_speed_options_change_no_text(kind: str) -> None:
    """With random weights most tokens that a pattern allows are implausible: none of these rows may be a dead end."""
    options: dict[str, Any] = {"constraint": dk.Regex(PATTERN), "max_new_tokens": 60}
    strategy = functools.partial(dk.Sample, contrast=contrasts()[kind], seed=3)
    expected = llm().generate(PROMPTS, strategy=strategy(), **options)
    for one in expected:
        assert one.error is None and re.fullmatch(PATTERN, one.text)
    assert len({one.text for one in expected}) > 1
    for changed in ({"fast_forward": "off"}, {"batch_size": 1}, {"batch_size": 3}):
        assert [one.text for one in llm().generate(PROMPTS, strategy=strategy(), **options, **changed)] == [
            one.text for one in expected
        ]
    draft = [dk.GrammarDraft(), dk.DraftModel(llm("qwen2"), num_tokens=3)]
    drafted = llm().generate(PROMPTS, strategy=strategy(speculate=draft), **options)
    assert [one.text for one in drafted] == [one.text for one in expected]


@pytest.mark.parametrize("kind", ["dola", "amateur"])
def test_without_an_order_of_implausible_tokens_constraints_would_fail(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with the minus infinity of the papers, some places have no token left."""
    monkeypatch.setattr("decodekit.models.wrappers.contrast_model.IMPLAUSIBLE", -torch.inf)
    strategy = dk.Greedy(contrast=contrasts()[kind])
    found = llm().generate(PROMPTS, strategy=strategy, constraint=dk.Regex(PATTERN), max_new_tokens=60)
    assert any(one.finish_reason == "dead_end" for one in found)


def test_texts_of_other_strategies() -> None:
    """Samples of one prompt share its reading; Mirostat and best-of draw from the contrast as well."""
    contrast = dk.Guidance(2.0, ["a", "x other", "né né né né né né"])
    several = dk.Sample(num_return_sequences=3, seed=1, contrast=contrast)
    found = llm().generate(PROMPTS[:3], strategy=several, max_new_tokens=12)
    again = llm().generate(PROMPTS[:3], strategy=several, max_new_tokens=12, batch_size=1)
    alone = llm().generate(PROMPTS[:3], strategy=dk.Sample(seed=1, contrast=contrast), max_new_tokens=12)
    for one, other, single in zip(found, again, alone, strict=True):
        assert one.text == single.text
        assert [one.text, *(text.text for text in one.others)] == [other.text, *(text.text for text in other.others)]
        assert len({one.text, *(text.text for text in one.others)}) > 1
    best = dk.BestOf(3, strategy=dk.Sample(seed=1, contrast=contrast))
    texts = {one.text for one in (found[1], *found[1].others)}
    assert llm().generate(PROMPTS[:3], strategy=best, max_new_tokens=12)[1].text in texts
    for contrast in (dk.Guidance(2.0), dk.DoLa([1])):
        guided, plain = (
            llm().generate(PROMPTS[0], strategy=dk.Mirostat(seed=1, contrast=given), max_new_tokens=12).text
            for given in (contrast, None)
        )
        assert guided != plain


@few(2)
@pytest.mark.parametrize(
    "strategy",
    [
        lambda contrast: dk.Particles(6, strategy=dk.Sample(contrast=contrast, seed=2)),
        lambda contrast: dk.BestOf(3, strategy=dk.Sample(contrast=contrast, seed=2)),
        lambda contrast: dk.Mirostat(contrast=contrast, seed=1),
        lambda contrast: dk.Beam(3, contrast=contrast),
        lambda contrast: dk.Sample(contrast=contrast, speculate=dk.DraftModel(llm("qwen2"), 3), verify="rejection"),
    ],
)
def test_guidance_of_almost_1_changes_no_text_of_any_loop(strategy: Any) -> None:
    """Every loop keeps the second rows in step, whatever they have read: copies, cuts, several texts."""
    contrast = dk.Guidance(1 + 1e-7, ["a x", "the", "né né né né", "x"])
    plain, guided = (
        [
            [text.text for text in (one, *one.others)]
            for one in llm().generate(
                PROMPTS, strategy=strategy(given), constraint=dk.Regex(PATTERN), max_new_tokens=40, batch_size=3
            )
        ]
        for given in (None, contrast)
    )
    assert plain == guided and any(texts[0] for texts in plain)


@pytest.mark.parametrize("kind", ["guidance", "negative prompt", "dola", "amateur"])
def test_logprobs_are_those_of_the_contrast(kind: str) -> None:
    contrast = contrasts()[kind]
    prompt = PROMPTS[0]
    found = llm().generate(prompt, strategy=dk.Greedy(contrast=contrast), max_new_tokens=5, logprobs=2)
    ids = small_tokenizer()(prompt)["input_ids"]
    negative = small_tokenizer()("x other a")["input_ids"] if kind == "negative prompt" else ids[-1:]
    model: Any = llm().model
    amateur: Any = llm("qwen3").model
    assert found.logprobs is not None
    for place, entry in enumerate(found.logprobs):
        text = list(found.token_ids[:place])
        own = plain_logits(model.model, [*ids, *text])[-1]
        if kind == "dola":
            row = layered_row(own, [exit_logits(model.model, [*ids, *text], layer)[-1] for layer in range(3)], 0.1)
        elif kind == "amateur":
            row = amateurish_row(own, plain_logits(amateur.model, [*ids, *text])[-1], 0.1, 0.5)
        else:
            row = guided_row(own, plain_logits(model.model, [*negative, *text])[-1], contrast.scale)
        assert row.argmax() == entry.token_id
        assert entry.logprob == pytest.approx(row.log_softmax(-1)[entry.token_id].item(), abs=1e-3)
        assert entry.alternatives[0][0] == entry.token_id


@pytest.mark.parametrize("kind", ["guided", "amateur"])
def test_beams_search_the_texts_of_the_contrast(kind: str) -> None:
    """Enough beams to keep everything: the best of all texts under the contrasted law."""
    vocabulary, prompt, negative = Vocabulary([None] * 4, {3}), [0, 2, 1], [1, 1]
    law, other = hashed_law(4, 1.0), hashed_law(4, 1.0, salt=1)

    def contrasted(prefix: Any) -> torch.Tensor:
        if kind == "amateur":
            return amateurish_row(law(prefix), other(prefix), 0.01, 0.5).float()
        return guided_row(law(prefix), law([*negative, *prefix[3:]]), 1.5).float()

    lm: Any = GuidedLM(ToyLM(law, 4, frozenset({3})), 1.5)
    if kind == "amateur":
        lm = AmateurLM(ToyLM(law, 4, frozenset({3})), ToyLM(other, 4), 0.01, 0.5)
    beam = dk.Beam(81, num_return_sequences=5)
    settings = Settings(vocabulary, beam.pipeline, beam.select, max_new_tokens=4)
    [update] = beam.decode(lm, settings, 1, [Request(prompt, negative_prompt=negative)])
    assert update.result is not None
    found = [update.result, *(one.result for one in update.result.others)]
    expected = best_texts(contrasted, prompt, 4, 4, frozenset({3}), 1.0)[:5]
    assert [one.token_ids for one in found if one] == [text for _, text in expected]
    assert [one.score for one in found if one] == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_beams_through_the_front_door() -> None:
    plain, guided, drawn = (
        [one.text for one in llm().generate(PROMPTS, strategy=beam, max_new_tokens=10)]
        for beam in (dk.Beam(3), dk.Beam(3, contrast=dk.Guidance(2.0)), dk.Beam(3, contrast=dk.DoLa([1])))
    )
    assert plain != guided != drawn
    again = llm().generate(PROMPTS, strategy="beam", num_beams=3, contrast=dk.Guidance(2.0), max_new_tokens=10)
    assert [one.text for one in again] == guided


def test_negative_prompts_are_encoded_as_prompts_are() -> None:
    chat = LLM(llm().model, small_tokenizer())
    chat.tokenizer.chat_template = "{% for message in messages %}the {{ message['content'] }} né{% endfor %}"
    messages = [{"role": "user", "content": "other"}]

    def token_ids(negative: Any) -> Any:
        return chat.generate(
            PROMPTS[1], strategy=dk.Greedy(contrast=dk.Guidance(3.0, negative)), max_new_tokens=8
        ).token_ids

    assert token_ids(messages) == token_ids("the other né") == token_ids([messages]) == token_ids(["the other né"])
    assert token_ids("other né") != token_ids(messages)


def test_negative_prompts_count_for_the_context() -> None:
    """The second row must fit, too: its budget is that of the longer prompt."""
    long = "x " * 120
    found = llm().generate(
        PROMPTS[1], strategy=dk.Greedy(contrast=dk.Guidance(2.0, long)), max_new_tokens=CONTEXT_LENGTH
    )
    num_negative = len(small_tokenizer()(long)["input_ids"])
    assert len(found.token_ids) == CONTEXT_LENGTH - num_negative and found.error is None
    too_long = llm().generate(PROMPTS[1], strategy=dk.Greedy(contrast=dk.Guidance(2.0, long * 3)))
    assert isinstance(too_long.error, ContextLengthError) and "negative prompt" in str(too_long.error)


def test_prompts_without_a_negative_one() -> None:
    contrast = dk.Guidance(2.0, ["a", "x"])
    with pytest.raises(OptionError, match="2 negative prompts for 4 prompts"):
        llm().generate(PROMPTS, strategy=dk.Greedy(contrast=contrast))
    streamed = dict(llm().as_completed(iter(PROMPTS[:3]), strategy=dk.Greedy(contrast=contrast), max_new_tokens=3))
    assert streamed[0].error is None and streamed[1].error is None
    assert "only 2 negative prompts" in str(streamed[2].error)


@pytest.mark.parametrize(
    ("make", "at"),
    [
        (lambda: dk.Guidance(1.0), ["scale"]),
        (lambda: dk.Guidance(float("nan"), ""), ["scale", "negative_prompt"]),
        (lambda: dk.Guidance(2.0, []), ["negative_prompt"]),
        (lambda: dk.Guidance(2.0, [3.5]), ["negative_prompt"]),
        (lambda: dk.DoLa("middle"), ["layers"]),
        (lambda: dk.DoLa([], relative_top=0.0, final_norm=1), ["layers", "relative_top", "final_norm"]),
        (lambda: dk.DoLa([-1]), ["layers"]),
        (lambda: dk.Amateur(3, alpha=2, beta=-1), ["model", "alpha", "beta"]),
        (lambda: dk.Amateur(llm(), beta=0), ["beta"]),
        (lambda: dk.Greedy(contrast=2), ["contrast"]),
        (lambda: dk.Sample(contrast="dola"), ["contrast"]),
        (lambda: dk.Sample(contrast=dk.DoLa), ["contrast"]),
        (lambda: dk.Mirostat(contrast=2), ["contrast"]),
        (lambda: dk.Beam(contrast=2), ["contrast"]),
    ],
)
def test_options_that_cannot_be_used(make: Any, at: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert [fault.at for fault in caught.value.faults or (caught.value,)] == at


def test_what_has_no_effect_is_said_so() -> None:
    for make in (lambda: dk.Guidance(1), lambda: dk.Amateur(llm(), beta=0)):
        with pytest.raises(UselessOptionError):
            make()


@pytest.mark.parametrize(
    ("contrast", "error", "match"),
    [
        (lambda: dk.Amateur(LLM.load("tiny-draft")), VocabularyMismatchError, "token 3 is not the same"),
        (lambda: dk.DoLa([3]), OptionError, "which are 0 to 2"),
    ],
)
def test_contrasts_that_do_not_fit_the_model(contrast: Any, error: type[DecodekitError], match: str) -> None:
    with pytest.raises(error, match=match):
        llm().generate("a", strategy=dk.Greedy(contrast=contrast()))


def test_models_without_layers_are_refused_with_all_other_faults() -> None:
    toy = LLM(ToyLM(hashed_law(160), 160), small_tokenizer())
    with pytest.raises(ModelError, match="ToyLM does not show its layers"):
        toy.generate("a", strategy=dk.Greedy(contrast=dk.DoLa()))
    with pytest.raises(DecodekitError) as caught:
        toy.generate("a", strategy=dk.Greedy(contrast=dk.DoLa()), max_new_tokens=0, on_error="never")
    assert [fault.at for fault in caught.value.faults] == ["contrast", "max_new_tokens", "on_error"]  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="MambaForCausalLM does not show"):
        llm("mamba").generate("a", strategy=dk.Greedy(contrast=dk.DoLa()))


def test_a_recurrent_model_can_be_guided() -> None:
    found = llm("mamba").generate(PROMPTS, strategy=dk.Greedy(contrast=dk.Guidance(2.0)), max_new_tokens=6)
    alone = llm("mamba").generate(PROMPTS[2], strategy=dk.Greedy(contrast=dk.Guidance(2.0)), max_new_tokens=6)
    assert found[2].token_ids == alone.token_ids


def test_threads_may_share_a_model_and_a_contrast() -> None:
    import threading

    strategies = [dk.Greedy(contrast=contrasts()[kind]) for kind in ("negative prompt", "dola", "amateur")]
    expected = [llm().generate(PROMPTS[0], strategy=one, max_new_tokens=16).token_ids for one in strategies] * 2
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = llm().generate(PROMPTS[0], strategy=strategies[number % 3], max_new_tokens=16).token_ids

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == expected
