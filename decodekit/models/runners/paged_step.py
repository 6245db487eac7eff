"""One pass over pages as the modules of a model and their attention see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from decodekit.models.caches.kv_cache import LayerShape
from decodekit.models.caches.paged_rows import PagedLayer, PagedRows


@dataclass(slots=True, eq=False)
class PagedStep:
    """One pass as the modules and their attention see it."""

    rows: PagedRows  # the pages
    starts_and_counts: tuple[Tensor, Tensor]  # int32 [B] each, as in `StepState`
    pages: list[Tensor]  # int32 [B, slots] of each group
    positions: Tensor  # int64 [B, T]
    places: Tensor  # int32 [B], the rows of the tables
    num_seen: int  # the longest row before the pass; 0 in a captured pass, which must not depend on it
    is_strict: bool = False
    is_fresh: bool = False  # whether all rows are empty, and have no recurrent state
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
    shown: list[tuple[Tensor, int]] = field(default_factory=list)
    """The keys that layers have shown; later layers may attend to the same ones."""
    starts: tuple[int, ...] = (0,)

    def append(self, layer: int, keys: Tensor, values: Tensor, step: object) -> tuple[Tensor, Tensor]:
        """Note whose keys and values these are."""
        self.layer = layer
        self.shown.append((keys, layer))
        return keys, values

    def reads(self, module: nn.Module, keys: Tensor, shape: LayerShape, window: int | None) -> bool:
        """Note that a module attends to keys; whether a layer has shown them."""
        layer, self.layer = self.layer, None
        if layer is None:  # layer 8 of Gemma 3n attends to the keys of layer 3
            layer = next((index for shown, index in self.shown if shown is keys), None)
        if layer is None:
            return False
        known = self.layers.get(layer)
        is_narrow = known is not None and known.window != window
        self.layers[layer] = PagedLayer(shape, None if is_narrow else window)  # pages stay for who looks back farthest
        self.readers.setdefault(layer, []).append(module)
        return True
