"""Parsers of calls whose arguments stand one by one between marks, after those of vLLM, SGLang and mlx-lm.

vLLM 0.33.0     qwen3, seed_oss, glm47_moe, minimax_m2, deepseek_v32, deepseek_v4, gemma4 (in ``vllm/parser``), step3
SGLang 0.5.23   qwen3_coder, glm4_moe
mlx-lm 0.32.2   qwen3_coder, glm47, function_gemma
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from tests.reference.tool_parsers.reading import JsonObject, Reading, coerced, coerced_inside, properties_of


def _with_types(name: str, texts: JsonObject, tools: list[JsonObject]) -> JsonObject:
    """Arguments whose texts are coerced by the schema of the tool, as `ParserEngine` of vLLM does."""
    declared = properties_of(tools, name)
    return {key: coerced_inside(one, declared[key]) if key in declared else one for key, one in texts.items()}


def _without_break(text: str) -> str:
    """A text without one line break at its begin and one at its end."""
    text = text.removeprefix("\n")
    return text.removesuffix("\n")


def function_tags(begin: str, end: str) -> Any:
    """`Qwen3Parser` of vLLM: ``<function=f><parameter=x>`` between two marks; Seed-OSS has others."""

    def parse(text: str, tools: list[JsonObject]) -> Reading:
        calls = []
        for block in re.findall(f"{begin}(.*?){end}", text, re.DOTALL):
            for name, body in re.findall(r"<function=([^>]*)>(.*?)</function>", block, re.DOTALL):
                found = re.findall(
                    r"<\s*parameter\s*=\s*([^>]*)>(.*?)(?:<\s*/\s*parameter\s*>|(?=<\s*parameter\s*=))", body, re.DOTALL
                )
                texts = {key: _without_break(value) for key, value in found}
                calls.append((name.strip(), _with_types(name.strip(), texts, tools)))
        return Reading(calls, text.partition(begin)[0])

    return parse


def qwen3_coder_mlx(text: str, tools: list[JsonObject]) -> Reading:
    """`qwen3_coder` of mlx-lm: numbers by way of floating point, ``null`` of any type is none."""
    calls = []
    for block in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        found = re.search(r"<function=(.*?)</function>\s*\Z", block, re.DOTALL)
        assert found is not None
        name, _, body = found[1].partition(">")
        declared = properties_of(tools, name)
        texts = dict(one.split(">", 1) for one in re.findall(r"<parameter=(.*?)</parameter>", body, re.DOTALL))
        calls.append((name, {key: _of_mlx(_without_break(one), declared[key]) for key, one in texts.items()}))
    return Reading(calls, text.partition("<tool_call>")[0])


def _of_mlx(text: str, schema: JsonObject) -> Any:
    kind = str(schema.get("type", "string"))
    if text.lower() == "null" or kind == "string":
        return None if text.lower() == "null" else text
    if kind in ("integer", "number"):
        value = float(text)
        return int(value) if value == int(value) else value
    if kind == "boolean":
        return text.lower() == "true"
    try:
        return json.loads(text, strict=False) if kind in ("object", "array") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def glm(text: str, tools: list[JsonObject]) -> Reading:
    """`Glm47MoeParser` of vLLM: the name ends with a line break or the first key; blanks of values are theirs."""
    calls = []
    for block in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        name = re.split(r"\n|<arg_key>", block)[0].strip()
        found = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", block, re.DOTALL)
        calls.append((name, _with_types(name, {key.strip(): value for key, value in found}, tools)))
    return Reading(calls, text.partition("<tool_call>")[0])


def glm_mlx(text: str, tools: list[JsonObject]) -> Reading:
    """`glm47` of mlx-lm: values without the blanks around them; strings the text, others JSON or Python."""
    calls = []
    for block in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        name = block.split("<arg_key>")[0].strip()
        declared = properties_of(tools, name)
        found = re.findall(r"<arg_key>(.*?)</arg_key>(?:\\n|\s)*<arg_value>(.*?)</arg_value>", block, re.DOTALL)
        values = {key.strip(): value.strip() for key, value in found}
        strings = {key for key, schema in declared.items() if schema.get("type") == "string"}
        calls.append((name, {key: one if key in strings else _deserialized(one) for key, one in values.items()}))
    return Reading(calls, text.partition("<tool_call>")[0])


def _deserialized(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            pass
    return text


def minimax_m2(text: str, tools: list[JsonObject]) -> Reading:
    """`MinimaxM2Parser` of vLLM: names in quotation marks, values as they stand."""
    calls = []
    for block in re.findall(r"<minimax:tool_call>(.*?)</minimax:tool_call>", text, re.DOTALL):
        for name, body in re.findall(r'<invoke name="([^"]*)">(.*?)</invoke>', block, re.DOTALL):
            found = re.findall(r'<parameter name="([^"]*)"\s*>(.*?)</parameter>', body, re.DOTALL)
            calls.append((name, _with_types(name, dict(found), tools)))
    return Reading(calls, text.partition("<minimax:tool_call>")[0])


def dsml(block: str) -> Any:
    """`DeepSeekV32Parser` and `DeepSeekV4Parser` of vLLM: each element says whether it is a string."""

    def parse(text: str, tools: list[JsonObject]) -> Reading:
        calls = []
        for inside in re.findall(f"<｜DSML｜{block}>(.*?)</｜DSML｜{block}>", text, re.DOTALL):
            for name, body in re.findall(r'<｜DSML｜invoke name="(.*?)">(.*?)</｜DSML｜invoke>', inside, re.DOTALL):
                pattern = r'<｜DSML｜parameter\s+name="([^"]+)"\s+string="([^"]*)"\s*>(.*?)</｜DSML｜parameter>'
                found = re.findall(pattern, body, re.DOTALL)
                values = {key: one if is_text == "true" else _json_or_text(one) for key, is_text, one in found}
                calls.append((name, _with_types(name, values, tools)))
        return Reading(calls, text.partition(f"<｜DSML｜{block}>")[0])

    return parse


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def step3(text: str, tools: list[JsonObject]) -> Reading:
    """`Step3ToolParser` of vLLM: values without blanks around them; lists and objects stay texts."""
    content, _, rest = text.partition("<｜tool_calls_begin｜>")
    calls = []
    for one in re.findall(
        r"<｜tool_call_begin｜>(.*?)<｜tool_call_end｜>", rest.split("<｜tool_calls_end｜>")[0], re.DOTALL
    ):
        kind, _, invoked = one.partition("<｜tool_sep｜>")
        name = re.search(r'<steptml:invoke name="([^"]+)">', invoked)
        if kind.strip() == "function" and name:
            found = re.findall(r'<steptml:parameter name="([^"]+)">(.*?)</steptml:parameter>', invoked, re.DOTALL)
            declared = properties_of(tools, name[1])
            calls.append((name[1], {key: _of_step3(value.strip(), declared.get(key, {})) for key, value in found}))
    return Reading(calls, content)


def _of_step3(text: str, schema: JsonObject) -> Any:
    kind = schema.get("type")
    plain = isinstance(kind, str) and kind in ("integer", "number", "boolean", "null")
    return coerced(text, {str(kind)}) if (plain and text not in ("0", "1")) or kind in ("integer", "number") else text


def gemma4(text: str, tools: list[JsonObject]) -> Reading:
    """`Gemma4Parser` of vLLM: bare keys, strings between marks; ``null`` and ``none`` in any letters are none."""
    calls = []
    for name, body in re.findall(r"<\|tool_call>call:([\w\-.]+)\{(.*?)\}<tool_call\|>", text, re.DOTALL):
        values, end = _members(body + "}", 0)
        assert end == len(body) + 1
        calls.append((name, _with_types(name, values, tools)))
    return Reading(calls, text.partition("<|tool_call>")[0])


_QUOTE = '<|"|>'


def _members(text: str, at: int) -> tuple[JsonObject, int]:
    found = {}
    while True:
        while text[at] in " ,\n\t":
            at += 1
        if text[at] == "}":
            return found, at + 1
        key, at = text[at : text.index(":", at)].strip(), text.index(":", at) + 1
        found[key], at = _bare(text, at)


def _bare(text: str, at: int) -> tuple[Any, int]:
    """A value behind a place, and where it ends."""
    while text[at] in " \n\t":
        at += 1
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    if text[at] == "{":
        return _members(text, at + 1)
    if text[at] == "[":
        items, at = [], at + 1
        while True:
            while text[at] in " ,\n\t":
                at += 1
            if text[at] == "]":
                return items, at + 1
            item, at = _bare(text, at)
            items.append(item)
    found = re.compile(r"[^,}\]]*").match(text, at)
    assert found is not None
    return _word(found[0].strip()), found.end()


def _word(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text.lower() in ("null", "none", "nil"):
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def function_gemma(text: str, _: list[JsonObject]) -> Reading:
    """`function_gemma` of mlx-lm: up to the first brace, strings between marks, anything else up to a comma."""
    calls = []
    for one in re.findall(r"<start_function_call>(.*?)<end_function_call>", text, re.DOTALL):
        found = re.search(r"call:(\w+)\{(.*?)\}", one, re.DOTALL)
        assert found is not None
        rest, values = found[2], {}
        while rest:
            end = rest.index(":")
            key, rest = rest[:end], rest[end + 1 :]
            if rest.startswith("<escape>"):
                rest = rest.removeprefix("<escape>")
                end = rest.index("<escape>")
                values[key], rest = rest[:end], rest[end + len("<escape>") + 1 :]
            else:
                word, _, rest = rest.partition(",")
                values[key] = _json_or_text(word)
        calls.append((found[1], values))
    return Reading(calls, text.partition("<start_function_call>")[0])
