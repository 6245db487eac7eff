"""Whether a whole value is valid, read from the specification: the schema is evaluated keyword by keyword.

The plain counterpart of `semantics`: a value is given, so nothing has to be known about all values. It shares the
references, patterns and formats with the mask, so that both judge by the same schema; what the keywords say stands in
`rules`. The rules that wait for answers are a stack, so nesting costs no recursion, and the judgement is `Work` that
can be left off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.json_schema.document.drafts import is_assertion
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.guard.guard_rules import (
    NOTHING,
    RULES,
    Asking,
    Evaluated,
    Evaluation,
    Judgement,
    Question,
    pointer_of,
)
from decodekit.constraints.json_schema.meaning.keywords import UNEVALUATED
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.work import Work, done
from decodekit.errors import ResourceLimitError

_PART: Final = 512
"""So many steps are made before the judgement can be left off."""
_COST: Final = 5
"""The steps of a question, and those of its answer, whatever the schema says."""


class SchemaJudge(Judgement):
    """Judges one value. A value is evaluated once by a schema, though many references may lead there."""

    def __init__(self, semantics: Semantics, path: Iterable[str | int] = ()) -> None:
        super().__init__(semantics, path)
        self._known: dict[int, tuple[Instance, dict[Any, Evaluated | None]]] = {}

    def evaluate(self, location: Location, value: Instance) -> Evaluated | None:
        """As `judging`, at once."""
        return done(self.judging(location, value))

    def judging(self, location: Location, value: Instance) -> Work[Evaluated | None]:
        """What a schema evaluates of a value; None if the value is not valid.

        Goes on after a keyword that fails, so that all repetitions are found.

        Raises:
            ResourceLimitError: a schema refers to itself for the same value, or a pattern takes too many steps.
        """
        stack: list[tuple[dict[Any, Evaluated | None], Any, Asking[Evaluated | None]]] = []
        open_questions = set[Any]()
        question: Question | None = (location, value)
        answer: Evaluated | None = None
        num_steps = 0
        while True:
            if question is not None:
                (location, value), question = question, None
                known, key = self.known_of(value), (location, self.num_open_questions > 0, self.num_alternatives > 0)
                num_steps += _COST
                answer = known.get(key)
                if answer is None and key not in known:
                    mark = id(value), key
                    if mark in open_questions:
                        raise ResourceLimitError("a schema refers to itself for the same value", at=location.pointer)
                    open_questions.add(mark)
                    stack.append((known, mark, self._evaluate(location, value)))
            if not stack:
                break
            known, mark, evaluation = stack[-1]
            try:
                asked = evaluation.send(answer)
            except StopIteration as end:
                stack.pop()
                open_questions.remove(mark)
                answer = known[mark[1]] = end.value
                num_steps += _COST
            else:
                answer = None
                if isinstance(asked, int):
                    num_steps += asked
                else:
                    question = asked
            if num_steps >= _PART:
                yield num_steps
                num_steps = 0
        yield num_steps
        return answer

    def known_of(self, value: Instance) -> dict[Any, Evaluated | None]:
        """What is known of a value, by schema and by what counts as an error."""
        found = self._known.get(id(value))
        if found is None:  # kept with the value, whose id would be given to another one
            found = self._known[id(value)] = value, {}
        return found[1]

    def _evaluate(self, location: Location, value: Instance) -> Asking[Evaluated | None]:
        evaluation, holds = Evaluation(self, location, value), True
        if isinstance(location.value, bool):
            return NOTHING if location.value else None
        keywords = location.keywords()
        yield len(keywords)
        for name in sorted(keywords, key=UNEVALUATED.__contains__):  # those last, else in their order
            kind, rule = RULES.get(name, ("", None))
            if rule is not None and kind in ("", value.kind) and is_assertion(name, location.draft):
                is_kept = rule(evaluation, keywords[name])
                if not isinstance(is_kept, bool):
                    is_kept = yield from _placed(is_kept, location.at(name))
                holds &= is_kept
                if not is_kept and not self.num_open_questions and not self.num_alternatives:
                    self._refuse(location, name, value)
        return evaluation.result() if holds else None

    def _refuse(self, location: Location, name: str, value: Instance) -> None:
        """Keep that a value is not valid by a keyword; all of it but its last byte, mostly a bracket, can stay."""

        def reason() -> Refusal:
            pointer = pointer_of(self.path)
            message = f"{pointer or 'the value'} is not valid by {location.at(name)}"
            return Refusal(value.end - 1, pointer, message)

        self.refuse("value", value.end - 1, reason)


def _placed(asking: Asking[bool], at: str) -> Asking[bool]:
    """A rule whose errors say which keyword it is."""
    try:
        return (yield from asking)
    except ResourceLimitError as error:
        if error.at is not None:
            raise
        raise ResourceLimitError(error.cause, at=at, hint=error.hint) from error
