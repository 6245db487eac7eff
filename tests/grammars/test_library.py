"""The library of grammars: files and names, examples, outside judges, lark, masks."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lark
import pytest

import decodekit
from decodekit.constraints.author.members import explain
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.grammar import library
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.request_formats import json_schema_in
from decodekit.errors import NameNotFoundError
from decodekit.testing import check_language
from tests.grammars.judges import EXACT, JUDGES, roman, run_sql
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few, thinned

FOLDER = Path(decodekit.__file__).parent.parent / "grammars"
NAMES = library.names()
LARK_NAMES = [name for name in NAMES if library.path_of(name).suffix == ".lark"]


def examples_of(name: str) -> dict[str, list[str]]:
    examples: dict[str, list[str]] = json.loads((FOLDER / f"{name}.examples.json").read_text())
    return examples


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text of whichever hand is one of the grammar's: a schema takes any JSON then."""
    schema = json_schema_in(grammar)
    if schema is not None:
        return explain(schema.with_options(whitespace="any", escapes="any", numbers="any"), text).is_allowed
    try:
        grammar.parse(text)
    except ValueError:
        return False
    return True


def is_known_to(name: str, text: str) -> bool:
    try:
        JUDGES[name](text)
    except Exception:  # each judge has errors of its own
        return False
    return True


# --- files and names ---


def test_every_file_is_a_grammar_or_the_examples_of_one() -> None:
    assert len(NAMES) >= 22
    examples = {path.name.removesuffix(".examples.json") for path in FOLDER.glob("*.examples.json")}
    assert examples == set(NAMES)
    assert len(list(FOLDER.iterdir())) == 2 * len(NAMES), "a file has a suffix that is not known, or two share a name"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_and_without_suffix(name: str) -> None:
    path = library.path_of(name)
    assert path.is_file() and path.name.endswith(tuple(library.SUFFIXES))
    assert library.path_of(path.name) == path
    assert Grammar(name) == Grammar(path.name) == Grammar(path)


@pytest.mark.parametrize(
    ("name", "near"), [("jsn", "json"), ("sql.gbnf", "sql"), ("ipv", "ipv6, ipv4"), ("../json", "json"), ("", "one of")]
)
def test_an_unknown_name_shows_the_nearest(name: str, near: str) -> None:
    with pytest.raises(NameNotFoundError, match=near):
        library.path_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_begins_by_saying_what_it_accepts(name: str) -> None:
    path = library.path_of(name)
    text = path.read_text()
    marks = {".lark": "//", ".gbnf": "#", ".regex": "(?x) #", ".json": '{\n  "$comment": "'}
    assert text.startswith(marks[path.suffix])
    head = text if path.suffix == ".json" else text.split("\n\n")[0]
    assert "Left out: " in head and "Specification: " in head
    assert all(len(line) <= 120 for line in text.splitlines() if '"$comment"' not in line)


@pytest.mark.slow
def test_a_wheel_holds_the_library(tmp_path: Path) -> None:
    root, tree = FOLDER.parent, tmp_path / "tree"
    for folder in ("decodekit", "grammars"):
        shutil.copytree(root / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(root / file, tree)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, tree], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    code = "from decodekit.constraints.grammar.library import names, path_of; print(len(names()), path_of('sql'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    file = tmp_path / "installed" / "decodekit" / "grammars" / "sql.lark"
    assert done.stdout.split() == [str(len(NAMES)), str(file)]


# --- examples ---


@few(12)
@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    examples = examples_of(name)
    assert set(examples) == {"accepts", "rejects"}
    grammar = Grammar(name)
    for kind, texts in examples.items():
        assert len(texts) >= 12
        assert len(set(texts)) == len(texts)
        assert [text for text in texts if accepts(grammar, text) != (kind == "accepts")] == []


