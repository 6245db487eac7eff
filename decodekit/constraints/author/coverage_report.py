"""The text form of what `check` found: a tree of the schemas with their keywords, then what stands in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from decodekit.errors import UnsatisfiableError

if TYPE_CHECKING:
    from decodekit.constraints.author.coverage import Coverage

_STATUSES: Final = ("mask", "guard", "annotation", "refused")
_WIDEST: Final = 40  # columns of a place that the others are aligned with


def report(coverage: Coverage) -> str:
    """The whole report, each fact once."""
    return "\n".join([*_head(coverage), *_tree(coverage), *_impossible(coverage), *_tail(coverage)])


def _head(coverage: Coverage) -> list[str]:
    lines = []
    if coverage.error is not None:
        why = ": no value fits" if _is_told(coverage) else ""
        why = f": {_counted(len(coverage.refused), 'keyword')}" if coverage.refused else why
        lines.append(f"refused ({coverage.error.code}){why}")
    num_guarded, num_annotations = coverage.num_keywords("guard"), coverage.num_keywords("annotation")
    counts = [f"{_counted(coverage.num_keywords('mask'), 'keyword')} in the mask of every token"]
    counts += [f"{num_guarded:,} by a guard when the text may end"] if num_guarded else []
    counts += [_counted(num_annotations, "annotation")] if num_annotations else []
    return [*lines, f"{coverage.draft}: {', '.join(counts)}"]


def _counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def _tree(coverage: Coverage) -> list[str]:
    """A line for each schema, indented below the one that holds it, with its keywords by status."""
    schemas: dict[str, dict[str, list[str]]] = {}
    for entry in coverage.keywords:
        schema = entry.pointer.rpartition("/")[0]
        schemas.setdefault(schema, {}).setdefault(entry.status, []).append(entry.keyword)
    below: dict[str | None, list[str]] = {}
    for pointer in schemas:
        below.setdefault(_holder(pointer, schemas), []).append(pointer)
    rows: list[tuple[str, str]] = []
    stack: list[tuple[str, str | None, int]] = [(pointer, None, 0) for pointer in reversed(below.get(None, []))]
    while stack:
        pointer, holder, depth = stack.pop()
        place = pointer if holder is None else pointer[len(holder) + 1 :]
        said = [f"{status} {', '.join(schemas[pointer][status])}" for status in _STATUSES if status in schemas[pointer]]
        rows.append((f"{'  ' * (depth + 1)}{place}", "; ".join(said)))
        stack += [(inner, pointer, depth + 1) for inner in reversed(below.get(pointer, []))]
    width = max((len(place) for place, _ in rows if len(place) <= _WIDEST), default=0)
    return [f"{place.ljust(width)}  {said}" for place, said in rows]


def _holder(pointer: str, schemas: dict[str, dict[str, list[str]]]) -> str | None:
    """The innermost schema of the report that a schema lies in."""
    while "/" in pointer.rpartition("#")[2]:
        pointer = pointer.rpartition("/")[0]
        if pointer in schemas:
            return pointer
    return None


def _impossible(coverage: Coverage) -> list[str]:
    pairs = zip(coverage.impossible, coverage.reasons, strict=True)
    return [f"no value fits {pointer}: {reason}" for pointer, reason in pairs]


def _is_told(coverage: Coverage) -> bool:
    """Whether the error is that of a schema that stands among the impossible ones, with its reason."""
    return isinstance(coverage.error, UnsatisfiableError) and coverage.error.at in coverage.impossible


def _tail(coverage: Coverage) -> list[str]:
    lines = [str(entry.error) for entry in coverage.refused]
    if coverage.error is not None and not lines and not _is_told(coverage):
        lines.append(str(coverage.error))
    if not coverage.is_complete:
        lines.append("the schema is large: not every part was asked whether a value fits")
    if coverage.least_tokens is not None:
        most = "no bound above" if coverage.most_tokens is None else f"at most {coverage.most_tokens:,}"
        lines.append(f"tokens: {coverage.least_tokens:,} for the smallest value, {most}")
    return lines + [f"warning: {warning}" for warning in coverage.warnings]
