"""A room of decodekit imports only rooms above it; the light front stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import decodekit

PACKAGE = Path(decodekit.__file__).parent

# From the ground up; rooms on one line do not import each other.
LEVELS: list[set[str]] = [
    {"errors"},
    {"first_use", "plugins", "vocabulary"},
    {"pages", "records", "spelling"},
    {"sampling", "constraints", "models"},
    {"speculation"},
    {"generation"},
    {"strategy"},
    {"llm"},
    {"testing"},
    {"jobs", "evaluation", "integrations"},
    {"cli"},
]
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Single modules that may look sideways, with the reason.
SIDEWAYS = {("speculation.draft_model", "models")}  # a draft model is a model
TRANSFORMERS_ROOMS = {"models", "integrations"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path


def imported(tree: ast.AST) -> Iterator[str]:
    """The absolute names of everything that a module imports, wherever in the module it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}: write the full name"
            yield node.module or ""
            if node.module == "decodekit":
                yield from (f"decodekit.{alias.name}" for alias in node.names)


def violations(name: str, tree: ast.AST) -> list[str]:
    room = name.split(".")[0]
    found = []
    for target in imported(tree):
        parts = target.split(".")
        if parts[0] == "transformers" and room not in TRANSFORMERS_ROOMS:
            found.append(f"{name} imports {target}; only {sorted(TRANSFORMERS_ROOMS)} may")
        if parts[0] != "decodekit" or len(parts) < 2 or parts[1] not in LEVEL_OF or parts[1] == room:
            continue
        if LEVEL_OF[parts[1]] >= LEVEL_OF[room] and (name, parts[1]) not in SIDEWAYS:
            found.append(f"{name} imports {target}, which is not above it")
    return found


def type_checking_removed(tree: ast.Module) -> ast.Module:
    """The module without its `if TYPE_CHECKING:` blocks, which import nothing at run time."""

    class Remove(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return node.orelse
            return self.generic_visit(node)

    return ast.fix_missing_locations(Remove().visit(tree))


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_one_way(name: str, path: Path) -> None:
    room = name.split(".")[0]
    if name in ("__init__", "__main__"):
        return
    assert room in LEVEL_OF, f"{name} belongs to no room; add it to LEVELS"
    assert violations(name, type_checking_removed(ast.parse(path.read_text()))) == []


def test_the_guard_sees_a_violation() -> None:
    tree = ast.parse("def f():\n    from decodekit.generation import loop\n    import transformers")
    assert len(violations("sampling.noise", tree)) == 2
    assert violations("llm", ast.parse("import decodekit.generation.loop")) == []


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light() -> None:
    loaded = loaded_by("import decodekit")
    assert "decodekit" in loaded
    assert not loaded & {"torch", "transformers", "numba", "numpy", "jsonschema", "pydantic", "typer"}


@pytest.mark.parametrize("name", decodekit._HOME)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(decodekit, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Grammer'"):
        decodekit.Grammer  # noqa: B018
