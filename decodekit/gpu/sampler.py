"""One token for each row of logits, whatever the settings of each row, without asking the host for anything.

Three rows of four logits, of which the second has top-k 2 and the third is greedy:

    logits        2.0  1.0  0.5 -1.0      y = z / T; T = 0.5, 1 and, greedy, 1
    noise of 0   -0.57 -0.46 3.06 -0.30   seed 7, sequence 0, position 0: see `sampling.noise`
    row 0         4.0  2.0  1.0 -2.0      relative 0 -2 -3 -6, with noise -0.57 -2.46 0.06 -6.30    token 2
    row 1         2.0  1.0    .    .      relative 0 -1,       with noise -0.57 -1.46               token 0
    row 2                                 the largest logit                                         token 0

The token is the one that `Pipeline([Temperature(T), TopK(k), TopP(p), MinP(m)]).narrow` and `selectors.sample` take, or
`selectors.greedy`: the same noise, ties and margins. The masses of a nucleus are sums of whole numbers, w = e^(y - max
y) in units of 2^-44, so that they do not depend on the order in which they are added: they are equal on all devices and
in all batches. The host adds the same float32 weights, or ones that differ in the last bits, in float64: its sums agree
to 10^-7, and at shares that are equal but for rounding both keep the token (see `sampling.tolerances`).

Of a row that is asked about (`ASKED`) it says, too, whether the token is the one that the row takes under every mask
that allows it and what is `given` (see `sampling.certificates`): then a constraint is asked about it, and no mask is
made.

    status 0      a token
    status 1      NaN or +inf among the allowed logits, or after the temperature: no token
    status 2      no finite logit: no token

On a CPU this is the twin in torch (`sampled`), on CUDA the kernels of `sampler_kernel`.
"""

from __future__ import annotations

import functools
from itertools import product
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from decodekit.errors import is_out_of_memory
from decodekit.gpu.draw_settings import ASKED, FLAGS, GREEDY, INDEX, MASKS, NUM_VALUES, TEMPERATURE, TOP_K, packed
from decodekit.gpu.triton_programs import missing
from decodekit.sampling.noise import GOLDEN, device_keys, mix_int64
from decodekit.sampling.tolerances import MARGIN, NEAR

UNIT: Final = float(1 << 44)
"""So many units are the weight 1: sums of 2^18 weights stay below 2^63, and what each loses is below 2^-44."""

_GOLDEN: Final = GOLDEN - (1 << 64)


class Rule(NamedTuple):
    """The settings of N rows, on the device."""

    temperatures: Tensor  # float32 [N], above 0
    top_ks: Tensor  # int32 [N]; 0 for none
    top_ps: Tensor  # float64 [N]; 1 for none
    distances: Tensor  # float64 [N], -ln of min-p (`distance_of`); inf for none
    are_greedy: Tensor  # bool [N]; such a row has no other setting


class Chosen(NamedTuple):
    """The results of N rows."""

    tokens: Tensor  # int64 [N]; 0 where the status is not 0
    are_certified: Tensor  # bool [N]: the token is the one under every mask that allows it and the one that is given
    given: Tensor  # int64 [N], mostly the tokens themselves
    status: Tensor  # int32 [N]; see the module


