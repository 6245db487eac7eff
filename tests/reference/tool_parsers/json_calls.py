"""Parsers of calls whose arguments are one object of JSON, after what those of vLLM, SGLang and mlx-lm state.

vLLM 0.33.0     hermes, llama, deepseekv3, deepseekv31, jamba, granite, apertus, gigachat3, internlm2, ernie45, xlam,
                phi4mini, hunyuan_a13b, kimi_k2 and mistral (in ``vllm/tool_parsers`` and ``vllm/parser``)
SGLang 0.5.23   mistral, cohere_command4, gpt_oss
mlx-lm 0.32.2   json_tools, kimi_k2
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.reference.tool_parsers.reading import JsonObject, Reading

_DECODER: Final = json.JSONDecoder()


def _between(text: str, begin: str, end: str) -> list[str]:
    """What stands between two marks, the nearest end each."""
    return re.findall(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)


def _named(call: Any, name: str = "name", arguments: str = "arguments") -> tuple[str, JsonObject]:
    return call[name], call[arguments]


def hermes(text: str, _: list[JsonObject]) -> Reading:
    """`Hermes2ProToolParser` of vLLM; what mlx-lm's `json_tools` reads of each call, too."""
    calls = [_named(json.loads(one)) for one in _between(text, "<tool_call>", "</tool_call>")]
    return Reading(calls, text.partition("<tool_call>")[0])


def llama3(text: str, _: list[JsonObject]) -> Reading:
    """`Llama3JsonToolParser` of vLLM: every object that begins with a brace outside of one before is a call."""
    calls, place = [], 0
    while (start := text.find("{", place)) >= 0:
        call, place = _DECODER.raw_decode(text, start)
        calls.append(_named(call, arguments="arguments" if "arguments" in call else "parameters"))
    return Reading(calls, None if calls else text)


def mistral_list(text: str, _: list[JsonObject]) -> Reading:
    """`MistralParser` of vLLM before tokenizer v11: the list behind the mark, blanks apart."""
    content, mark, rest = text.partition("[TOOL_CALLS]")
    return Reading([_named(call) for call in json.loads(rest)] if mark else [], content)


def mistral_compact(text: str, _: list[JsonObject]) -> Reading:
    """`MistralDetector` of SGLang: between mark and ``[ARGS]`` the name, then one object, as long as there are more."""
    content, *parts = text.split("[TOOL_CALLS]")
    calls = []
    for part in parts:
        name, _, rest = part.partition("[ARGS]")
        arguments, end = _DECODER.raw_decode(rest.lstrip())
        if rest.lstrip()[end:].strip():
            raise ValueError("text behind a call")
        calls.append((name.strip(), arguments))
    return Reading(calls, content)


def kimi_k2(text: str, _: list[JsonObject]) -> Reading:
    """`KimiK2Parser` of vLLM: the name stands between ``functions.`` and the first colon of the identifier."""
    calls = []
    for one in _between(text, "<|tool_call_begin|>", "<|tool_call_end|>"):
        head, _, arguments = one.partition("<|tool_call_argument_begin|>")
        if re.match(r".+:\d+", head.strip()):
            calls.append((head.strip().split(":")[0].removeprefix("functions."), json.loads(arguments)))
    return Reading(calls, text.partition("<|tool_calls_section_begin|>")[0])


def deepseek_v3(text: str, _: list[JsonObject]) -> Reading:
    """`DeepSeekV3ToolParser` of vLLM: the line breaks around the fence have to be there."""
    pattern = r"<｜tool▁call▁begin｜>.*<｜tool▁sep｜>(.*)\n```json\n([\s\S]*?)\n```<｜tool▁call▁end｜>"
    found = re.findall(pattern, text)
    return Reading([(name, json.loads(one)) for name, one in found], text.partition("<｜tool▁calls▁begin｜>")[0])


