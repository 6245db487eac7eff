"""Parsers of calls that are written as Python, after `Lfm2ToolParser`, `Llama4PythonicToolParser` and
`Olmo3PythonicToolParser` of vLLM 0.33.0, and `pythonic` of mlx-lm 0.32.2.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from tests.reference.tool_parsers.reading import JsonObject, Reading

_WORDS: Final = {"null": None, "true": True, "false": False}


def lfm2(text: str, _: list[JsonObject]) -> Reading:
    """A list of calls between two marks."""
    content, mark, rest = text.partition("<|tool_call_start|>")
    return Reading(_calls(rest.split("<|tool_call_end|>")[0].strip()) if mark else [], content)


def llama4(text: str, _: list[JsonObject]) -> Reading:
    """A list of calls that is the whole text, maybe behind a mark."""
    found = text.removeprefix("<|python_start|>").replace("<|python_end|>", "")
    is_list = re.match(r"\[\s*[a-zA-Z]\w*\(", found)
    return Reading(_calls(found) if is_list else [], None if is_list else text)


def olmo3(text: str, _: list[JsonObject]) -> Reading:
    """Calls in lines between two marks; what `str.splitlines` takes for the end of a line ends one."""
    found = re.search(r"<function_calls>(.*?)</function_calls>", text, re.DOTALL)
    lines = [line.strip() for line in found[1].strip().splitlines()] if found else []
    return Reading(_calls(f"[{', '.join(line for line in lines if line)}]"), None if found else text)


def minicpm3(text: str, _: list[JsonObject]) -> Reading:
    """Lines of Python in a fence between two marks, as the model card of MiniCPM3 parses them: one call a line."""
    content, mark, rest = text.partition("<|tool_call_start|>")
    body = re.search(r"```python\n?(.*?)\n?```", rest.split("<|tool_call_end|>")[0], re.DOTALL)
    nodes = ast.parse(body[1].strip()).body if mark and body else []
    return Reading([_call(node.value) for node in nodes if isinstance(node, ast.Expr)], content)


def _calls(text: str) -> list[tuple[str, JsonObject]]:
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.List):
        raise ValueError("no list of calls")
    return [_call(one) for one in node.elts]


def _call(node: ast.expr) -> tuple[str, JsonObject]:
    if not isinstance(node, ast.Call):
        raise ValueError("no call")
    return ast.unparse(node.func), {str(one.arg): _value(one.value) for one in node.keywords}


def _value(node: ast.expr) -> Any:
    """A literal; the words of JSON are taken, too."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)
