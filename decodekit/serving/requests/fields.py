"""Fields that requests of several routes share, with their limits; the description of the endpoint is made of them.

A field that OpenAI or vLLM know and that does nothing here is declared with the values that ask for nothing, so that
any other value is refused by name, as an unknown field is.

A body has few faults, whatever is in it: a list is read up to its first wrong item, and an object with too many members
is not read at all.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

T = TypeVar("T")
MOST_MEMBERS: Final = 64
"""Most members of an object with declared fields, unknown ones included: more than any of them declares."""
MOST_BIASES: Final = 1024
MOST_MESSAGES: Final = 2048


def _at_most(num: int, value: Any) -> Any:
    """The value, if it is not an object with more members than there may be."""
    if isinstance(value, dict) and len(value) > num:
        raise PydanticCustomError("too_many_members", f"has {len(value):,} members, {num:,} at most")
    return value


Listed: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
Messages: TypeAlias = Annotated[list[T], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]
Bias: TypeAlias = Annotated[float, Field(ge=-100, le=100)]
StopText: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
Unused: TypeAlias = Annotated[str, Field(max_length=512)]
JsonObject: TypeAlias = dict[str, Any]
EmptyList: TypeAlias = Annotated[list[Any], Field(max_length=0)]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""How much a model thinks before it answers."""

TOOL_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class WireModel(BaseModel):
    """A value of JSON: of the types that are declared, with no other field.

    A field that is null asks for nothing, whether it is declared or not: newer clients write such fields.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        _at_most(MOST_MEMBERS, value)
        if not isinstance(value, dict) or None not in value.values():
            return value
        needed = {one.alias or name for name, one in cls.model_fields.items() if one.is_required()}
        return {name: one for name, one in value.items() if one is not None or name in needed}


class SamplingFields(WireModel):
    """The fields of sampling, and of the user."""

    model: str | None = Field(None, description="The name that `/v1/models` lists; left out, the only one.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="1 if left out; 0, or from 0.001 on: 0 takes the likeliest token."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="Keep the likeliest tokens of this mass.")
    top_k: int | None = Field(None, ge=-1, le=1 << 31, description="Keep the k likeliest tokens; 0 or -1 keeps all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Keep tokens so many times as likely as the likeliest.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Subtracted once for each occurrence.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Subtracted from logits of written tokens.")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="Weakens tokens of prompt and text.")
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(partial(_at_most, MOST_BIASES))] | None = Field(
        None, max_length=MOST_BIASES, description="Added to the logits of tokens, by their ids."
    )
    seed: int | None = Field(
        None, ge=0, lt=1 << 63, description="Same seed, same text; drawn and told in a header if left out."
    )
    stream: bool | None = Field(None, description="Answer with server-sent events.")
    user: Unused | None = Field(None, description="Accepted; changes nothing.")
    metadata: (
        Annotated[dict[Annotated[str, Field(max_length=64)], Unused], BeforeValidator(partial(_at_most, MOST_MEMBERS))]
        | None
    ) = Field(None, max_length=16, description="Accepted; changes nothing.")
    safety_identifier: Unused | None = Field(None, description="Accepted; changes nothing.")
    prompt_cache_key: Unused | None = Field(None, description="Accepted: what prompts share is found by itself.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="There is one tier.")
    on_length: Literal["return", "close"] | None = Field(
        None, description="`close` ends a text of a constraint within the limit of tokens, whole; `return` cuts it."
    )


class StructuredOutputs(WireModel):
    """vLLM's `structured_outputs`: one of these."""

    json_: JsonObject | str | bool | None = Field(None, alias="json", description="A JSON Schema, or its text.")
    regex: str | None = Field(None, description="A pattern that the whole text matches.")
    choice: Listed[str] | None = Field(None, min_length=1, description="The text is one of these.")
    grammar: str | None = Field(None, description="A grammar in Lark's notation or in GBNF.")
    json_object: Literal[True] | None = Field(None, description="Any JSON object.")
    structural_tag: JsonObject | str | None = Field(None, description="Tags in free text.")


class StreamFields(WireModel):
    """`stream_options`."""

    include_usage: bool | None = Field(None, description="A last chunk with the usage.")
    include_obfuscation: Literal[False] | None = Field(None, description="Chunks are not padded.")


class TextFormat(WireModel):
    """`response_format` of free text."""

    type: Literal["text"]


class AnyObjectFormat(WireModel):
    """`response_format` of any JSON object."""

    type: Literal["json_object"]


