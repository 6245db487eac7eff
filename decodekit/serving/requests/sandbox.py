"""Constraints of strangers, read in processes that may be ended.

A schema, a pattern or a grammar is a program for the engine of constraints, and its bounds count states, not seconds.
A process of its own reads each new one first, within a limit of time and of memory:

    endpoint                          process (`_COMMAND`)
    {"kind": "regex", "value": ...}   ->    made, and tried on the beginnings of a few texts
                                      <-    {} or {"error": what `DecodekitError.to_dict` tells}
    nothing for `compile_s` seconds: the process is ended, the request is refused, another process takes its place

What has passed is made again by the engine, in no more time. A process is light: no torch, no model. It imports what
the endpoint does, but nothing of the folder that it is started in, and knows no variables that may be secrets. It works
behind everybody else, has a bound on its processor time, and ends with the endpoint, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import random
import subprocess
import sys
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any, Final

import decodekit
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.token_masks import Masks
from decodekit.constraints.matching.compiler import check_satisfiable
from decodekit.errors import ConstraintError, DecodekitError, ResourceLimitError, ShutdownError, error_of
from decodekit.serving.limits import Limits
from decodekit.serving.requests.structure import Structure, constraint_of, in_field
from decodekit.vocabulary import Vocabulary

NUM_TRIALS: Final = 4
TRIAL_BYTES: Final = 48
"""So many random texts are read so far before a constraint is taken."""

_COMMAND: Final = """\
import json, sys
own = [one for one in sys.path if not one.endswith(("site-packages", "dist-packages"))]  # Python's, before all others
sys.path[:] = own + [one for one in json.loads(sys.argv[1]) if one not in own]
from decodekit.serving.requests.sandbox import main
main(int(sys.argv[2]), float(sys.argv[3]))
"""
_NEEDED: Final = ("PATH", "HOME", "LANG", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
     "XDG_CACHE_HOME", "DECODEKIT_CACHE")  # fmt: skip
"""The variables that Python, its libraries and their caches need."""
_NICE: Final = 10
_MANY_KNOWN: Final = 4096
_START_S: Final = 60.0
_MOST_ASKED: Final = 500  # what a process has learned of constraints grows


class Compiler:
    """Says of constraints whether they can be used. Threads may share it.

    With ``compile_workers=0`` constraints are read in the thread of the caller, without a limit of time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle: queue.Queue[_Process | None] = queue.Queue()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._processes: set[_Process] = set()
        self._is_closed = False
        self._lock = threading.Lock()
        for _ in range(limits.compile_workers):
            self._idle.put(None)  # started when it is needed

    def start(self) -> None:
        """Start a process, so that the first request need not wait for it."""
        if self._limits.compile_workers:
            process = self._idle.get()
            self._idle.put(process or self._started())

    def _started(self) -> _Process:
        process = _Process(self._limits)
        with self._lock:
            self._processes = {one for one in self._processes if one.is_alive} | {process}
            is_closed = self._is_closed
        if is_closed:
            process.end()
            raise ShutdownError("the endpoint is shutting down", hint="again in a moment, or another endpoint")
        return process

    def is_known(self, structure: Structure) -> bool:
        """Whether a constraint can be used, as was found out before."""
        with self._lock:
            is_known = structure.key in self._known
            if is_known:
                self._known.move_to_end(structure.key)
            return is_known

    def check(self, structure: Structure) -> None:
        """Return if a constraint can be used; the place of an error is its field."""
        if self.is_known(structure):
            return
        if not self._limits.compile_workers:
            try:
                look_at(structure.kind, structure.value)
            except Exception as error:
                raise in_field(error, structure.field) from error
        else:
            self._ask(structure)
        with self._lock:
            self._known[structure.key] = None
            if len(self._known) > _MANY_KNOWN:
                self._known.popitem(last=False)

    def _ask(self, structure: Structure) -> None:
        process = self._idle.get()
        try:
            if process is not None and process.num_asked >= _MOST_ASKED:
                process.end()
                process = None
            process = process or self._started()
            error = process.ask(structure)
            if not process.is_alive and not process.is_late and process.num_asked > 1:
                process = self._started()  # others may have taken the memory
                error = process.ask(structure)
        except BaseException:
            if process is not None:
                process.end()
            process = None
            raise
        finally:
            self._idle.put(process if process is not None and process.is_alive else None)
        if error is not None:
            raise in_field(error, structure.field)

    def close(self) -> None:
        """End the processes, in the middle of what they do; later questions are refused."""
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None:
                    process.end()
        for process in self._processes:
            process.kill()  # and the thread that asks it lets it go


