"""One pass over pages as the modules of a model and their attention see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from decodekit.models.caches.paged_rows import PagedLayer, PagedRows


@dataclass(slots=True, eq=False)
class PagedStep:
    """One pass as the modules and their attention see it.

    Args:
        rows: the pages.
        starts, counts: int32 [B], as in `StepState`.
        pages: int32 [B, slots] of each group.
        positions: int64 [B, T].
        num_seen: the longest row before the pass; 0 in a captured pass, which must not depend on it.
    """

    rows: PagedRows
    starts_and_counts: tuple[Tensor, Tensor]
    pages: list[Tensor]
    positions: Tensor
    num_seen: int
    is_strict: bool = False
    hidden: list[Tensor] | None = None

    def append(self, layer: int, keys: Tensor, values: Tensor, step: object) -> tuple[Tensor, Tensor]:
        """The new keys and values themselves: the attention writes them into their pages."""
        return keys, values

    @property
    def starts(self) -> tuple[int, ...]:
        """Lengths of the rows before the pass, for models that ask their cache for its length."""
        return (self.num_seen,)


@dataclass(slots=True, eq=False)
class LayerProbe:
    """Stands for the step of a pass that finds out what every layer stores and how far back it looks."""

    positions: Tensor
    is_strict: bool = False
    hidden: list[Tensor] | None = None
    layers: dict[int, PagedLayer] = field(default_factory=dict)
    readers: dict[int, list[nn.Module]] = field(default_factory=dict)
    """The attention modules of each layer."""
    layer: int | None = None
    """The layer that has shown its keys and values last, and whose attention follows."""
    starts: tuple[int, ...] = (0,)

    def append(self, layer: int, keys: Tensor, values: Tensor, step: object) -> tuple[Tensor, Tensor]:
        """Note whose keys and values these are."""
        self.layer = layer
        return keys, values
