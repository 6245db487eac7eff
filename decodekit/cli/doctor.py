"""`doctor`: what is installed, what it runs on, and what does not fit together."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit import __version__
from decodekit.cli import options as o
from decodekit.cli.command import command
from decodekit.cli.console import CRASH, DONE, print_json, print_table
from decodekit.errors import DecodekitError


@command
def doctor(
    model: Annotated[
        str, typer.Option(help="A model to load: shows its number type and how it is run; empty for none.")
    ] = "tiny",
    as_json: o.Json = False,
) -> int:
    """Print versions, devices, caches and conflicts. Exit code 1 if something is wrong."""
    from decodekit.constraints.engine import store

    facts: dict[str, Any] = {
        "decodekit": _version("decodekit") or f"{__version__} (from source, not installed)",
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        **_versions(),
        **_device(),
        "kernels": _kernels(),
        "numba cache": _numba_cache(),
        "decodekit cache": str(store.root() or f"off ({store.VARIABLE})"),  # of what depends on a tokenizer alone
    }
    problems = _conflicts()
    if not facts["numba cache"].startswith("writable"):
        problems.append(f"numba cannot keep compiled code ({facts['numba cache']}): set NUMBA_CACHE_DIR")
    if model:
        try:
            facts["model"] = _describe_model(model)
        except DecodekitError as error:
            facts["model"] = f"{model}: cannot be used"
            problems.append(str(error))
    if as_json:
        print_json({**facts, "problems": problems})
    else:
        print_table([(name, str(value)) for name, value in facts.items()])
        for problem in problems:
            print(f"problem: {problem}")
        if not problems:
            print("no problems found")
    return CRASH if problems else DONE


def _version(name: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Any]:
    """What decodekit needs, as `packaging` requirements, extras left out; empty when it is not installed."""
    from packaging.requirements import Requirement

    lines = importlib.metadata.requires("decodekit") or [] if _version("decodekit") else []
    return [requirement for line in lines if "extra ==" not in line and (requirement := Requirement(line))]


def _versions() -> dict[str, str]:
    names = [requirement.name for requirement in _requirements()] or ["torch", "transformers", "numpy", "numba"]
    return {name: _version(name) or "missing" for name in names}


def _device() -> dict[str, str]:
    import torch

    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    if not torch.cuda.is_available():
        return {"device": f"cpu, {threads}", "cuda": "none"}
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    is_bf16 = torch.cuda.is_bf16_supported()
    return {
        "device": f"cuda: {', '.join(names)}; {threads}",
        "cuda": f"{torch.version.cuda}, bfloat16 {'supported' if is_bf16 else 'not supported'}",
    }


def _kernels() -> str:
    """Whether programs for a GPU can be made, or why not."""
    from decodekit.kernels.programs import missing

    reason = missing()
    return f"triton {_version('triton')}" if reason is None else f"none, CUDA runs slower twins: {reason}"


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
    """Requirements that the installed versions do not meet, and packages known not to share an environment."""
    problems = []
    for requirement in _requirements():
        version = _version(requirement.name)
        if version is None:
            problems.append(f"{requirement} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} is installed, decodekit needs {requirement.specifier}")
    problems += _pinned_by("vllm", ("torch", "transformers"))
    return problems


def _pinned_by(package: str, names: tuple[str, ...]) -> list[str]:
    """Where another package pins what decodekit shares with it to a version that is not the installed one."""
    from packaging.requirements import Requirement

    problems = []
    for line in (importlib.metadata.requires(package) or []) if _version(package) else []:
        requirement = Requirement(line)
        if re.sub(r"[-_.]+", "-", requirement.name).lower() not in names:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = importlib.metadata.version(requirement.name)
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{package} needs {requirement.name}{requirement.specifier}, {version} is installed")
    return problems


def _describe_model(name: str) -> str:
    from decodekit.llm import LLM

    llm = LLM.load(name)
    tier = getattr(llm.model, "tier", None)
    dtype = str(llm.model.dtype).removeprefix("torch.")
    return f"{name}: {dtype} on {llm.model.device}, runs {tier}"
