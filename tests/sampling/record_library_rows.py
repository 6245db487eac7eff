"""Record the laws that llama.cpp and mlx-lm compute from given rows and settings, for ``test_orders.py``.

    python -m tests.sampling.record_library_rows llamacpp path/to/xllamacpp.abi3.so b11549
    python -m tests.sampling.record_library_rows mlx

The first needs a shared library with llama.cpp (a wheel of `xllamacpp` has one), the second `mlx` and `mlx-lm`;
neither is a dependency of this project, so what they compute is kept in ``library_rows/*.json``. Logits are multiples
of 1/64, without ties. XTC draws a coin; the recorded law is that over both outcomes.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "library_rows"
V = 24
Case = dict[str, Any]
Settings = Mapping[str, Any]


def cases(choices: Mapping[str, list[Any]], seed: int, count: int) -> list[Case]:
    """Rows, prefixes and settings at random; first each setting alone."""
    rng = np.random.default_rng(seed)
    made: list[Case] = []
    for index in range(count):
        logits = rng.choice(np.arange(-400, 400), V, replace=False) / 64
        names = list(choices)
        if index < len(names):
            picked = names[index : index + 1]
        else:
            picked = [name for name in names if rng.random() < 0.45]
        settings = {name: choices[name][rng.integers(len(choices[name]))] for name in picked}
        prefix = rng.integers(0, 8, 90).tolist()
        made.append({"settings": settings, "prefix": prefix, "logits": logits.tolist()})
    return made


def mixed(case: Case, law: Callable[[Case, bool], np.ndarray]) -> list[float]:
    """The law over both outcomes of XTC's coin."""
    xtc = case["settings"].get("xtc")
    rho = xtc[0] if xtc else 0.0
    p = (1 - rho) * law(case, False) + (rho * law(case, True) if rho else 0.0)
    return [round(float(x), 9) for x in p]


# --- llama.cpp -------------------------------------------------------------------------------------------------------


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenArray(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]  # fmt: skip


class LogitBias(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("bias", ctypes.c_float)]


class ChainParams(ctypes.Structure):
    _fields_ = [("no_perf", ctypes.c_bool)]


class Vector(ctypes.Structure):
    """A std::vector, which is three pointers in the usual libraries of C++."""

    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p)]


DRY_FOR_TESTS = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"


def vector_of(array: Any) -> Vector:
    start = ctypes.addressof(array)
    end = start + ctypes.sizeof(array)
    return Vector(start, end, end)


def llamacpp_law(library: ctypes.CDLL, case: Case, with_xtc: bool) -> np.ndarray:
    """The chain of `common_sampler_init` in its default order."""
    f, i, n = ctypes.c_float, ctypes.c_int32, ctypes.c_size_t
    s: Settings = case["settings"]
    keep_alive: list[Any] = []

    def make(name: str, *arguments: Any) -> ctypes.c_void_p:
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    chain = make("llama_sampler_chain_init", ChainParams(True))

    def add(name: str, *arguments: Any) -> None:
        library.llama_sampler_chain_add(chain, make(name, *arguments))

    if "logit_bias" in s:
        biases = (LogitBias * len(s["logit_bias"]))(*[LogitBias(int(t), b) for t, b in s["logit_bias"].items()])
        keep_alive.append(biases)
        add("llama_sampler_init_logit_bias", i(V), i(len(biases)), biases)
    penalties = [s.get(name, off) for name, off in (("repetition", 1.0), ("frequency", 0.0), ("presence", 0.0))]
    add("llama_sampler_init_penalties", i(V), i(64), *map(f, penalties))
    if "dry" in s:
        multiplier, base, allowed, breakers = s["dry"]
        inner = [(i * len(b))(*b) for b in breakers]
        outer = (Vector * len(inner))(*map(vector_of, inner))
        vector = vector_of(outer)
        keep_alive += [inner, outer, vector]
        add(DRY_FOR_TESTS, f(multiplier), f(base), i(allowed), i(1024), ctypes.byref(vector))
    if "top_n_sigma" in s:
        add("llama_sampler_init_top_n_sigma", f(s["top_n_sigma"]))
    if "top_k" in s:
        add("llama_sampler_init_top_k", i(s["top_k"]))
    if "typical" in s:
        add("llama_sampler_init_typical", f(s["typical"]), n(0))
    if "top_p" in s:
        add("llama_sampler_init_top_p", f(s["top_p"]), n(0))
    if "min_p" in s:
        add("llama_sampler_init_min_p", f(s["min_p"]), n(0))
    if with_xtc:
        add("llama_sampler_init_xtc", f(1.0), f(s["xtc"][1]), n(0), ctypes.c_uint32(1))
    if "dynamic_temperature" in s:
        low, high, exponent = s["dynamic_temperature"]
        add("llama_sampler_init_temp_ext", f((low + high) / 2), f((high - low) / 2), f(exponent))
    elif "temperature" in s:
        add("llama_sampler_init_temp", f(s["temperature"]))
    for token in case["prefix"]:
        library.llama_sampler_accept(chain, i(token))
    data = (TokenData * V)(*[TokenData(t, z, 0.0) for t, z in enumerate(case["logits"])])
    array = TokenArray(data, V, -1, False)
    library.llama_sampler_apply(chain, ctypes.byref(array))
    logits = np.full(V, -np.inf)
    for place in range(array.size):
        logits[array.data[place].id] = array.data[place].logit
    library.llama_sampler_free(chain)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


