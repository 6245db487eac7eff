"""Packages with plug-ins: installed ones are found by name, broken ones fail only who asks for them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import decodekit as dk
from decodekit import plugins
from decodekit.cli import app
from decodekit.cli.parts import console
from decodekit.constraints import as_constraint, explain
from decodekit.constraints.coercion import named_constraint
from decodekit.constraints.grammar import library
from decodekit.errors import InvalidConstraintError, OptionError, PluginError, UnknownNameError
from decodekit.jobs.job_schema import load_schema, reload_schema
from decodekit.strategy import available_strategies, resolve_strategy
from tests.reference.vocabularies import byte_vocabulary

HERE = Path(__file__).parent
BYTES = byte_vocabulary()
PACKAGES = ("example_plugin", "broken_plugin")
MODULES = ("decodekit_example", "decodekit_broken", "decodekit_broken_parts")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed both packages, without a network."""
    target, sources = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sources")
    for name in PACKAGES:
        shutil.copytree(HERE / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--disable-pip-version-check"]
    folders = [str(sources / name) for name in PACKAGES]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *folders]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    yield
    for module in MODULES:
        sys.modules.pop(module, None)


@functools.cache
def tiny() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_listing_loads_nothing() -> None:
    assert {"second", "raises", "missing-module"} <= set(available_strategies())
    assert available_strategies()[0] == "greedy"
    assert plugins.available("processor") == ["needs-options", "no-double", "no-processor", "warm"]
    assert plugins.available("constraint", ["sql"])[:2] == ["sql", "no-constraint"]
    assert not set(MODULES) & sys.modules.keys()


@pytest.mark.usefixtures("installed")
def test_all_four_by_name() -> None:
    options: dict[str, Any] = {"constraint": "plate", "max_new_tokens": 16}
    named = tiny().generate("Car: ", strategy="sample", processors=["warm", "no-double"], speculate="again", **options)
    import decodekit_example as example

    assert named.value == example.Plate().parse(named.text)
    values = dk.Sample(processors=[*example.WARM, example.NoDouble()], speculate=example.Again())
    assert tiny().generate("Car: ", strategy=values, **options).text == named.text
    second = tiny().generate("Car: ", strategy="second", **options)
    assert second.text == tiny().generate("Car: ", strategy=example.Second(), **options).text != named.text
    alone = tiny().generate("Car: ", strategy=["warm"], **options)
    assert alone.text == tiny().generate("Car: ", strategy=example.WARM, **options).text


@pytest.mark.usefixtures("installed")
def test_what_names_stand_for() -> None:
    shades, point = named_constraint("shades"), named_constraint("point")
    assert shades == dk.Choices(["light", "middle", "dark"])
    assert as_constraint(point).parse('{"x":1,"y":2}') == point(x=1, y=2)
    assert type(resolve_strategy("second", {"speculate": "again"}).proposer).__name__ == "Again"
    assert len(dk.Sample(processors="warm", temperature=0.5).pipeline) == 3
    with pytest.raises(OptionError, match=r"no option 'specluate'\. Did you mean 'speculate'"):
        resolve_strategy("second", {"specluate": "again"})