def _unpacked(values: Tensor, num_positions: int) -> tuple[Rule, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Settings, keys (three [N] each), masks int32 [N] and whether they are asked, of each position of each text."""
    each = values[:NUM_VALUES].repeat_interleave(num_positions, dim=1, output_size=values.shape[1] * num_positions)
    wide = each[:INDEX].t().clone(memory_format=torch.contiguous_format)  # [N, 4] of 64 bits
    whole, real = wide.view(torch.int64), wide.view(torch.float64)
    places = torch.arange(num_positions, device=values.device).repeat(values.shape[1])
    rule = Rule(each[TEMPERATURE].view(torch.float32), each[TOP_K], real[:, 2], real[:, 3], (each[FLAGS] & GREEDY) != 0)
    masks = values[MASKS : MASKS + num_positions].t().flatten()
    return rule, whole[:, 0], whole[:, 1], each[INDEX].long() + places, masks, (each[FLAGS] & ASKED) != 0


def weights_of(distances: Tensor) -> Tensor:
    """e^x for x <= 0 of float32 in units of 2^-44, int64: `sampling.fast.cuts.weight`, operation by operation."""
    x = distances.clamp(min=-87.0)
    k = (x * 1.44269504 + 0.5).floor()
    r = x - k * 0.693359375 + k * 2.12194440e-4
    p = torch.full_like(r, 1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + term
    p = p * (r * r) + r + 1
    power = ((k.to(torch.int32) + 127) << 23).view(torch.float32)
    return (p * power * UNIT).to(torch.int64)


def sampled(
    logits: Tensor, rule: Rule, seeds: Tensor, sequences: Tensor, positions: Tensor,
    masks: Tensor | None = None, mask_ids: Tensor | None = None,
) -> Chosen:  # fmt: skip
    """The operation in torch, of rows with settings, keys int64 [N] and masks by their numbers, [N]."""
    rows = logits.to(torch.float32)
    if masks is not None and mask_ids is not None:
        rows = torch.where(_is_allowed(masks, mask_ids, rows.shape[1]), rows, -torch.inf)
    ones = torch.ones_like(rule.temperatures)
    rows = rows / torch.where(rule.are_greedy, ones, rule.temperatures)[:, None]
    peaks = rows.amax(dim=-1, keepdim=True)  # NaN where a row has NaN
    status = torch.where(peaks.isfinite(), 0, torch.where(peaks == -torch.inf, 2, 1)).to(torch.int32)[:, 0]
    is_kept = _kept(rows, peaks, rule)
    keys = device_keys(seeds, sequences, positions, logits.device)
    relative = rows - peaks
    noisy = relative + torch.where(rule.are_greedy[:, None], 0.0, _noise(keys, rows.shape[1]))
    tokens = torch.where(is_kept, noisy, -torch.inf).argmax(dim=-1)
    likeliest = rows.argmax(dim=-1)
    tokens = torch.where(rule.are_greedy, likeliest, tokens)
    has_token = status == 0
    above_floor = torch.where(relative >= _floors(peaks, rule) - peaks, noisy, -torch.inf)
    are_certified = _is_certain(rows, above_floor, tokens, rule) & has_token
    own = rows.gather(1, tokens[:, None])
    is_given_another = (rule.distances < torch.inf) & ~rule.are_greedy & (own < peaks)[:, 0]
    given = torch.where(is_given_another, likeliest, tokens)
    return Chosen(torch.where(has_token, tokens, 0), are_certified, torch.where(has_token, given, 0), status)


def _is_allowed(masks: Tensor, mask_ids: Tensor, vocab_size: int) -> Tensor:
    """bool [N, V] from a pool of masks, int32 [n, words]; without one all are allowed."""
    words = masks.index_select(0, mask_ids.clamp(min=0).to(torch.int64))
    places = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = ((words[:, :, None] >> places) & 1).flatten(1)[:, :vocab_size] != 0
    return bits | (mask_ids < 0)[:, None]


def _noise(keys: Tensor, vocab_size: int) -> Tensor:
    """float32 [N, V], as `noise.gumbel`, from keys [N, 1]."""
    counters = torch.arange(1, vocab_size + 1, device=keys.device) * _GOLDEN
    bits = (mix_int64(keys + counters) >> 12) & ((1 << 52) - 1)
    return -(-((bits.to(torch.float64) + 0.5) * 2.0**-52).log()).log().to(torch.float32)


def _floors(peaks: Tensor, rule: Rule) -> Tensor:
    """The least number that min-p keeps, float32 [N, 1], as `tolerances.lowest_kept`; -inf without one."""
    limits = peaks.double() - (rule.distances[:, None] + MARGIN)
    rounded = limits.float()
    up = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    floors = torch.where(rounded.double() < limits, up, rounded)
    return torch.where(rule.are_greedy[:, None], -torch.inf, floors)


def _kept(rows: Tensor, peaks: Tensor, rule: Rule) -> Tensor:
    """bool [N, V]: what top-k, then top-p, then min-p leaves."""
    vocab_size = rows.shape[1]
    ordered, ids = rows.sort(dim=-1, descending=True, stable=True)
    k = torch.where((rule.top_ks <= 0) | rule.are_greedy, vocab_size, rule.top_ks.clamp(max=vocab_size)).to(torch.int64)
    is_in_order = ordered >= ordered.gather(1, k[:, None] - 1)
    units = torch.where(is_in_order, weights_of(ordered - peaks), 0)
    before = units.cumsum(dim=-1) - units
    p = torch.where(rule.are_greedy, 1.0, rule.top_ps)[:, None]
    wanted = ((p - MARGIN * torch.minimum(p, 1 - p)) * units.sum(dim=-1, keepdim=True).double()).ceil().to(torch.int64)
    is_in_order &= (p == 1.0) | (before < wanted)
    is_kept = torch.empty_like(is_in_order).scatter_(1, ids, is_in_order)
    return is_kept & (rows >= _floors(peaks, rule)) & (rows > -torch.inf)


def _is_certain(rows: Tensor, noisy: Tensor, tokens: Tensor, rule: Rule) -> Tensor:
    """Whether a token is the clear leader of its row, and kept by every truncation under every mask: bool [N]."""
    best = noisy.topk(min(2, noisy.shape[1]), dim=-1)
    values = best.values.double()
    is_alone = (values[:, 0] - values[:, -1] > NEAR) if rows.shape[1] > 1 else torch.ones_like(rule.are_greedy)
    is_leader = is_alone & (best.indices[:, 0] == tokens)
    own = rows.gather(1, tokens[:, None])
    distances = torch.where(rows >= own, rows.double() - own.double(), -torch.inf)
    distances.scatter_(1, tokens[:, None], -torch.inf)  # without itself
    largest = distances.amax(dim=-1).clamp(min=0.0)
    in_k = ((distances > 0).sum(dim=-1) < rule.top_ks) | (rule.top_ks <= 0)
    mass = distances.exp().sum(dim=-1)
    in_p = (mass * (1.0 - rule.top_ps + MARGIN) < rule.top_ps * (1.0 - MARGIN)) | (rule.top_ps == 1.0)
    in_min_p = (largest <= rule.distances - MARGIN) | (largest == 0)
    return torch.where(rule.are_greedy, True, is_leader & in_k & in_p & in_min_p)


def chosen(logits: Tensor, values: Tensor, masks: Tensor | None, num_positions: int, has_cut: bool) -> Tensor:
    """The operation in torch; arguments as of `sample_rows`."""
    rule, seeds, sequences, positions, mask_ids, are_asked = _unpacked(values, num_positions)
    found = sampled(logits, rule, seeds, sequences, positions, masks, mask_ids)
    given, are_certified = torch.where(are_asked, found.given, found.tokens), found.are_certified & are_asked
    return torch.stack([found.tokens, given, are_certified, found.status], dim=1).to(torch.int32)


@torch.library.custom_op("decodekit::sample_rows", mutates_args=())
def sample_rows(logits: Tensor, values: Tensor, masks: Tensor | None, num_positions: int, has_cut: bool) -> Tensor:
    """A token of each row; see the module.

    Args:
        logits: [N, V], bfloat16, float16 or float32; of B texts, at `num_positions` positions each.
        values: int32 [MASKS + num_positions, B], as `packed`.
        masks: int32 [n, ceil(V / 32)], a pool of masks, or None.
        num_positions: rows of a text.
        has_cut: False promises that no row has top-k or top-p, and saves what looks for it.

    Returns:
        int32 [N, 4]: token, 0 where the status is not 0; what is given; whether the token is certified; status.
    """
    return chosen(logits, values, masks, num_positions, has_cut)


@functools.cache
def why_no_kernel(device: torch.device) -> str | None:
    """Why a device draws by the twin: there are no programs, or they draw other tokens there; None if they draw its.

    Asked once, of rows that have every kind of cut: a fault would be another text, and nobody would see it.
    """
    if (reason := missing()) is not None:
        return reason
    from decodekit.gpu.kernels.sampler_kernel import launched

    cuts = [*product((0, 3, 500, 40_000), (1.0, 0.05, 0.9, 0.999), (0.0, 0.02))]
    logits = (3 * torch.randn(len(cuts), 33_000, generator=torch.Generator().manual_seed(0))).to(device)
    logits[::3].round_()  # many are equal
    for has_cut in (False, True):
        settings = [(1.0, k, p, least, False) if has_cut else (0.7, 0, 1.0, least, False) for k, p, least in cuts]
        values = torch.from_numpy(packed(settings, range(32), range(32), range(32))).to(device)
        given = logits, values, None, 1, has_cut
        try:
            if not torch.equal(launched(*given), chosen(*given)):
                return "the programs of the sampler draw other tokens than their twin"
        except Exception as error:  # whatever a compiler or a driver raises
            if is_out_of_memory(error):
                raise  # asked again by the next draw
            return f"the programs of the sampler do not run: {error}"
    return None


@sample_rows.register_kernel("cuda")
def _on_cuda(*arguments: Any) -> Tensor:
    if why_no_kernel(arguments[0].device) is not None:
        return chosen(*arguments)
    from decodekit.gpu.kernels.sampler_kernel import launched

    return launched(*arguments)


@sample_rows.register_fake
def _shape_of(logits: Tensor, *others: Any) -> Tensor:
    return logits.new_empty((logits.shape[0], 4), dtype=torch.int32)
