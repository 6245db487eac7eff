"""Checks that the author of a constraint, matcher, processor, strategy or proposer runs in a test: examples and laws.

Every check raises `AssertionError` with the law that was broken and the place, and returns nothing but what it
measured. `toy_llm` is a model that needs no weights.
"""

from decodekit.testing.matcher_laws import check_guard, check_language, check_matcher
from decodekit.testing.processor_laws import PROCESSOR_LAWS, check_processor
from decodekit.testing.proposer_laws import PROPOSER_LAWS, check_proposer
from decodekit.testing.strategy_laws import STRATEGY_LAWS, check_strategy
from decodekit.testing.toy import toy_llm

__all__ = [
    "PROCESSOR_LAWS",
    "PROPOSER_LAWS",
    "STRATEGY_LAWS",
    "check_guard",
    "check_language",
    "check_matcher",
    "check_processor",
    "check_proposer",
    "check_strategy",
    "toy_llm",
]


def __getattr__(name: str) -> object:
    where = " has moved to tests/testing of the repository" if name in ("check_distribution", "SmallWorld") else ""
    raise AttributeError(f"decodekit.testing.{name}{where or ' does not exist'}")
