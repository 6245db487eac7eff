"""How large a test is: small in the ordinary run, which has to be quick, and as large as it should be in the slow one.

    @sized("num_samples", 500, slow=4000)
    @thinned("name", ARCHITECTURES, keep=("llama", "falcon"))
    def test_law(num_samples: int, name: str) -> None: ...

`make test` runs ``test_law[llama-500]`` and ``test_law[falcon-500]``, `make test-slow` the rest of the product.
"""

from __future__ import annotations

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
