"""Regular languages of bytes as immutable, hash-consed expressions with symbolic derivatives.

Every lexical language of the engine (a regex, a JSON string, the keys of an object) is a `Node`. Nodes are made by the
constructors below, which simplify as they build, and equal structure is the same object, so that a derivative is often
an object that exists already: the reachable derivatives *are* the states of the automaton, made when they are needed.

A node may mark the ends of its words with labels, `concat(literal(b"true"), accept("bool"))`: the engine reports the
labels of a word when it ends. If a word passes several labels, the last one counts; None means no label.

Sources: J. Brzozowski, Derivatives of regular expressions (1964); S. Owens, J. Reppy, A. Turon, Regular-expression
derivatives re-examined (2009), here with whole rows of transitions in place of classes and single derivatives.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import and_, or_
from typing import Final

from decodekit.constraints.language.node import EMPTY as EMPTY
from decodekit.constraints.language.node import ByteMask, Node, Transitions, forgetters
from decodekit.constraints.priority import give_way
from decodekit.constraints.work_budget import charge

ALL_BYTES: Final[ByteMask] = (1 << 256) - 1

_LITERAL_CHUNK: Final = 256  # a longer literal is a chain of such chunks, so that a derivative copies few bytes
_FACTOR_DEPTH: Final = 40  # bound on the recursion of factoring; beyond it a choice is merely larger

_FEW_NODES: Final = 25_000  # so many are kept before the first sweep, whoever needs them
_SWEPT_AT_ONCE: Final = 1_000  # about a millisecond, for which others wait

_lock = threading.RLock()
_interned: dict[Hashable, Node] = {}  # see `_intern` and `sweep`; parts come before what they are part of
_due = _FEW_NODES  # nodes at which the next sweep is due
_is_sweeping = False


class _Interned(Node):
    """Base of the nodes of this module: hash-consed, with their transitions kept."""

    __slots__ = (
        "_bounds",
        "_emptiness",
        "_saturated",
        "_transitions",
        "can_be_empty",
        "has_counts",
        "is_labelled",
        "labels",
    )

    labels: tuple[Hashable, ...]  # a slot: it is asked for more often than anything else
    can_be_empty: bool
    is_labelled: bool
    has_counts: bool
    _emptiness: bool | None
    _saturated: dict[int, Node] | None
    _transitions: Transitions | None
    _bounds: tuple[int, int] | None

    def _finish(
        self, labels: tuple[Hashable, ...], can_be_empty: bool, is_labelled: bool, has_counts: bool = False
    ) -> None:
        self.labels, self.can_be_empty = labels, can_be_empty
        self.is_labelled, self.has_counts = is_labelled, has_counts
        self._saturated = self._transitions = self._emptiness = None

    def known_emptiness(self) -> bool | None:
        """As in `Node`."""
        return self._emptiness

    def remember_emptiness(self, is_empty: bool) -> None:
        """As in `Node`."""
        self._emptiness = is_empty

    def saturated(self, limit: int) -> Node:
        """As in `Node`; remembered, because a node may occur in others many times."""
        if not self.has_counts:
            return self
        if self._saturated is None:
            self._saturated = {}
        if limit not in self._saturated:
            self._saturated[limit] = self._saturate(limit)
        return self._saturated[limit]

    def transitions(self) -> Transitions:
        known = self._transitions
        if known is None:
            known = self._transitions = self._derive()
        return known

    def _derive(self) -> Transitions:
        raise NotImplementedError

    def derivative(self, byte: int) -> Node:
        """As in `Node`, without the derivatives by all other bytes where these are not known."""
        return self._after(byte) if self._transitions is None else super().derivative(byte)

    def _after(self, byte: int) -> Node:
        return super().derivative(byte)

    def bounds(self) -> tuple[int, int] | None:
        """As in `Node`; kept."""
        try:
            return self._bounds
        except AttributeError:
            self._bounds = self._bound()
            return self._bounds

    def _bound(self) -> tuple[int, int] | None:
        return None

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("nodes are made anew from their constraint in each process; pickle the constraint")


class Accept(_Interned):
    """The empty word, with a label."""

    __slots__ = ("label",)

    def __init__(self, label: Hashable) -> None:
        self.label = label
        self._finish((label,), False, label is not None)

    def _derive(self) -> Transitions:
        return ()

    def _bound(self) -> tuple[int, int]:
        return 0, 0

    def __repr__(self) -> str:
        return "EPSILON" if self.label is None else f"accept({self.label!r})"


class Bytes(_Interned):
    """One byte out of a set."""

    __slots__ = ("mask",)

    def __init__(self, mask: ByteMask) -> None:
        self.mask = mask
        self._finish((), False, False)

    def _derive(self) -> Transitions:
        return ((self.mask, EPSILON),)

    def _bound(self) -> tuple[int, int]:
        return 1, 1

    def __repr__(self) -> str:
        members = bytes(bytes_of(self.mask))
        return f"byte_set({members!r})" if len(members) <= 16 else f"byte_set(<{len(members)} bytes>)"


class Literal(_Interned):
    """One word of at least two bytes."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._finish((), False, False)

    def _derive(self) -> Transitions:
        return ((1 << self.text[0], literal(self.text[1:])),)

    def possible_bytes(self) -> ByteMask:
        """The first byte."""
        return 1 << self.text[0]

    def _bound(self) -> tuple[int, int]:
        return len(self.text), len(self.text)

    def __repr__(self) -> str:
        return f"literal({self.text!r})"