BROKEN = "of decodekit-broken 0.2"
FAULTS: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
    ({"strategy": "missing-module"}, PluginError, ("no_such_module:Thing", BROKEN, "ModuleNotFoundError")),
    ({"strategy": "missing-name"}, PluginError, ("'missing-name'", BROKEN, "AttributeError")),
    ({"strategy": "raises"}, PluginError, (BROKEN, "RuntimeError: this plug-in was written for another version")),
    ({"strategy": "no-factory"}, PluginError, ("'no plug-in at all', which is no class or function",)),
    ({"strategy": "no-strategy"}, PluginError, ("makes None, which is no strategy",)),
    ({"strategy": "fails"}, PluginError, ("cannot be made: ZeroDivisionError: the plug-in divides by zero",)),
    ({"strategy": "secnd"}, UnknownNameError, ("no strategy 'secnd'. Did you mean 'second'?",)),
    ({"strategy": ["needs-options"]}, PluginError, ("TypeError", "the value in place of the name")),
    ({"strategy": "sample", "processors": ["no-processor"]}, PluginError, ("processor 'no-processor' is",)),
    ({"strategy": "sample", "processors": "no-duble"}, UnknownNameError, ("Did you mean 'no-double'?",)),
    ({"speculate": "no-proposer"}, PluginError, ("makes None, which is no proposer", "at  speculate")),
    ({"speculate": "agian"}, UnknownNameError, ("no proposer 'agian'. Did you mean 'again'?",)),
    ({"constraint": "raises"}, PluginError, ("constraint 'raises'", "RuntimeError")),
    ({"constraint": "plat"}, UnknownNameError, ("no constraint 'plat'. Did you mean 'plate'?", 'Regex("...")')),
    ({"constraint": "[a-z]+"}, UnknownNameError, ("no constraint '[a-z]+'.", 'Choices(["..."])')),
]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("options", "error", "says"), FAULTS, ids=[str(options) for options, _, _ in FAULTS])
def test_a_fault_names_what_was_asked_for(
    options: dict[str, Any], error: type[Exception], says: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        tiny().generate("x", max_new_tokens=2, **options)
    for text in says:
        assert text in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_a_text_in_place_of_a_constraint_is_no_name_of_another_one() -> None:
    with pytest.raises(PluginError, match="'no-constraint' is 'no plug-in at all', no constraint"):
        tiny().generate("x", constraint="no-constraint", max_new_tokens=2)


@pytest.mark.usefixtures("installed")
def test_names_wherever_a_constraint_is_taken() -> None:
    import decodekit_example as example

    assert dk.compile("plate", BYTES) is dk.compile(example.Plate(), BYTES)
    assert as_constraint("point") == dk.JsonSchema(example.Point)
    assert dk.complete("plate", "HB-K").startswith("HB-K")
    point, error = dk.check("point", tokenizer=BYTES), dk.check("json_rpc_request")
    assert point == dk.check(example.Point, tokenizer=BYTES) and point.least_tokens is not None
    assert error.is_supported and error.num_keywords("mask") > 5
    for name in ("plate", "json"):  # the grammar of the library, not the module
        with pytest.raises(
            InvalidConstraintError, match=f"check looks at JSON Schemas, and the constraint '{name}' is a "
        ):
            dk.check(name)
    for take in (as_constraint, dk.check, lambda name: dk.compile(name, BYTES)):
        with pytest.raises(UnknownNameError, match=r"no constraint 'plat'\. Did you mean 'plate'"):
            take("plat")
        with pytest.raises(PluginError, match="RuntimeError"):
            take("raises")


@pytest.mark.usefixtures("installed")
def test_names_on_the_command_line() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments))
        return done.exit_code, done.stdout or done.stderr

    code, said = run("schema", "check", "point", "--json")
    assert (
        code == 0
        and {"pointer": "#/properties/x/type", "status": "mask", "error": None} in json.loads(said)["keywords"]
    )
    code, said = run("schema", "check", "plate")
    assert code == console.SCHEMA_REFUSED
    assert "'plate' is no JSON Schema" in said and "generate --constraint plate, or 'plate string' for a field" in said
    assert "properties/plate" in run("schema", "check", "plate string")[1]
    assert run("schema", "check", "raises")[0] == console.USAGE  # a plug-in that fails
    assert run("grammar", "check", "plate", "HB-KX 417")[0] == console.DONE
    assert run("grammar", "check", "plate", "HB-KX 0")[0] == console.SOME_FAILED
    assert run("grammar", "check", "plate", "--start", "x")[0] == console.USAGE
    listed = [row["name"] for row in json.loads(run("grammar", "list", "--json")[1]) if row["kind"] == "installed"]
    assert {"plate", "point"} <= set(listed)
    code, said = run("generate", "Car: ", "--constraint", "plate", "--json")
    assert code == 0 and explain("plate", json.loads(said)["text"]).is_allowed


@pytest.mark.usefixtures("installed")
def test_a_job_keeps_the_type_of_a_name() -> None:
    schema = load_schema("point")
    import decodekit_example as example

    assert reload_schema("point", schema.schema, {}, schema.reading).constraint == dk.JsonSchema(example.Point)
    fields = load_schema("point string")
    again = reload_schema("point", fields.schema, {}, fields.reading)
    assert again.constraint == fields.constraint  # made before the name was installed
    other = {"type": "null"}
    assert reload_schema("point", other).constraint == dk.JsonSchema(
        other, "assert"
    )  # a file of that name, at the time


def test_faults_of_names_are_told_together() -> None:
    with pytest.raises(OptionError) as caught:
        tiny().generate(
            "x", strategy="sample", processors=["a", "b"], speculate="c", constraint="d", max_new_tokens=0, top_k=0
        )
    assert len(caught.value.faults) == 6


def test_a_built_in_name_keeps_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package may say what it likes; one name claimed by two packages is refused, the same claim twice is not."""
    claims = {"greedy": ["json:dumps"], "twice": ["json:dumps", "json:loads"], "same": ["json:dumps", "json:dumps"]}

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        names = claims if name is None else [name]
        return [EntryPoint(one, value, group) for one in names for value in claims.get(one, [])]

    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", entry_points)
    assert resolve_strategy("greedy", {}) == dk.Greedy()
    assert available_strategies().count("greedy") == 1
    with pytest.raises(PluginError, match="'twice' is ambiguous: json:dumps and json:loads"):
        plugins.find("strategy", "twice")
    assert plugins.find("strategy", "same") is json.dumps


def test_every_grammar_of_the_library_by_name() -> None:
    assert len(library.names()) > 30
    for name in library.names():
        assert named_constraint(name) == dk.Grammar(name)
    assert tiny().generate("On ", constraint="date", max_new_tokens=16).error is None


def test_a_long_list_of_names_is_cut() -> None:
    built_in = dict.fromkeys([f"name-{number}" for number in range(40)])
    with pytest.raises(UnknownNameError) as caught:
        plugins.find("constraint", "nmae-7", built_in)
    assert str(caught.value).splitlines()[0].endswith("name-15, ... (40).")
    assert "Did you mean 'name-7'?" in str(caught.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("strategy", ["sample", "greedy", "mirostat", "beam", "contrastive"])
def test_every_strategy_takes_processors_by_name(strategy: str) -> None:
    [processor] = resolve_strategy(strategy, {"processors": ["no-double"]}).pipeline
    assert type(processor).__name__ == "NoDouble"
    with pytest.raises(UnknownNameError, match=r"no processor 'no-doble'\. Did you mean 'no-double'"):
        resolve_strategy(strategy, {"processors": "no-doble"})
