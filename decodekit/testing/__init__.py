"""Checks that the author of a constraint, matcher, processor, strategy or proposer runs in a test: examples and laws.

Every check raises `AssertionError` with the law that was broken and the place, and returns nothing.
"""

from decodekit.testing.matcher import check_language, check_matcher
from decodekit.testing.processor import PROCESSOR_LAWS, check_processor

__all__ = ["PROCESSOR_LAWS", "check_language", "check_matcher", "check_processor"]
