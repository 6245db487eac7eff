"""What an endpoint takes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decodekit.constraints.tool_calls import FORMATS
from decodekit.errors import DecodekitError, OptionError, raise_faults

MAX_TEXTS: Final = 128
"""Most texts of one request: prompts times `n`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and manners of an endpoint.

    Args:
        max_new_tokens: most tokens of a text; what a chat gets that names no limit.
        max_queue: how many texts may wait for a row; more are answered with 429.
        max_body_bytes: size of a request.
        body_s: seconds in which a body has to arrive.
        timeout_s: seconds for a request, waiting included; then it is answered with 504.
        compile_s: seconds for the constraint of a request.
        compile_bytes: memory for it.
        compile_workers: constraints that are looked at together.
        tool_format: how calls of tools are written, see `dk.tools`.
        retry_s: what ``Retry-After`` says to those who are refused for now.

    Raises:
        OptionError: with all values that are out of range.
    """

    max_new_tokens: int = 4096
    max_queue: int = 256
    max_body_bytes: int = 4 << 20
    body_s: float = 30.0
    timeout_s: float = 600.0
    compile_s: float = 5.0
    compile_bytes: int = 2 << 30
    compile_workers: int = 2
    tool_format: str = "hermes"
    retry_s: int = 1

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        for name, least in (("max_new_tokens", 1), ("max_queue", 0), ("max_body_bytes", 1), ("compile_workers", 0)):
            if getattr(self, name) < least:
                faults.append(OptionError(f"{name}={getattr(self, name)} is less than {least}", at=name))
        faults += (
            OptionError(f"{name}={getattr(self, name)} is no number of seconds above 0", at=name)
            for name in ("body_s", "timeout_s", "compile_s")
            if not getattr(self, name) > 0
        )
        if self.tool_format not in FORMATS:
            cause = f"there is no format of tool calls {self.tool_format!r:.60}"
            faults.append(OptionError(cause, at="tool_format", hint=", ".join(FORMATS)))
        raise_faults(faults)