class Product(_Interned):
    """A word of `head`, then a word of `tail`; nested to the right, so `head` is not a Product."""

    __slots__ = ("head", "tail")

    def __init__(self, head: Node, tail: Node) -> None:
        self.head, self.tail = head, tail
        labels = _pass_labels(head.labels, tail.labels) if head.labels and tail.labels else ()
        is_labelled = tail.is_labelled or head.is_labelled
        has_counts = head.has_counts or tail.has_counts
        self._finish(labels, head.can_be_empty or tail.can_be_empty, is_labelled, has_counts)

    def _saturate(self, limit: int) -> Node:
        parts: list[Node] = []
        node: Node = self
        while isinstance(node, Product) and node.has_counts:
            parts.append(node.head.saturated(limit))
            node = node.tail
        return concat(*parts, node.saturated(limit))

    def forget(self) -> None:
        """As in `Node`, unless the search for a word may need the transitions again."""
        if not self.can_be_empty or self._emptiness is not None:
            self._transitions = None

    def _is_empty(self) -> bool:
        node: Node = self
        while isinstance(node, Product) and node.can_be_empty:
            if node.head.is_empty:
                return True
            node = node.tail
        return node.is_empty

    def _derive(self) -> Transitions:
        rows: list[tuple[ByteMask, Node]] = []
        node: Node = self
        while isinstance(node, Product):  # a loop, not a recursion: a chain of optional parts may be long
            head, tail = node.head, node.tail
            rows += ((mask, concat(target, tail)) for mask, target in head.transitions())
            for label in head.labels:
                if label is not None:
                    rows += ((mask, concat(accept(label), target)) for mask, target in tail.transitions())
            if None not in head.labels:
                return merge(rows)
            node = tail
        rows += node.transitions()
        return merge(rows)

    def _after(self, byte: int) -> Node:
        found: list[Node] = []
        node: Node = self
        while isinstance(node, Product):
            head, tail = node.head, node.tail
            found.append(concat(head.derivative(byte), tail))
            labels = [label for label in head.labels if label is not None]
            if labels:
                target = tail.derivative(byte)
                found += (concat(accept(label), target) for label in labels)
            if None not in head.labels:
                return _united(found)
            node = tail
        return _united([*found, node.derivative(byte)])

    def possible_bytes(self) -> ByteMask:
        """Those of the first part, and of the next one where it may be nothing."""
        mask = 0
        node: Node = self
        while isinstance(node, Product):
            mask |= node.head.possible_bytes()
            if not node.head.labels:
                return mask
            node = node.tail
        return mask | node.possible_bytes()

    def _bound(self) -> tuple[int, int] | None:
        least = most = 0
        for part in reversed(_chain(self)):  # a loop, as above
            bounds = part.bounds()
            if bounds is None:
                return None
            # Who stands inside the part still has to read what follows it.
            most = max(bounds[1] + least, most)
            least += bounds[0]
        return least, most

    def __repr__(self) -> str:
        return f"concat({', '.join(map(repr, _chain(self)))})"


