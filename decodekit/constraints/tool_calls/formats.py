"""Formats of calls by name: those of families whose chat templates do not tell, and those that many others share.

Sources: the chat templates of NousResearch/Hermes-3-Llama-3.1-8B, Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-8B,
Qwen/Qwen3-Coder-30B-A3B-Instruct, meta-llama/Llama-3.1-8B-Instruct, moonshotai/Kimi-K2-Instruct,
ibm-granite/granite-3.3-8b-instruct and LiquidAI/LFM2.5-VL-450M; Meta's prompt formats of Llama 3.1 (functions by name);
the instruct tokenizers of mistral-common, versions 2, 3, 7, 11 and 13.
"""

from __future__ import annotations

from typing import Final

from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls.format import ARGUMENTS, ID, NAME, NUMBER, ElementArguments, ToolFormat

_SHORT_IDS: Final = "[a-zA-Z0-9]{9}"  # the form that mistral-common demands
_NAMED: Final = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS)

FORMATS: Final[dict[str, ToolFormat]] = {
    one.name: one
    for one in (
        ToolFormat(
            "hermes", "Hermes 2 Pro, Hermes 3, Qwen2.5, Qwen3",
            ("<tool_call>\n", *_NAMED, "}\n</tool_call>"), separator="\n", names="json",
            marks=("<tool_call>", "</tool_call>"),
        ),
        ToolFormat(
            "llama3", "Llama 3.1, 3.2 and 3.3 (JSON-based calls)",
            ('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), names="json", lead="<|python_tag|>",
            marks=("<|python_tag|>",), max_calls=1, is_alone=True,
        ),
        ToolFormat(
            "function", "Llama 3.1 (user-defined functions by name)",
            ("<function=", NAME, ">", ARGUMENTS, "</function>"), separator="\n",
        ),
        ToolFormat(
            "mistral", "Mistral, tokenizers v2 to v7",
            (*_NAMED, (', "id": "', ID, '"'), "}"), opening="[TOOL_CALLS] [", separator=", ", closing="]", names="json",
            id_pattern=_SHORT_IDS, marks=("[TOOL_CALLS]",),
        ),
        ToolFormat(
            "mistral-v11", "Mistral, tokenizer v11",
            ("[TOOL_CALLS]", NAME, ("[CALL_ID]", ID), "[ARGS]", ARGUMENTS), id_pattern=_SHORT_IDS,
            marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        ),
        ToolFormat(
            "mistral-v13", "Mistral, tokenizers from v13 on",
            ("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS), id_pattern=_SHORT_IDS, marks=("[TOOL_CALLS]", "[ARGS]"),
        ),
        ToolFormat(
            "qwen3-coder", "Qwen3-Coder, Qwen3.5, Nemotron 3, StepFun 3.5",
            ("<tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</tool_call>"),
            ElementArguments("<parameter=", ">\n", "\n</parameter>\n", values=Values("raw", literals="python")),
            separator="\n", marks=("<tool_call>", "</tool_call>"),
        ),
        ToolFormat(
            "kimi-k2", "Kimi K2",
            ("<|tool_call_begin|>functions.", NAME, ":", NUMBER, "<|tool_call_argument_begin|>", ARGUMENTS,
             "<|tool_call_end|>"),
            opening="<|tool_calls_section_begin|>", closing="<|tool_calls_section_end|>",
            identifier=("functions.", NAME, ":", NUMBER),
            marks=("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                   "<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ),
        ToolFormat(
            "granite", "Granite 3.0 to 3.3",
            (*_NAMED, "}"), opening="<|tool_call|>[", separator=", ", closing="]", names="json",
            marks=("<|tool_call|>",),
        ),
        ToolFormat(
            "lfm2", "LFM2, LFM2.5", (NAME, "(", ARGUMENTS, ")"),
            ElementArguments("", "=", "", ", ", Values("python", "python", "python")),
            opening="<|tool_call_start|>[", separator=", ", closing="]<|tool_call_end|>",
            marks=("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
    )
}  # fmt: skip

AUTO: Final = ToolFormat("auto", "that of the chat template of the model", ("<calls>", NAME, ARGUMENTS))
"""Stands for the format that the chat template tells, until a tokenizer is at hand; writes and reads nothing."""
