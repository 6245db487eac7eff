"""What decoding enforces of a schema, keyword by keyword, before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decodekit.constraints.json_schema import guarding, support
from decodekit.constraints.json_schema.formats import Formats
from decodekit.constraints.json_schema.schema import JsonSchema
from decodekit.constraints.json_schema.support import Status
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
    """

    draft: str
    keywords: tuple[KeywordCoverage, ...]
    impossible: tuple[str, ...]
    error: ConstraintError | None
    is_complete: bool = True

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
        lines += [f"  no value fits {pointer}" for pointer in self.impossible]
        if self.error is not None:
            lines.append(str(self.error))
        return "\n".join(lines)


def check(schema_or_type: object, format: Formats = "annotate", registry: object = None) -> Coverage:
    """What of a schema, or of a Python type, decoding enforces.

    Args:
        schema_or_type, format, registry: as for `JsonSchema`; a `JsonSchema` is taken with its own options.

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
    places = list(dict.fromkeys(finding.location for finding in found))
    if error is None:
        for place in places[:MAX_QUESTIONS]:
            try:
                if not network.is_inhabited(network.semantics.goal(place)):
                    impossible.append(place.pointer)
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
    return Coverage(
        network.library.draft.label, keywords, tuple(impossible), error, is_complete=len(places) <= MAX_QUESTIONS
    )