LLAMACPP: dict[str, list[Any]] = {
    "temperature": [0.5, 0.8, 1.4],
    "top_k": [1, 4, 9],
    "top_p": [0.5, 0.8, 0.95],
    "min_p": [0.02, 0.1, 0.3],
    "typical": [0.4, 0.8],
    "top_n_sigma": [0.8, 1.5],
    "xtc": [[0.3, 0.1], [0.7, 0.2]],
    "repetition": [1.2, 1.5],
    "frequency": [0.1, 0.3],
    "presence": [0.4],
    "logit_bias": [{"3": 2.0, "9": -1.5}],
    "dry": [[0.8, 1.75, 2, []], [0.5, 1.5, 1, [[2], [5, 1]]]],
    "dynamic_temperature": [[0.5, 1.5, 1.0], [0.2, 2.0, 2.0]],
}


# --- mlx-lm ----------------------------------------------------------------------------------------------------------


def mlx_law(case: Case, with_xtc: bool) -> np.ndarray:
    """`generate_step`: logits processors, log-probabilities, then the methods that `make_sampler` chains."""
    import mlx.core as mx
    from mlx_lm import sample_utils

    s: Settings = case["settings"]
    logits = mx.array([case["logits"]])
    processors = sample_utils.make_logits_processors(
        {int(t): b for t, b in s["logit_bias"].items()} if "logit_bias" in s else None,
        s.get("repetition"),
        presence_penalty=s.get("presence"),
        frequency_penalty=s.get("frequency"),
    )
    for processor in processors:
        logits = processor(mx.array(case["prefix"]), logits)
    final: list[Any] = []
    original = sample_utils.categorical_sampling
    sample_utils.categorical_sampling = lambda x, temp: final.append(x * (1.0 / temp)) or mx.argmax(x, axis=-1)
    sampler = sample_utils.make_sampler(
        temp=s.get("temperature", 1.0),
        top_p=s.get("top_p", 0.0),
        min_p=s.get("min_p", 0.0),
        top_k=s.get("top_k", 0),
        xtc_probability=1.0 if with_xtc else 0.0,
        xtc_threshold=s.get("xtc", [0, 0.1])[1],
    )
    sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    sample_utils.categorical_sampling = original
    row = np.array(final[0][0], dtype=np.float64)
    weights = np.exp(row - row.max())
    return weights / weights.sum()


MLX: dict[str, list[Any]] = {
    name: LLAMACPP[name]
    for name in (
        "temperature", "top_k", "top_p", "min_p", "xtc", "repetition", "frequency", "presence", "logit_bias",
    )
}  # fmt: skip


def write(name: str, version: str, made: list[Case], law: Callable[[Case, bool], np.ndarray]) -> None:
    """Write ``library_rows/<name>.json``."""
    for case in made:
        case["law"] = mixed(case, law)
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in made)
    (FOLDER / f"{name}.json").write_text(f'{{"version": {json.dumps(version)}, "cases": [\n{lines}\n]}}\n')


def main() -> None:
    if sys.argv[1] == "llamacpp":
        library = ctypes.CDLL(sys.argv[2])
        made = [
            case
            for case in cases(LLAMACPP, 0, 90)
            if not {"temperature", "dynamic_temperature"} <= case["settings"].keys()
        ]
        write("llamacpp", sys.argv[3], made, lambda case, with_xtc: llamacpp_law(library, case, with_xtc))
    else:
        write("mlx", importlib.metadata.version("mlx-lm"), cases(MLX, 1, 50), mlx_law)


if __name__ == "__main__":
    main()
