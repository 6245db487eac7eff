r"""Small chat templates, one for each way in which models write calls of tools and thoughts, and their texts by hand.

    MADE["json in tags"].template       <|user|> line break ... <|end|>, calls as <call>{"name": ...}</call>
    MADE["json in tags"].call           what it writes for a call of `get_weather` with a city and a number of days

They are made for tests: marks are none that a model has, so nothing of them can be known by heart.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import decodekit as dk

_TURNS: Final = """
{%- if tools %}
    {{- "<|system|>\\nTools:\\n" + (tools | tojson) + "<|end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|" + message.role + "|>\\n" }}
    {%- if THOUGHT %}
        {{- "<think>\\n" + message.reasoning_content + "\\n</think>\\n\\n" }}
    {%- endif %}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- if message.tool_calls %}
        CALLS
    {%- endif %}
    {{- "<|end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>\\n" }}
    PROMPT
{%- endif %}"""

_JSON_IN_TAGS: Final = """
{%- for call in message.tool_calls %}
    {{- "\\n" if message.content or not loop.first }}
    {{- '<call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson }}
    {{- "}\\n</call>" }}
{%- endfor %}"""

_JSON_LIST: Final = """
{{- "<|calls|>[" }}
{%- for call in message.tool_calls %}
    {{- ", " if not loop.first }}
    {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + "}" }}
{%- endfor %}
{{- "]<|calls_end|>" }}"""

_NAME_AS_KEY: Final = """
{{- "<|calls|>[" }}
{%- for call in message.tool_calls %}
    {{- ", " if not loop.first }}
    {{- '{"' + call.function.name + '": ' + (call.function.arguments | tojson) + "}" }}
{%- endfor %}
{{- "]<|calls_end|>" }}"""

_NAME_THEN_JSON: Final = """
{%- for call in message.tool_calls %}
    {{- "[CALL]" + call.function.name + "[WITH]" + (call.function.arguments | tojson) }}
{%- endfor %}"""

_NAME_ID_JSON: Final = """
{%- for call in message.tool_calls %}
    {{- "[CALL]" + call.function.name + "[ID]" + call.id + "[WITH]" + (call.function.arguments | tojson) }}
{%- endfor %}"""

_FENCED_JSON: Final = """
{{- "<|calls|>" }}
{%- for call in message.tool_calls %}
    {{- "\\n" if not loop.first }}
    {{- "<|call|>" + call.type + "<|sep|>" + call.function.name + "\\n```json\\n" }}
    {{- call.function.arguments | tojson }}
    {{- "\\n```<|call_end|>" }}
{%- endfor %}
{{- "<|calls_end|>" }}"""

_ELEMENTS: Final = """
{%- for call in message.tool_calls %}
    {{- "\\n" if message.content or not loop.first }}
    {{- "<call>\\n<tool=" + call.function.name + ">\\n" }}
    {%- for key, value in call.function.arguments.items() %}
        {{- "<argument=" + key + ">\\n" + (value if value is string else value | tojson) + "\\n</argument>\\n" }}
    {%- endfor %}
    {{- "</tool>\\n</call>" }}
{%- endfor %}"""

_KEYS_AND_VALUES: Final = """
{%- for call in message.tool_calls %}
    {{- "\\n<call>" + call.function.name }}
    {%- for key, value in call.function.arguments.items() %}
        {{- "\\n<key>" + key + "</key>\\n<value>" + (value if value is string else value | tojson) + "</value>" }}
    {%- endfor %}
    {{- "\\n</call>" }}
{%- endfor %}"""

_TYPED_ELEMENTS: Final = """
{{- "\\n\\n<calls>\\n" }}
{%- for call in message.tool_calls %}
    {{- '<invoke tool="' + call.function.name + '">\\n' }}
    {%- for key, value in call.function.arguments.items() %}
        {{- '<argument key="' + key + '" text="' + ("yes" if value is string else "no") + '">' }}
        {{- (value if value is string else value | tojson) + "</argument>\\n" }}
    {%- endfor %}
    {{- "</invoke>\\n" }}
{%- endfor %}
{{- "</calls>" }}"""

_PYTHON_CALLS: Final = """
{%- for call in message.tool_calls %}
    {{- SEPARATOR if not loop.first }}
    {{- call.function.name + "(" }}
    {%- for key, value in call.function.arguments.items() %}
        {{- ", " if not loop.first }}
        {{- key + "=" + (value | tojson if value is string else value | string) }}
    {%- endfor %}
    {{- ")" }}
{%- endfor %}"""

_PYTHON_LIST: Final = '{{- "<|calls|>[" }}' + _PYTHON_CALLS.replace("SEPARATOR", '", "') + '{{- "]<|calls_end|>" }}'

_PYTHON_IN_A_FENCE: Final = (
    '{{- "<|calls|>\\n```python\\n" }}'
    + _PYTHON_CALLS.replace("SEPARATOR", r'"\n"')
    + '{{- "\\n```\\n<|calls_end|>" }}'
)

_OWN_QUOTATION_VALUES: Final = """
{%- macro written(value) %}
    {%- if value is string %}
        {{- "<|q|>" + value + "<|q|>" }}
    {%- elif value is mapping %}
        {{- "{" }}
        {%- for key, one in value.items() %}
            {{- "," if not loop.first }}
            {{- key + ":" + written(one) }}
        {%- endfor %}
        {{- "}" }}
    {%- elif value is sequence %}
        {{- "[" }}
        {%- for one in value %}
            {{- "," if not loop.first }}
            {{- written(one) }}
        {%- endfor %}
        {{- "]" }}
    {%- else %}
        {{- value | tojson }}
    {%- endif %}
{%- endmacro %}"""

_OWN_QUOTATION: Final = """
{%- for call in message.tool_calls %}
    {{- "<|call>" + call.function.name + written(call.function.arguments) + "<call|>" }}
{%- endfor %}"""

_NUMBERED: Final = """
{{- "<|calls|>" }}
{%- for call in message.tool_calls %}
    {{- "<|call|>functions." + call.function.name + ":" + (loop.index0 | string) + "<|with|>" }}
    {{- call.function.arguments | tojson }}
    {{- "<|call_end|>" }}
{%- endfor %}
{{- "<|calls_end|>" }}"""

_TEXT: Final = """
{%- for call in message.tool_calls %}
    {{- "[CALL]" + call.function.name + "[WITH]" + call.function.arguments }}
{%- endfor %}"""

_CHANNELS: Final = """
{%- if tools %}
    {{- "<|start|>system<|text|>" + (tools | tojson) + "<|stop|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {%- if message.content %}
            {{- "<|start|>assistant<|channel|>aside<|text|>" + message.content + "<|stop|>" }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- "<|start|>assistant to=tools." + call.name + "<|channel|>call json<|text|>" }}
        {{- call.arguments | tojson }}
        {{- "<|sent|>" }}
    {%- elif message.role == "assistant" %}
        {%- if message.reasoning_content %}
            {{- "<|start|>assistant<|channel|>thought<|text|>" + message.reasoning_content + "<|stop|>" }}
        {%- endif %}
        {{- "<|start|>assistant<|channel|>last<|text|>" + message.content + "<|stop|>" }}
    {%- else %}
        {{- "<|start|>" + message.role + "<|text|>" + message.content + "<|stop|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start|>assistant" }}
{%- endif %}"""

_RECIPIENTS: Final = """
{%- if tools %}
    {{- "<|from|>system\\n<|to|>all\\n" + (tools | tojson) + "\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != "assistant" %}
        {{- "<|from|>" + message.role + "\\n<|to|>all\\n" + message.content + "\\n" }}
    {%- else %}
        {%- if message.content %}
            {{- "<|from|>assistant\\n<|to|>all\\n" + message.content }}
            {{- "\\n" if message.tool_calls }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- "\\n" if not loop.first }}
            {{- "<|from|>assistant\\n<|to|>" + call.function.name + "\\n" + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- "<|stop|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|from|>assistant\\n<|to|>" }}
{%- endif %}"""

_ALONE: Final = """
{%- if tools %}
    {{- "<|system|>\\nAnswer with a call alone: " + (tools | tojson) + "<|end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|" + message.role + "|>\\n" }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}
            {{- raise_exception("one call at most") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + "}" }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- "<|end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>\\n" }}
{%- endif %}"""

_PARTS: Final = """
{%- for message in messages %}
    {{- "<|" + message.role + "|>\\n" }}
    {%- for part in message.content %}
        {%- if part.type == "image" %}
            {{- "<|image|>" }}
        {%- elif part.type == "text" %}
            {{- part.text }}
        {%- endif %}
    {%- endfor %}
    {{- "<|end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>\\n" }}
{%- endif %}"""


def _chat(calls: str, thought: str = "", prompt: str = "") -> str:
    thinks = "message.reasoning_content" if thought else "false"
    return _TURNS.replace("CALLS", calls.strip()).replace("THOUGHT", thinks).replace("PROMPT", prompt)


@dataclass(frozen=True, slots=True)
class Made:
    """A template, and what it writes for a call of `get_weather`, ``{"city": "Paris", "days": 3}``, behind no content.

    Attributes:
        max_calls: how many calls it writes at most; None for any number.
    """

    template: str
    call: str
    max_calls: int | None = None


_JSON: Final = '{"city": "Paris", "days": 3}'
_TAGGED: Final = '<call>\n{"name": "get_weather", "arguments": ' + _JSON + "}\n</call>"
_THINK: Final = '{{- "<think>\\n" }}'
_THINK_OR_NOT: Final = '{{- "<think>\\n\\n</think>\\n\\n" if enable_thinking is defined and not enable_thinking }}'

MADE: Final[dict[str, Made]] = {
    "json in tags": Made(_chat(_JSON_IN_TAGS), _TAGGED),
    "json list": Made(_chat(_JSON_LIST), f'<|calls|>[{{"name": "get_weather", "arguments": {_JSON}}}]<|calls_end|>'),
    "name as key": Made(_chat(_NAME_AS_KEY), f'<|calls|>[{{"get_weather": {_JSON}}}]<|calls_end|>'),
    "name then json": Made(_chat(_NAME_THEN_JSON), f"[CALL]get_weather[WITH]{_JSON}"),
    "name, id, json": Made(_chat(_NAME_ID_JSON), f"[CALL]get_weather[ID]abcdef000[WITH]{_JSON}"),
    "fenced json": Made(
        _chat(_FENCED_JSON),
        f"<|calls|><|call|>function<|sep|>get_weather\n```json\n{_JSON}\n```<|call_end|><|calls_end|>",
    ),
    "elements": Made(
        _chat(_ELEMENTS),
        "<call>\n<tool=get_weather>\n<argument=city>\nParis\n</argument>\n<argument=days>\n3\n</argument>\n</tool>\n</call>",
    ),
    "keys and values": Made(
        _chat(_KEYS_AND_VALUES),
        "\n<call>get_weather\n<key>city</key>\n<value>Paris</value>\n<key>days</key>\n<value>3</value>\n</call>",
    ),
    "typed elements": Made(
        _chat(_TYPED_ELEMENTS),
        '\n\n<calls>\n<invoke tool="get_weather">\n<argument key="city" text="yes">Paris</argument>\n'
        '<argument key="days" text="no">3</argument>\n</invoke>\n</calls>',
    ),
    "python list": Made(_chat(_PYTHON_LIST), '<|calls|>[get_weather(city="Paris", days=3)]<|calls_end|>'),
    "python in a fence": Made(
        _chat(_PYTHON_IN_A_FENCE), '<|calls|>\n```python\nget_weather(city="Paris", days=3)\n```\n<|calls_end|>'
    ),
    "own quotation": Made(
        _OWN_QUOTATION_VALUES + _chat(_OWN_QUOTATION), "<|call>get_weather{city:<|q|>Paris<|q|>,days:3}<call|>"
    ),
    "numbered identifiers": Made(
        _chat(_NUMBERED), f"<|calls|><|call|>functions.get_weather:0<|with|>{_JSON}<|call_end|><|calls_end|>"
    ),
    "channels": Made(_CHANNELS, f" to=tools.get_weather<|channel|>call json<|text|>{_JSON}<|sent|>", max_calls=1),
    "recipients": Made(_RECIPIENTS, f"get_weather\n{_JSON}"),
    "json alone": Made(_ALONE, f'{{"name": "get_weather", "parameters": {_JSON}}}', max_calls=1),
    "arguments as text": Made(_chat(_TEXT), f"[CALL]get_weather[WITH]{_JSON}"),
    "thought in the prompt": Made(_chat(_JSON_IN_TAGS, "yes", _THINK), _TAGGED),
    "thought by option": Made(_chat(_JSON_IN_TAGS, "yes", _THINK_OR_NOT), _TAGGED),
    "thought of the model": Made(_chat(_JSON_IN_TAGS, "yes"), _TAGGED),
}
"""Those that write calls, by their way to write them or thoughts."""

PARTS: Final = _PARTS
"""One for images and text: it writes nothing of a content that is a text. It has no tools."""

_MARK: Final = re.compile(r"<\|?/?[a-z_]+\|?>|<\|?[a-z_]+=|\[[A-Z]+\]")


@cache
def _tiny(is_special: bool) -> Any:
    tokenizer = copy.deepcopy(dk.LLM.load("tiny").tokenizer)
    if is_special:
        found = {mark for made in MADE.values() for mark in _MARK.findall(made.template) if mark[-1] != "="}
        tokenizer.add_special_tokens({"additional_special_tokens": sorted(found)})
    return tokenizer


def tokenizer_of(template: str, is_special: bool = False) -> Any:
    """The tokenizer of the tiny model with a template; its marks are special tokens, if that is wanted."""
    tokenizer = copy.copy(_tiny(is_special))
    tokenizer.chat_template = template
    return tokenizer