@few(4)
@pytest.mark.parametrize("name", NAMES)
def test_masks_along_an_example_of_each_kind(name: str) -> None:
    rng = random.Random(name)
    examples = examples_of(name)
    some = {kind: rng.sample(sorted(texts, key=len)[: len(texts) // 2], 1) for kind, texts in examples.items()}
    check_language(Grammar(name), **some)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_masks_along_all_examples(name: str) -> None:
    check_language(Grammar(name), **examples_of(name))


# --- outside judges ---


@pytest.mark.parametrize("name", JUDGES)
def test_judges_accept_the_accepted_examples(name: str) -> None:
    assert [text for text in examples_of(name)["accepts"] if not is_known_to(name, text)] == []


@pytest.mark.parametrize("name", EXACT)
def test_exact_judges_reject_the_rejected_examples(name: str) -> None:
    assert [text for text in examples_of(name)["rejects"] if is_known_to(name, text)] == []


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_rejects_something(name: str) -> None:
    assert sum(not is_known_to(name, text) for text in examples_of(name)["rejects"]) >= 5


def test_sqlite_runs_the_accepted_examples() -> None:
    for text in examples_of("sql")["accepts"]:
        run_sql(text)


def test_dates_are_those_of_the_calendar() -> None:
    grammar = Grammar("date")
    dates = [datetime.date(year, 1, 1) for year in (1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999)]
    for first in dates:
        days = {f"{first.year:04}-{month:02}-{day:02}" for month in range(14) for day in range(33)}
        length = (first.replace(month=12, day=31) - first).days + 1
        calendar = {datetime.date.fromordinal(first.toordinal() + day).isoformat() for day in range(length)}
        assert {day for day in days if accepts(grammar, day)} == calendar


def test_roman_numerals_are_those_up_to_3999() -> None:
    grammar = Grammar("roman")
    numerals = [roman(value) for value in range(1, 4000)]
    assert all(accepts(grammar, numeral) for numeral in numerals)
    neighbours = {
        numeral[:i] + letter + numeral[i:] for numeral in numerals[::37] for i in range(3) for letter in "IVXM"
    }
    assert [text for text in neighbours if accepts(grammar, text) != (text in set(numerals))] == []


def test_short_lists_are_lists() -> None:
    """A line of dashes alone, such as ``- - -``, is a thematic break."""
    grammar = Grammar("bullet_list")
    texts = ["- " + "".join(tail) for length in range(7) for tail in itertools.product("- a\n", repeat=length)]
    accepted = [text for text in texts if accepts(grammar, text)]
    assert len(accepted) > 100 and [text for text in accepted if not is_known_to("bullet_list", text)] == []


def test_random_ipv6_addresses() -> None:
    grammar, rng, num_accepted = Grammar("ipv6"), random.Random(0), 0
    for _ in range(2000):
        parts = [
            rng.choice(["0", "1", "ab", "FFFF", "", "1.2.3.4" if rng.random() < 0.2 else "9"])
            for _ in range(rng.randrange(2, 10))
        ]
        text = ":".join(parts)
        num_accepted += is_known_to("ipv6", text)
        assert accepts(grammar, text) == is_known_to("ipv6", text), text
    assert num_accepted > 100


# --- random texts ---


def mutants(name: str, num: int, max_length: int) -> Iterator[str]:
    """Examples with one or two small changes, or the end of one behind the beginning of another."""
    examples = examples_of(name)
    texts = [text for text in examples["accepts"] + examples["rejects"] if len(text) <= max_length]
    texts = texts or [min(examples["accepts"], key=len)]
    letters = [*sorted(set("".join(texts))), "é"]
    rng = random.Random(name)
    for _ in range(num):
        text = rng.choice(texts)
        for _ in range(rng.choice((1, 1, 2))):
            low = rng.randrange(len(text) + 1)
            high = min(len(text), low + rng.choice((0, 0, 1, 1, 2, 5)))
            other = rng.choice(texts)
            middle = rng.choice(["", rng.choice(letters), text[low:high] * 2, other[low:] if len(other) > low else ""])
            text = text[:low] + middle + text[high:]
        yield text


def walks(name: str, num: int, num_tokens: int) -> Iterator[str]:
    """Texts that the masks allow: the beginning of an example, a random walk, and the shortest way to an end."""
    texts = [text.encode() for text in examples_of(name)["accepts"]]
    pieces = sorted({text[i : i + n] for n in (2, 3, 5) for text in texts for i in range(len(text) - n + 1)})
    rng = random.Random(name)
    vocabulary = byte_vocabulary(rng.sample(pieces, min(len(pieces), 300)))
    going_on = set(range(vocabulary.size)) - vocabulary.eos_token_ids
    likely = {token for token in going_on if token >= 256 or 32 <= token < 127}
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher = compile(Grammar(name), vocabulary).matcher()
    for _ in range(num):
        text = rng.choice(texts)
        walked = list(text[: rng.randrange(len(text) + 1)])
        assert all(map(matcher.accept, walked))
        for _ in range(rng.randrange(num_tokens)):
            matcher.fill_bitmask(bitmask)
            allowed = set(ids_from_bitmask(bitmask[0]).tolist()) & going_on
            if not allowed:
                break
            walked.append(rng.choice(sorted(allowed & likely or allowed)))
            assert matcher.accept(walked[-1])
        ending = [token for token in matcher.completion() if token in going_on]
        matcher.rollback(len(walked))
        yield vocabulary.decode([*walked, *ending]).decode()


def check_walks(name: str, num: int, num_tokens: int) -> None:
    grammar = Grammar(name)
    parser = lark_of(name) if name in LARK_NAMES else None
    texts = list(walks(name, num, num_tokens))
    assert len(set(texts)) > num // 4
    for text in texts:
        assert accepts(grammar, text), text
        assert name not in JUDGES or is_known_to(name, text), text
        assert parser is None or parses(parser, text), text


def lark_of(name: str) -> lark.Lark:
    return lark.Lark.open(str(library.path_of(name)), parser="earley", lexer="dynamic_complete")


def parses(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


@few(2)
@thinned("name", LARK_NAMES, keep=LARK_NAMES[::2])
def test_lark_reads_the_files_and_agrees(name: str) -> None:
    parser, grammar = lark_of(name), Grammar(name)
    examples = examples_of(name)
    short = [text for texts in examples.values() for text in texts if len(text) < 30]
    for text in [*short, *mutants(name, 8, max_length=30)]:
        assert parses(parser, text) == accepts(grammar, text), text


@pytest.mark.slow
@pytest.mark.parametrize("name", LARK_NAMES)
def test_lark_agrees_on_many_mutants(name: str) -> None:
    parser, grammar = lark_of(name), Grammar(name)
    texts = [text for kind in examples_of(name).values() for text in kind]
    for text in [*texts, *mutants(name, 800, max_length=100)]:
        assert parses(parser, text) == accepts(grammar, text), text


@pytest.mark.parametrize("name", [name for name in NAMES if library.path_of(name).suffix == ".regex"])
def test_re_agrees_on_mutants(name: str) -> None:
    pattern, grammar = re.compile(library.path_of(name).read_text()), Grammar(name)
    for text in mutants(name, 500, max_length=100):
        assert (pattern.fullmatch(text) is not None) == accepts(grammar, text), text


@few(3)
@pytest.mark.parametrize("name", EXACT)
def test_exact_judges_agree_on_mutants(name: str) -> None:
    grammar = Grammar(name)
    for text in mutants(name, 300, max_length=100):
        assert is_known_to(name, text) == accepts(grammar, text), text


@few(4)
@pytest.mark.parametrize("name", NAMES)
def test_random_walks(name: str) -> None:
    check_walks(name, 6, num_tokens=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_random_walks(name: str) -> None:
    check_walks(name, 150, num_tokens=20)
