"""Families of models: how each writes calls, which template of the corpus says so, and which parsers read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls import FORMATS, ToolFormat
from decodekit.constraints.tool_calls.format import ARGUMENTS, NAME, NUMBER, ElementArguments, Part


@dataclass(frozen=True, slots=True)
class Family:
    """A family.

    Attributes:
        parsers: that read it, by their names in `PARSERS`.
        template: of the corpus, off which the same format is read; None where the corpus has none.
        tokenizer: of the corpus, for texts over real tokens.
        are_names_words: whether the parsers read no names but words of letters and digits (`send-mail` is a difference
            in Python); ours does.
    """

    name: str
    format: ToolFormat
    parsers: tuple[str, ...]
    template: str | None = None
    tokenizer: str = "qwen3"
    are_names_words: bool = False


_NAMED: Final[tuple[Part, ...]] = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS)
_COHERE: Final[tuple[Part, ...]] = (
    '{"tool_call_id": "', NUMBER, '", "tool_name": "', NAME, '", "parameters": ', ARGUMENTS, "}"
)  # fmt: skip
_PYTHON: Final = ElementArguments("", "=", "", ", ", Values("json", "python", "python"))
_DSML: Final[dict[str, Any]] = {
    "call": ('<｜DSML｜invoke name="', NAME, '">\n', ARGUMENTS, "</｜DSML｜invoke>"),
    "arguments": ElementArguments(
        '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>\n", middle_of_others='" string="false">'
    ),
    "separator": "\n",
    "joint": "\n\n",
    "has_joint_alone": True,
}
_GLM_47: Final = ElementArguments("<arg_key>", "</arg_key><arg_value>", "</arg_value>")


def _own(name: str, call: tuple[Part, ...], **fields: Any) -> ToolFormat:
    return ToolFormat(name, name, call, **fields)


FAMILIES: Final[dict[str, Family]] = {
    one.name: one
    for one in (
        Family("hermes", FORMATS["hermes"], ("hermes", "ernie")),
        Family("llama3", FORMATS["llama3"], ("llama3",), tokenizer="llama3_1"),
        Family("mistral", FORMATS["mistral"], ("mistral list",), tokenizer="tekken"),
        Family("mistral-v13", FORMATS["mistral-v13"], ("mistral compact",), tokenizer="tekken"),
        Family("kimi-k2", FORMATS["kimi-k2"], ("kimi k2",), "ik/moonshotai-Kimi-K2"),
        Family("granite", FORMATS["granite"], ("granite",)),
        Family("qwen3-coder", FORMATS["qwen3-coder"], ("qwen3 coder", "qwen3 coder mlx")),
        Family(
            "seed-oss",
            _own(
                "seed-oss",
                ("<seed:tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</seed:tool_call>"),
                arguments=ElementArguments(
                    "<parameter=", ">", "</parameter>\n", values=Values("raw", "python", "python")
                ),
                separator="\n",
                joint="\n\n",
            ),
            ("seed-oss",),
            "ik/ByteDance-Seed-OSS",
        ),
        Family(
            "glm-4.6",
            _own(
                "glm-4.6",
                ("<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"),
                arguments=ElementArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
                separator="\n",
                joint="\n",
                marks=("<tool_call>", "</tool_call>"),
            ),
            ("glm", "glm mlx"),
            "ik/GLM-4.6",
        ),
        Family(
            "glm-4.7",
            _own(
                "glm-4.7",
                ("<tool_call>", NAME, ARGUMENTS, "</tool_call>"),
                arguments=_GLM_47,
                marks=("<tool_call>", "</tool_call>"),
            ),
            ("glm", "glm mlx"),
            "ik/GLM-4.7-Flash",
        ),
        Family(
            "minimax-m2",
            _own(
                "minimax-m2",
                ('<invoke name="', NAME, '">\n', ARGUMENTS, "</invoke>"),
                arguments=ElementArguments('<parameter name="', '">', "</parameter>\n"),
                opening="<minimax:tool_call>\n",
                separator="\n",
                closing="\n</minimax:tool_call>",
                joint="\n",
            ),
            ("minimax",),
        ),
        Family(
            "deepseek-v3",
            _own(
                "deepseek-v3",
                (
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                    NAME,
                    "\n```json\n",
                    ARGUMENTS,
                    "\n```<｜tool▁call▁end｜>",
                ),
                opening="<｜tool▁calls▁begin｜>",
                separator="\n",
                closing="<｜tool▁calls▁end｜>",
                marks=(
                    "<｜tool▁calls▁begin｜>",
                    "<｜tool▁calls▁end｜>",
                    "<｜tool▁call▁begin｜>",
                    "<｜tool▁sep｜>",
                    "<｜tool▁call▁end｜>",
                ),
            ),
            ("deepseek v3",),
            "trl/deepseekv3",
            "deepseek_v3",
        ),
        Family(
            "deepseek-v3.1",
            _own(
                "deepseek-v3.1",
                ("<｜tool▁call▁begin｜>", NAME, "<｜tool▁sep｜>", ARGUMENTS, "<｜tool▁call▁end｜>"),
                opening="<｜tool▁calls▁begin｜>",
                closing="<｜tool▁calls▁end｜>",
                marks=(
                    "<｜tool▁calls▁begin｜>",
                    "<｜tool▁calls▁end｜>",
                    "<｜tool▁call▁begin｜>",
                    "<｜tool▁sep｜>",
                    "<｜tool▁call▁end｜>",
                ),
            ),
            ("deepseek v3.1",),
            "ik/deepseek-ai-DeepSeek-V3.1",
            "deepseek_v3",
        ),
        Family(
            "deepseek-v3.2",
            _own("deepseek-v3.2", opening="<｜DSML｜function_calls>\n", closing="\n</｜DSML｜function_calls>", **_DSML),
            ("deepseek v3.2",),
            "ik/deepseek-ai-DeepSeek-V3.2",
            "deepseek_v3",
        ),
        Family(
            "deepseek-v4",
            _own("deepseek-v4", opening="<｜DSML｜tool_calls>\n", closing="\n</｜DSML｜tool_calls>", **_DSML),
            ("deepseek v4",),
            "ik/deepseek-ai-DeepSeek-V4",
            "deepseek_v3",
        ),
        Family(
            "step3",
            _own(
                "step3",
                (
                    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
                    NAME,
                    '">\n',
                    ARGUMENTS,
                    "</steptml:invoke><｜tool_call_end｜>",
                ),
                arguments=ElementArguments('<steptml:parameter name="', '">', "</steptml:parameter>\n"),
                opening="<｜tool_calls_begin｜>\n",
                separator="\n",
                closing="\n<｜tool_calls_end｜>",
            ),
            ("step3",),
        ),
        Family(
            "gemma-4",
            _own(
                "gemma-4",
                ("<|tool_call>call:", NAME, "{", ARGUMENTS, "}<tool_call|>"),
                arguments=ElementArguments(
                    "", ":", "", ",", Values('<|"|>', "json", "own", ",", ":", null="python", is_sorted=True)
                ),
            ),
            ("gemma 4",),
            "ik/google-gemma-4-31B-it",
            "gemma3",
        ),
        Family(
            "functiongemma",
            _own(
                "functiongemma",
                ("<start_function_call>call:", NAME, "{", ARGUMENTS, "}<end_function_call>"),
                arguments=ElementArguments("", ":", "", ",", Values("<escape>", "json", "own", ",", ":")),
            ),
            ("functiongemma",),
            tokenizer="gemma3",
            are_names_words=True,
        ),
        Family(
            "jamba",
            _own(
                "jamba",
                (*_NAMED, "}"),
                opening="<tool_calls>[\n    ",
                separator=",\n    ",
                closing="\n]</tool_calls>",
                names="json",
            ),
            ("jamba",),
            "e2e/ai21labs_AI21-Jamba-Large-1.6",
        ),
        Family(
            "hunyuan",
            _own(
                "hunyuan",
                (*_NAMED, "}"),
                opening="<tool_calls>[",
                separator=", ",
                closing="]</tool_calls>",
                names="json",
                joint="\n",
                has_joint_alone=True,
            ),
            ("jamba",),
            "ik/Apriel-1.6-15b-Thinker-fixed",
        ),
        Family(
            "command-a",
            _own(
                "command-a",
                _COHERE,
                opening="<|START_ACTION|>[\n    ",
                separator=",\n    ",
                closing="\n]<|END_ACTION|>",
                names="json",
                content_begin="<|START_TEXT|>",
                content_end="<|END_TEXT|>",
                identifier=(NUMBER,),
            ),
            ("cohere",),
            "ik/Cohere2MoE",
        ),
        Family(
            "apertus",
            _own(
                "apertus",
                ('{"', NAME, '": ', ARGUMENTS, "}"),
                opening="<|tools_prefix|>[",
                separator=", ",
                closing="]<|tools_suffix|>",
                names="json",
            ),
            ("apertus",),
            "ik/Apertus-8B-Instruct",
        ),
        Family(
            "gigachat3",
            _own(
                "gigachat3",
                ('<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "', *_NAMED[1:], "}"),
                names="json",
                max_calls=1,
            ),
            ("gigachat",),
            "ik/GigaChat3-10B-A1.8B",
        ),
        Family(
            "internlm2",
            _own(
                "internlm2",
                ('<|action_start|><|plugin|>\n{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}<|action_end|>"),
                names="json",
                max_calls=1,
            ),
            ("internlm",),
        ),
        Family(
            "xlam",
            _own("xlam", (*_NAMED, "}"), opening="[", separator=", ", closing="]", names="json", is_alone=True),
            ("xlam",),
        ),
        Family(
            "phi-4-mini",
            _own("phi-4-mini", (*_NAMED, "}"), opening="functools[", separator=", ", closing="]", names="json"),
            ("phi-4 mini",),
        ),
        Family(
            "gpt-oss",
            _own(
                "gpt-oss",
                (" to=functions.", NAME, "<|channel|>commentary json<|message|>", ARGUMENTS),
                content_begin="<|channel|>final<|message|>",
                max_calls=1,
                is_alone=True,
                marks=("<|message|>", "<|channel|>"),
            ),
            ("gpt-oss",),
            "ik/openai-gpt-oss-120b",
            "gptoss",
        ),
        Family(
            "lfm2",
            _own(
                "lfm2",
                (NAME, "(", ARGUMENTS, ")"),
                arguments=_PYTHON,
                opening="<|tool_call_start|>[",
                separator=", ",
                closing="]<|tool_call_end|>",
            ),
            ("lfm2",),
            "e2e/LiquidAI_LFM2.5-VL-450M",
            are_names_words=True,
        ),
        Family(
            "llama4",
            _own(
                "llama4",
                (NAME, "(", ARGUMENTS, ")"),
                arguments=_PYTHON,
                opening="[",
                separator=", ",
                closing="]",
                is_alone=True,
            ),
            ("llama4",),
            tokenizer="llama3_1",
            are_names_words=True,
        ),
        Family(
            "olmo3",
            _own(
                "olmo3",
                (NAME, "(", ARGUMENTS, ")"),
                arguments=_PYTHON,
                opening="<function_calls>",
                separator="\n",
                closing="</function_calls>",
            ),
            ("olmo3",),
            are_names_words=True,
        ),
        Family(
            "minicpm3",
            _own(
                "minicpm3",
                (NAME, "(", ARGUMENTS, ")"),
                arguments=ElementArguments("", "=", "", ",", Values("json")),
                opening="<|tool_call_start|>\n```python\n",
                separator="\n",
                closing="\n```\n<|tool_call_end|>",
                end="\n",
            ),
            ("minicpm3",),
            "e2e/openbmb_MiniCPM3-4B",
            are_names_words=True,
        ),
    )
}