class Choice(_Interned):
    """A word of any of the options."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Node, ...]) -> None:
        self.options = options
        labels = tuple(dict.fromkeys(label for option in options for label in option.labels))
        # One option that cannot be empty is enough.
        can_be_empty = all(option.can_be_empty for option in options)
        is_labelled = any(option.is_labelled for option in options)
        self._finish(labels, can_be_empty, is_labelled, any(option.has_counts for option in options))

    def _saturate(self, limit: int) -> Node:
        return choice(*(option.saturated(limit) for option in self.options))

    def _is_empty(self) -> bool:
        return all(option.is_empty for option in self.options)

    def _derive(self) -> Transitions:
        return merge([row for option in self.options for row in option.transitions()])

    def _after(self, byte: int) -> Node:
        return _united([option.derivative(byte) for option in self.options])

    def possible_bytes(self) -> ByteMask:
        """Those of any option."""
        return reduce(or_, (option.possible_bytes() for option in self.options))

    def _bound(self) -> tuple[int, int] | None:
        return _around([option.bounds() for option in self.options])

    def __repr__(self) -> str:
        return f"choice({', '.join(map(repr, self.options))})"


class Both(_Interned):
    """The words that all operands have in common.

    Often one operand only counts the letters of an alphabet (see `declare_alphabet`): A & X{0,n}, where the words of A
    consist of words of X. For the next k bytes that is A alone, if n is at least k + m and m bytes complete whatever
    has been read of a word of A: no count that is met on the way, and none that is needed after it, exceeds n.

    A & X{l,n} is A & X{l,} for the next k bytes if the words of A can go on with some word w again and again, and n is
    at least k + m + (l + 1) |w|: what has been read is completed, and then goes on until it has l letters.
    """

    __slots__ = ("operands",)

    def __init__(self, operands: tuple[Node, ...]) -> None:
        self.operands = operands
        has_counts = len(operands) == 2 and any(operand.has_counts for operand in operands)
        self._finish(_meet_labels(operands), True, any(operand.is_labelled for operand in operands), has_counts)

    def _counted(self) -> Iterator[tuple[Node, Node | None, Repeat]]:
        """The operands as A, what is left of a letter, and the count of the letters behind it, if they are such."""
        for one, other in (self.operands, self.operands[::-1]) if len(self.operands) == 2 else ():
            *heads, count = _chain(one)
            if not isinstance(count, Repeat) or count.body not in _alphabets:
                continue
            rest = concat(*heads) if heads else None
            if rest is not None and rest not in _alphabets[count.body]:
                continue  # not the rest of a letter, but a condition of its own
            if not other.can_be_empty and other.bounds() is not None:
                yield other, rest, count

    def _saturate(self, limit: int) -> Node:
        for other, rest, count in self._counted():
            num_bytes = limit + (other.bounds() or (0, 0))[1]
            if count.max is None or num_bytes > count.max:
                continue
            if count.min == 0 or (count.min == 1 and rest is None and not other.labels):
                return other.saturated(limit)
            loop = bytes_of_loop(other)
            if loop is not None and num_bytes + (count.min + 1) * loop <= count.max:
                letters = repeat(count.body, min(count.min, limit + 1))
                return both(other.saturated(limit), letters if rest is None else concat(rest, letters))
        return self

    def _is_empty(self) -> bool:
        return not self._has_short_word() and super()._is_empty()

    def _has_short_word(self) -> bool:
        """Whether a short word of A, perhaps gone round, has so many letters, as is plain to see."""
        for other, _, count in self._counted():
            num_bytes = (other.bounds() or (0, 0))[0]
            loop = 0 if count.min == 0 else bytes_of_loop(other)
            if loop is not None and (count.max is None or num_bytes + (count.min + 1) * loop <= count.max):
                return True
        return False

    def _derive(self) -> Transitions:
        first, *others = self.operands
        rows: list[tuple[ByteMask, tuple[Node, ...]]] = [(mask, (target,)) for mask, target in first.transitions()]
        for operand in others:
            transitions = operand.transitions()
            finer: list[tuple[ByteMask, tuple[Node, ...]]] = []
            for left, targets in rows:
                for mask, target in transitions:
                    common = left & mask
                    if common:
                        finer.append((common, (*targets, target)))
                        if common == left:
                            break  # most have few bytes: no other transition has one of them
                        left ^= common
            rows = finer
        charge(len(rows) * len(self.operands))
        by_target: dict[Node, ByteMask] = {}  # disjoint, so that nothing is to be merged but equal targets
        for mask, targets in rows:
            common_target = both(*targets)
            if common_target is not EMPTY:
                by_target[common_target] = by_target.get(common_target, 0) | mask
        return tuple([(mask, target) for target, mask in by_target.items()])

    def _after(self, byte: int) -> Node:
        targets: list[Node] = []
        for operand in self.operands:
            targets.append(operand.derivative(byte))
            if targets[-1] is EMPTY:
                return EMPTY
        charge(len(targets))
        return both(*targets)

    def possible_bytes(self) -> ByteMask:
        """Those of every operand; a word may begin with fewer."""
        return reduce(and_, (operand.possible_bytes() for operand in self.operands))

    def __repr__(self) -> str:
        return f"both({', '.join(map(repr, self.operands))})"


class Complement(_Interned):
    """The byte strings that are not words of `operand`."""

    __slots__ = ("operand",)

    def __init__(self, operand: Node) -> None:
        self.operand = operand
        self._finish(() if operand.labels else (None,), True, False)

    def _derive(self) -> Transitions:
        rows = [(mask, complement(target)) for mask, target in self.operand.transitions()]
        rest = ALL_BYTES ^ sum(mask for mask, _ in rows)  # they are disjoint
        return merge([*rows, (rest, ANYTHING)] if rest else rows)

    def _after(self, byte: int) -> Node:
        return complement(self.operand.derivative(byte))

    def possible_bytes(self) -> ByteMask:
        """All; a word may begin with fewer."""
        return ALL_BYTES

    def __repr__(self) -> str:
        return "ANYTHING" if self.operand is EMPTY else f"complement({self.operand!r})"


class Repeat(_Interned):
    """Between `min` and `max` words of `body`; `max` None has no bound.

    `min` is 0 if the body has the empty word without a label. It counts if the empty word has a label: of two rounds of
    ``choice(byte_set(b"a"), accept("x"))``, one that reads ``a`` leaves one that reads nothing and has the label.
    """

    __slots__ = ("body", "max", "min")

    def __init__(self, body: Node, min_: int, max_: int | None) -> None:
        self.body, self.min, self.max = body, min_, max_
        labels = body.labels if min_ else tuple(dict.fromkeys((None, *body.labels)))
        has_counts = body.has_counts or min_ > 1 or max_ is not None
        self._finish(labels, min_ > 0 and body.can_be_empty, body.is_labelled, has_counts)

    def _saturate(self, limit: int) -> Node:
        # Every round that counts reads a byte at least, so at most `limit` of them are seen.
        high = None if self.max is None or self.max > limit else self.max
        return repeat(self.body.saturated(limit), min(self.min, limit + 1), high)

    def _is_empty(self) -> bool:
        return self.body.is_empty

    def _derive(self) -> Transitions:
        num_left = None if self.max is None else self.max - 1
        rest = repeat(self.body, max(self.min - 1, 0), num_left)
        rows = [(mask, concat(target, rest)) for mask, target in self.body.transitions()]
        # Rounds that read nothing may be taken to come last, behind the last label. Only where `min` needs one for want
        # of other rounds, another label may follow it: then it comes first, as often as is needed.
        if self.min > 1 and self.body.labels:
            rest = repeat(self.body, 0, None if num_left is None else num_left - 1)
            for label in self.body.labels:
                rows += ((mask, concat(accept(label), target, rest)) for mask, target in self.body.transitions())
        return merge(rows)

    def _after(self, byte: int) -> Node:
        if self.min > 1 and self.body.labels:  # rounds that read nothing have labels: see `_derive`
            return super()._after(byte)
        num_left = None if self.max is None else self.max - 1
        return concat(self.body.derivative(byte), repeat(self.body, max(self.min - 1, 0), num_left))

    def possible_bytes(self) -> ByteMask:
        """Those of the body."""
        return self.body.possible_bytes()

    def _bound(self) -> tuple[int, int] | None:
        bounds = self.body.bounds()
        if bounds is None:
            return None
        least, most = bounds
        return self.min * least, max(self.min * least, most + max(self.min - 1, 0) * least)

    def __repr__(self) -> str:
        return f"repeat({self.body!r}, {self.min}, {self.max})"


def bytes_of_loop(node: Node) -> int | None:
    """Bytes of a word with which all words of a node go on again and again, not the empty one; None if not known."""
    while isinstance(node, Product):
        node = node.tail
    if isinstance(node, Choice):
        loops = [bytes_of_loop(option) for option in node.options]
        return None if None in loops else max(loop for loop in loops if loop is not None)
    if not isinstance(node, Repeat) or node.max is not None or node.body.labels:
        return None
    bounds = node.body.bounds()
    return None if bounds is None else bounds[0]


def _united(nodes: list[Node]) -> Node:
    """The words of any of the nodes; most are empty."""
    found = [node for node in nodes if node is not EMPTY]
    return EMPTY if not found else found[0] if len(found) == 1 else choice(*found)


def _around(ranges: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The least range that holds all; None if one is not known."""
    known = [one for one in ranges if one is not None]
    return (min(known)[0], max(high for _, high in known)) if len(known) == len(ranges) else None


