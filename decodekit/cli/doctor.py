"""`doctor`: what is installed, what it runs on, and what does not fit together."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodekit import __version__
from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import CRASH, DONE, print_json, print_table
from decodekit.errors import DecodekitError
from decodekit.plugins import version_of

if TYPE_CHECKING:
    from decodekit.llm import LLM


@command
def doctor(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="What to look at: tiny, a folder, a Hugging Face id, or a config.json. A model is loaded, which shows "
            "how it is run; of a configuration, or a folder without weights, the sizes are estimated. Empty for none.",
            show_default="tiny",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows of the estimate.", show_default="1")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of each of its rows.", show_default="1024")] = None,
    device: Annotated[
        str | None, typer.Option(help="A kind of GPU to predict a step for, such as h200, l4 or 4090; or cuda.")
    ] = None,
    as_json: o.Json = False,
) -> int:
    """Print versions, devices, kernels, caches and conflicts; with --model, what the model takes too.

    Exit code 1 if something is wrong.
    """
    from decodekit.constraints.engine import disk_store as store

    facts: dict[str, Any] = {
        "decodekit": version_of("decodekit") or f"{__version__} (from source, not installed)",
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        **_versions(),
        **_device(),
        **_kernels(),
        "numba cache": _numba_cache(),
        "decodekit cache": str(store.root() or f"off ({store.VARIABLE})"),  # of what depends on a tokenizer alone
    }
    problems = _conflicts()
    if not facts["numba cache"].startswith("writable"):
        problems.append(f"numba cannot keep compiled code ({facts['numba cache']}): set NUMBA_CACHE_DIR")
    lines: list[str] = []
    is_estimated = model is not None or batch is not None or context is not None or device is not None
    name = "tiny" if model is None else model
    if name:
        try:
            from decodekit.costs import estimate
            from decodekit.llm import LLM

            path = Path(name).expanduser()
            subject: LLM | str = str(path)
            if is_estimated and (path.suffix == ".json" or (path.is_dir() and not _has_weights(path))):
                told: dict[str, Any] = {"model": f"{name}: a configuration without weights"}
            else:
                told = _told(name, subject := LLM.load(name))
            if is_estimated:
                found = estimate(subject, batch or 1, context, device=device)
                told["estimate"], lines = found.to_dict(), str(found).splitlines()
            facts |= told
        except DecodekitError as error:
            facts["model"] = f"{name}: cannot be used"
            problems.append(str(error))
    if as_json:
        print_json({**facts, "problems": problems})
    else:
        print_table([(name, str(value)) for name, value in facts.items() if name not in ("estimate", "tool format")])
        for line in lines:
            print(line)
        for problem in problems:
            print(f"problem: {problem}")
        if not problems:
            print("no problems found")
    return CRASH if problems else DONE


def _requirements(package: str) -> list[Any]:
    """The requirements of a package, as `packaging` has them, extras left out; empty when it is not installed."""
    from packaging.requirements import Requirement

    every = map(Requirement, (importlib.metadata.requires(package) or []) if version_of(package) else [])
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]


def _versions() -> dict[str, str]:
    names = [one.name for one in _requirements("decodekit")] or ["torch", "transformers", "numpy", "numba"]
    return {name: version_of(name) or "missing" for name in names}


def _device() -> dict[str, str]:
    import torch

    from decodekit.decoding.prefixes.row_memory import free_memory

    free = free_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    memory = {} if free is None else {"free memory": f"{free / 1e9:,.1f} GB"}
    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    if not torch.cuda.is_available():
        kind = torch.backends.cpu.get_cpu_capability()
        return {"device": f"cpu ({kind}), {threads}", **memory, "cuda": "none"}
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    is_bf16 = torch.cuda.is_bf16_supported()
    return {
        "device": f"cuda: {', '.join(names)}; {threads}",
        **memory,
        "cuda": f"{torch.version.cuda}, bfloat16 {'supported' if is_bf16 else 'not supported'}",
    }


def _numba_cache() -> str:
    """Whether compiled kernels are kept: beside the source, or where NUMBA_CACHE_DIR says."""
    import decodekit

    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(decodekit.__file__).parent / "__pycache__")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return f"writable, {folder}"
    except OSError as error:
        return f"not writable, {folder}: {error.strerror}"


def _conflicts() -> list[str]:
    """Requirements that the installed versions do not meet, and the pins of vLLM on what decodekit shares with it."""
    problems = []
    for requirement in _requirements("decodekit"):
        version = version_of(requirement.name)
        if version is None:
            problems.append(f"{requirement} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} is installed, decodekit needs {requirement.specifier}")
    for requirement in _requirements("vllm"):
        if re.sub(r"[-_.]+", "-", requirement.name).lower() in ("torch", "transformers"):
            version = importlib.metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"vllm needs {requirement.name}{requirement.specifier}, {version} is installed")
    return problems


def _kernels() -> dict[str, str]:
    """The programs that run the parts of a step on this machine."""
    import torch

    from decodekit.gpu.sampler import why_no_kernel
    from decodekit.gpu.triton_programs import missing

    reason, is_on_gpu = missing(), torch.cuda.is_available()
    if is_on_gpu:
        slow = reason or why_no_kernel(torch.empty(0, device="cuda").device)
        twins = "attention over pages; sampler: its twin" if reason is None else "twins"
        programs = "attention over pages, sampler" if slow is None else f"{twins} in torch, slower: {slow}"
        kernels = f"{programs}; steps: CUDA graphs; masks: numba on the CPU"
    else:
        attention = "torch scaled_dot_product_attention"
        kernels = f"attention: {attention}; steps: programs run by numba (CPU); masks: numba"
    need = "torch.compile needs it, too" if is_on_gpu else "only a GPU needs it"
    return {"kernels": kernels, "triton": str(version_of("triton")) if reason is None else f"{reason}; {need}"}


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.safetensors.index.json"))


def _told(name: str, llm: LLM) -> dict[str, Any]:
    tier = getattr(llm.model, "tier", None)
    dtype = str(llm.model.dtype).removeprefix("torch.")
    return {"model": f"{name}: {dtype} on {llm.model.device}, runs {tier}", **_tool_calls(llm)}


def _tool_calls(llm: LLM) -> dict[str, Any]:
    """The report on how a model calls tools, and whether its template's calls are accepted by tokens and read back."""
    from decodekit.chat.tool_format import faults_in, read
    from decodekit.chat.tools import told_of
    from decodekit.constraints.tool_calls import ToolCall

    told, tokenizer = told_of(llm.tokenizer), llm.tokenizer
    try:
        format = llm.tool_format
        reading = read(tokenizer)
    except DecodekitError:
        return {"tool calls": told}
    if reading.rendered:
        faults = faults_in(reading, tokenizer, llm.vocabulary)
        count = f"{len(reading.rendered) - len(faults)} are accepted token by token and read back"
        told = f"{told}; {count}{f' (not {faults[0]})' if faults else ''}"
    call = format.written("", [ToolCall("get_weather", {"city": "Bern", "days": 2}, "abcdef012")])
    return {"tool calls": told, "a call": repr(call), "tool format": format.to_dict()}
