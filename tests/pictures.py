"""Whether the labels of a picture are whole: measured in a wide font, DejaVu Sans, that matplotlib brings along."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest


def font(size: int = 11) -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    image_font = pytest.importorskip("PIL.ImageFont")
    return image_font.truetype(
        str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size, layout_engine=0
    )


def width_of(text: str, measured: Any) -> float:
    # The font has no characters of East Asia, which are as wide as they are high.
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    narrow = "".join(character for character in text if unicodedata.east_asian_width(character) not in "WF")
    return float(measured.getlength(narrow)) + 11.0 * wide


def cut_labels(svg: str) -> list[str]:
    """The labels of a picture that do not lie within it, with where they end."""
    root = minidom.parseString(svg).documentElement
    assert root is not None
    left, top, width, height = map(float, root.getAttribute("viewBox").split())
    measured, cut = font(), []
    for text in root.getElementsByTagName("text"):
        label = "".join(node.data for node in text.childNodes if isinstance(node, minidom.Text))
        anchor = _inherited(text, "text-anchor") or "start"
        size = width_of(label, measured)
        shift = {"start": 0.0, "middle": -size / 2, "end": -size}[anchor]
        x, y = float(text.getAttribute("x")), float(text.getAttribute("y"))
        if "rotate(-90" in text.getAttribute("transform"):
            inside = left <= x - 9 and x + 3 <= left + width and top <= y + shift and y + shift + size <= top + height
        else:
            inside = left <= x + shift and x + shift + size <= left + width and top <= y - 9 and y <= top + height
        if not inside or not math.isfinite(x + y):
            cut.append(f"{label!r} from {x + shift:.1f} to {x + shift + size:.1f} at {y:.1f}")
    return cut


def _inherited(element: minidom.Element, name: str) -> str:
    """An attribute of an element, or of the nearest one around it that has it."""
    node: Any = element
    while isinstance(node, minidom.Element):
        if node.hasAttribute(name):
            return node.getAttribute(name)
        node = node.parentNode
    return ""
