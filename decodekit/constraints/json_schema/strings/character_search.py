"""Whether a language of JSON strings has a word, decided character by character instead of byte by byte.

The question comes up where several languages meet, or are left out. The search runs over the product of their
derivatives by characters (see `character_derivatives`) and builds nothing but the states that it visits. It continues
where the fewest conditions and bytes seem to be left and the most alternatives stay open, and without bounds on the
length it ends when all states are known. A bounded length is kept apart as the number of characters read, and decided
breadth first where that search finds none.

A search by bytes (`emptiness`) meets every state in many spellings, and counts one by one up to a least length. It
refuses a pattern without a letter twice and a text of a billion letters, and does not end where all letters have to
occur; all of these have masks here.

Sources: J. Brzozowski, Derivatives of Regular Expressions (1964), for the product of derivatives; J. Pearl, Heuristics
(1984), for the best-first search.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable
from heapq import heappop, heappush
from itertools import count, product
from typing import Final, TypeAlias

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.character_derivatives import Targets, aligned, is_spelled, row, trust
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node, forgetters
from decodekit.constraints.priority import give_way
from decodekit.constraints.work_budget import Unfinished, spend
from decodekit.errors import ResourceLimitError

MAX_ALTERNATIVES: Final = 16
"""Bound on the intersections that one question is taken apart into."""
MAX_STATES: Final = 20_000
"""Bound on the states of the product that one question may look at."""
MAX_PARTS: Final = 100_000
"""Bound on the conditions of these states, each counted with its alternatives: the time that they take."""
MAX_DIVES: Final = 500
"""States that are looked at best first before the breadth-first search of texts with a bounded length begins."""
MAX_LENGTHY: Final = 50_000
"""States of a long text, one for each character that it has to have, that one question may look at beside these."""
_MAX_COMPARED: Final = 16
MAX_BEGUN: Final = 64
"""Searches that wait to go on; more of them begin anew."""
MAX_REMEMBERED: Final = 20_000
"""Bound on the states whose answer is kept."""

_State: TypeAlias = tuple[frozenset[Node], frozenset[Node]]
"""The languages that the rest of a text belongs to, and those that it does not belong to."""
_Search: TypeAlias = Generator[None, None, int]
"""A search for texts, which stops before each state that it looks at; in the end their number, or whether there is one.

