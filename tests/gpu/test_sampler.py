"""One token of each row: the twin against the host's pipeline and selectors."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.errors import DeadEndError, NonFiniteLogitsError
from decodekit.gpu import draw_settings, sampler
from decodekit.gpu.sampler import Chosen, Rule, sampled, weights_of
from decodekit.sampling import selectors
from decodekit.sampling.certificates import lead_greedy, lead_noisy
from decodekit.sampling.fast.cuts import weight
from decodekit.sampling.pipeline import Pipeline
from tests.gpu.rows import Setting, drawn_rows, setting_of, values_of
from tests.sizes import sized


def pipeline_of(setting: Setting) -> Pipeline:
    """The processors of one row."""
    temperature, top_k, top_p, min_p, _ = setting
    parts: list[Any] = [dk.Temperature(temperature)]
    parts += [dk.TopK(top_k)] if top_k else []
    parts += [dk.TopP(top_p)] if top_p < 1 else []
    parts += [dk.MinP(min_p)] if min_p else []
    return Pipeline(parts)


def rule_of(settings: list[Setting]) -> Rule:
    """The settings of rows, as the sampler unpacks them."""
    zeros = [0] * len(settings)
    return sampler._unpacked(torch.from_numpy(draw_settings.packed(settings, zeros, zeros, zeros)), 1)[0]


def on_host(row: Tensor, setting: Setting, key: tuple[int, int, int], mask: Tensor | None) -> tuple[int, int]:
    """Token and status of one row, as the host takes it."""
    keys = [[one] for one in key]
    rows = row.float()[None]
    try:
        if setting[4]:
            return int(selectors.greedy(Pipeline([])(rows, mask=mask))), 0
        return int(selectors.sample(pipeline_of(setting).narrow(rows, mask=mask), *keys)), 0
    except NonFiniteLogitsError:
        return 0, 1
    except DeadEndError:
        return 0, 2


def assert_as_on_the_host(
    found: Chosen, logits: Tensor, settings: list[Setting], keys: Tensor, masks: Tensor | None, ids: Tensor | None
) -> None:
    for row, setting in enumerate(settings):
        mask = None if masks is None or ids is None or ids[row] < 0 else masks[int(ids[row])][None]
        expected = on_host(logits[row], setting, tuple(keys[:, row].tolist()), mask)
        assert (int(found.tokens[row]), int(found.status[row])) == expected, (row, setting, logits[row])


@sized("num_batches", 40, slow=3000)
def test_the_twin_takes_the_tokens_of_the_host(num_batches: int) -> None:
    """Random and adversarial rows of small and of wide vocabularies, each row with other settings."""
    draw = random.Random(5)
    for _ in range(num_batches):
        logits, settings, keys, masks, ids = drawn_rows(draw)
        found = sampled(logits, rule_of(settings), *keys, masks, ids)
        assert_as_on_the_host(found, logits, settings, keys, masks, ids)


@sized("vocab_size", 2, slow=5)
def test_all_rows_of_a_small_world(vocab_size: int) -> None:
    """Every row of a few logits out of five numbers, with every combination of some settings, in one call each."""
    numbers = (0.0, 1.0, -math.inf, 1.5, -2.0)
    rows = torch.tensor(list(itertools.product(numbers, repeat=vocab_size)))
    for temperature, top_k, top_p, min_p in itertools.product((1.0, 0.7), (0, 1, 2, 3), (1.0, 0.5, 0.9), (0.0, 0.3)):
        settings = [(temperature, top_k, top_p, min_p, False)] * len(rows)
        keys = torch.stack([torch.arange(len(rows)), torch.zeros(len(rows)), torch.ones(len(rows))]).long()
        found = sampled(rows, rule_of(settings), *keys)
        assert_as_on_the_host(found, rows, settings, keys, None, None)


@sized("vocab_size", 20_000, slow=152_064)
def test_nuclei_of_wide_rows_are_those_of_the_host(vocab_size: int) -> None:
    """Sums of whole numbers cut where the host's sums of float64 do, and at shares that are equal but for rounding."""
    generator = torch.Generator().manual_seed(9)
    steep = torch.randn(2, vocab_size, generator=generator) * torch.tensor([[3.0], [1.0]])
    logits = torch.cat([steep, torch.zeros(1, vocab_size), steep.bfloat16().float()])
    for p in (0.1, 0.3, 0.5, 0.9, 0.95, 0.999):
        settings: list[Setting] = [(1.0, 0, p, 0.0, False)] * len(logits)
        expected = Pipeline([dk.TopP(p)])(logits) > -math.inf
        found = sampler._kept(logits, logits.amax(dim=-1, keepdim=True), rule_of(settings))
        assert torch.equal(found, expected), p


def test_weights_are_those_of_the_host() -> None:
    """Bit by bit: one float32 formula in units of 2^-44."""
    distances = -torch.cat([torch.linspace(0, 90, 20001), torch.tensor([1e-7, 1e-30, math.inf])])
    expected = [int(float(weight(x)) * sampler.UNIT) for x in distances.numpy()]
    assert weights_of(distances).tolist() == expected


