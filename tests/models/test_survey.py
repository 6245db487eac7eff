"""The page of architectures is what the survey gives, and the promised number of them runs, most in one pass."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress

import pytest
import transformers

from decodekit.models.huggingface import HuggingFaceLM
from tests.models import survey
from tests.models.survey import PAGE, Entry
from tests.sizes import few, thinned

LEAST_TRIED = 45
LEAST_RAGGED = 38
LEAST_PAGED = 95

SAMPLE = (
    "apertus",  # an activation of its own
    "bert",  # an encoder, as a decoder
    "codegen",  # rowwise: the attention interface is ignored
    "cohere2",  # windows, and layers without positions
    "gemma3n_text",  # layers that share keys and values
    "granitemoehybrid",
    "jamba",  # goes on with one token at a time only
    "longcat_flash",  # two attentions in a layer
    "mamba2",  # no attention at all
    "minimax",  # a cache class of its own
    "olmoe",
    "openai-gpt",  # no cache
    "phi",
    "qwen3_next",
    "recurrent_gemma",  # keeps its state in its modules
    "zaya",
)


def rows() -> dict[str, tuple[str, str]]:
    """What the page says: architecture -> tier, "yes" or "no" for its twin."""
    found = re.findall(r"^\| (\S+) \| ([\w ]+) \| (yes|no) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (tier, twin) for name, tier, twin in found}


def test_enough_architectures_run() -> None:
    table = rows()
    counts = Counter(tier for tier, _ in table.values())
    num_run = sum(counts[tier] for tier in survey.TIERS)
    assert num_run >= LEAST_TRIED
    assert counts["ragged"] >= LEAST_RAGGED
    text = PAGE.read_text(encoding="utf-8")
    assert f"Of {len(table)} architectures {num_run} run: {counts['ragged']} ragged, {counts['masked']} mas" in text


def runs_over_pages(name: str) -> bool:
    try:
        model = survey.build(name)
        with suppress(Exception):  # some have no such limit, others room for a million tokens
            model.config.max_position_embeddings = min(model.config.max_position_embeddings, 512)  # type: ignore[union-attr]
        return HuggingFaceLM(model, tier="paged").tier.name == "paged"
    except Exception:  # it cannot be built, or is refused; the page says why
        return False


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_enough_architectures_run_over_pages() -> None:
    """The way of a GPU, with the attention function of its pages and the self-check, on a CPU."""
    assert sum(map(runs_over_pages, survey.names())) >= LEAST_PAGED


@few(2, "mamba2", "recurrent_gemma")
@thinned("name", survey.names(), keep=SAMPLE)
def test_page_is_what_the_survey_gives(name: str) -> None:
    version = re.search(r"transformers ([\d.]+)", PAGE.read_text(encoding="utf-8"))
    assert version is not None
    if version[1] != transformers.__version__:
        pytest.skip(f"the page is of transformers {version[1]}, and {transformers.__version__} is installed")
    entry = survey.look_at(name)
    assert rows()[name] == (entry.tier, "yes" if entry.has_twin else "no"), entry.why


def test_page_of_few() -> None:
    text = survey.page([Entry("a", "ragged", has_twin=True), Entry("b", "rowwise", "ragged: x | y", 0.1)])
    assert "Of 2 architectures 2 run: 1 ragged, 0 masked, 0 recurrent, 1 rowwise" in text
    assert "| a | ragged | yes |  |\n| b | rowwise | no | ragged: x / y |\n" in text