Between two stops it asks for nothing that a slice of work may stop.
"""

_text_lengths: dict[_State, int] = {}  # of some text that leads from a state to an end
_barren: set[_State] = set()  # from which no text does
_inhabited: tuple[_State, ...] = ()  # the last states that were asked for and have a text
_begun: dict[Hashable, _Search] = {}  # by question, those that a slice of work has left
_NONE: Final[frozenset[Node]] = frozenset()  # one for all: CPython makes another for every empty set
_ANY_TEXT: Final[_State] = (frozenset({text.BODY}), _NONE)


def forget() -> None:
    """Let go of all answers, and of the searches that wait."""
    global _inhabited
    _inhabited = ()
    for known in (_text_lengths, _barren, _begun):
        known.clear()


forgetters.append(forget)


def is_empty(node: Node, work: SearchWork | None = None) -> bool | None:
    """Whether a body language has no word; None if the node is not a body language, or begins inside a character.

    Args:
        node: the language.
        work: what the search may take; as much as one question by default.

    Raises:
        ResourceLimitError: the search exceeds it.
    """
    if not is_spelled(node):
        return None
    questions = []
    for operands in _alternatives(node):
        state, least, most = _start(operands)
        if state is not None:
            if not state[0]:
                return None  # only complements: the language has words that are no texts
            questions.append((state, least, most))
    return not any(_has_word(*question, (work or SearchWork()).lengthen(question[1])) for question in questions)


def _alternatives(node: Node) -> list[list[Node]]:
    """Intersections whose union a node is. Options that are intersections themselves are asked for one by one.

    Together they would be a state of their own for everything that each of them may have met.
    """
    operands = node.operands if isinstance(node, ir.Both) else (node,)
    options = [
        operand.options
        if isinstance(operand, ir.Choice) and any(isinstance(option, ir.Both) for option in operand.options)
        else (operand,)
        for operand in operands
    ]
    if math.prod(map(len, options)) > MAX_ALTERNATIVES:
        return [list(operands)]
    return [list(chosen) for chosen in product(*options)]


def _start(operands: list[Node]) -> tuple[_State | None, int, int | None]:
    """The state before a text, with the least and the greatest length; no state if it is plainly empty."""
    least, most = 0, None
    conditions: list[tuple[Node, bool]] = []
    agenda = list(operands)
    while agenda:
        operand = agenda.pop()
        if isinstance(operand, ir.Both):
            agenda += operand.operands
        elif isinstance(operand, ir.Repeat) and operand.body is text.CHARACTER:
            least = max(least, operand.min)
            if operand.max is not None:
                most = operand.max if most is None else min(most, operand.max)
            conditions.append((text.BODY, True))
        elif not isinstance(operand, ir.Complement) and (counted := _counted(operand)) is not None:
            body, low, high = counted
            least, most = max(least, low), high if most is None else min(most, high)
            conditions.append((ir.repeat(body), True))
        else:
            conditions.append((operand, True))
    state = _state(conditions)
    return (None if most is not None and least > most else state), least, most


def _counted(node: Node) -> tuple[Node, int, int] | None:
    """X{m,n} or XX…X as X, m and n, where X is a class of characters; None for other nodes.

    It is X* and a bound of the length. Taken apart, all lengths share the states of a text.
    """
    least = most = 0
    body: Node | None = None
    while node is not ir.EPSILON:
        part, node = (node.head, node.tail) if isinstance(node, ir.Product) else (node, ir.EPSILON)
        one, low, high = (part.body, part.min, part.max) if isinstance(part, ir.Repeat) else (part, 1, 1)
        if high is None or one is not (body or one):
            return None
        body, least, most = one, least + low, most + high
    if body is None or body.is_nullable:
        return None
    ways = row(body)
    return (body, least, most) if ways and all(target is ir.EPSILON for _, _, target in ways) else None


def _state(conditions: list[tuple[Node, bool]]) -> _State | None:
    """A state in its normal form; None if nothing can follow there."""
    belongs: set[Node] = set()
    excluded: set[Node] = set()
    while conditions:
        node, holds = conditions.pop()
        if holds and isinstance(node, ir.Both):
            conditions += [(operand, True) for operand in node.operands]
        elif isinstance(node, ir.Complement):
            conditions.append((node.operand, not holds))
        elif not holds and isinstance(node, ir.Choice):
            conditions += [(option, False) for option in node.options]
        elif _is_universal(node):
            if not holds:
                return None
            belongs.add(text.BODY)
        elif holds:
            belongs.add(node)
        else:
            excluded.add(node)
    if len(belongs) > 1:
        belongs.discard(text.BODY)
    if ir.EMPTY in belongs or not belongs.isdisjoint(excluded):
        return None
    excluded.discard(ir.EMPTY)
    return frozenset(belongs), frozenset(excluded) if excluded else _NONE


def _is_universal(node: Node) -> bool:
    """Whether a node admits every text, as far as that is plain to see."""
    while isinstance(node, ir.Product) and node.head.is_nullable:
        node = node.tail
    return node is text.BODY or (isinstance(node, ir.Choice) and text.BODY in node.options)


def _is_end(state: _State) -> bool:
    return all(node.is_nullable for node in state[0]) and not any(node.is_nullable for node in state[1])


def _following(state: _State) -> set[_State]:
    """The states after one more character."""
    found = {_after(state, targets) for targets in _followed(state)}
    return {after for after in found if after is not None}


def _followed(state: _State) -> dict[Targets, int]:
    """The derivatives of the conditions of a state, in its order, each with its number of characters."""
    give_way()
    found: dict[Targets, int] = {}
    for low, high, targets in aligned(state[0], state[1]):  # some language is always asked for
        found[targets] = found.get(targets, 0) + high - low + 1
    for target in {target for targets in found for target in targets if target is not None}:
        trust(target)  # what follows a whole character
    return found


def _after(state: _State, targets: Targets) -> _State | None:
    """The state where each condition is what follows it."""
    num_asked = len(state[0])
    return _state([(node, index < num_asked) for index, node in enumerate(targets) if node is not None])


class SearchWork:
    """The work of one question, or of several together: a number of states, and of the conditions in them.

    Args:
        share: it may be one part of so many of the bounds of a question.
    """

    def __init__(self, share: int = 1) -> None:
        self.share = share
        self.num_states = self.num_parts = self.num_lengthy = 0

    def lengthen(self, least: int) -> SearchWork:
        """The same, with room for a text of so many characters."""
        self.num_lengthy = max(self.num_lengthy, min(least, MAX_LENGTHY) // self.share)
        return self

    def look(self, state: _State) -> None:
        """Count a state whose successors are made.

        Raises:
            ResourceLimitError: it is one too many.
        """
        self.num_states += 1
        # The conditions, each counted with its alternatives.
        self.num_parts += sum(len(n.options) if isinstance(n, ir.Choice) else 1 for nodes in state for n in nodes)
        counted = ((self.num_states, MAX_STATES), (self.num_parts, MAX_PARTS))
        if any(number > most // self.share + self.num_lengthy for number, most in counted):
            raise ResourceLimitError(
                f"more than {self.num_states - 1:,} states are needed to tell whether an intersection is empty",
                hint="use fewer or simpler patterns together",
            )


def _has_word(start: _State, least: int, most: int | None, work: SearchWork) -> bool:
    """Whether a text of some length between the bounds leads from a state to an end."""
    known = _known_answer(start, least, most)
    if known is None:
        return bool(_resumed((start, least, most), _looking(start, least, most, work)))
    return known


def _known_answer(start: _State, least: int, most: int | None) -> bool | None:
    """The answer of `_has_word` where no search is needed, else None."""
    if start == _ANY_TEXT:
        return True
    if start in _barren:
        return False
    if _is_between(_text_lengths.get(start), least, most):
        return True
    is_bounded = least > 0 or most is not None
    # With fewer conditions than a state that has a text: every successor of an intersection that lost an operand.
    if not is_bounded and len(start[0]) > 1 and any(start[0] <= one[0] and start[1] <= one[1] for one in _inhabited):
        return True
    return None


def _is_between(length: int | None, least: int, most: int | None) -> bool:
    """Whether a length is known and lies between the bounds."""
    return length is not None and least <= length and (most is None or length <= most)


def _resumed(question: Hashable, search: _Search) -> int:
    """The answer of a search, which goes on where a slice of work left it."""
    search = _begun.pop(question, search)
    try:
        while True:
            spend()
            next(search)
    except StopIteration as end:
        return int(end.value)
    except Unfinished:
        if len(_begun) >= MAX_BEGUN:
            _begun.clear()
        _begun[question] = search
        raise


def _looking(start: _State, least: int, most: int | None, work: SearchWork) -> _Search:
    """Best first; then, where the length is bounded, breadth first."""
    known = _known_answer(start, least, most)
    if known is not None:
        return known
    if not least and most is None:
        return (yield from _dive(start, 0, None, work, math.inf))
    found = yield from _dive(start, least, most, work, MAX_DIVES)
    return found or (yield from _search(start, least, most, work))


def _dive(start: _State, least: int, most: int | None, work: SearchWork, max_states: float) -> _Search:
    """Whether a text is found best first, within so many states; exact if they do not bound it, nor does the length."""
    global _inhabited
    order = count(step=-1)  # of equal ones the last first: deeper and deeper
    queue = [(0, 0, 0, next(order), start, 0)]
    seen: dict[tuple[_State, int], tuple[_State, int] | None] = {(start, 0): None}  # each with the one before it
    num_states = 0
    while queue and num_states < max_states:
        *_, state, length = heappop(queue)
        num_states += 1
        left = 0 if _is_end(state) and length >= least else _text_lengths.get(state)
        if left is not None and _is_between(length + left, least, most):
            _learn_way((state, min(length, least)), left, seen)
            _inhabited = (start, *_inhabited)[:_MAX_COMPARED]
            return True
        if state in _barren or length == most:
            continue
        yield
        work.look(state)
        length += 1
        for after in _following(state):
            key = (after, min(length, least))
            if key not in seen:
                seen[key] = (state, min(length - 1, least))
                heappush(queue, (*_rank(after, length, least), next(order), after, length))
    if not queue and not least and most is None:
        if len(_barren) > MAX_REMEMBERED:
            _barren.clear()
        _barren.update(state for state, _ in seen)
    return False


def _learn_way(end: tuple[_State, int], left: int, before: dict[tuple[_State, int], tuple[_State, int] | None]) -> None:
    """Keep the lengths of the rests of a text: who follows it asks for each of them next."""
    if len(_text_lengths) > MAX_REMEMBERED:
        _text_lengths.clear()
    step: tuple[_State, int] | None = end
    while step is not None:
        _text_lengths.setdefault(step[0], left)
        step, left = before[step], left + 1


def _search(start: _State, least: int, most: int | None, work: SearchWork) -> _Search:
    """Whether there is a text of a bounded length, breadth first: each state is looked at once beyond the least."""
    frontier = {start}
    frontiers: dict[frozenset[_State], int] = {}  # shorter than the least length, with the length
    seen: set[_State] = set()
    length = 0
    while frontier:
        if length >= least:
            if any(map(_is_end, frontier)):
                return True
            # A state that was reached with fewer characters says nothing new, once there are enough of them.
            seen |= frontier
        if length == most:
            return False
        following: set[_State] = set()
        for state in frontier:
            if state not in _barren:
                yield
                work.look(state)
                following |= _following(state)
        frontier = following - seen
        length += 1
        if length < least:
            period = length - frontiers.setdefault(frozenset(frontier), length)
            if period:  # it goes round
                length += (least - length) // period * period
                frontiers.clear()
    return False


def _rank(state: _State, length: int, least: int) -> tuple[int, int, int]:
    """The sort key of a state; the best is least: few unmet conditions, then few bytes, then many open ways."""
    num_bytes = num_ways = num_open = 0
    for node in state[0]:
        num_open += not node.is_nullable
        num_bytes += _least_bytes(node)
        num_ways += _num_ways(node)
    return num_open, max(num_bytes, least - length), len(state[1]) - num_ways


def _least_bytes(node: Node) -> int:
    """No word has fewer bytes."""
    bounds = node.bounds()
    if bounds is not None:
        return bounds[0]
    if isinstance(node, ir.Both):
        return max(map(_least_bytes, node.operands))
    if isinstance(node, ir.Choice):
        return min(map(_least_bytes, node.options))
    if isinstance(node, ir.Repeat):
        return node.min * _least_bytes(node.body)
    num_bytes = 0
    while isinstance(node, ir.Product):
        num_bytes += _least_bytes(node.head)
        node = node.tail
        if node.bounds() is not None or not isinstance(node, ir.Product):
            return num_bytes + _least_bytes(node)
    return num_bytes


def _num_ways(node: Node) -> int:
    """The alternatives of a node, where X{2,5} is four."""
    ways = 0
    for option in node.options if isinstance(node, ir.Choice) else (node,):
        part = option.head if isinstance(option, ir.Product) else option
        ways += part.max - part.min + 1 if isinstance(part, ir.Repeat) and part.max is not None else 1
    return ways


# -- counting

_MAX_LENGTH: Final = 2_000  # a language with longer texts only is taken to be large


def num_texts(body: Node, limit: int, work: SearchWork | None = None) -> int:
    """The number of texts in a body language, or `limit` if there are at least so many; else as `is_empty`."""
    start, least, most = _start([trust(body)])
    if start is None:
        return 0
    return _resumed((body, limit), _counting(start, least, most, limit, (work or SearchWork()).lengthen(least)))


def _counting(start: _State, least: int, most: int | None, limit: int, work: SearchWork) -> _Search:
    """Level by level: the number of ways into each state after k characters."""
    total = length = 0
    frontier = {start: 1} if (yield from _looking(start, least, most, work)) else {}
    while frontier and total + sum(frontier.values()) < limit:  # each of these ways goes on to a text of its own
        if length >= _MAX_LENGTH:
            return limit
        following: dict[_State, int] = {}
        length += 1
        least_left, most_left = max(0, least - length), None if most is None else most - length
        for state, num_ways in frontier.items():
            if length > least and _is_end(state):
                total += num_ways
            if most_left is not None and most_left < 0:
                continue
            work.look(state)
            for targets, num_characters in _followed(state).items():
                after = _after(state, targets)
                if after == state and most is None:  # round and round, before a text: without end
                    return limit
                if after is None:
                    continue
                if after in following or (yield from _looking(after, least_left, most_left, work)):
                    following[after] = following.get(after, 0) + num_ways * num_characters
        frontier = following
    return min(limit, total + sum(frontier.values()))


def texts(body: Node, limit: int) -> tuple[str, ...] | None:
    """The texts of a body language if there are at most `limit`, else None."""
    words = text.word_list(body)
    if words is not None:
        return words if len(words) <= limit else None
    if num_texts(body, limit + 1) > limit:
        return None
    found = []
    stack = [("", body)]
    while stack:
        read, node = stack.pop()
        if node.is_nullable:
            found.append(read)
        for low, high, target in row(node):
            if not trust(target).is_empty:
                stack += [(read + chr(point), target) for point in range(low, high + 1)]
    return tuple(found)
