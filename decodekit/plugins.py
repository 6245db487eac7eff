"""Plug-ins: what other packages install under a name, found by that name and loaded when asked for.

A package names its things as entry points, in its pyproject.toml::

    [project.entry-points."decodekit.processors"]
    shy = "my_package:Shy"

Nothing is imported before its name is used, so that a broken plug-in fails only who asks for it. A built-in name always
means the built-in thing: no package changes the meaning of a program.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from decodekit.errors import DecodekitError, PluginError, UnknownNameError

Kind: TypeAlias = Literal["strategy", "processor", "constraint", "proposer"]

GROUPS: Final[Mapping[Kind, str]] = {
    "strategy": "decodekit.strategies",
    "processor": "decodekit.processors",
    "constraint": "decodekit.constraints",
    "proposer": "decodekit.proposers",
}
"""The entry-point group of each kind of thing."""

_MOST_NAMES: Final = 16
"""So many names an error lists; of more the first ones."""

_LIKENESS: Final = 0.6
"""Names with this share of letters in common are near; the default of `difflib`."""


def available(kind: Kind, built_in: Iterable[str] = ()) -> list[str]:
    """The names of a kind: built-in ones in their order, those of installed packages sorted. Nothing is loaded."""
    built_in = list(built_in)
    installed = {entry.name for entry in importlib.metadata.entry_points(group=GROUPS[kind])}
    return [*built_in, *sorted(installed - set(built_in))]


def find(kind: Kind, name: str, built_in: Mapping[str, Any] = MappingProxyType({}), *, at: str | None = None) -> Any:
    """The part that was installed under a name, or is built in: a value, or the class or function that makes one.

    Errors are at the option `at`, or at the kind.

    Raises:
        UnknownNameError: nothing has this name; with the nearest name.
        PluginError: what has it cannot be loaded, or two packages claim it.
    """
    at = at or kind
    if name in built_in:
        return built_in[name]
    entries = tuple(importlib.metadata.entry_points(group=GROUPS[kind], name=name))
    if not entries:
        names = available(kind, built_in)
        listed = ", ".join([*names[:_MOST_NAMES], f"... ({len(names)})"] if len(names) > _MOST_NAMES else names)
        cause = f"no {kind} {name!r:.60}.{did_you_mean(name, names)} Installed: {listed or 'none'}."
        raise UnknownNameError(cause, at=at)
    if len({entry.value for entry in entries}) > 1:
        cause = f"{kind} {name!r} is ambiguous: {' and '.join(sorted(map(_origin, entries)))}"
        raise PluginError(cause, at=at, hint="one of these packages alone")
    try:
        return entries[0].load()
    except Exception as error:  # whatever the plug-in does wrong
        cause = f"{kind} {name!r} ({_origin(entries[0])}) cannot be loaded: {type(error).__name__}: {error}"
        raise PluginError(cause, at=at, hint="another version of that package, or without it") from error


def make(
    kind: Kind,
    name: str,
    is_one: Callable[[object], bool],
    built_in: Mapping[str, Any] = MappingProxyType({}),
    *,
    at: str | None = None,
) -> Any:
    """The value that a name stands for; a class or function is called without arguments.

    As `find`; a `PluginError` also where no value of the kind comes out, as `is_one` says.
    """
    found = find(kind, name, built_in, at=at)
    if not isinstance(found, type) and is_one(found):
        return found
    if not callable(found):
        raise PluginError(f"{kind} {name!r} is {found!r:.60}, no {kind} and nothing that makes one", at=at or kind)
    return called(kind, name, found, is_one, at=at)


def called(
    kind: Kind,
    name: str,
    factory: Callable[..., Any],
    is_one: Callable[[object], bool],
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    at: str | None = None,
) -> Any:
    """The value that `factory` makes of the options; a `PluginError` if it fails, or makes no value of the kind.

    Its `DecodekitError` is handed on: that is how it refuses an option.
    """
    try:
        made = factory(**options)
    except DecodekitError:
        raise
    except Exception as error:  # whatever the plug-in does wrong
        cause = f"{kind} {name!r} cannot be made: {type(error).__name__}: {error}"
        hint = f"the value in place of the name, if the {kind} has options that must be given"
        raise PluginError(cause, at=at or kind, hint=hint) from error
    if not is_one(made):
        raise PluginError(f"{kind} {name!r} makes {made!r:.60}, which is no {kind}", at=at or kind)
    return made


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'x'?``, or nothing if no name is near."""
    near = nearest(name, sorted(names))
    return "" if near is None else f" Did you mean {near!r}?"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that something else was meant to be, never `name` itself; None if none is near.

    Near is what one slip of the hand makes of a name (a letter too many, too few, wrong or before its neighbour), or
    what has most of its letters in common. Of equally near ones the first.
    """
    matcher = difflib.SequenceMatcher(b=name)
    best: tuple[tuple[int, float], str] | None = None
    for one in names:
        if one == name or 2 * min(len(one), len(name)) < _LIKENESS * (len(one) + len(name)):
            continue
        matcher.set_seq1(one)
        is_like = matcher.quick_ratio() >= _LIKENESS
        if not is_like and abs(len(one) - len(name)) > 1:
            continue
        slips = num_slips(name, one)
        if best is not None and slips > best[0][0]:
            continue
        likeness = matcher.ratio() if is_like else 0.0
        is_near = (slips == 1 and max(len(name), len(one)) > 1) or likeness >= _LIKENESS
        if is_near and (best is None or (slips, -likeness) < best[0]):
            best = (slips, -likeness), one
    return None if best is None else best[1]


def num_slips(one: str, other: str) -> int:
    """The number of letters to add, leave out, replace or exchange with their neighbour to turn one into the other.

    The distance of Damerau and Levenshtein, where no letter is touched twice.
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above = row
        row = [i]
        for j, wanted in enumerate(other, 1):
            least = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != wanted))
            if before and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                least = min(least, before[j - 2] + 1)
            row.append(least)
        before = above
    return row[-1]


def near_or_first(name: str, names: Sequence[str]) -> str:
    """``one of a, b, c``: the nearest names, or else the first few."""
    return "one of " + ", ".join(difflib.get_close_matches(name, names, n=3) or names[:8])


def _origin(entry: importlib.metadata.EntryPoint) -> str:
    """The origin of an entry point: ``module:attr``, and the package that says so where it is known."""
    package = entry.dist
    return entry.value if package is None else f"{entry.value} of {package.name} {package.version}"
