"""What a chat template is told, and one beginning-of-sequence token whoever writes it."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

import decodekit as dk
from decodekit.chat.conversation import TemplateArguments, has_chat_template, variables
from decodekit.decoding.request.prompt import encode
from decodekit.errors import ChatTemplateError, UselessOptionError
from tests.reference.generation_tokenizer import BOS, small_tokenizer
from tests.reference.vocabularies import mistral_data
from tests.test_llm import ToyLM, V, writes

LLAMA_LIKE = (
    "{{ bos_token }}{% if tools %}{% for t in tools %}{{ t.function.name }};{% endfor %}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thoughts;{% endif %}"
    "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
ASKED = [{"role": "user", "content": "the"}]


def add(number: int) -> None: ...


def chat(template: str = LLAMA_LIKE) -> Any:
    """A tokenizer that adds a beginning-of-sequence token, as that of Llama does."""
    tokenizer = small_tokenizer(chat_template=template)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def read(told: dict[str, Any], prompt: Any = ASKED, template: str = LLAMA_LIKE) -> str:
    """What the model reads."""
    tokenizer = chat(template)
    model = ToyLM(writes("ab"), V)
    completion = dk.LLM(model, tokenizer).generate(prompt, max_new_tokens=1, **told)
    assert completion.error is None, completion.error
    return str(tokenizer.decode(model.caches[0].tokens[0][: sum(model.calls[0])]))


def test_a_template_is_told_of_tools_and_variables() -> None:
    plain = read({})
    assert "add" not in plain and "no thoughts" not in plain
    assert "no thoughts" in read({"enable_thinking": False})
    assert read({"chat_template_kwargs": {"enable_thinking": False}}) == read({"enable_thinking": False})
    assert read({"enable_thinking": True}) == plain
    assert "add;" in read({"tools": [add]}) and read({"tools": dk.tools([add])}) == read({"tools": [add]})
    assert read({"chat_template_kwargs": {"chat_template": "{{ messages[0].content }}"}}) == "the"
    going_on = [*ASKED, {"role": "assistant", "content": "an"}]
    assert read({"chat_template_kwargs": {"continue_final_message": True}}, going_on).endswith("assistant:an")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"enable_thinking": True}, "enable_thinking has no effect"),
        ({"tools": [add]}, "reads no tools"),
        ({"chat_template_kwargs": {"thinking": 1}}, "thinking has no effect"),
        ({"chat_template_kwargs": {"tools": [1]}}, "tools is not for chat_template_kwargs"),
        ({"chat_template_kwargs": ["a"]}, "a mapping of names"),
        ({"chat_template_kwargs": {"enable_thinking": 1}, "enable_thinking": True}, "given twice"),
        ({"enable_thinking": "no"}, "None, True or False"),
        ({"tools": 3}, "tool"),
    ],
)
def test_what_a_template_does_not_read_is_named(options: dict[str, Any], says: str) -> None:
    llm = dk.LLM(ToyLM(writes("ab"), V), chat("{% for m in messages %}{{ m.content }}{{ depth }}{% endfor %}"))
    with pytest.raises(dk.DecodekitError, match=says):
        llm.generate(ASKED, **options)
    with llm.engine() as engine, pytest.raises(dk.DecodekitError, match=says):
        engine.submit(ASKED, **options)


def test_only_conversations_are_told_anything() -> None:
    llm = dk.LLM(ToyLM(writes("ab"), V), chat())
    with pytest.raises(UselessOptionError, match="enable_thinking: only conversations") as raised:
        llm.generate([ASKED, "the"], enable_thinking=True)
    assert raised.value.at == "prompt 1"
    done = dict(llm.as_completed([ASKED, "the"], enable_thinking=True, max_new_tokens=1))
    assert done[0].error is None and isinstance(done[1].error, UselessOptionError)
    with llm.engine() as engine:
        assert isinstance(engine.submit("the", tools=[add]).result().error, UselessOptionError)
        assert engine.submit(ASKED, tools=[add], max_new_tokens=1).result().error is None
    without = dk.LLM(ToyLM(writes("ab"), V), small_tokenizer())
    assert isinstance(without.generate(ASKED, enable_thinking=True).error, ChatTemplateError)


def test_variables_of_a_template() -> None:
    assert variables(LLAMA_LIKE) == {"bos_token", "tools", "enable_thinking", "messages", "add_generation_prompt"}
    assert variables("{% set a = b %}{{ a }}{% for c in d %}{% break %}{% endfor %}") == {"b", "d"}
    assert variables("{{ broken") == {"broken"}


def test_one_beginning_of_sequence_token() -> None:
    tokenizer = chat()
    written = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert written.startswith(tokenizer.bos_token)
    # The control: the tokenizer by itself adds a second one to what its template wrote.
    assert tokenizer(written)["input_ids"][:2] == [BOS, BOS]
    ids = encode(tokenizer, ASKED, "prompt")
    assert ids.count(BOS) == 1 and ids[0] == BOS
    assert encode(tokenizer, written, "prompt") == ids
    assert encode(tokenizer, "the", "prompt").count(BOS) == 1
    # What somebody wrote twice stays as it was written.
    assert encode(tokenizer, tokenizer.bos_token * 2 + "the", "prompt").count(BOS) == 2
    without = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert BOS not in encode(chat(without), ASKED, "prompt")  # as in transformers: the template says it all


def test_tokenizers_of_mistral_common() -> None:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from transformers.tokenization_mistral_common import MistralCommonBackend

    path = mistral_data("mistral_instruct_tokenizer_241114.model.v7")
    theirs, around = MistralTokenizer.from_file(str(path)), MistralCommonBackend(tokenizer_path=str(path))
    begin = around.bos_token_id
    for told in (TemplateArguments(), TemplateArguments(dk.tools([add], format="mistral").definitions)):
        ids = told.encode(theirs, ASKED, "prompt")
        assert ids == told.encode(around, ASKED, "prompt")
        assert ids[0] == begin and ids.count(begin) == 1
    assert has_chat_template(theirs) and has_chat_template(around)
    assert encode(around, "the", "prompt").count(begin) == 1 == encode(theirs, "the", "prompt").count(begin)
    refused = TemplateArguments(options={"enable_thinking": False}).faults(around)
    assert [type(fault) for fault in refused] == [UselessOptionError]
    with pytest.raises(ChatTemplateError):
        encode(around, [{"role": "nobody", "content": "x"}], "prompt")
