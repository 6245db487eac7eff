"""What the tests find: places of the package are broken one by one, and the tests that run them should turn red.

    pip install coverage pytest-cov                       # neither is needed for anything else
    python -m pytest -n 0 --cov=decodekit --cov-context=test --cov-report= --durations=0 > build/durations.txt
    python -m tests.breakages --seed 1 --count 50 --durations build/durations.txt --table build/breakages.jsonl

Each line inside a function that can be broken is drawn with equal chance, and one way to break it: a comparison is
turned, a number is off by one, a condition or a keyword is dropped, a call does not happen, two arguments change
places. A copy of the tree is broken; the cheapest test of each file of tests that runs the line is run, and further
ones while there is time. What fails is run on the unbroken copy as well, and what fails there, too, does not count.

A row of the table says which files of tests found the breakage and which did not. A breakage that none finds is a hole
in the tests, or changes nothing that can be seen: a person has to judge.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
TURNED: Final[dict[type[ast.AST], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//",
}  # fmt: skip
OTHER: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNREAD: Final = (ast.JoinedStr, ast.Raise, ast.arguments, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""What is not looked into: texts, messages, and functions inside of functions, which have their own turn."""


class Breakage(NamedTuple):
    """One place and what is written there instead: ``file[start:end] = new``, as characters."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        """The broken source."""
        return source[: self.start] + self.new + source[self.end :]


class _Finder:
    """The breakages of one module."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """The character at a place as `ast` has it: columns are counted in bytes."""
        start = self.lines[line - 1]
        text = self.source[start : self.lines[line]]
        return start + len(text.encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def is_variable(self, node: ast.AST) -> bool:
        """Whether an argument is one that could be taken for another: no class, no function of Python."""
        text = self.text(node)
        return isinstance(node, ast.Name | ast.Attribute) and text.islower() and not hasattr(builtins, text)

    def instead(self, kind: str, node: Any, new: str) -> Breakage:
        return Breakage(self.file, node.lineno, kind, *self.span(node), new)

    def between(self, left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Breakage]:
        """Another operator between two operands."""
        if type(operator) in TURNED:
            start, end = self.span(left)[1], self.span(right)[0]
            found = re.search(r"not\s+in|is\s+not|is|in|[<>=!]=|//|[-<>+*%]", self.source[start:end])
            if found:
                line = self.source.count("\n", 0, start + found.start()) + 1
                new = TURNED[type(operator)]
                yield Breakage(self.file, line, "turned", start + found.start(), start + found.end(), new)

    def breakages(self) -> Iterator[Breakage]:
        """All of them, in functions alone: what runs on import is run by every test."""
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    yield from self.of(statement)

    def of(self, node: ast.AST) -> Iterator[Breakage]:
        """Those of a node and of what is in it."""
        if isinstance(node, UNREAD):
            return
        match node:
            case ast.Compare(left, [operator], [right]):
                yield from self.between(left, right, operator)
            case ast.BinOp(left, operator, right) if not isinstance(left, ast.Constant | ast.JoinedStr):
                yield from self.between(left, right, operator)
            case ast.BoolOp(_, values):
                for value in values:
                    rest = [f"({self.text(one)})" for one in values if one is not value]
                    word = " and " if isinstance(node.op, ast.And) else " or "
                    yield self.instead("dropped", node, f"({word.join(rest)})")
            case ast.UnaryOp(ast.Not(), operand):
                yield self.instead("dropped", node, f"({self.text(operand)})")
            case ast.Constant(int() as value) if not isinstance(value, bool):
                yield self.instead("off by one", node, str(value + 1))
            case ast.Constant(bool() as value):
                yield self.instead("turned", node, str(not value))
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield self.instead("off by one", bound, f"({self.text(bound)}) + 1")
            case ast.If(test, [ast.Raise() | ast.Return() | ast.Continue() | ast.Break()]):
                yield self.instead("dropped", test, f"False and ({self.text(test)})")
            case ast.IfExp(test, body, orelse):
                yield self.instead("swapped", node, " ".join(
                    [f"({self.text(orelse)}) if", f"({self.text(test)}) else", f"({self.text(body)})"]))  # fmt: skip
            case ast.Expr(ast.Call() as call):
                yield self.instead("call dropped", call, "None")
            case ast.AugAssign(_, ast.Add(), _):
                start = self.span(node.target)[1]
                sign = self.source.index("+=", start)
                yield Breakage(self.file, node.lineno, "turned", sign, sign + 2, "-=")
            case ast.Name(name) if name in OTHER:
                yield self.instead("swapped", node, OTHER[name])
        if isinstance(node, ast.Call):
            names = [one for one in node.args if self.is_variable(one)]
            for one, other in pairwise(names):
                new = self.text(other) + self.source[self.span(one)[1] : self.span(other)[0]] + self.text(one)
                yield Breakage(self.file, one.lineno, "swapped", self.span(one)[0], self.span(other)[1], new)
            for keyword in node.keywords:
                start, end = self.span(keyword)
                comma = re.match(r"\s*,", self.source[end:])
                yield Breakage(self.file, keyword.lineno, "dropped", start, end + (comma.end() if comma else 0), "")
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self.of(child)


def breakages(file: str, source: str) -> list[Breakage]:
    """The ways to break a module. Some leave no Python, see `is_python`."""
    return list(dict.fromkeys(_Finder(file, source).breakages()))


def is_python(source: str) -> bool:
    """Whether a broken source can be compiled at all."""
    try:
        compile(source, "broken", "exec")
    except SyntaxError:
        return False
    return True


def drawn(seed: int, count: int, sources: dict[str, str]) -> list[Breakage]:
    """Lines with equal chance over all files, and of each one way to break it."""
    places: dict[tuple[str, int], list[Breakage]] = defaultdict(list)
    for file, source in sources.items():
        for one in breakages(file, source):
            places[file, one.line].append(one)
    generator = random.Random(seed)
    chosen: list[Breakage] = []
    for place in generator.sample(sorted(places), len(places)):
        ways = [one for one in places[place] if len(chosen) < count and is_python(one.apply(sources[one.file]))]
        chosen += [generator.choice(ways)] if ways else []
    return chosen


class Covering:
    """Which tests run which line, and the seconds that each takes."""

    def __init__(self, data: Path, durations: Path) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(data))
        self.data.read()
        self.seconds: dict[str, float] = defaultdict(float)
        for line in durations.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"([\d.]+)s (?:setup|call|teardown)\s+(\S.*)", line):
                self.seconds[found[2]] += float(found[1])

    def tests(self, place: Breakage, source: str) -> set[str]:
        """The tests that run a line. What numba compiles runs unseen: the tests that run the functions beside it."""
        contexts = self.data.contexts_by_lineno(str(ROOT / place.file))
        tree = ast.parse(source)
        around = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= place.line]
        innermost = max(around, key=lambda one: (one.lineno, one.col_offset)).lineno
        for lines in ([place.line], [innermost]):
            if found := {name for line in lines for name in contexts.get(line, []) if name}:
                return {name.rpartition("|")[0] for name in found}
        for one in ast.walk(tree):
            is_inside = isinstance(one, ast.FunctionDef) and one.lineno <= place.line <= (one.end_lineno or 0)
            if is_inside and any("compiled" in ast.unparse(mark) for mark in one.decorator_list):
                return {name.rpartition("|")[0] for names in contexts.values() for name in names if name}
        return set()

    def chosen(self, tests: set[str], limit_s: float) -> list[str]:
        """The cheapest test of each file, then the cheapest of all while there is time."""
        by_cost = sorted(tests, key=lambda name: (self.seconds[name], name))
        first: dict[str, str] = {}
        for name in by_cost:
            first.setdefault(name.partition("::")[0], name)
        chosen, left = list(first.values()), limit_s - sum(self.seconds[name] for name in first.values())
        for name in by_cost:
            if name not in chosen and self.seconds[name] <= left:
                chosen.append(name)
                left -= self.seconds[name] + 0.002
        return chosen


def red(copy: Path, tests: list[str], limit_s: float) -> list[str]:
    """The tests that fail, the one among them during which the time was over."""
    listed, report = copy / "chosen.txt", copy / "report.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    report.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    environment.setdefault("DECODEKIT_CORPORA", str(ROOT.parent / "shared"))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", "--tb=no", "-p", "tests.breakages", "--timeout=30"]
    command += ["--continue-on-collection-errors", f"@{listed}"]
    with (copy / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=output)
        try:
            process.wait(limit_s)
            is_over = False
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            is_over = True
    outcomes = dict(json.loads(line) for line in report.read_text().splitlines())
    if not outcomes and not is_over:
        return tests  # the package cannot even be imported
    silent = [name for name in tests if name not in outcomes and name.partition("::")[0] not in outcomes]
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    return [one for one in tests if one in failed or one.partition("::")[0] in failed] + silent[: int(is_over)]


def pytest_runtest_logreport(report: Any) -> None:
    """As a plug-in of pytest: each outcome at once, so that a run that is stopped has said what it knows."""
    if report.when == "call" or report.outcome == "failed":
        with (ROOT / "report.txt").open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.outcome]) + "\n")


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported is red as well."""
    if report.failed:
        with (ROOT / "report.txt").open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, "failed"]) + "\n")


