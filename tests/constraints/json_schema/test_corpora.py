"""Real schemas: what compiles, and that no invalid instance is accepted and no valid one refused."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from decodekit.constraints.json_schema import JsonSchema
from decodekit.errors import ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from tests.reference.json_network import accepts

DATA = Path(os.environ.get("DECODEKIT_CORPORA", "../shared")) / "maskbench" / "data" / "dev.jsonl.gz"
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
        rule = JsonSchema(row["schema"], format="assert", order="any")
        try:
            rule.root()
        except (UnsupportedSchemaError, UnsatisfiableError, ResourceLimitError):
            continue
        num_compiled += 1
        for test in row["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            if len(text) <= MAX_LENGTH:
                num_instances += 1
                assert accepts(rule, text.encode()) == test["valid"], (row["id"], text)
    print(f"{num_compiled} of {len(sample)} compile, {num_instances} instances judged rightly")
    assert num_compiled >= 0.96 * len(sample)
    assert num_instances > 500
