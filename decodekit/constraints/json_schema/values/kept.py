"""Answers that an object keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


class _KeptMethod:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, owner: object, _: type) -> Callable[..., Any]:
        answer = cache(partial(self._method, owner))
        vars(owner)[self._method.__name__] = answer  # where it is found without coming here again
        return answer


def kept(method: _Method) -> _Method:
    """A method that answers each question once in the life of its object; its arguments are hashable."""
    return cast("_Method", _KeptMethod(method))
