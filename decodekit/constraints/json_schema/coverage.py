"""What decoding enforces of a schema, keyword by keyword, before a model is loaded."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from decodekit.constraints.compiler import compile
from decodekit.constraints.json_schema import guarding, support
from decodekit.constraints.json_schema.drafts import KEYWORDS, keyword
from decodekit.constraints.json_schema.formats import Formats
from decodekit.constraints.json_schema.schema import JsonSchema
from decodekit.constraints.json_schema.support import Status
from decodekit.constraints.json_schema.unsatisfiable import contradiction
from decodekit.constraints.longest import most_bytes
from decodekit.errors import ConstraintError, ResourceLimitError, UnsatisfiableError

MAX_QUESTIONS: Final = 2_000
"""Sub-schemas that `check` asks whether a value fits; `Coverage.is_complete` tells whether there were more."""


@dataclass(frozen=True)
class KeywordCoverage:
    """One keyword.

    Attributes:
        keyword: its name. `pointer`: where it stands, as a URI fragment.
        status: ``"mask"`` (enforced at every token), ``"guard"`` (enforced when the text may end), ``"annotation"`` or
            ``"refused"``.
        error: why it is refused.
    """

    keyword: str
    pointer: str
    status: Status
    error: ConstraintError | None = None


@dataclass(frozen=True)
class Coverage:
    """What `check` found.

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

    @property
    def is_supported(self) -> bool:
        """Whether the schema can be used as a constraint."""
        return self.error is None

    @property
    def refused(self) -> tuple[KeywordCoverage, ...]:
        """The keywords that stand in the way."""
        return tuple(entry for entry in self.keywords if entry.status == "refused")

    def num_keywords(self, status: Status) -> int:
        """How many keywords have a status."""
        return sum(entry.status == status for entry in self.keywords)

    def __str__(self) -> str:
        lines = [f"{self.draft}: {self.num_keywords('mask')} keywords enforced at every token"]
        if num_guarded := self.num_keywords("guard"):
            lines[0] += f", {num_guarded} by a guard"
        lines[0] += f", {self.num_keywords('annotation')} annotations, {len(self.refused)} refused"
        lines += [f"  {entry.status:<10} {entry.pointer}" for entry in self.keywords]
        reasons = self.reasons or ("",) * len(self.impossible)
        for pointer, reason in zip(self.impossible, reasons, strict=True):
            lines.append(f"  no value fits {pointer}" + (f": {reason}" if reason else ""))
        if self.least_tokens is not None:
            most = "no bound above" if self.most_tokens is None else f"at most {self.most_tokens:,}"
            lines.append(f"tokens: {self.least_tokens:,} for the smallest value, {most}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        if self.error is not None:
            lines.append(str(self.error))
        return "\n".join(lines)


def check(
    schema_or_type: object, format: Formats = "annotate", registry: object = None, tokenizer: object = None
) -> Coverage:
    """What of a schema, or of a Python type, decoding enforces, and how many tokens its texts have.

    Args:
        schema_or_type, format, registry: as for `JsonSchema`; a `JsonSchema` is taken with its own options.
        tokenizer: a tokenizer or a `Vocabulary`, to count tokens with.

    Raises:
        InvalidConstraintError: it is no schema at all: malformed keywords, not JSON.
        UnresolvableReferenceError: a reference names nothing that is here.
    """
    constraint = (
        schema_or_type
        if isinstance(schema_or_type, JsonSchema)
        else JsonSchema(schema_or_type, format=format, registry=registry)
    )
    network = constraint.unchecked_network()
    found = list(support.findings(network.library, constraint.format))
    by_guard = guarding.guarded_locations(network.semantics)
    keywords = tuple(
        KeywordCoverage(
            finding.keyword,
            finding.location.at(finding.keyword),
            "guard" if finding.keyword == "uniqueItems" and finding.location.index in by_guard else finding.status,
            finding.error,
        )
        for finding in found
    )
    error: ConstraintError | None = next((entry.error for entry in keywords if entry.error is not None), None)
    impossible: list[str] = []
    reasons: list[str] = []
    places = list(dict.fromkeys(finding.location for finding in found))
    if error is None:
        for place in places[:MAX_QUESTIONS]:
            try:
                if not network.is_inhabited(network.semantics.goal(place)):
                    impossible.append(place.pointer)
                    reasons.append(contradiction(place) or "its keywords, or those it refers to, exclude each other")
            except ResourceLimitError as limit:
                error = limit
                break
            except ConstraintError as refusal:  # a schema that refers to itself in place
                error = refusal
                break
    if error is None:
        try:
            constraint.root()
        except (UnsatisfiableError, ResourceLimitError) as refusal:
            error = refusal
    warnings = _warnings(keywords, found, constraint)
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
    )


def _warnings(keywords: tuple[KeywordCoverage, ...], found: list[support.Finding], constraint: JsonSchema) -> list[str]:
    warnings = []
    for finding in found:
        name, place = finding.keyword, finding.location
        if keyword(name, place.draft) is None and not name.startswith(("x-", "$")):
            nearest = difflib.get_close_matches(name, sorted(KEYWORDS), n=1, cutoff=0.8)
            meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
            warnings.append(f"{place.at(name)} is no keyword of {place.draft.label}: it is an annotation{meant}")
        elif name == "format" and finding.status == "annotation" and constraint.format == "annotate":
            warnings.append(f'{place.at(name)} is an annotation; JsonSchema(..., format="assert") enforces it')
    guarded = [entry.pointer for entry in keywords if entry.status == "guard"]
    if guarded:
        warnings.append(f"{', '.join(guarded[:3])}: enforced by a guard when the text may end; texts may be taken back")
    return warnings


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
