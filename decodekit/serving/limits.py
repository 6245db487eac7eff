"""The limits of an endpoint: what it takes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from decodekit.constraints.tool_calls import AUTO, FORMATS
from decodekit.errors import DecodekitError, OptionError, raise_faults

MAX_TEXTS: Final = 128
"""Most texts of one request: prompts times `n`."""

SharedPrefixes: TypeAlias = Literal["all", "client", "none"]
_COUNTS: Final = ("max_new_tokens", "max_body_bytes", "max_bodies_bytes", "max_constraint_bytes", "max_connections",
           "max_readings", "max_entries", "max_queue", "compile_workers")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and manners of an endpoint.

    Args:
        max_new_tokens: most tokens of a text; what a chat gets that names no limit.
        max_queue: how many texts may wait for a row; more are answered with 429.
        max_body_bytes: size of a request.
        max_bodies_bytes: memory for the bodies of all requests under way, less the first 64 KiB of each; more are
            answered with 429.
        max_constraint_bytes: size of a schema, pattern, grammar, list of choices or of tools, as JSON.
        max_connections: of clients; for one more that connection ends that has waited longest for its next request, or
            else the new one.
        header_s: seconds in which a client has to ask for something, from its connection or its last answer on.
        body_s: seconds in which a body has to arrive.
        send_s: seconds in which a client has to take something of its answer.
        timeout_s: seconds for a request, waiting included; then it is answered with 504.
        compile_s: seconds for the constraint of a request.
        compile_bytes: memory for it.
        compile_workers: constraints that are looked at together.
        max_readings: how many new constraints, and how many long prompts, of a client may be under way or wait; more
            are answered with 429.
        max_entries: log-probabilities of an answer: of all tokens of all texts, with their alternatives.
        shared_prefixes: who shares what was read of prompts: "all"; "client", those with the same key, or without keys
            those with the same address; "none", the texts of one request.
        stall_s: seconds after which a step of the engine is told as one that does not end.
        tool_format: the name of the format in which tools are called, see `dk.tools`.
        retry_s: what ``Retry-After`` says to those who are refused for now.

    Raises:
        OptionError: with all values that are out of range.
    """

    max_new_tokens: int = 4096
    max_queue: int = 256
    max_body_bytes: int = 4 << 20
    max_bodies_bytes: int = 256 << 20
    max_constraint_bytes: int = 256 << 10
    max_connections: int = 1024
    header_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    timeout_s: float = 600.0
    compile_s: float = 5.0
    compile_bytes: int = 2 << 30
    compile_workers: int = 2
    max_readings: int = 16
    max_entries: int = 1 << 18
    shared_prefixes: SharedPrefixes = "client"
    stall_s: float = 10.0
    tool_format: str = "auto"
    retry_s: int = 1

    @property
    def max_values(self) -> int:
        """Most lists, objects and members of objects in a body: four bytes each in the largest constraint."""
        return max(100_000, self.max_constraint_bytes // 4)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        for name in _COUNTS:
            least = int(name not in ("max_queue", "compile_workers"))
            if getattr(self, name) < least:
                faults.append(OptionError(f"{name}={getattr(self, name)} is less than {least}", at=name))
        faults += (
            OptionError(f"{name}={getattr(self, name)} is no number of seconds above 0", at=name)
            for name in ("header_s", "body_s", "send_s", "timeout_s", "compile_s", "stall_s")
            if not getattr(self, name) > 0
        )
        if self.shared_prefixes not in (sharing := get_args(SharedPrefixes)):
            cause = f"shared_prefixes={self.shared_prefixes!r:.40} is unknown"
            faults.append(OptionError(cause, at="shared_prefixes", hint=", ".join(sharing)))
        if self.tool_format not in (formats := (AUTO.name, *FORMATS)):
            cause = f"there is no format of tool calls {self.tool_format!r:.60}"
            faults.append(OptionError(cause, at="tool_format", hint=", ".join(formats)))
        raise_faults(faults)
