"""The value of a text while it grows, where the text is JSON or holds JSON."""

from decodekit.constraints.growing.growing_split import MAX_DIVISIONS, Document, GrowingSplit
from decodekit.constraints.growing.growing_value import GrowingValue

__all__ = ["MAX_DIVISIONS", "Document", "GrowingSplit", "GrowingValue"]
