"""Settings of the documentation site; `docs/site/build.py` writes the pages and calls Sphinx."""

from typing import Any

project = "decodekit"
html_title = "decodekit"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
html_theme = "furo"  # light and dark; nothing is loaded from a network
html_show_sphinx = False
html_copy_source = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
default_role = "code"  # docstrings mark code with single backticks


def left_out(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Members without words of their own are left out."""
    return True if not getattr(obj, "__doc__", None) else None


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-skip-member", left_out)
