"""Constraints of strangers, read in processes that may be ended.

A schema, a pattern or a grammar is a program for the engine of constraints, and its bounds count states, not seconds.
A process of its own reads each new one first, within a limit of time and of memory:

    endpoint                          process (python -m decodekit.serving.compiler)
    {"kind": "regex", "value": ...}   ->    made, and tried on the beginnings of a few texts
                                      <-    {} or {"error": [class, cause, at, hint, code]}
    nothing for `compile_s` seconds: the process is ended, the request is refused, another process takes its place

What has passed is made again by the engine, in no more time. A process is light: no torch, no model.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import Any, Final

import decodekit.errors
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.matching.compiler import check_satisfiable
from decodekit.errors import DecodekitError, ResourceLimitError
from decodekit.serving.limits import Limits
from decodekit.serving.structure import Structure, constraint_of, in_field

NUM_TRIALS: Final = 4
TRIAL_BYTES: Final = 48
"""So many random texts are read so far before a constraint is taken."""

_MANY_KNOWN: Final = 4096
_START_S: Final = 60.0
_MOST_ASKED: Final = 500  # what a process has learned of constraints grows


class Compiler:
    """Says of constraints whether they can be used. Threads may share it.

    Args:
        limits: of time and memory; with ``compile_workers=0`` constraints are read in the thread of the caller, without
            a limit of time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle: queue.Queue[_Process | None] = queue.Queue()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        for _ in range(limits.compile_workers):
            self._idle.put(None)  # started when it is needed

    def start(self) -> None:
        """Start a process, so that the first request need not wait for it."""
        if self._limits.compile_workers:
            process = self._idle.get()
            self._idle.put(process or _Process(self._limits))

    def check(self, structure: Structure) -> None:
        """Return if a constraint can be used.

        Raises:
            DecodekitError: it cannot; the place is its field.
            ResourceLimitError: it took too long, or too much memory.
        """
        with self._lock:
            if structure.key in self._known:
                self._known.move_to_end(structure.key)
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
            process = process or _Process(self._limits)
            error = process.ask(structure)
            if not process.is_alive and not process.is_late and process.num_asked > 1:
                process = _Process(self._limits)  # others may have taken the memory
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
        """End the processes."""
        for _ in range(self._limits.compile_workers):
            process = self._idle.get()
            if process is not None:
                process.end()
            self._idle.put(None)


class _Process:
    """A process that reads constraints, one after the other."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.num_asked = 0
        self.is_late = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "decodekit.serving.compiler", str(limits.compile_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt from the keyboard is the endpoint's
        )
        if self._line(_START_S) != {"ready": True}:
            self.end()
            raise RuntimeError("a process for constraints did not start")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, structure: Structure) -> DecodekitError | None:
        """What is wrong with a constraint; None if nothing is."""
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
        name, cause, at, hint, code = answer["error"]
        kind = getattr(decodekit.errors, name, decodekit.errors.ConstraintError)
        error: DecodekitError = kind(cause, at=at, hint=hint, code=code)
        return error

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

    def end(self) -> None:
        """Let it go."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def look_at(kind: str, value: Any) -> None:
    """Make a constraint, ask whether it has a text, and read the beginnings of a few.

    Constraints are made lazily: some grammars cost nothing until a text has thirty letters, and then seconds a letter.

    Raises:
        DecodekitError: it cannot be used.
    """
    constraint = constraint_of(kind, value)
    recogniser = Recogniser(constraint.root(), shared_automaton())
    check_satisfiable(constraint, recogniser)
    constraint.guard()
    draws = random.Random(0)
    for _ in range(NUM_TRIALS):
        state: int | None = recogniser.root
        for _ in range(TRIAL_BYTES):
            following = b"" if state is None else recogniser.following_bytes(state)
            if state is None or not following:
                break
            state = recogniser.step(state, draws.choice(following))


def main(num_bytes: int) -> None:
    """Answer lines of stdin until it ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            look_at(asked["kind"], asked["value"])
        except MemoryError:
            return  # the endpoint takes another process
        except Exception as error:
            fault = in_field(error, "")
            answer = {"error": [type(fault).__name__, fault.cause, fault.at or None, fault.hint, fault.code]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
