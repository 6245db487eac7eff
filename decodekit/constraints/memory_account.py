"""A bound on what the constraint engine keeps in this process, over all grammars, vocabularies and threads.

Everything that is kept is there to save time: compiled grammars, their states and masks, the lexical automaton, the
walks of a vocabulary. Each keeps an `Account` of its bytes; what is array is counted, what is Python object estimated.
When the sum passes the limit, what was used longest ago is given up and made again if it is needed again, so that the
limit costs time and never changes a mask.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from types import MethodType
from typing import Any, Final, TypeVar, cast

from decodekit.constraints.priority import give_way
from decodekit.errors import OptionError

K = TypeVar("K")
V = TypeVar("V")
_Method = TypeVar("_Method", bound=Callable[..., Any])

DEFAULT_LIMIT: Final = 1 << 30
_UNKNOWN: Final = object()

_lock = threading.RLock()  # reentrant: an account may be closed by a garbage collection within
_limit: int | None = DEFAULT_LIMIT
_in_use = 0
_releases: list[Callable[[], None]] = []


def set_memory_limit(num_bytes: int | None) -> None:
    """Bound what the constraint engine of this process keeps; 1 GiB unless it is set, None for no bound.

    The bound is on what is accounted (see `memory_in_use`). It may be passed by what is in use: the tokens of each
    vocabulary (8 MB for 131k tokens), the grammar that is being compiled, and the states that live matchers stand in.

    Raises:
        OptionError: not a positive number of bytes.
    """
    global _limit
    if num_bytes is not None and (not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes <= 0):
        raise OptionError(
            f"{num_bytes!r} is no memory limit", at="num_bytes", hint="a positive number of bytes, or None for no bound"
        )
    with _lock:
        _limit = num_bytes
    make_room()


def memory_limit() -> int | None:
    """The bound in bytes, None if there is none."""
    return _limit


def memory_in_use() -> int:
    """The bytes that the constraint engine of this process keeps, by its own account."""
    return _in_use


def is_exceeded() -> bool:
    """Whether more is kept than the limit allows."""
    return _limit is not None and _in_use > _limit


def has_room() -> bool:
    """Whether so much less than the limit is kept that nothing more need be given up: a quarter of it is free."""
    return _limit is None or _in_use <= _limit * 3 // 4


def share(most: int, parts: int) -> int:
    """The bytes that one cache may keep: `most`, or that part of the limit if it is less."""
    return most if _limit is None else min(most, _limit // parts)


def on_shortage(release: Callable[[], None]) -> Callable[[], None]:
    """Call `release` when the limit is passed, before those that were given earlier: front ends before the engine."""
    _releases.append(release)
    return release


def make_room() -> None:
    """Let go of what can be made again if the limit is passed. No lock of the engine may be held by who calls."""
    if is_exceeded():
        for release in reversed(_releases):
            release()
            if has_room():
                return


class Memo(dict[K, V]):
    """The values of a function by key, each made when it is first asked for, and kept: the last `most`, or all.

    A method is held weakly, so that who keeps a memo of a method of its own goes as soon as nobody else holds it.
    """

    __slots__ = ("_make", "_most", "_owner")

    def __init__(self, make: Callable[[K], V], most: int | None = None) -> None:
        # By parts: to ask a `weakref.WeakMethod` takes as long as most of what is asked for.
        self._owner = weakref.ref(make.__self__) if isinstance(make, MethodType) else None
        self._make: Callable[..., V] = make.__func__ if isinstance(make, MethodType) else make
        self._most = most

    def __missing__(self, key: K) -> V:
        give_way()
        value = self[key] = self._make(key) if self._owner is None else self._make(self._owner(), key)
        if self._most is not None and len(self) > self._most:
            self.pop(next(iter(self)), None)
        return value


def kept(method: _Method) -> _Method:
    """A method that answers each question once in the life of its object; its arguments are hashable."""
    name = f"_answers_of_{method.__name__}"

    @wraps(method)
    def answer(owner: object, *asked: Hashable) -> Any:
        answers = vars(owner).get(name)
        if answers is None:
            answers = vars(owner)[name] = {}  # with no reference to the object, which would be a circle
        key = asked[0] if len(asked) == 1 else asked  # a tuple is one object more for the garbage collector
        found = answers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            give_way()
            found = answers[key] = method(owner, *asked)
        return found

    return cast("_Method", answer)


def united(one: frozenset[K], other: frozenset[K]) -> frozenset[K]:
    """The union: one of the two where it is that, as mostly. Another set is one more for the garbage collector."""
    return one if one >= other else other if other >= one else one | other


MOST_REMEMBERED: Final = 512


def remembered(most: int) -> Callable[[Callable[..., V]], Callable[..., V]]:
    """Keep what a function gives for the texts, its first arguments, that were asked about last: `most` characters.

    What is made of a pattern is some hundred times as large as the pattern, so a number of patterns bounds no memory.
    The last text is kept in any case, and there are `MOST_REMEMBERED` at most.
    """

    def wrap(function: Callable[..., V]) -> Callable[..., V]:
        known: OrderedDict[tuple[object, ...], V] = OrderedDict()
        lock, num_characters = threading.Lock(), 0

        @wraps(function)
        def ask(text: str, *given: object, **options: object) -> V:
            nonlocal num_characters
            key = (text, *given, *options.items())
            with lock:
                if key in known:
                    known.move_to_end(key)
                    return known[key]
            value = function(text, *given, **options)
            with lock:
                if key not in known:
                    known[key] = value
                    num_characters += len(text)
                while len(known) > MOST_REMEMBERED or (len(known) > 1 and num_characters > most):
                    num_characters -= len(str(known.popitem(last=False)[0][0]))
                return known.get(key, value)

        def forget() -> None:
            nonlocal num_characters
            with lock:
                known.clear()
                num_characters = 0

        on_shortage(forget)
        ask.cache_clear = forget  # type: ignore[attr-defined]  # as functools names it
        return ask

    return wrap


class Account:
    """The bytes that its owner keeps. They are given back when the account is gone, which its owner alone holds."""

    __slots__ = ("__weakref__", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """So many more, or less if it is negative."""
        global _in_use
        with _lock:
            self.num_bytes += num_bytes
            _in_use += num_bytes

    def set(self, num_bytes: int) -> None:
        """So many now."""
        with _lock:
            self.add(num_bytes - self.num_bytes)

    def __del__(self) -> None:  # a finalizer of `weakref` would be five objects more for the garbage collector
        if _lock is not None:  # as it is while the interpreter exits
            self.set(0)


class Shelf(OrderedDict[K, V]):
    """Values of so many bytes together at most, and one in any case; the first are given up for others.

    Args:
        size: the bytes of a value.
        most: the bound, if it is less than one of so many `parts` of the limit.
        is_strict: whether the first are given up as well while the limit is passed.
    """

    def __init__(self, size: Callable[[V], int], most: int, parts: int, *, is_strict: bool = False) -> None:
        super().__init__()
        self._size, self._most, self._parts, self._is_strict = size, most, parts, is_strict
        self._account = Account()

    def keep(self, key: K, value: V) -> None:
        """Put a value behind the others, unless another thread was faster."""
        if key not in self:
            self[key] = value
            self._account.add(self._size(value))
        bound = share(self._most, self._parts)
        while (self._account.num_bytes > bound or (self._is_strict and is_exceeded())) and len(self) > 1:
            self._account.add(-self._size(self.popitem(last=False)[1]))

    def empty(self) -> None:
        """Let go of all values."""
        self.clear()
        self._account.set(0)
