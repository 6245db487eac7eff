"""The words of the code: file names are nouns and stand once, docstrings begin with their noun, pages name what exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import decodekit

PACKAGE = Path(decodekit.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))

REPEATED_NAMES = 6
"""How many file names may occur more than once, beside `__init__` and `__main__`."""
QUESTIONS = 30
"""How many docstrings may begin with "What"."""
NOUNS = {"loading", "padding", "quoting", "spelling", "stopping"}
"""Names in -ing that are the field's nouns."""


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def gerunds(names: list[str]) -> list[str]:
    """The names that are verbs looking for their noun."""
    return [name for name in names if name.endswith("ing") and name not in NOUNS]


def negated_nouns(source: str) -> list[str]:
    """The places of docstrings that say "is no X" where English says "is not an X"."""
    found = []
    for text in docstrings(source):
        found += re.findall(r"\b(?:is|are|was|were) no (?!longer|more\b|less\b|other|such)\w+", text)
    return found


def test_file_names_stand_once() -> None:
    names = Counter(path.stem for path in FILES)
    repeated = sorted(name for name, times in names.items() if times > 1 and name not in ("__init__", "__main__"))
    assert len(repeated) <= REPEATED_NAMES, repeated


def test_file_names_are_nouns() -> None:
    assert gerunds([path.stem for path in FILES]) == []
    assert gerunds(["asking", "padding", "sampler"]) == ["asking"]


def test_docstrings_begin_with_their_noun() -> None:
    opening = [text.splitlines()[0] for path in FILES for text in docstrings(path.read_text(encoding="utf-8"))]
    questions = [line for line in opening if line.split()[0] == "What"]
    assert len(questions) <= QUESTIONS, questions


def test_nothing_is_no_noun() -> None:
    found = [f"{path.name}: {words}" for path in FILES for words in negated_nouns(path.read_text(encoding="utf-8"))]
    assert found == []
    assert negated_nouns('"""It is no token, and is no longer one."""') == ["is no token"]


def named_modules(text: str) -> Iterator[str]:
    """The modules and files of decodekit that a page or a docstring names: ``decodekit/llm/plan.py``, `decodekit.llm.plan`."""
    yield from re.findall(r"\bdecodekit(?:/\w+)+(?:\.\w+)?", text)
    yield from re.findall(r"`decodekit((?:\.[a-z_]\w*)+)`", text)


def exists(name: str) -> bool:
    """Whether a path, or a dotted name below `decodekit`, is a file, a folder, or a name of one."""
    if name.startswith("decodekit/"):
        path = ROOT / name
        return path.exists() or path.with_suffix("").exists()
    parts = name.strip(".").split(".")
    for end in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:end])
        if path.is_dir() or path.with_suffix(".py").exists():
            if end == len(parts):
                return True
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            return bool(re.search(rf"\b{parts[end]}\b", file.read_text(encoding="utf-8")))
    return bool(re.search(rf"\b{parts[0]}\b", (PACKAGE / "__init__.py").read_text(encoding="utf-8")))


def test_pages_name_what_exists() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *PACKAGE.rglob("*.md"),
    ]
    stale = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in [*pages, *FILES]
        for name in named_modules(page.read_text(encoding="utf-8"))
        if not exists(name)
    ]
    assert stale == []
    assert not exists("decodekit/gone.py")
    assert not exists(".llm.gone")
    assert exists(".llm.LLM")
