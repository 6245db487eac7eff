"""A room of decodekit imports only rooms above it; the light front stays light."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import decodekit
from tests.package_sources import PACKAGE, SOURCES, nodes, parsed

# From the ground up; rooms on one line do not import each other.
LEVELS: list[set[str]] = [
    {"errors"},
    {"first_use", "plugins", "processor_names", "quoting", "vocabulary"},
    {"html_pages", "records", "spelling", "terminal"},
    {"sampling", "constraints"},
    {"collector", "gpu"},
    {"products"},
    {"models"},
    {"speculation"},
    {"chat"},
    {"decoding"},
    {"strategy"},
    {"llm"},
    {"costs", "testing"},
    {"jobs", "evaluation", "integrations", "serving"},
    {"cli"},
]
# The same inside of `models`, of `constraints`, and of its largest room. `__init__` is the face of its folder.
INSIDE: dict[str, list[set[str]]] = {
    "models": [
        {"causal_lm", "encoding", "modules"},
        {"caches"},
        {"programs"},
        {"runners"},
        {"checks"},
        {"layers"},
        {"huggingface"},
        {"wrappers", "loading", "sizes"},
    ],
    "constraints": [
        {"special", "work_budget"},
        {"priority"},
        {"memory_account"},
        {"language"},
        {"network"},
        {"constraint", "engine"},
        {"completion", "explain", "regex"},
        {"json_schema"},
        {"fingerprint", "grammar"},
        {"interop"},
        {"coercion"},
        {"composition"},
        {"tool_calls"},
        {"growing", "request_formats"},
        {"matching"},
        {"author"},
    ],
    "constraints.json_schema": [
        {"growing_json", "strings"},
        {"values"},
        {"document", "notation_reader"},
        {"meaning"},
        {"frames"},
        {"validators"},
        {"written_values"},
        {"python_types"},
        {"guard", "messages"},
        {"partial_types", "schema"},
        {"notation"},
    ],
}
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Single modules that may look sideways, with the reason.
SIDEWAYS = {("speculation.proposers.draft_model", "models")}  # a draft model is a model
TRANSFORMERS_ROOMS = {"models", "integrations"}


def modules() -> Iterator[tuple[str, str]]:
    """The modules of the package and their sources."""
    for file, source in SOURCES.items():
        yield ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__"), source


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without those below `if TYPE_CHECKING:`, which import nothing at run time."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += node.orelse
        elif not isinstance(node, ast.expr):  # no import is part of one
            left += ast.iter_child_nodes(node)


def imported(tree: ast.AST) -> Iterator[str]:
    """The absolute names of everything that a module imports, wherever in the module it does."""
    for node in nodes_that_run(tree):
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


def test_imports_point_one_way() -> None:
    found = []
    for name, source in modules():
        if name in ("__init__", "__main__"):
            continue
        if name.split(".")[0] not in LEVEL_OF:
            found.append(f"{name} belongs to no room; add it to LEVELS")
            continue
        found += violations(name, parsed(source))
    assert found == []


def test_the_guard_sees_a_violation() -> None:
    tree = ast.parse("def f():\n    from decodekit.decoding import loop\n    import transformers")
    assert len(violations("sampling.noise", tree)) == 2
    assert violations("llm", ast.parse("import decodekit.decoding.loop")) == []


def inside(name: str, folder: str) -> str | None:
    """The room of a folder that a module lies in; None for the folder's face and for modules elsewhere."""
    start = f"{folder}."
    return name[len(start) :].split(".")[0] if name.startswith(start) else None


@pytest.mark.parametrize("folder", INSIDE)
def test_imports_point_one_way_inside(folder: str) -> None:
    level_of = {room: level for level, rooms in enumerate(INSIDE[folder]) for room in rooms}
    found = []
    for name, targets in whole_graph().items():
        room = inside(name, folder)
        assert room is None or room in level_of, f"{name} belongs to no room; add it to INSIDE"
        for target in targets if room else ():
            other = inside(target, folder)
            if other not in (None, room) and level_of[str(other)] >= level_of[str(room)]:
                found.append(f"{name} imports {target}, which is not below it")
    assert found == []


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """What each module imports of the others: inside functions, under `TYPE_CHECKING` and by package faces, too."""
    edges = {}
    for name, source in sources.items():
        edges[name] = set()
        for node in nodes(source):
            if isinstance(node, ast.Import):
                edges[name] |= {alias.name.removeprefix("decodekit.") for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}".removeprefix("decodekit.") for alias in node.names}
                edges[name] |= {one if one in sources else node.module.removeprefix("decodekit.") for one in below}
        edges[name] &= sources.keys() - {name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The modules that reach themselves, those that reach each other together."""
    reached = {name: set(targets) for name, targets in edges.items()}
    for middle in edges:  # Warshall's algorithm
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in edges}
    return sorted(sorted(circle) for circle in found if circle)


@functools.cache
def whole_graph() -> dict[str, set[str]]:
    """The imports of the package."""
    return graph({name: source for name, source in modules() if name != "__init__"})


def test_no_file_imports_itself_by_others() -> None:
    assert circles(whole_graph()) == []


def test_circles_are_found() -> None:
    """Through a function, a package face, and where types are checked."""
    sources = {
        "a": "def f():\n    from decodekit.b import c",
        "b": "from decodekit.b.c import x",
        "b.c": "if TYPE_CHECKING:\n    from decodekit import d",
        "d": "import decodekit.e\nfrom decodekit import version",
        "e": "from decodekit.b import x",
    }
    assert graph(sources) == {"a": {"b.c"}, "b": {"b.c"}, "b.c": {"d"}, "d": {"e"}, "e": {"b"}}
    assert circles(graph(sources)) == [["b", "b.c", "d", "e"]]
    assert circles(graph(sources | {"e": ""})) == []


def test_the_map_is_the_tree() -> None:
    """CONTRIBUTING lists the rooms in the order of `LEVELS`; each room that is a folder says what it is."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## The rooms")[2].partition("The core ends with")[0]
    listed = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    assert [room for rooms in listed for room in rooms if room not in LEVEL_OF] == []
    assert {room for rooms in listed for room in rooms} == set(LEVEL_OF)
    levels = [LEVEL_OF[room] for rooms in listed for room in rooms]
    assert levels == sorted(levels)
    folders = [room for room in LEVEL_OF if (PACKAGE / room).is_dir()]
    for room in folders:
        readme = (PACKAGE / room / "README.md").read_text(encoding="utf-8")
        names = re.findall(r"^\| `(\w+)` \| `([\w./]+)` \|", readme, re.MULTILINE)
        assert readme.startswith(f"# {room}\n") and len(names) == 3, room
        for name, place in names:
            path = PACKAGE / room / place
            assert path.is_dir() or name in path.read_text(encoding="utf-8"), f"{room}: {place} has no {name}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light() -> None:
    loaded = loaded_by("import decodekit")
    assert "decodekit" in loaded
    assert not loaded & {"torch", "transformers", "numba", "numpy", "jsonschema", "pydantic", "typer"}


def test_every_public_name_exists() -> None:
    assert [name for name in decodekit._HOME if not getattr(decodekit, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Grammer'"):
        decodekit.Grammer  # noqa: B018
