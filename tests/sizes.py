"""How large a test is: small in the ordinary run, which has to be quick, and as large as it should be in the slow one.

    @sized("num_samples", 500, slow=4000)
    @thinned("name", ARCHITECTURES, keep=("llama", "falcon"))
    def test_law(num_samples: int, name: str) -> None: ...

`make test` runs ``test_law[llama-500]`` and ``test_law[falcon-500]``, `make test-slow` the rest of the product.

    @few(3)
    @pytest.mark.parametrize("seed", range(60))
    def test_fuzz(seed: int) -> None: ...

`make test` runs ``test_fuzz[10]``, ``test_fuzz[30]`` and ``test_fuzz[50]``: three that lie evenly among all cases. How
many are few was chosen by coverage: together the ordinary cases of all tests run every line that all cases run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import pytest

_SLOW = (pytest.mark.slow, pytest.mark.timeout(1200))


def sized(name: str, ordinary: object, *, slow: object) -> pytest.MarkDecorator:
    """One argument of a test: its value in the ordinary run, and the larger one in the slow run."""
    return pytest.mark.parametrize(name, [ordinary, pytest.param(slow, marks=_SLOW)])


def thinned(name: str, values: Iterable[object], *, keep: Collection[object]) -> pytest.MarkDecorator:
    """One argument of a test: the values to `keep` in the ordinary run, all others in the slow run.

    Raises:
        ValueError: a value to keep is none of the values.
    """
    values = list(values)
    if any(value not in values for value in keep):
        raise ValueError(f"{[value for value in keep if value not in values]} are none of the values")
    return pytest.mark.parametrize(
        name, [value if value in keep else pytest.param(value, marks=_SLOW) for value in values]
    )


def few(count: int, *names: str) -> pytest.MarkDecorator:
    """So many cases of a test in the ordinary run, evenly among all that are asked for; the others in the slow run.

    Args:
        count: how many.
        names: ids of cases that are ordinary beside these, since they run lines that no other test runs.
    """
    return pytest.mark.few(count, *names)


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what `few` leaves out; and as `left_out`, since other seeds are drawn for it all the same."""
    cases = defaultdict[tuple[int, str], list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases[id(item.parent), getattr(item, "originalname", item.name)].append(item)
    for some in cases.values():
        marker = some[0].get_closest_marker("few")
        count = min(len(some), marker.args[0] if marker else 0)
        ordinary = {(2 * i + 1) * len(some) // (2 * count) for i in range(count)}
        for place, item in enumerate(some):
            name = item.name.partition("[")[2].removesuffix("]")
            if place not in ordinary and not (marker and name in marker.args[1:]):
                for mark in (*_SLOW, pytest.mark.left_out):
                    item.add_marker(mark)