class NamedSchema(WireModel):
    """The schema of a `response_format`."""

    name: str = Field(max_length=64, description="Accepted; changes nothing.")
    description: str | None = Field(None, max_length=16384, description="Accepted; changes nothing.")
    schema_: JsonObject | bool = Field(alias="schema", description="The JSON Schema of the text.")
    strict: bool | None = Field(None, description="Accepted: the schema always holds.")


class SchemaFormat(WireModel):
    """`response_format` of a JSON Schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(WireModel):
    """`response_format` of tags in free text, as vLLM and SGLang have it."""

    type: Literal["structural_tag"]
    structures: Listed[JsonObject] = Field(min_length=1)
    triggers: Listed[str] = Field(min_length=1)


ResponseFormat: TypeAlias = Annotated[
    TextFormat | AnyObjectFormat | SchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


class TextFields(SamplingFields):
    """Further fields that chats and completions share."""

    n: int | None = Field(None, ge=1, le=128, description="How many texts.")
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of a text.")
    min_tokens: int | None = Field(None, ge=0, description="Least tokens before a text may end.")
    stop: StopText | Annotated[Listed[StopText], Field(max_length=16)] | None = Field(
        None, description="Texts that end a text; not with a constraint."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="With log-probabilities: tokens as `token_id:17`, so that none are taken for one another."
    )
    stop_token_ids: Listed[TokenId] | None = Field(
        None, max_length=64, description="Tokens that end a text; not with a constraint."
    )
    response_format: ResponseFormat | None = Field(None, description="What the text must be.")
    stream_options: StreamFields | None = Field(None, description="Only with `stream`.")
    guided_json: JsonObject | str | bool | None = Field(None, description="A JSON Schema, or its text.")
    guided_regex: str | None = Field(None, description="A pattern that the whole text matches.")
    guided_choice: Listed[str] | None = Field(None, min_length=1, description="The text is one of these.")
    guided_grammar: str | None = Field(None, description="A grammar in Lark's notation or in GBNF.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The same, as newer clients write it.")


class FunctionFields(WireModel):
    """A function that the model may call."""

    name: str = Field(pattern=TOOL_NAME)
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="The JSON Schema of the arguments; none if left out.")
    strict: bool | None = Field(None, description="Accepted: the arguments always fit.")


class ToolFields(WireModel):
    """One of the `tools`."""

    type: Literal["function"]
    function: FunctionFields


class FunctionName(WireModel):
    """The function of a `tool_choice`."""

    name: str


class NamedToolChoice(WireModel):
    """The `tool_choice` of one function."""

    type: Literal["function"]
    function: FunctionName


class ContentPart(WireModel):
    """A part of the content of a message; text alone is read."""

    type: Literal["text"]
    text: str


class FunctionCallFields(WireModel):
    """The function of a call."""

    name: str
    arguments: str
    parsed_arguments: Annotated[Any, Field(description="Accepted: what a client has read in the arguments.")] = None


class CallFields(WireModel):
    """A call that the assistant made."""

    id: str
    type: Literal["function"]
    function: FunctionCallFields
    index: Annotated[int | None, Field(description="Accepted: its place in the stream that it came in.")] = None


class SpokenMessage(WireModel):
    """A message of a user, or of who instructs the model."""

    role: Literal["system", "developer", "user"]
    content: str | Listed[ContentPart]
    name: str | None = None


class AssistantMessage(WireModel):
    """A message of the model."""

    role: Literal["assistant"]
    content: str | Listed[ContentPart] | None = None
    tool_calls: Listed[CallFields] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: EmptyList | None = None
    name: str | None = None
    reasoning_content: Annotated[str | None, Field(description="The thought, for templates that read it.")] = None
    reasoning: Annotated[str | None, Field(description="The same, as other endpoints call it.")] = None
    parsed: Annotated[Any, Field(description="Accepted: what a client has read in the content.")] = None


class ToolMessage(WireModel):
    """The result of a tool."""

    role: Literal["tool"]
    content: str | Listed[ContentPart]
    tool_call_id: str
    name: str | None = None


ChatMessage: TypeAlias = Annotated[SpokenMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class CachedTokens(BaseModel):
    """Tokens of prompts that were not read again."""

    cached_tokens: int


class ReasoningTokens(BaseModel):
    """Tokens of thoughts."""

    reasoning_tokens: int


class UsageReply(BaseModel):
    """`usage` of chats and completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class ErrorFields(BaseModel):
    """The body of an error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """An error in OpenAI's form."""

    error: ErrorFields
