"""A decoding step is one frame for a compiler: nothing in cache, step or attention falls back to Python on the way."""

from __future__ import annotations

from typing import Any

import torch

from decodekit.models.runners.ragged import RaggedModel
from tests.models import architectures, survey
from tests.sizes import few, thinned

OF_ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "gpt_neox", "opt", "mixtral"),
    *("olmo2", "smollm3", "granite", "gpt_oss", "deepseek_v3"),
)
OF_SURVEY = ("cohere2", "glm4", "starcoder2", "exaone4", "olmoe", "qwen3_moe", "apertus", "codegen")

KEPT = ("llama", "gemma3", "gpt2", "mixtral", "gpt_oss", "deepseek_v3")


@few(1)
@thinned("name", [*OF_ARCHITECTURES, *OF_SURVEY], keep=KEPT)
def test_a_step_is_one_frame(name: str) -> None:
    """Rows of unequal length, so that there is a mask; `fullgraph` raises at whatever a compiler cannot follow."""
    model = architectures.build(name) if name in OF_ARCHITECTURES else survey.build(name)
    runner = RaggedModel(model)
    cache: Any = runner.new_cache(2, 16)
    runner.forward(torch.tensor([[3, 4, 5], [6, 7, 0]]), [3, 2], cache, None, "last")
    step, tokens = cache.begin([1, 1], None), torch.tensor([[8], [9]])
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.inference_mode():
        expected = runner._run_last(runner.module, tokens, step, cache)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda tokens: runner._run_last(runner.module, tokens, step, cache), fullgraph=True, backend=count
        )
        assert all(torch.equal(one, other) for one, other in zip(compiled(tokens), expected, strict=True))
    assert len(graphs) == 1
    torch._dynamo.reset()
