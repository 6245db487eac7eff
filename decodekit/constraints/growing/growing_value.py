"""Values so far: the JSON of a text as `Chunk.partial` has it, made when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from decodekit.constraints.composition.split import Composed
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rules import Alternatives, Concatenated, Expression, Inline, Repeated
from decodekit.constraints.growing.growing_split import Document, GrowingSplit, inner
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.growing_json import ABSENT, Mark
from decodekit.constraints.tool_calls.response import Tools
from decodekit.constraints.tool_calls.tool import ToolCall

_LOCK: Final = threading.Lock()  # chunks may be shared between threads; one lock for all, so that they can be pickled


def num_values(expression: Expression) -> int:
    """The number of JSON values that a text may hold, the calls of tools together being one; 2 for more."""
    if isinstance(expression, Inline):
        part = inner(expression.constraint)
        if isinstance(part, JsonSchema | Tools):
            return 1
        return num_values(part.expression()) if isinstance(part, Composed) else 0
    if isinstance(expression, Concatenated):
        return min(2, sum(map(num_values, expression.items)))
    if isinstance(expression, Alternatives):
        return max(map(num_values, expression.options), default=0)
    if isinstance(expression, Repeated):
        is_once = expression.max is not None and expression.max < 2
        return min(2, num_values(expression.item) * (1 if is_once else 2))
    return 0


class GrowingValue:
    """The values so far of one text; see `Chunk.partial`.

    Nothing is read before a value is asked for. Then every character is read once, whichever values are asked for.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._split: GrowingSplit | None = None
        self._pieces: list[str | None] = []  # None behind the last one of a whole text
        self._marks: list[tuple[int, Mark | None]] = []  # after each: the documents, and how far the last one goes
        self._known: dict[int, tuple[Any, Any]] = {}  # objects and arrays as values of their types

    @staticmethod
    def of(constraint: Constraint | None) -> GrowingValue | None:
        """For the texts of a constraint; None if they hold no JSON."""
        return GrowingValue(constraint) if constraint is not None and num_values(Inline(constraint)) else None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}, "_split": None, "_marks": []}

    def push(self, text: str, *, is_whole: bool = False) -> Callable[[], Any]:
        """Go on with a piece of the text; returns what makes the value so far. `is_whole`: the text ends with it."""
        self._pieces += [text, None] if is_whole else [text]
        return partial(self.value, len(self._pieces))  # can be pickled

    def value(self, num_pieces: int) -> Any:
        """The value after so many pieces."""
        with _LOCK:
            if self._split is None:
                self._split = GrowingSplit(self._constraint)
            for piece in self._pieces[len(self._marks) : num_pieces]:
                if piece is None:
                    self._split.end()
                else:
                    self._split.push(piece)
                documents = self._split.documents
                self._marks.append((len(documents), documents[-1].json.mark() if documents else None))
            num_documents, mark = self._marks[num_pieces - 1]
            told = self._split.documents[:num_documents]
            found = [(one, (one.json.mark() if one is not told[-1] or mark is None else mark).value()) for one in told]
        values = [self._value_of(one, value, num_open) for one, (value, num_open) in found]
        is_list = any(one.name is not None for one in told) or num_values(Inline(self._constraint)) > 1
        if is_list or isinstance(inner(self._constraint), Tools):
            return [value for value in values if value is not ABSENT]
        return values[0] if values and values[0] is not ABSENT else None

    def _value_of(self, document: Document, value: Any, num_open: int) -> Any:
        if document.name is not None and value is ABSENT:
            value, num_open = {}, 1
        python_type = None if document.constraint is None else document.constraint.python_type
        if python_type is not None and value is not ABSENT:
            from decodekit.constraints.json_schema.partial_types import partial_of  # which needs Pydantic

            value = partial_of(python_type, value, num_open, self._known)
        return value if document.name is None else ToolCall(document.name, value, document.id)
