"""Answers that an object keeps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


def kept(method: _Method) -> _Method:
    """A method that answers each question once in the life of its object; its arguments are hashable."""
    name = f"_answers_of_{method.__name__}"

    @wraps(method)
    def answer(owner: object, *asked: Hashable) -> Any:
        answers = vars(owner).setdefault(name, {})  # with no reference to the object, which would be a circle
        if asked not in answers:
            answers[asked] = method(owner, *asked)
        return answers[asked]

    return cast("_Method", answer)
