"""A process of `decodekit serve` or of another server, what it takes of the machine, and requests as bytes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

REPOSITORY = Path(__file__).parent.parent
_START_S = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KEPT = ("decodekit_constraint_bytes ", "decodekit_prefix_bytes ")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the endpoint and its children hold and have used.

    Args:
        at: when, a value of `time.monotonic`.
        memory_mib: resident.
        num_descriptors: open.
        num_processes: the endpoint's own among them.
        processor_s: since their start, ended children included.
        waited_s: in which a thread of theirs was ready and another process had the processor, as far as they live.
        log_bytes: written to stderr.
    """

    at: float
    memory_mib: float
    num_descriptors: int
    num_processes: int
    processor_s: float
    waited_s: float
    log_bytes: int


class Endpoint:
    """Starts the endpoint in an empty folder and waits until it listens.

    Args:
        options: of the command.
        num_descriptors: how many it may open; None for as many as this process.
        num_threads: of its arithmetic.
        command: of another server, which is told its port by ``--port``; None for `decodekit serve`.

    Raises:
        SystemExit: it does not start.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        num_descriptors: int | None = None,
        *,
        num_threads: int = 1,
        command: Sequence[str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="decodekit-endpoint-")
        self._log = Path(self._folder.name) / "log.txt"
        limit = "" if num_descriptors is None else f"ulimit -n {num_descriptors}; "
        port = 0 if command is None else _free_port()
        command = command or (sys.executable, "-m", "decodekit.cli", "serve")
        shell = ("sh", "-c", f'{limit}exec "$@"', "sh")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*shell, *command, *options, "--port", f"{port}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder.name,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": f"{num_threads}"},
            )
        self.port = self._wait(port)

    def _wait(self, port: int) -> int:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if port and _listens(port):
                return port
            if not port and (found := re.search(r"at http://[^ /]*:([0-9]+)/v1", self.log())):
                return int(found[1])
            time.sleep(0.05)
        said = self.log()
        self.end()
        raise SystemExit(f"the endpoint did not start\n{said}")

    def log(self) -> str:
        """What it has said, the first million characters."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            return log.read(1 << 20)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def usage(self) -> Usage:
        """What it takes now, with its children."""
        memory = descriptors = ticks = waited = 0
        pids = self._pids()
        for pid in pids:
            folder = Path("/proc") / str(pid)
            with suppress(OSError):  # it has just ended
                memory += int((folder / "statm").read_text().split()[1]) * _PAGE
                ticks += sum(map(int, _stat(pid)[11:15]))  # own, and of children that were waited for
                descriptors += len(os.listdir(folder / "fd"))
                threads = [(one / "schedstat").read_text().split() for one in (folder / "task").iterdir()]
                waited += sum(int(nanoseconds) for _, nanoseconds, _ in threads)
        return Usage(
            at=time.monotonic(),
            memory_mib=round(memory / (1 << 20), 1),
            num_descriptors=descriptors,
            num_processes=len(pids),
            processor_s=ticks / _TICKS,
            waited_s=round(waited / 1e9, 2),
            log_bytes=self._log.stat().st_size,
        )

    def kept_mib(self) -> float:
        """What it keeps for later requests, of constraints and prompts, by its own account."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        kept = [line.split()[1] for line in lines if line.startswith(_KEPT)]
        assert len(kept) == len(_KEPT)
        return round(sum(map(float, kept)) / (1 << 20), 1)

    def _pids(self) -> list[int]:
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    parents[int(name)] = int(_stat(int(name))[1])
        found = [self._process.pid]
        for pid in found:
            found += (child for child, parent in parents.items() if parent == pid)
        return found

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to its children."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, most_s: float = 10.0) -> float:
        """Seconds until it has ended after SIGTERM; what is left of it and its children after `most_s` is killed."""
        begin = time.monotonic()
        started = {pid: _started(pid) for pid in self._pids()}
        if self.is_alive:
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)
        seconds = time.monotonic() - begin
        for pid, at in started.items():
            with suppress(ProcessLookupError):
                if at is not None and _started(pid) == at:  # the number may be another process's by now
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()
        return seconds


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _started(pid: int) -> str | None:
    """When a process was started; None if there is none."""
    with suppress(OSError):
        return _stat(pid)[19]
    return None


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold spaces: the state, the parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def request(
    path: str, value: Any = None, *, method: str = "POST", host: str = "127.0.0.1", headers: Sequence[str] = ()
) -> bytes:
    """A request whose connection ends with its answer.

    Args:
        path: of the route.
        value: the body, as a value of JSON or as bytes; None for none.
        method: of the request.
        host: what the field ``Host`` says.
        headers: further lines of the head.
    """
    body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    kind = (
        () if any(line.lower().startswith("content-type") for line in headers) else ("Content-Type: application/json",)
    )
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *kind, *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
