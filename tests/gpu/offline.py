"""Programs compiled for cards that this machine lacks: registers that spill, shared memory, buffers, PTX."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decodekit.gpu.triton_programs import H100, Card

CARDS: Final = {
    80: Card(108, 163 << 10, (8, 0)),  # A100
    86: Card(84, 99 << 10, (8, 6)),  # A10, RTX 3090
    89: Card(128, 99 << 10, (8, 9)),  # L40S, RTX 4090
    90: H100,
    100: Card(148, 227 << 10, (10, 0)),  # B200
    120: Card(170, 99 << 10, (12, 0)),  # RTX 5090
}
"""A card of each compute capability."""

_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64", torch.int8: "i8",
    torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
}  # fmt: skip


class Compiled(NamedTuple):
    """What came of a program.

    Args:
        ptx: what the assembler reads.
        ttgir: Triton's own code, where buffers are seen.
        shared: bytes of shared memory.
        registers: of a thread.
        spilled: bytes that a thread stores and loads for want of registers.
    """

    ptx: str
    ttgir: str
    shared: int
    registers: int
    spilled: int


def compiled(
    function: Any,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    num_warps: int = 4,
    capability: int = 90,
    **options: Any,
) -> Compiled:
    """Compile a program as a call with these arguments would on a card of this compute capability, 90 for 9.0."""
    names = [name for name in function.arg_names if name not in constants]
    assert len(names) == len(arguments)
    signature: dict[str, str] = dict.fromkeys(constants, "constexpr")
    values: dict[Any, Any] = dict(constants)
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    for name, argument in zip(names, arguments, strict=True):
        place = (function.arg_names.index(name),)
        if isinstance(argument, Tensor):
            signature[name] = "*" + _TYPES[argument.dtype]
            if not function.params[place[0]].do_not_specialize:
                attrs[place] = [["tt.divisibility", 16]]
        elif isinstance(argument, float):
            signature[name] = "fp32"
        elif argument == 1 and not function.params[place[0]].do_not_specialize:
            signature[name] = "constexpr"
            values[name] = 1
        else:
            signature[name] = "i32" if -(2**31) <= argument < 2**31 else "i64"
            if argument % 16 == 0 and not function.params[place[0]].do_not_specialize:
                attrs[place] = [["tt.divisibility", 16]]
    signature = {name: signature[name] for name in function.arg_names}
    source = ASTSource(function, signature, {(function.arg_names.index(k),): v for k, v in values.items()}, attrs)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": num_warps} | options)
    return Compiled(made.asm["ptx"], made.asm["ttgir"], made.metadata.shared, *_usage(made.asm["ptx"]))


def _usage(ptx: str) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills, as ptxas tells."""
    folder_of_tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    version, name = re.search(r"\.version (\d+)\.", ptx), re.search(r"\.target (sm_(\d+)\w*)", ptx)
    assert version is not None and name is not None
    is_newer = int(version[1]) > 8 or int(name[2]) >= 100
    ptxas = folder_of_tools / ("ptxas-blackwell" if is_newer else "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.ptx"
        file.write_text(ptx)
        command = [str(ptxas), "-v", f"--gpu-name={name[1]}", str(file), "-o", str(Path(folder) / "program.cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    told = done.stderr
    assert not done.returncode, told
    spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill", told))
    return max(int(number) for number in re.findall(r"Used (\d+) registers", told)), spilled
