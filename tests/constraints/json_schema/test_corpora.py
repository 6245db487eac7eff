"""Real schemas: what compiles, and that no invalid instance is accepted and no valid one refused."""

import gzip
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from decodekit.errors import ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from tests.reference.any_json import any_json
from tests.reference.json_network import is_admitted

FOLDER = Path(os.environ.get("DECODEKIT_CORPORA", "../shared")) / "maskbench" / "data"
DATA = FOLDER / "dev.jsonl.gz"
SUITE = FOLDER / "json-schema-test-suite.tar.gz"
META = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
MAX_LENGTH = 3_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not DATA.exists(), reason=f"no corpus at {DATA}; set DECODEKIT_CORPORA")
def test_a_sample_of_the_corpus() -> None:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if not row["id"].startswith("Handwritten")]  # made to be hard, minutes each
    num_compiled = num_instances = 0
    sample = random.Random(7).sample(rows, 300)
    for row in sample:
        rule = any_json(row["schema"], format="assert", order="any")
        try:
            rule.root()
        except (UnsupportedSchemaError, UnsatisfiableError, ResourceLimitError):
            continue
        num_compiled += 1
        for test in row["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            if len(text) <= MAX_LENGTH:
                num_instances += 1
                assert is_admitted(rule, text.encode()) == test["valid"], (row["id"], text)
    print(f"{num_compiled} of {len(sample)} compile, {num_instances} instances judged rightly")
    assert num_compiled >= 0.96 * len(sample)
    assert num_instances > 500


@pytest.mark.slow
@pytest.mark.skipif(not SUITE.exists(), reason=f"no test suite at {SUITE}; set DECODEKIT_CORPORA")
@pytest.mark.parametrize(("draft", "least"), [("draft7", 890), ("draft2020-12", 1250)])
def test_the_official_suite(draft: str, least: int) -> None:
    """Every keyword as the official tests have it; what is refused is refused by name."""
    with tarfile.open(SUITE) as archive:
        files: dict[str, Any] = {
            member.name: json.load(archive.extractfile(member))  # type: ignore[arg-type]
            for member in archive.getmembers()
            if member.name.endswith(".json")
        }
    registry = {
        f"http://localhost:1234/{name.removeprefix('remotes/')}": value
        for name, value in files.items()
        if name.startswith("remotes/")
    }
    num_tests = 0
    for name, groups in files.items():
        folder, _, _ = name.rpartition("/")
        if folder != f"tests/{draft}":
            continue
        for group in groups:
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": META[draft], **schema}
            rule = any_json(schema, order="any", registry=registry)
            try:
                rule.root()
            except UnsupportedSchemaError:
                continue
            except UnsatisfiableError:
                assert not any(test["valid"] for test in group["tests"]), (name, group["description"])
                continue
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                assert is_admitted(rule, text.encode()) == test["valid"], (name, group["description"], test)
                num_tests += 1
    print(f"{num_tests} tests of {draft}")
    assert num_tests >= least