def certificates_on_host(row: Tensor, setting: Setting, key: tuple[int, int, int]) -> tuple[int, bool]:
    keys = [[one] for one in key]
    if setting[4]:
        found = Pipeline([]).leaders(row[None], None, lambda scores, floor: lead_greedy(scores))
    else:
        found = pipeline_of(setting).leaders(row[None], None, lambda scores, floor: lead_noisy(scores, *keys, floor))
    return int(found.tokens[0]), bool(found.are_certified[0])


@sized("num_batches", 60, slow=2000)
def test_what_is_clear_is_clear_on_the_host(num_batches: int) -> None:
    """More is clear here with a min-p: tokens that it removes beside what is given are not looked at; and one token."""
    draw = random.Random(6)
    num_clear = num_unclear = 0
    for _ in range(num_batches):
        logits, settings, keys, _, _ = drawn_rows(draw, are_sound=True)
        found = sampled(logits, rule_of(settings), *keys)
        for row, setting in enumerate(settings):
            token, is_certified = certificates_on_host(logits[row].float(), setting, tuple(keys[:, row].tolist()))
            if (setting[3] == 0 and logits.shape[1] > 1) or is_certified:
                assert is_certified == bool(found.are_certified[row]), (row, setting)
            if is_certified:
                assert token == found.tokens[row]
            num_clear += is_certified
            num_unclear += not is_certified
    assert min(num_clear, num_unclear) > 20


@sized("num_batches", 40, slow=2000)
def test_a_clear_token_is_taken_under_every_mask_that_allows_it(num_batches: int) -> None:
    draw = random.Random(7)
    num_clear = 0
    for _ in range(num_batches):
        logits, settings, keys, _, _ = drawn_rows(draw, are_sound=True)
        rule, vocab_size = rule_of(settings), logits.shape[1]
        found = sampled(logits, rule, *keys)
        for _ in range(4):
            generator = torch.Generator().manual_seed(draw.randrange(2**31))
            is_allowed = torch.rand(logits.shape, generator=generator) < draw.choice((0.1, 0.5, 0.9))
            is_allowed.scatter_(1, found.tokens[:, None], True)
            is_allowed.scatter_(1, found.given[:, None], True)
            masked = sampled(torch.where(is_allowed, logits, -math.inf), rule, *keys)
            assert (masked.tokens == found.tokens)[found.are_certified].all()
        num_clear += int(found.are_certified.sum())
        assert vocab_size
    assert num_clear > 50


def test_a_token_that_is_not_clear_may_change() -> None:
    """A negative control: the second of two near tokens leads; without all others top-p removes it."""
    logits = torch.tensor([[0.62, 0.30, 0.04, 0.04]]).log()
    rule = rule_of([(1.0, 0, 0.65, 0.0, False)])
    for seed in range(100):
        keys = torch.tensor([[seed], [0], [0]])
        found = sampled(logits, rule, *keys)
        if found.tokens[0] == 1:
            assert not found.are_certified[0]
            masked = torch.where(torch.tensor([[True, True, False, False]]), logits, -math.inf)
            assert sampled(masked, rule, *keys).tokens[0] == 0
            return
    pytest.fail("the second token never led")


def test_one_call_is_traced_for_other_rows() -> None:
    """Settings, masks, noise and logits move behind a trace of the program."""
    draw = random.Random(8)
    batches = [drawn_rows(draw, num_rows=3, vocab_size=40, has_masks=True) for _ in range(3)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(sampled(tensors[0], Rule(*tensors[1:6]), *tensors[6:11]))

    def inputs(batch: Any) -> tuple[Tensor, ...]:
        logits, settings, keys, masks, ids = batch
        return (logits.float(), *rule_of(settings), *keys, masks, ids)

    program = torch.fx.experimental.proxy_tensor.make_fx(run)(*inputs(batches[0]))
    for batch in batches:
        for one, other in zip(program(*inputs(batch)), run(*inputs(batch)), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("is_asked", [False, True])
def test_rows_of_one_text_have_its_numbers_and_their_own_places(is_asked: bool) -> None:
    """Three positions of two texts in one upload are six rows, each by itself; nothing is certified unasked."""
    logits, settings, keys, masks, _ = drawn_rows(random.Random(4), num_rows=2, vocab_size=64, has_masks=True)
    assert masks is not None
    values = torch.from_numpy(draw_settings.packed(settings, *keys.tolist(), 3, is_asked))
    ids = torch.tensor([[0, -1], [2, 1], [-1, 0]], dtype=torch.int32)
    values[draw_settings.MASKS :] = ids
    found = sampler.sample_rows(logits.repeat_interleave(3, dim=0), values, masks, 3, True)
    for row, (text, place) in enumerate(itertools.product(range(2), range(3))):
        seed, sequence, index = keys[:, [text]]
        rule = rule_of([settings[text]])
        own = sampled(logits[[text]], rule, seed, sequence, index + place, masks, ids[place, [text]])
        given, is_certified = (own.given, own.are_certified) if is_asked else (own.tokens, own.are_certified & False)
        assert found[row].tolist() == [int(one) for one in (own.tokens, given, is_certified, own.status)]


def test_the_operation_has_a_fake_and_a_schema() -> None:
    logits, settings, keys, masks, ids = drawn_rows(random.Random(9), num_rows=2, vocab_size=40, has_masks=True)
    arguments = (logits, values_of(settings, keys, ids), masks, 1, True)
    torch.library.opcheck(
        torch.ops.decodekit.sample_rows.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
    assert setting_of(random.Random(1), 4)[0] > 0