class _Process:
    """A process that reads constraints, one after the other."""

    def __init__(self, limits: Limits) -> None:
        every = os.environ.items()
        needed = {name: value for name, value in every if name in _NEEDED or name.startswith(("NUMBA_", "LC_"))}
        self._limits = limits
        self.num_asked = 0
        self.is_late = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _COMMAND, json.dumps(_import_path()), str(limits.compile_bytes),
             str(limits.compile_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**needed, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt from the keyboard is the endpoint's
        )  # fmt: skip
        if self._line(_START_S) != {"ready": True}:
            self.end()
            raise RuntimeError("a process for constraints did not start")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, structure: Structure) -> DecodekitError | None:
        """The fault of a constraint; None if there is none."""
        assert self._process.stdin is not None
        self.num_asked += 1
        line = json.dumps({"kind": structure.kind, "value": structure.value}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it has ended, and there is no answer
            self._process.stdin.write(line)
            self._process.stdin.flush()
        answer = self._line(self._limits.compile_s)
        if answer is None:
            self.end()
            return ResourceLimitError(
                f"the constraint takes more than {self._limits.compile_s:g} s or "
                f"{self._limits.compile_bytes / (1 << 20):,.0f} MiB to read",
                hint="smaller bounds, fewer alternatives, or a larger --compile-seconds of the endpoint",
            )
        if "error" not in answer:
            return None
        return error_of(answer["error"], ConstraintError)

    def _line(self, seconds: float) -> Any:
        """The next answer; None if there is none in time, or ever."""
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._stop)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        return json.loads(line) if line.endswith(b"\n") else None

    def _stop(self) -> None:
        self.is_late = True
        self._process.kill()

    def kill(self) -> None:
        """End it; who asks it has no answer."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Let it go, when nobody asks it."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def look_at(kind: str, value: Any) -> None:
    """Make a constraint, ask whether it has a text, and read the beginnings of a few, with a mask at each place.

    Constraints are made lazily: some grammars cost nothing until a text has thirty letters, and then seconds a letter.
    The masks are those of a vocabulary of single bytes.
    """
    constraint = constraint_of(kind, value)
    recogniser = Recogniser(constraint.root(), shared_automaton())
    check_satisfiable(constraint, recogniser)
    constraint.guard()
    masks = Masks(recogniser, _bytes())
    draws = random.Random(0)
    for _ in range(NUM_TRIALS):
        state: int | None = recogniser.root
        for _ in range(TRIAL_BYTES):
            following = b"" if state is None else recogniser.following_bytes(state)
            if state is None or not following:
                break
            masks.mask(state)
            state = recogniser.step(state, draws.choice(following))


@cache
def _bytes() -> Vocabulary:
    return Vocabulary([bytes((byte,)) for byte in range(256)], eos_token_ids=())


def _import_path() -> list[str]:
    """The import path of the endpoint, less the current folder, unless decodekit itself is there."""
    own, here = Path(decodekit.__file__).resolve().parents[1], None
    with contextlib.suppress(OSError):  # a folder that is gone
        here = Path.cwd().resolve()
    return [one for one in sys.path if one and (Path(one).resolve() != here or own == here)]


def main(num_bytes: int, seconds: float) -> None:
    """Answer lines of stdin until it ends, which it does with the endpoint; bounds are of the memory and each line."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        os._exit(0)  # also in the middle of a constraint

    _bound(num_bytes, None)
    threading.Thread(target=listen, daemon=True).start()
    Masks(Recogniser(constraint_of("choice", ["a"]).root(), shared_automaton()), _bytes()).load()  # in nobody's time
    print(json.dumps({"ready": True}), flush=True)
    while True:
        asked = json.loads(lines.get())
        answer: dict[str, Any] = {}
        _bound(None, seconds)
        try:
            look_at(asked["kind"], asked["value"])
        except MemoryError:
            os._exit(1)  # the endpoint takes another process
        except Exception as error:
            fault = in_field(error, "")
            answer = {"error": fault.to_dict() | {"at": fault.at or None}}
        print(json.dumps(answer), flush=True)


def _bound(num_bytes: int | None, seconds: float | None) -> None:
    """Bound the memory of this process, or the processor time that it may take from now on; where a system can."""
    with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        if num_bytes is not None:
            os.nice(_NICE)
            resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
        if seconds is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