def _pass_labels(before: tuple[Hashable, ...], after: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """Labels of the empty word in a concatenation: the last label that is passed counts."""
    return tuple(dict.fromkeys(first if last is None else last for last in after for first in before))


def _meet_labels(operands: tuple[Node, ...]) -> tuple[Hashable, ...]:
    if not all(operand.labels for operand in operands):
        return ()
    # `both` admits one labelled operand at most.
    return next((operand.labels for operand in operands if operand.labels != (None,)), (None,))


def _intern(kind: type[_Interned], identity: Hashable, *arguments: object) -> Node:
    """The one node of this kind and identity, which names its parts by `id`.

    A key that held the parts themselves would keep alive every node that is reached from its own derivative. An `id` is
    safe because a node holds its parts, and leaves the table before it lets go of them.
    """
    give_way()
    if len(_interned) > 2 * _due:
        sweep()
    key = (kind.__name__, identity)  # of atoms alone, so that the garbage collector need not look at it
    with _lock:  # for the look-up too: a sweep must not let go of what is being found
        node = _interned.get(key)
        if node is None:
            node = _interned[key] = kind(*arguments)
        return node


def _canonical(node: Node) -> Node:
    """The node itself, or the equal node of another module that was met first, so that identity is equality."""
    if isinstance(node, _Interned) or node is EMPTY:
        return node
    with _lock:
        return _interned.setdefault(node, node)


def sweep_if_due() -> None:
    """Let go of what nobody needs, if there are twice as many nodes as the last sweep has left."""
    if len(_interned) > _due:
        sweep()


def sweep() -> None:
    """Let go of the nodes that nobody holds but the table, and of all derivatives, which are made again when needed.

    A table of weak references would do so by itself, and costs more than the nodes: each is one object more for the
    garbage collector to visit, and every look-up makes another. Without derivatives no node is part of a cycle, and a
    node is younger than its parts, so one pass from the youngest to the oldest finds all. Others go on between two
    pieces of it: what they derive meanwhile, and what that needs, is held and stays.
    """
    global _due, _is_sweeping
    with _lock:
        if _is_sweeping:
            return
        _is_sweeping = True
        for forget in forgetters:
            forget()
        nodes = list(_interned.values())
        keys = list(_interned)
    try:
        while nodes:
            give_way()
            node = nodes.pop()
            if isinstance(node, _Interned):
                node._transitions = node._saturated = None
            else:
                node.forget()
        del node
        while keys:
            with _lock:
                for _ in range(min(len(keys), _SWEPT_AT_ONCE)):
                    key = keys.pop()
                    # Held by the table, by the call, and what is its own key by the table once more and by `key`.
                    if sys.getrefcount(_interned[key]) <= (4 if isinstance(key, Node) else 2):
                        del _interned[key]
            give_way()
    finally:
        _due, _is_sweeping = max(_FEW_NODES, 2 * len(_interned)), False


def _ids(nodes: Iterable[Node]) -> tuple[int, ...]:
    return tuple(sorted(map(id, nodes)))


def accept(label: Hashable) -> Node:
    """The empty word, whose end carries `label`. ``concat(word, accept(label))`` labels the end of a word."""
    return _intern(Accept, (type(label), label), label)  # the type too: True is not 1


EPSILON: Final[Node] = accept(None)
"""The language of the empty word, without a label."""


def byte_set(members: Iterable[int] | ByteMask) -> Node:
    """One byte out of `members`, given as bytes 0..255 or as a 256-bit integer."""
    if isinstance(members, int):
        mask = members
    else:
        mask = 0
        for member in members:
            if not 0 <= member <= 255:
                raise ValueError(f"{member} is not a byte")
            mask |= 1 << member
    if not 0 <= mask <= ALL_BYTES:
        raise ValueError("a byte set has 256 bits")
    return _intern(Bytes, mask, mask) if mask else EMPTY


def literal(text: bytes) -> Node:
    """The one word `text`."""
    if len(text) <= 1:
        return byte_set(text) if text else EPSILON
    if len(text) <= _LITERAL_CHUNK:
        return _intern(Literal, text, text)
    return concat(*(literal(text[i : i + _LITERAL_CHUNK]) for i in range(0, len(text), _LITERAL_CHUNK)))


def concat(*nodes: Node) -> Node:
    """Words of the nodes, one after the other."""
    if len(nodes) == 2 and not isinstance(nodes[0], Product):  # the case of derivatives
        head, tail = nodes
        return EMPTY if head is EMPTY or tail is EMPTY else _concat_two(head, tail)
    result: Node | None = None
    for node in reversed(nodes):
        if node is EMPTY:
            return EMPTY
        if result is None:
            result = node
            continue
        for part in reversed(_chain(node)):
            result = _concat_two(part, result)
    return EPSILON if result is None else result


def _concat_two(head: Node, tail: Node) -> Node:
    if head is EPSILON:
        return tail
    if tail is EPSILON:
        return head
    if isinstance(head, Accept):
        if isinstance(tail.head if isinstance(tail, Product) else tail, Accept) or None not in _possible_labels(tail):
            return tail
        if isinstance(tail, Choice):  # a label in front of each option, where it may be dropped: derivatives stay few
            return choice(*(_concat_two(head, option) for option in tail.options))
    if isinstance(head, Repeat):  # X{a,b}X{c,d} is X{a+c,b+d}: a chain of optional parts is one count
        following, rest = (tail.head, tail.tail) if isinstance(tail, Product) else (tail, EPSILON)
        if isinstance(following, Repeat) and following.body is head.body:
            high = None if head.max is None or following.max is None else head.max + following.max
            return _concat_two(repeat(head.body, head.min + following.min, high), rest)
    head, tail = _canonical(head), _canonical(tail)
    return _intern(Product, (id(head), id(tail)), head, tail)


def _possible_labels(node: Node) -> tuple[Hashable, ...]:
    """The labels of a node whose words all end with them, as far as that is plain to see; otherwise with None."""
    while isinstance(node, Product):
        node = node.tail
    return node.labels if isinstance(node, Accept) else (None,)


def _chain(node: Node) -> list[Node]:
    parts = []
    while isinstance(node, Product):
        parts.append(node.head)
        node = node.tail
    return [*parts, node]


def choice(*nodes: Node) -> Node:
    """A word of any of the nodes. Order and repetition do not matter."""
    return _choice(nodes, _FACTOR_DEPTH)


def _choice(nodes: Iterable[Node], depth: int) -> Node:
    options: dict[Node, None] = {}
    mask = 0
    repeats: dict[Node, list[Repeat]] = {}  # by body
    concats: dict[Node, list[Product]] = {}  # by head
    for node in chain.from_iterable(node.options if isinstance(node, Choice) else (node,) for node in nodes):
        if isinstance(node, Bytes):
            mask |= node.mask
        elif isinstance(node, Repeat):
            repeats.setdefault(node.body, []).append(node)
        elif isinstance(node, Product):
            concats.setdefault(node.head, []).append(node)
        elif node is not EMPTY:
            options[node] = None
    if mask:
        options[byte_set(mask)] = None
    for group in repeats.values():
        options.update(dict.fromkeys(_join_repeats(group)))
    counted: dict[tuple[Node, Node], list[Repeat]] = {}  # X{a,b}·T by (X, T)
    for head, parts in concats.items():
        tails = dict.fromkeys(part.tail for part in parts)
        if len(tails) == 1 or depth == 0 or isinstance(head, Accept):  # see `_concat_two`
            joined = [concat(head, tail) for tail in tails]
        else:
            joined = [concat(head, _choice(tails, depth - 1))]
        for part in joined:
            if isinstance(part, Product) and isinstance(part.head, Repeat):
                counted.setdefault((part.head.body, part.tail), []).append(part.head)
            else:
                options[part] = None
    for (_, tail), group in counted.items():
        options.update((concat(node, tail), None) for node in _join_repeats(group))
    if len(options) > 1:
        # Y?·Z contains Z. Chains share their tails, so each is walked once.
        contained: set[Node] = set()
        for node in options:
            while isinstance(node, Product) and None in node.head.labels and node.tail not in contained:
                node = node.tail
                contained.add(node)
        if contained:
            options = {node: None for node in options if node not in contained}
    if EPSILON in options:
        # X{1,n} or nothing is X{0,n}; a nullable option has the empty word already.
        for node in [node for node in options if isinstance(node, Repeat) and node.min == 1]:
            del options[node]
            options[repeat(node.body, 0, node.max)] = None
        if any(node is not EPSILON and None in node.labels for node in options):
            del options[EPSILON]
    if not options:
        return EMPTY
    if ANYTHING in options and not any(node.is_labelled for node in options):
        return ANYTHING
    unique = tuple(map(_canonical, options))
    return unique[0] if len(unique) == 1 else _intern(Choice, _ids(unique), unique)


def _join_repeats(group: list[Repeat]) -> list[Node]:
    """Repeats of one body with their counts united where they overlap or touch: X{2,4} or X{5,9} is X{2,9}."""
    if len(group) == 1:
        return [group[0]]
    body = group[0].body
    joined: list[tuple[int, int | None]] = []
    for low, high in sorted(((node.min, node.max) for node in group), key=lambda bounds: bounds[0]):
        if joined and (joined[-1][1] is None or low <= joined[-1][1] + 1):
            last_low, last_high = joined[-1]
            joined[-1] = (last_low, None if last_high is None or high is None else max(last_high, high))
        else:
            joined.append((low, high))
    return [repeat(body, low, high) for low, high in joined]


def both(*nodes: Node) -> Node:
    """The words that all nodes have in common. At most one is labelled: the meet of two labels has no meaning."""
    operands: dict[Node, None] = {}
    mask = ALL_BYTES
    bytes_seen = False
    for outer in nodes:
        for node in outer.operands if isinstance(outer, Both) else (outer,):
            if node is EMPTY:
                return EMPTY
            if isinstance(node, Bytes):
                mask &= node.mask
                bytes_seen = True
            elif node is not ANYTHING:
                operands[node] = None
    if bytes_seen:
        operands[byte_set(mask)] = None
    if EMPTY in operands:
        return EMPTY
    unique = tuple(map(_canonical, operands))
    if len(unique) <= 1:
        return unique[0] if unique else ANYTHING
    if sum(node.is_labelled for node in unique) > 1:
        raise ValueError("at most one operand of `both` may be labelled")
    if any(isinstance(node, Complement) and node.operand in operands for node in unique):
        return EMPTY
    if any(isinstance(node, Accept) for node in unique):
        return choice(*map(accept, _meet_labels(unique)))
    return _intern(Both, _ids(unique), unique)


def complement(node: Node) -> Node:
    """The byte strings that are not words of `node`; its labels do not matter and the complement has none.

    For the complement within UTF-8 text, meet it with that: ``both(text, complement(node))``.
    """
    if isinstance(node, Complement) and not node.operand.is_labelled:
        return node.operand
    node = _canonical(node)
    return _intern(Complement, id(node), node)


def repeat(node: Node, min: int = 0, max: int | None = None) -> Node:
    """Between `min` and `max` words of `node`, one after the other; ``max=None`` has no bound."""
    if min < 0 or (max is not None and max < min):
        raise ValueError(f"no number is at least {min} and at most {max}")
    if max == 0:
        return EPSILON
    if isinstance(node, Accept):
        return node if min else choice(EPSILON, node)
    if node is EMPTY:
        return EPSILON if min == 0 else EMPTY
    if min == max == 1:
        return node
    if isinstance(node, Repeat) and node.max is None and (min or node.min <= 1):
        # j rounds of X{m,} are X{jm,}, which holds all that more rounds give; no round joins X{1,} to X{0,}.
        return repeat(node.body, node.min * min)
    if None in node.labels:  # rounds that read nothing and have no label fill up any count
        if max == 1:
            return node
        min = 0
    node = _canonical(node)
    return _intern(Repeat, (id(node), min, max), node, min, max)


_alphabets: dict[Node, frozenset[Node]] = {}  # letters, with what may be left of one


def declare_alphabet(letter: Node) -> None:
    """Promise that whatever meets a repetition of `letter`, but for complements, has only words made of its words.

    A letter is not empty and has no label. Then a count of letters is not needed to know which bytes are possible;
    `Both` makes use of that.
    """
    if letter.is_nullable or letter.is_labelled:
        raise ValueError("a letter is not empty and has no label")
    rests: set[Node] = set()
    agenda = [letter]
    while agenda:
        following = {rest for _, rest in agenda.pop().transitions()} - rests - {EPSILON}
        rests |= following
        agenda += following
    _alphabets[letter] = frozenset(rests)


def optional(node: Node) -> Node:
    """A word of `node`, or nothing."""
    return repeat(node, 0, 1)


ANYTHING: Final[Node] = complement(EMPTY)
"""Every byte string."""


def merge(rows: list[tuple[ByteMask, Node]]) -> Transitions:
    """Disjoint rows from overlapping ones (targets united), one row per target, no row to `EMPTY`."""
    charge(len(rows))
    pieces: list[tuple[ByteMask, tuple[Node, ...]]] = []
    covered = 0
    for mask, target in rows:
        if target is EMPTY or not mask:
            continue
        if covered & mask:
            split: list[tuple[ByteMask, tuple[Node, ...]]] = []
            for piece, targets in pieces:
                common = piece & mask
                if common != piece:
                    split.append((piece & ~mask, targets))
                if common:
                    split.append((common, (*targets, target)))
            pieces = split
        fresh = mask & ~covered
        if fresh:
            pieces.append((fresh, (target,)))
        covered |= mask
    by_target: dict[Node, ByteMask] = {}
    for mask, targets in pieces:
        united = targets[0] if len(targets) == 1 else choice(*targets)
        by_target[united] = by_target.get(united, 0) | mask
    return tuple((mask, target) for target, mask in by_target.items())


def mask_of(members: Iterable[int]) -> ByteMask:
    """The set of some bytes."""
    return sum(1 << member for member in set(members))


def bytes_of(mask: ByteMask) -> list[int]:
    """The members of a byte set, ascending."""
    members = []
    while mask:
        low = mask & -mask
        members.append(low.bit_length() - 1)
        mask ^= low
    return members


def label_range(node: Node) -> tuple[int, int] | None:
    """First and last + 1 of the labels of all words, if every word has a number as its label."""
    while isinstance(node, Product):
        node = node.tail
    if isinstance(node, Choice):
        return _around([label_range(option) for option in node.options])
    if isinstance(node, Accept):
        return (node.label, node.label + 1) if type(node.label) is int else None
    return node.label_range


def matches(node: Node, data: bytes) -> bool:
    """Whether `data` is a word of the language."""
    for byte in data:
        node = node.derivative(byte)
        if node is EMPTY:
            return False
    return node.is_nullable
