"""The coverage of a schema, keyword by keyword: what decoding enforces of it, told before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from decodekit.constraints.completion.longest import most_bytes
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.support import Finding, Status
from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.guard import schema_guard
from decodekit.constraints.json_schema.messages.unsatisfiable import Reasons
from decodekit.constraints.json_schema.schema import JsonSchema
from decodekit.constraints.json_schema.strings.string_formats import GUARDED, JSON_STRING, Formats
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.request_formats import as_constraint, json_schema_in
from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError, UnsatisfiableError

if TYPE_CHECKING:
    from decodekit.constraints.json_schema.validators import AskedValidator

MAX_QUESTIONS: Final = 2_000
"""Sub-schemas that `check` asks whether a value fits; `Coverage.is_complete` tells whether there were more."""


@dataclass(frozen=True)
class KeywordCoverage:
    """One keyword.

    Attributes:
        keyword: its name. `pointer`: where it stands, as a URI fragment.
        status: ``"mask"`` (enforced at every token), ``"guard"`` (enforced when a value is complete),
            ``"annotation"`` or ``"refused"``.
        error: why it is refused.
        reason: the limit for which it is left to a guard, if there is one.
    """

    keyword: str
    pointer: str
    status: Status
    error: ConstraintError | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Coverage:
    """The coverage of one schema, as `check` reports it.

    Attributes:
        draft: the draft of the schema, such as "draft 2020-12".
        keywords: all keywords of the schemas that can take part, in document order.
        impossible: pointers of sub-schemas that no value fits.
        error: why the whole schema cannot be used, if it cannot.
        is_complete: whether every sub-schema was asked whether a value fits.
        reasons: for each of `impossible`, why.
        least_tokens: tokens that suffice for the smallest text; None without a tokenizer, or if it was not found.
        most_tokens: tokens of the largest text in its longest division into tokens; None if there is no bound (see
            `warnings`) and without a tokenizer.
        warnings: what is allowed and may surprise.
        validators: of a Python type, those that the mask knows nothing of.
    """

    draft: str
    keywords: tuple[KeywordCoverage, ...]
    impossible: tuple[str, ...]
    error: ConstraintError | None
    is_complete: bool = True
    reasons: tuple[str, ...] = ()
    least_tokens: int | None = None
    most_tokens: int | None = None
    warnings: tuple[str, ...] = ()
    validators: tuple[AskedValidator, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Whether the schema can be used as a constraint."""
        return self.error is None

    @property
    def refused(self) -> tuple[KeywordCoverage, ...]:
        """The keywords that stand in the way."""
        return tuple(entry for entry in self.keywords if entry.status == "refused")

    def num_keywords(self, status: Status) -> int:
        """The number of keywords that have a status."""
        return sum(entry.status == status for entry in self.keywords)

    def __str__(self) -> str:
        pairs = zip(self.impossible, self.reasons, strict=True)
        impossible = (f"no value fits {pointer}: {reason}" for pointer, reason in pairs)
        validators = (f'validator "{one.name}" of {one.pointer}: {_WHEN[one.status]}' for one in self.validators)
        return "\n".join([*_head(self), *_tree(self), *validators, *impossible, *_tail(self)])


def check(
    schema_or_type: object, format: Formats = "annotate", registry: object = None, tokenizer: object = None
) -> Coverage:
    """The coverage of a schema, or of a Python type, and bounds on the tokens of its texts.

    Args:
        schema_or_type, format, registry: as for `JsonSchema`; a `JsonSchema` is taken with its own options. Also the
            name of an installed constraint or of a schema of the library, an OpenAI ``response_format``.
        tokenizer: a tokenizer or a `Vocabulary`, to count tokens with.

    Raises:
        InvalidConstraintError: it is not a schema at all: malformed keywords, not JSON, another kind of constraint.
        UnresolvableReferenceError: a reference names nothing that is here.
    """
    constraint, guards = _json_schema(schema_or_type, format, registry)
    network = constraint.unchecked_network()
    found = list(support.findings(network.library, constraint.format))
    error = next((finding.error for finding in found if finding.status == "refused"), None)
    impossible: list[str] = []
    reasons: list[str] = []
    places = list(dict.fromkeys([network.library.root, *(finding.location for finding in found)]))
    if error is None:
        why = Reasons(network)
        try:
            for place in places[:MAX_QUESTIONS]:
                if not network.is_inhabited(network.semantics.goal(place)):
                    impossible.append(place.pointer)
                    reasons.append(why.of(place))
            constraint.root()
            network = constraint.network()  # which knows the limits that texts meet, and no others
        except ConstraintError as refusal:  # no value fits, a limit, a schema that refers to itself in place
            error = refusal
    keywords = _keywords(network, found)
    warnings = _warnings(found, constraint.format, keywords)
    if guards:
        warnings.append(
            f"{', '.join(guards)}: asked about the whole value when the text may end; texts may be taken back"
        )
    least = most = None
    if error is None and tokenizer is not None:
        least, most, doubts = _budgets(constraint, tokenizer)
        warnings += doubts
    return Coverage(
        network.library.draft.label,
        keywords,
        tuple(impossible),
        error,
        is_complete=len(places) <= MAX_QUESTIONS,
        reasons=tuple(reasons),
        least_tokens=least,
        most_tokens=most,
        warnings=tuple(warnings),
        validators=constraint.asked,
    )


def warnings_of(constraint: JsonSchema) -> list[str]:
    """The warnings of `check`, but for those that need a tokenizer; costs much less."""
    network = constraint.network()
    found = list(support.findings(network.library, constraint.format))
    return _warnings(found, constraint.format, _keywords(network, found))