def deepseek_v31(text: str, _: list[JsonObject]) -> Reading:
    """`DeepSeekV31ToolParser` of vLLM."""
    found = re.findall(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>([\s\S]*?)<｜tool▁call▁end｜>", text)
    return Reading([(name, json.loads(one)) for name, one in found], text.partition("<｜tool▁calls▁begin｜>")[0])


def listed(begin: str, end: str, name: str = "name", arguments: str = "arguments") -> Any:
    """A parser of a list between two marks: vLLM's `JambaToolParser` and `HunyuanA13BToolParser`, SGLang's Cohere."""

    def parse(text: str, _: list[JsonObject]) -> Reading:
        blocks = _between(text, begin, end)
        calls = [_named(call, name, arguments) for call in (json.loads(blocks[0]) if blocks else [])]
        return Reading(calls, text.partition(begin)[0])

    return parse


def granite(text: str, _: list[JsonObject]) -> Reading:
    """`GraniteParser` of vLLM: the list behind the mark."""
    content, mark, rest = text.partition("<|tool_call|>")
    return Reading([_named(call) for call in json.loads(rest)] if mark else [], content)


def apertus(text: str, _: list[JsonObject]) -> Reading:
    """`ApertusToolParser` of vLLM: objects whose first key is the name."""
    content, mark, rest = text.partition("<|tools_prefix|>")
    found = _DECODER.raw_decode(rest.split("<|tools_suffix|>")[0].lstrip())[0] if mark else []
    return Reading([next(iter(call.items())) for call in found], content)


def gigachat3(text: str, _: list[JsonObject]) -> Reading:
    """`GigaChat3ToolParser` of vLLM: one object behind the role; strings may hold control characters."""
    found = re.search(r"(?:function call<\|role_sep\|>\n|<\|function_call\|>)(.*)", text, re.DOTALL)
    content = re.split(r"<\|message_sep\|>|<\|function_call\|>", text)[0]
    return Reading([_named(json.loads(found[1], strict=False))] if found else [], content)


def internlm2(text: str, _: list[JsonObject]) -> Reading:
    """`Internlm2ToolParser` of vLLM: one object, from the first brace to the end mark."""
    content, mark, rest = text.partition("<|action_start|><|plugin|>")
    action = rest.split("<|action_end|>")[0]
    return Reading([_named(json.loads(action[action.find("{") :]), arguments="parameters")] if mark else [], content)


def ernie45(text: str, _: list[JsonObject]) -> Reading:
    """`Ernie45ToolParser` of vLLM."""
    found = re.findall(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text, re.DOTALL)
    return Reading([_named(json.loads(one)) for one in found], text.partition("<tool_call>")[0])


def xlam(text: str, _: list[JsonObject]) -> Reading:
    """`xLAMToolParser` of vLLM, where the whole text is a list; blocks in fences and marks come before that."""
    patterns = (
        r"```(?:json)?\s*([\s\S]*?)```",
        r"\[TOOL_CALLS\]([\s\S]*?)(?=\n|$)",
        r"<tool_call>([\s\S]*?)</tool_call>",
    )
    for found in (one for pattern in patterns for one in re.findall(pattern, text)):
        try:
            calls = json.loads(found)
        except ValueError:
            continue
        return Reading([_named(call) for call in calls], None)
    is_list = text.strip().startswith("[")
    return Reading([_named(call) for call in json.loads(text)] if is_list else [], None if is_list else text)


def phi4_mini(text: str, _: list[JsonObject]) -> Reading:
    """`Phi4MiniJsonToolParser` of vLLM: the list ends with the first bracket, whatever it closes."""
    found = re.search(r"functools\[(.*?)\]", text, re.DOTALL)
    return Reading([_named(call) for call in json.loads(f"[{found[1]}]")] if found else [], None if found else text)


def gpt_oss(text: str, _: list[JsonObject]) -> Reading:
    """Messages of harmony as `GptOssDetector` of SGLang and `HarmonyParser` of vLLM divide them.

    The recipient may stand before the channel or behind it; its last part is the name of the tool.
    """
    calls, content = [], []
    for message in re.split(r"<\|(?:end|call|return)\|>", text):
        head, mark, body = message.removeprefix("<|start|>assistant").partition("<|message|>")
        recipient = re.search(r"to=([\w.-]+)", head)
        if recipient:
            calls.append((recipient[1].rpartition(".")[2], json.loads(body)))
        elif mark and re.search(r"<\|channel\|>(?:final|commentary)", head):
            content.append(body)
    return Reading(calls, "".join(content))