def broken(copy: Path, place: Breakage, covering: Covering, limit_s: float) -> dict[str, Any]:
    """The row of one breakage."""
    path = copy / place.file
    source, stamp = path.read_text(encoding="utf-8"), path.stat()
    tests = covering.tests(place, source)
    chosen = covering.chosen(tests, limit_s)
    row = {"file": place.file, "line": place.line, "kind": place.kind, "old": source[place.start : place.end],
           "new": place.new, "covering": len(tests), "run": len(chosen), "found": {}, "missed": []}  # fmt: skip
    if not chosen:
        return row
    try:
        path.write_text(place.apply(source), encoding="utf-8")
        failed = red(copy, chosen, limit_s + 90)
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    first: dict[str, str] = {}
    for name in failed:
        first.setdefault(name.partition("::")[0], name)
    row |= {"found": first, "missed": sorted({name.partition("::")[0] for name in chosen} - set(first))}
    return row


def sound(copy: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the tests that are red on the whole package, too."""
    names = sorted({name for row in rows for name in row["found"].values()})
    unsound = set(red(copy, names, 3600)) if names else set()
    return [
        {**row, "found": {file: name for file, name in row["found"].items() if name not in unsound}} for row in rows
    ]


def main() -> None:
    """Draw, break, run, and write the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each breakage")
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage")
    parser.add_argument("--durations", type=Path, help="what pytest --durations=0 -vv printed; without, only draw")
    parser.add_argument("--table", type=Path, default=Path("breakages.jsonl"))
    options = parser.parse_args()
    paths = sorted((ROOT / "decodekit").rglob("*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    places = drawn(options.seed, options.count, sources)
    if options.durations is None:
        for one in places:
            print(f"{one.file}:{one.line}: {one.kind}: {sources[one.file][one.start : one.end]!r} -> {one.new!r}")
        return
    covering = Covering(options.coverage, options.durations)
    with tempfile.TemporaryDirectory() as folder:
        copy, rows = Path(folder) / "tree", []
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", ".coverage*", "build"))
        for place in places:
            rows.append(broken(copy, place, covering, options.seconds))
            num_found, num_missed = len(rows[-1]["found"]), len(rows[-1]["missed"])
            print(f"{num_found} of {num_found + num_missed} files: {place}", flush=True)
            options.table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options.table.write_text("".join(json.dumps(row) + "\n" for row in sound(copy, rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
