"""Parsers of calls of tools, written after what those of other engines state: slow, and each for one family alone.

`PARSERS` has them by name. Each takes a text and the tools as OpenAI's requests have them, and raises `ValueError` or
`SyntaxError` where the original gives the text back unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from tests.reference.tool_parsers import element_calls, json_calls, python_calls
from tests.reference.tool_parsers.reading import JsonObject, Reading

Parser: TypeAlias = Callable[[str, list[JsonObject]], Reading]

PARSERS: Final[dict[str, Parser]] = {
    "hermes": json_calls.hermes,
    "llama3": json_calls.llama3,
    "mistral list": json_calls.mistral_list,
    "mistral compact": json_calls.mistral_compact,
    "kimi k2": json_calls.kimi_k2,
    "deepseek v3": json_calls.deepseek_v3,
    "deepseek v3.1": json_calls.deepseek_v31,
    "jamba": json_calls.listed("<tool_calls>", "</tool_calls>"),
    "cohere": json_calls.listed("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters"),
    "granite": json_calls.granite,
    "apertus": json_calls.apertus,
    "gigachat": json_calls.gigachat3,
    "internlm": json_calls.internlm2,
    "ernie": json_calls.ernie45,
    "xlam": json_calls.xlam,
    "phi-4 mini": json_calls.phi4_mini,
    "gpt-oss": json_calls.gpt_oss,
    "qwen3 coder": element_calls.function_tags("<tool_call>", "</tool_call>"),
    "qwen3 coder mlx": element_calls.qwen3_coder_mlx,
    "seed-oss": element_calls.function_tags("<seed:tool_call>", "</seed:tool_call>"),
    "glm": element_calls.glm,
    "glm mlx": element_calls.glm_mlx,
    "minimax": element_calls.minimax_m2,
    "deepseek v3.2": element_calls.dsml("function_calls"),
    "deepseek v4": element_calls.dsml("tool_calls"),
    "step3": element_calls.step3,
    "gemma 4": element_calls.gemma4,
    "functiongemma": element_calls.function_gemma,
    "lfm2": python_calls.lfm2,
    "llama4": python_calls.llama4,
    "olmo3": python_calls.olmo3,
    "minicpm3": python_calls.minicpm3,
}
