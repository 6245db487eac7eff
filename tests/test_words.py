"""The words of the code: file names stand once, docstrings begin with their noun, pages name what exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.package_sources import PACKAGE, SOURCES, nodes

ROOT = PACKAGE.parent
FILES = [PACKAGE / file for file in SOURCES]

REPEATED_NAMES = 1
"""How many file names occur more than once, beside `__init__` and `__main__`: transformers asks for a `generate`."""
VERBS = 1
"""How many file names may be verbs in -ing. The number only falls."""
NOUNS = {"loading", "padding", "quoting", "spelling", "stopping"}
"""Names in -ing that are the field's nouns."""


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    for node in nodes(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def verbs(names: list[str]) -> list[str]:
    """The names that are verbs looking for their noun."""
    return [name for name in names if name.endswith("ing") and name not in NOUNS]


def negated_nouns(source: str) -> list[str]:
    """The words of docstrings that say "is no token" where English says "is not a token"."""
    found = []
    fine = r"(?!longer|more\b|less\b|such\b|larger|wider|better|use\b|padding)"
    for text in docstrings(source):
        for match in re.finditer(rf"\b(?:is|are|was|were) no {fine}\w+", text):
            before = text[: match.start()].split()[-1:]
            if before not in (["there"], ["There"], ["where"], ["Where"]):
                found.append(" ".join([*before, match[0]]))
    return found


def test_file_names_stand_once() -> None:
    names = Counter(path.stem for path in FILES)
    repeated = sorted(name for name, times in names.items() if times > 1 and name not in ("__init__", "__main__"))
    assert len(repeated) <= REPEATED_NAMES, repeated


def test_file_names_are_nouns() -> None:
    found = verbs([path.stem for path in FILES])
    assert len(found) <= VERBS, found
    assert len(found) == VERBS, f"fewer: lower VERBS to {len(found)}"
    assert verbs(["asking", "padding", "sampler"]) == ["asking"]


def test_docstrings_begin_with_their_noun() -> None:
    opening = [text.splitlines()[0] for source in SOURCES.values() for text in docstrings(source)]
    questions = [line for line in opening if line.split()[0] == "What"]
    assert questions == []


def test_no_noun_is_negated() -> None:
    found = [f"{file}: {words}" for file, source in SOURCES.items() for words in negated_nouns(source)]
    assert found == []
    assert negated_nouns('"""It is no token, there is no end, and it is no longer one."""') == ["It is no token"]


def named_modules(text: str) -> Iterator[str]:
    """The modules and files of decodekit that a text names: ``decodekit/llm/engine.py``, `decodekit.llm.engine`."""
    yield from re.findall(r"\bdecodekit(?:/\w+)+(?:\.\w+)?", text)
    yield from re.findall(r"`(decodekit(?:\.[a-z_]\w*)+)`", text)


def exists(name: str) -> bool:
    """Whether a path, or a dotted name, is a file, a folder, or a name in one."""
    if "/" in name:
        return (ROOT / name).exists() or (ROOT / name).with_suffix("").exists()
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            return end == len(parts) or bool(re.search(rf"\b{parts[end]}\b", file.read_text(encoding="utf-8")))
    return False


def test_pages_name_what_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *PACKAGE.rglob("*.md")]
    stale = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in [*pages, *FILES]
        for name in named_modules(page.read_text(encoding="utf-8"))
        if not exists(name) and name not in ENTRY_POINTS
    ]
    assert stale == []
    assert not exists("decodekit/gone.py") and not exists("decodekit.llm.gone")
    assert exists("decodekit.llm.LLM") and exists("decodekit.llm.engine") and exists("decodekit/llm")


ENTRY_POINTS = {f"decodekit.{group}" for group in ("processors", "constraints", "proposers", "strategies")}
"""Groups of parts from other packages, which are not modules."""
