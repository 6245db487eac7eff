"""What one text asks of its values, as they become complete: whether each is valid at its place, and why not.

Judgements are remembered, since tokens are tried before they are taken: by the place for all texts, by the reader's own
text for long values and for reasons. Their steps are counted as often as the text needs them, whoever made them first,
so that the count is the same in every run.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeVar

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.json_schema.guard.guard_rules import Evaluated, SchemaJudge
from decodekit.constraints.json_schema.guard.places import Place
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.work import Work, done, noted
from decodekit.errors import ConstraintError

MAX_REASONS: Final = 8
"""So many reasons a reader remembers, until they are forgotten together."""
MAX_RECENT: Final = 64
"""So many verdicts are remembered from one token to the next, of texts of `MAX_RECENT_BYTES` together."""
MAX_RECENT_BYTES: Final = 1 << 22

_Answer = TypeVar("_Answer")


class RememberingJudge(SchemaJudge):
    """As `SchemaJudge`, but instances remember what is known of them from one judgement to the next.

    So it says only whether a value is valid: of what was known before, no reason is kept.
    """

    def known_of(self, value: Instance) -> dict[Any, Evaluated | None]:
        """What is known of a value, by schema and by what counts as an error."""
        if value.known is None:
            value.known = {}
        return value.known


class Unknown(Exception):  # noqa: N818  (no error: it says what has to be done first)
    """Raised where a judgement is needed that is not known.

    Attributes:
        work: the judgement, after which it is known.
    """

    def __init__(self, work: Work[object]) -> None:
        super().__init__()
        self.work = work


class Judgements:
    """The judgements of one text.

    Attributes:
        num_steps: of all of them, also of those that another text made before.
        is_asked: whether a judgement that is not known is raised as `Unknown`, and not made at once.
    """

    def __init__(self, semantics: Semantics) -> None:
        self.num_steps = 0
        self.is_asked = False
        self._semantics = semantics
        self._recent: dict[tuple[Place, bytes], bool] = {}
        self._reasons: dict[Hashable, Refusal] = {}

    def copy(self) -> Judgements:
        """Those of an independent text."""
        twin = Judgements(self._semantics)
        twin.num_steps = self.num_steps
        twin._recent, twin._reasons = self._recent.copy(), self._reasons.copy()
        return twin

    def forget(self) -> None:
        """Let go of the oldest verdicts, where they are many; never while a token is read, which would not end then."""
        while len(self._recent) > MAX_RECENT or sum(len(text) for _, text in self._recent) > MAX_RECENT_BYTES:
            del self._recent[next(iter(self._recent))]

    def holds(self, place: Place, instance: Instance, raw: bytes) -> bool:
        """Whether a value, whose text is `raw`, is valid at its place; True if that takes too long to be told."""
        verdict = self._recent.get((place, raw))
        if verdict is None and raw in place.verdicts:
            verdict, num_steps = place.verdicts[raw]
            self.num_steps += num_steps
            self._recent[place, raw] = verdict
        return self._answer(self._verdict(place, instance, raw)) if verdict is None else verdict

    def why(self, place: Place, instance: Instance, raw: bytes, path: list[str | int]) -> Refusal:
        """Why it is not, given the keys and indices that lead to it."""
        key = place, instance.start, raw, *path
        return self._reasons.get(key) or self._answer(self._reason(place, instance, path, key))

    def _answer(self, work: Work[_Answer]) -> _Answer:
        if self.is_asked:
            raise Unknown(work)
        return done(work)

    def _verdict(self, place: Place, instance: Instance, raw: bytes) -> Work[bool]:
        """Whether a value is valid at its place, which is known then."""
        begun = self.num_steps
        verdict = yield from self._validity(place, instance)
        place.remember(raw, (verdict, self.num_steps - begun))
        self._recent[place, raw] = verdict
        return verdict

    def _validity(self, place: Place, instance: Instance) -> Work[bool]:
        """Whether a value is valid at its place; True if that cannot be told, for the end of the text will tell."""
        judge = RememberingJudge(self._semantics)
        try:
            for schema in place.schemas:
                if (yield from self._counted(judge.judging(schema, instance))) is None:
                    return False
        except ConstraintError:
            pass
        return True

    def _reason(self, place: Place, instance: Instance, path: list[str | int], key: Hashable) -> Work[Refusal]:
        """Why a value is not valid at its place."""
        judge = SchemaJudge(self._semantics, path)
        for schema in place.schemas:
            if (yield from self._counted(judge.judging(schema, instance))) is None:
                break
        if len(self._reasons) >= MAX_REASONS:
            self._reasons.clear()
        found = self._reasons[key] = judge.refusal(instance)
        return found

    def _counted(self, work: Work[_Answer]) -> Work[_Answer]:
        """The same work, whose steps are counted."""
        return noted(work, self._count)

    def _count(self, num_steps: int) -> None:
        self.num_steps += num_steps