def _keywords(network: SchemaNetwork, found: list[Finding]) -> tuple[KeywordCoverage, ...]:
    left = dict(network.semantics.left)
    by_guard = schema_guard.guarded_locations(network.semantics)
    formats = network.semantics.formats

    def status(finding: Finding) -> Status:
        name, location, is_mask = finding.keyword, finding.location, finding.status == "mask"
        if is_mask and location.at(name) in left:
            return "guard"
        if name == "contentSchema" and location.keywords().get("format") == JSON_STRING and formats == "python":
            return "mask"
        is_guarded = name == "uniqueItems" and location.index in by_guard
        if is_mask and name == "format" and formats == "assert":
            is_guarded = location.keywords()["format"] in GUARDED
        return "guard" if is_guarded else finding.status

    return tuple(
        KeywordCoverage(one.keyword, at, status(one), one.error if one.status == "refused" else None, left.get(at))
        for one in found
        for at in [one.location.at(one.keyword)]
    )


def _warnings(found: list[Finding], format: Formats, keywords: tuple[KeywordCoverage, ...]) -> list[str]:
    warnings = support.surprises(found, format)
    guarded: dict[str | None, list[str]] = {}
    for entry in keywords:
        if entry.status == "guard":
            guarded.setdefault(entry.reason, []).append(entry.pointer)
    for reason, pointers in guarded.items():
        why = f", because {reason}" if reason else ""
        warnings.append(
            f"{', '.join(pointers[:3])}: enforced by a guard when a value is complete{why}; texts may be taken back"
        )
    return warnings


def _json_schema(value: object, format: Formats, registry: object) -> tuple[JsonSchema, list[str]]:
    """The schema to check, with the options of `check` where it has none itself; the names of the guards around it."""
    if not isinstance(value, str | Mapping | Constraint):
        return JsonSchema(value, format=format, registry=registry), []
    given = as_constraint(value)
    found = given if isinstance(given, JsonSchema) else json_schema_in(given)
    if found is None:
        named = f"the constraint {value!r:.60} is a" if isinstance(value, str) else "this is a"
        raise InvalidConstraintError(
            f"check looks at JSON Schemas, and {named} {type(given).__name__}",
            hint="compile(...).matcher().explain(text), which says where a text stops",
        )
    guards = []
    while isinstance(given, Guarded):
        guards.append(getattr(given.function, "__name__", type(given.function).__name__))
        given = given.constraint
    return JsonSchema(found.schema, format=format, registry=registry) if isinstance(value, Mapping) else found, guards


def _budgets(constraint: JsonSchema, tokenizer: object) -> tuple[int | None, int | None, list[str]]:
    """Least and most tokens, and what could not be told."""
    grammar = compile(constraint, tokenizer)
    doubts = []
    least = most = None
    try:
        least = grammar.least_tokens()
    except ResourceLimitError as limit:
        doubts.append(f"the smallest text was not found: {limit.cause}")
    try:
        most = most_bytes(constraint.root())  # in the longest division, every byte is a token
    except ResourceLimitError as limit:
        doubts.append(f"the largest text was not found: {limit.cause}")
    return least, most, doubts


# -- the text form: a tree of the schemas with their keywords, then what stands in the way

_STATUSES: Final = ("mask", "guard", "annotation", "refused")
NO_BOUND: Final = (
    "no bound above (strings without maxLength have none, nor lists without maxItems, nor objects of any keys)"
)
_WIDEST: Final = 40  # columns of a place that the others are aligned with


def _head(coverage: Coverage) -> list[str]:
    lines = []
    if coverage.error is not None:
        why = ": no value fits" if _is_told(coverage) else ""
        why = f": {_counted(len(coverage.refused), 'keyword')}" if coverage.refused else why
        lines.append(f"refused ({coverage.error.code}){why}")
    num_guarded, num_annotations = coverage.num_keywords("guard"), coverage.num_keywords("annotation")
    counts = [f"{_counted(coverage.num_keywords('mask'), 'keyword')} in the mask of every token"]
    counts += [f"{num_guarded:,} by a guard when a value is complete"] if num_guarded else []
    counts += [_counted(num_annotations, "annotation")] if num_annotations else []
    counts += [_counted(len(coverage.validators), "validator")] if coverage.validators else []
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
    stack: list[tuple[str, str, int]] = [(pointer, pointer, 1) for pointer in reversed(below.get(None, []))]
    while stack:
        pointer, place, depth = stack.pop()
        said = [f"{status} {', '.join(schemas[pointer][status])}" for status in _STATUSES if status in schemas[pointer]]
        rows.append((f"{'  ' * depth}{place}", "; ".join(said)))
        inner = reversed(below.get(pointer, []))
        stack += [(other, other[len(pointer) + 1 :], depth + 1) for other in inner]
    width = max((len(place) for place, _ in rows if len(place) <= _WIDEST), default=0)
    return [f"{place.ljust(width)}  {said}" for place, said in rows]


_WHEN: Final = {
    "guard": "asked by a guard before the text is finished; texts may be taken back",
    "end": "asked when the text has ended; max_retries asks the model again, Guarded(...) takes the text back",
}


def _holder(pointer: str, schemas: dict[str, dict[str, list[str]]]) -> str | None:
    """The innermost schema of the report that a schema lies in."""
    while "/" in pointer.rpartition("#")[2]:
        pointer = pointer.rpartition("/")[0]
        if pointer in schemas:
            return pointer
    return None


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
        most = NO_BOUND if coverage.most_tokens is None else f"at most {coverage.most_tokens:,}"
        lines.append(f"tokens: {coverage.least_tokens:,} for the smallest value, {most}")
    return lines + [f"warning: {warning}" for warning in coverage.warnings]
