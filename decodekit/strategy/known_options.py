"""Options of other libraries, and what to write here in their place: a table from a name to an answer.

``num_beams`` is an option of decodekit too and is not listed; ``max_tokens`` of vLLM is ``max_new_tokens`` here, and
``use_cache`` is nothing that one chooses. `answer` works the value that was given into what is to be written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Code:
    """A value that is written as code.

    Args:
        python: in Python.
        spelled: as the text of an option; None if no text says it.
        command: as options of `decodekit generate`; None if it has none.
        make: makes the value; None if it is not needed to see whether a strategy takes it.
    """

    python: str
    spelled: str | None = None
    command: str | None = None
    make: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        return self.python


@dataclass(frozen=True, slots=True)
class Answer:
    """What an option of another library is here.

    Args:
        write: options of decodekit to write in its place; empty if it is to be left out, None if there is nothing.
        note: what differs, or why there is nothing.
    """

    write: Mapping[str, Any] | None
    note: str = ""


Rule: TypeAlias = Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class Known:
    """An option of other libraries.

    Args:
        libraries: who calls it so.
        rule: the answer for a value.
    """

    libraries: str
    rule: Rule


def answer(name: str, value: Any) -> Answer | None:
    """What to write for an option of another library; None if no library that we know has it."""
    known = KNOWN_OPTIONS.get(name)
    if known is None:
        return None
    return Answer({}) if value is None else known.rule(value)


def shown(value: Any) -> str:
    """A value as code; three dots for one that is long or has no code."""
    if isinstance(value, type):
        return value.__name__
    written = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{written}')"
    if type(value).__module__.startswith("decodekit.") and not isinstance(value, Code):
        written = f"dk.{written}" if written.count("(") == 1 else "..."
    return "..." if len(written) > 120 or written.startswith("<") else written


def _is_one_of(value: Any, options: Iterable[Any]) -> bool:
    """Whether a value is one of some plain ones; True is no 1 here."""
    return any(type(value) is type(one) and value == one for one in options)


def _is(name: str, note: str = "", off: tuple[Any, ...] = (), **more: Any) -> Rule:
    """The same under another name; with a value of `off` it does nothing and is left out."""
    return lambda value: Answer({} if _is_one_of(value, off) else {**more, name: value}, note)


def _left_out(note: str) -> Rule:
    return lambda value: Answer({}, note)


def _missing(note: str, off: tuple[Any, ...] = (False,)) -> Rule:
    """Nothing does it here; with a value of `off` it can be left out."""
    return lambda value: Answer({}) if _is_one_of(value, off) else Answer(None, note)


def _switch(note: str = "", **write: Any) -> Rule:
    """What to write where it is on."""
    return lambda value: Answer({} if _is_one_of(value, (False, 0)) else write, note)


def _do_sample(value: Any) -> Answer:
    if _is_one_of(value, (False,)):
        return Answer({"strategy": "greedy"}, "the strategy says it.")
    return Answer({"strategy": "sample"}, "the strategy says it.")


def _constraint(python: str, command: str | None = None) -> Rule:
    """A constraint that is made of the value by a class of decodekit."""
    return lambda value: Answer(
        {
            "constraint": Code(
                python.format(shown(value)), command=None if command is None else f"{command} {_quoted(value)}"
            )
        }
    )


def _quoted(value: Any) -> str:
    """A value as a word of the command line."""
    if isinstance(value, list | tuple):
        value = ",".join(str(one) for one in value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.replace("-", "").replace(".", "").replace("_", "").isalnum() else "'" + text + "'"


def _schema(value: Any) -> Answer:
    """A JSON Schema: a mapping or its text, a Python type, or OpenAI's response format."""
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError:
            return Answer({"constraint": Code("...", command=f"--schema {_quoted(value)}")}, "the schema as a dict.")
    if isinstance(value, bool):
        return Answer({"constraint": {"type": "object"}} if value else {})
    if isinstance(value, Mapping):
        if value.get("type") == "text":
            return Answer({}, "text that may be anything has no constraint.")
        if value.get("type") in ("json", "regex") and "value" in value:  # of text-generation-inference
            return (
                _schema(value["value"])
                if value["type"] == "json"
                else _constraint("dk.Regex({})", "--regex")(value["value"])
            )
        if isinstance(value.get("schema"), Mapping) and "type" not in value["schema"].keys() & value.keys():
            value = value["schema"] if value.get("type") in ("json_schema", "json_object") else value
    return Answer({"constraint": value})


_choices: Final = _constraint("dk.Choices({})", "--choices")
_regex: Final = _constraint("dk.Regex({})", "--regex")


def _grammar(value: Any) -> Answer:
    return _schema(value) if isinstance(value, Mapping) else _constraint("dk.Grammar({})")(value)


_GUIDED: Final[Mapping[str, Rule]] = {
    "json": _schema,
    "json_object": _schema,
    "regex": _regex,
    "choice": _choices,
    "grammar": _grammar,
    "structural_tag": _schema,
}
"""What vLLM's structured outputs are made of."""


def _guided(value: Any) -> Answer:
    """vLLM's structured outputs, as a mapping or as the object that they are."""
    for name, rule in _GUIDED.items():
        given = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if given is not None:
            return rule(given)
    return Answer({"constraint": Code("...")})


def _output_type(value: Any) -> Answer:
    """Outlines takes Python types, lists of choices, and objects of its own."""
    if isinstance(value, list | tuple):
        return _choices([*value])
    for name, rule in (("pattern", _regex), ("schema", _schema), ("definition", _grammar)):
        given = getattr(value, name, None)
        if isinstance(given, str | Mapping) and not isinstance(value, type):
            return rule(given)
    return _schema(value)


def _format(value: Any) -> Answer:
    """Ollama's: "json" or a schema."""
    return _schema(True if value == "json" else value)


def _tools(value: Any) -> Answer:
    return Answer({"constraint": Code(f"dk.tools({shown(value)})")})


def _tool_choice(value: Any) -> Answer:
    if _is_one_of(value, ("none", "auto")):
        return Answer({}, 'with "auto" a constraint for tools allows plain text, without one no tool is called.')
    return Answer({"constraint": Code("dk.tools(...)")}, "dk.tools says which tools may be called.")


def _suppressed(value: Any) -> Answer:
    return Answer({"bad_words": [[int(one)] for one in _listed(value)] or None})


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _guidance(value: Any) -> Answer:
    if _is_one_of(value, (1, 1.0)):
        return Answer({})
    return Answer({"contrast": Code(f"dk.Guidance(scale={shown(value)})", f"guidance:scale={shown(value)}")})


def _negative_prompt(value: Any) -> Answer:
    if not isinstance(value, str):
        return Answer(None, "a negative prompt is a text: contrast=dk.Guidance(negative_prompt=...).")
    return Answer(
        {"contrast": Code(f"dk.Guidance(negative_prompt={value!r})", f"guidance:negative_prompt={json.dumps(value)}")}
    )


def _dola(value: Any) -> Answer:
    layers = value if isinstance(value, str) else [*_listed(value)]
    return Answer({"contrast": Code(f"dk.DoLa(layers={layers!r})", f"dola:layers={layers}")})


def _watermark(value: Any) -> Answer:
    names = {"greenlist_ratio": "ratio", "bias": "delta", "hashing_key": "key", "context_width": "context_width"}
    said = value if isinstance(value, Mapping) else {name: getattr(value, name, None) for name in names}
    found = {ours: said[theirs] for theirs, ours in names.items() if said.get(theirs) is not None}
    code = f"dk.Watermark({', '.join(f'{name}={one!r}' for name, one in found.items())})"
    return Answer(
        {"watermark": Code(code, json.dumps(found) if found else "true")}, "the hash is another than in transformers."
    )


def _proposer(option: str, kind: str) -> Rule:
    return lambda value: Answer({"speculate": f"{kind}:{option}={value}"})


def _early_exit(value: Any) -> Answer:
    return Answer({"speculate": f"early-exit:{value}"})


def _best_of(value: Any) -> Answer:
    return Answer({} if _is_one_of(value, (1,)) else {"strategy": "best-of", "n": value})


def _several(value: Any) -> Answer:
    if _is_one_of(value, (1,)):
        return Answer({})
    return Answer({"num_return_sequences": value}, 'the option n of strategy="best-of" is for the best of them.')


def _dynatemp(value: Any) -> Answer:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        return Answer({"dynamic_temperature": Code("(0.5, 1.5)", "[0.5,1.5]")}, "(lowest, highest) temperature.")
    if value == 0:
        return Answer({})
    low, high = round(1 - value, 6), round(1 + value, 6)
    return Answer(
        {"dynamic_temperature": Code(f"({low}, {high})", f"[{low},{high}]")},
        "(lowest, highest) temperature, here around 1.",
    )


def _mirostat(value: Any) -> Answer:
    return Answer({} if _is_one_of(value, (0, False)) else {"strategy": "mirostat", "version": value})


def _output_scores(value: Any) -> Answer:
    return Answer({"logprobs": True} if value else {}, "Completion.logprobs has the log-probability of every token.")


def _top_logprobs(value: Any) -> Answer:
    return Answer({"logprobs": value} if value else {}, "an integer asks for so many alternatives of every token.")


def _window(value: Any) -> Answer:
    return Answer({} if _is_one_of(value, (-1,)) else {"penalty_window": value}, "0 or -1 is left out; None is all.")


_COUNTS_PROMPT: Final = "it counts the tokens of the prompt too, {} those of the text alone."
_CACHE: Final = "there is one KV cache, which grows as it is needed."
_EAGER: Final = "how the model is run is chosen by itself; see LLM.model."
_TAKEN: Final = "it is taken from the tokenizer and the model."
_NEVER_PADDED: Final = "rows have their own lengths, and nothing is padded."
_ENDS: Final = (
    "which tokens end a text is said by the model: set model.generation_config.eos_token_id = [...] before "
    "LLM(model, tokenizer); other tokens end it by their text, with stop=[...]."
)
_CONSTRAINED: Final = "a constraint says what a text may be, token by token."
_STREAMED: Final = "LLM.stream hands out chunks of text as they grow."
_LOADED: Final = "it belongs to LLM.load, which hands it on to transformers."
_PROMPT: Final = "the prompt comes first: LLM.generate(prompts)."
_DRAFTED: Final = "drafts never change a text, and those of a look-up end by themselves where they do not pay."
_SERVED: Final = "it belongs to a server, and there is none here."

_TRANSFORMERS: Final[Mapping[str, Rule]] = {
    "max_length": _is("max_new_tokens", _COUNTS_PROMPT.format("max_new_tokens")),
    "min_length": _is("min_tokens", _COUNTS_PROMPT.format("min_tokens"), off=(0,)),
    "min_new_tokens": _is("min_tokens", off=(0,)),
    "max_time": _missing("a text has no limit of time: leave the loop over LLM.stream when the time is up."),
    "stop_strings": _is("stop"),
    "do_sample": _do_sample,
    "use_cache": _left_out("a cache is always used, and changes no text."),
    "use_mtp": _missing(
        "heads for several tokens are not used; speculate=dk.EarlyExit(0.5) drafts with the model itself."
    ),
    "cache_implementation": _left_out(_CACHE),
    "cache_config": _left_out(_CACHE),
    "max_cache_len": _left_out(_CACHE),
    "past_key_values": _left_out(_CACHE),
    "encoder_repetition_penalty": _missing("repetition_penalty looks at prompt and text together.", off=(1, 1.0)),
    "encoder_no_repeat_ngram_size": _missing("no_repeat_ngram_size looks at prompt and text together.", off=(0,)),
    "bad_words_ids": _is("bad_words"),
    "renormalize_logits": _left_out("laws are normalised wherever something depends on it."),
    "forced_bos_token_id": _missing(_CONSTRAINED),
    "forced_eos_token_id": _missing(_CONSTRAINED),
    "remove_invalid_values": _missing("NaN of a model is the error of its row and never becomes a token."),
    "exponential_decay_length_penalty": _missing(
        'max_new_tokens bounds a text, and on_length="close" ends one with a constraint in time.'
    ),
    "suppress_tokens": _suppressed,
    "begin_suppress_tokens": _missing(_CONSTRAINED),
    "token_healing": _missing("end the prompt where a word ends, without a blank."),
    "guidance_scale": _guidance,
    "cfg_scale": _guidance,
    "negative_prompt": _negative_prompt,
    "negative_prompt_ids": _negative_prompt,
    "negative_prompt_attention_mask": _left_out(_NEVER_PADDED),
    "watermarking_config": _watermark,
    "output_attentions": _missing("they are not handed out."),
    "output_hidden_states": _missing("they are not handed out; LLM.model.forward_hidden has them."),
    "output_scores": _output_scores,
    "output_logits": _output_scores,
    "return_dict_in_generate": _left_out("a Completion is always returned."),
    "return_dict": _left_out("a Completion is always returned."),
    "pad_token_id": _left_out(_NEVER_PADDED),
    "bos_token_id": _left_out(_TAKEN),
    "eos_token_id": _missing(_ENDS),
    "decoder_start_token_id": _left_out(_TAKEN),
    "is_assistant": _left_out(_DRAFTED),
    "num_assistant_tokens": _is("num_draft_tokens", strategy="speculative"),
    "num_assistant_tokens_schedule": _left_out(_DRAFTED),
    "assistant_confidence_threshold": _left_out(_DRAFTED),
    "assistant_early_exit": _early_exit,
    "assistant_lookbehind": _left_out(_DRAFTED),
    "target_lookbehind": _left_out(_DRAFTED),
    "assistant_ensemble_weight": _missing(
        "drafts never change a text; dk.Amateur combines the laws of two models.", off=(0, 0.0)
    ),
    "speculation_type": _left_out(_DRAFTED),
    "assistant_model": _is("draft_model", strategy="speculative"),
    "assistant_tokenizer": _left_out("LLM.load loads a draft model together with its tokenizer."),
    "prompt_lookup_num_tokens": _proposer("num_tokens", "prompt-lookup"),
    "max_matching_ngram_size": _proposer("max_ngram", "prompt-lookup"),
    "compile_config": _left_out(_EAGER),
    "disable_compile": _left_out(_EAGER),
    "continuous_batching_config": _left_out(
        "batches are continuous: batch_size says how many prompts decode at a time."
    ),
    "low_memory": _left_out("a smaller batch_size, or fewer beams, take less memory."),
    "prefill_chunk_size": _left_out("long prompts are read in chunks."),
    "dola_layers": _dola,
    "constraints": _missing(_CONSTRAINED, off=()),
    "force_words_ids": _missing(_CONSTRAINED, off=()),
    "generation_config": _missing("its options are given one by one.", off=()),
    "stopping_criteria": _missing("stop=[...] ends a text, or leave the loop over LLM.stream.", off=()),
    "logits_processor": _missing(
        "processors=[...] takes those of decodekit; subclass decodekit.sampling.LogitsProcessor.", off=()
    ),
    "logits_processors": _missing(
        "processors=[...] takes those of decodekit; subclass decodekit.sampling.LogitsProcessor.", off=()
    ),
    "prefix_allowed_tokens_fn": _missing(_CONSTRAINED, off=()),
    "streamer": _missing(_STREAMED, off=()),
    "tokenizer": _missing("it belongs to the model: LLM(model, tokenizer).", off=()),
    "inputs": _missing(_PROMPT, off=()),
    "input_ids": _missing(_PROMPT, off=()),
    "inputs_embeds": _missing("prompts are texts, messages or token ids.", off=()),
    "attention_mask": _left_out(_NEVER_PADDED),
    "synced_gpus": _left_out(_EAGER),
    "custom_generate": _missing("strategy= takes a class of your own; see dk.Strategy.", off=()),
    "transformers_version": _left_out("it only says who wrote the configuration."),
    "torch_dtype": _missing(_LOADED, off=()),
    "trust_remote_code": _missing(_LOADED),
    "return_full_text": _missing("a Completion has the new text alone; put the prompt before it."),
    "details": _left_out("Completion.stats has counts and times."),
    "truncate": _missing("a prompt that is too long is an error of its row; shorten the prompt.", off=()),
    "decoder_input_details": _missing("LLM.score has the log-probabilities of a prompt."),
    "top_n_tokens": _top_logprobs,
}
"""Of transformers: every option of `GenerationConfig` 5.23 that is none of ours, and those of `generate`, of its
pipelines and of text-generation-inference."""

_VLLM: Final[Mapping[str, Rule]] = {
    "max_tokens": _is("max_new_tokens"),
    "n": _several,
    "best_of": _best_of,
    "stop_token_ids": _missing(_ENDS, off=()),
    "ignore_eos": _missing("min_tokens puts the end of a text off: min_tokens equal to max_new_tokens."),
    "prompt_logprobs": _missing("LLM.score has the log-probabilities of a prompt.", off=(0, False)),
    "detokenize": _left_out("a Completion has text and token_ids."),
    "skip_special_tokens": _left_out("special tokens are part of a text where its constraint asks for them."),
    "spaces_between_special_tokens": _left_out("a text is the bytes of its tokens."),
    "include_stop_str_in_output": _missing("the text that ends a completion is none of its text."),
    "output_kind": _missing(_STREAMED, off=(2,)),
    "truncate_prompt_tokens": _missing(
        "a prompt that is too long is an error of its row; shorten the prompt.", off=(-1,)
    ),
    "guided_decoding": _guided,
    "structured_outputs": _guided,
    "guided_json": _schema,
    "guided_json_object": _schema,
    "guided_regex": _regex,
    "guided_choice": _choices,
    "guided_grammar": _grammar,
    "guided_decoding_backend": _left_out("there is one backend."),
    "guided_whitespace_pattern": _missing("dk.JsonSchema(schema, whitespace=...) says which blanks may come.", off=()),
    "structural_tag": _schema,
    "allowed_token_ids": _is("allowed_tokens"),
    "use_beam_search": _switch(strategy="beam"),
    "beam_width": _is("num_beams", off=(1,), strategy="beam"),
    "extra_args": _missing("options are given one by one.", off=()),
    "include_reasoning": _missing("dk.Reasoned(constraint) puts free text before a constraint.", off=(False,)),
    "thinking_token_budget": _missing("dk.Reasoned(constraint) puts free text before a constraint.", off=()),
    "flat_logprobs": _left_out("Completion.logprobs has one entry for every token."),
    "sampling_params": _missing("its options are given one by one.", off=()),
    "use_tqdm": _left_out("LLM.as_completed hands out completions as they finish, for a bar of your own."),
    "lora_request": _missing("load the adapter into the model before LLM(model, tokenizer).", off=()),
    "priority": _left_out(_SERVED),
    "max_num_seqs": _is("batch_size"),
    "max_num_batched_tokens": _left_out("batch_size bounds how many prompts decode at a time."),
    "gpu_memory_utilization": _left_out("the cache grows as it is needed; batch_size bounds it."),
    "max_model_len": _left_out("the context of the model is in its configuration; max_new_tokens bounds a text."),
    "num_speculative_tokens": _is("num_draft_tokens", strategy="speculative"),
    "speculative_model": _is("draft_model", strategy="speculative"),
}
"""Of vLLM: `SamplingParams`, structured outputs under their new and their old names, and some of its engine."""

_OUTLINES: Final[Mapping[str, Rule]] = {
    "output_type": _output_type,
    "schema": _schema,
    "schema_object": _schema,
    "json_schema": _schema,
    "regex": _regex,
    "regex_str": _regex,
    "pattern": _regex,
    "choice": _choices,
    "choices": _choices,
    "cfg": _grammar,
    "cfg_str": _grammar,
    "sampler": _missing('strategy="sample" with temperature, top_k and top_p beside it.', off=()),
    "stop_at": _is("stop"),
    "rng": _missing("seed=... keys the noise.", off=()),
    "whitespace_pattern": _missing("dk.JsonSchema(schema, whitespace=...) says which blanks may come.", off=()),
    "backend": _left_out("there is one backend."),
}

_LLAMA_CPP: Final[Mapping[str, Rule]] = {
    "n_predict": _is("max_new_tokens", off=(-1,)),
    "num_predict": _is("max_new_tokens", off=(-1,)),
    "temp": _is("temperature"),
    "repeat_penalty": _is("repetition_penalty", off=(1, 1.0)),
    "repeat_last_n": _window,
    "penalize_nl": _missing("penalties count every token.", off=(True,)),
    "typ_p": _is("typical_p", off=(1, 1.0)),
    "typical": _is("typical_p", off=(1, 1.0)),
    "tfs_z": _missing("tail-free sampling is not there; min_p is its successor.", off=(1, 1.0)),
    "min_keep": _missing("a truncation keeps one token at least.", off=(0, 1)),
    "dynatemp_range": _dynatemp,
    "dynatemp_exponent": _missing("it is the third number of dynamic_temperature=(low, high, exponent).", off=(1, 1.0)),
    "mirostat": _mirostat,
    "mirostat_tau": _is("tau", strategy="mirostat"),
    "mirostat_ent": _is("tau", strategy="mirostat"),
    "mirostat_eta": _is("eta", strategy="mirostat"),
    "mirostat_lr": _is("eta", strategy="mirostat"),
    "grammar": _grammar,
    "dry_penalty_last_n": _is("dry_window", off=(-1,)),
    "dry_sequence_breakers": _missing(
        "dry_breakers takes token ids: [tokenizer.encode(text, add_special_tokens=False), ...].", off=()
    ),
    "cache_prompt": _left_out(_CACHE),
    "n_probs": _top_logprobs,
    "post_sampling_probs": _missing("log-probabilities are those of the model's own law, before processors."),
    "samplers": _missing('order="llamacpp" puts the options into the order of llama.cpp.', off=()),
    "sampler_seq": _missing('order="llamacpp" puts the options into the order of llama.cpp.', off=()),
    "n_keep": _left_out("a text ends where the context is full; nothing is shifted out."),
    "n_discard": _left_out("a text ends where the context is full; nothing is shifted out."),
    "t_max_predict_ms": _missing(
        "a text has no limit of time: leave the loop over LLM.stream when the time is up.", off=(0,)
    ),
    "t_max_prompt_ms": _missing("a prompt has no limit of time.", off=(0,)),
    "n_indent": _missing("dk.JsonSchema(schema, whitespace=...) says which blanks may come.", off=(0,)),
    "id_slot": _left_out(_SERVED),
    "slot_id": _left_out(_SERVED),
    "return_tokens": _left_out("a Completion has text and token_ids."),
    "return_progress": _missing(_STREAMED),
    "response_fields": _left_out("a Completion has all of them."),
    "timings_per_token": _left_out("Completion.stats has counts and times."),
    "lora": _missing("load the adapter into the model before LLM(model, tokenizer).", off=()),
    "adaptive_target": _missing('strategy="mirostat" keeps a level of surprise, which is another law.', off=(-1, -1.0)),
    "adaptive_decay": _missing('strategy="mirostat" keeps a level of surprise, which is another law.', off=()),
    "n_cmpl": _several,
    "n_ctx": _left_out("the context of the model is in its configuration; max_new_tokens bounds a text."),
    "num_ctx": _left_out("the context of the model is in its configuration; max_new_tokens bounds a text."),
    "ctx_size": _left_out("the context of the model is in its configuration; max_new_tokens bounds a text."),
    "n_batch": _left_out("batch_size says how many prompts decode at a time."),
    "n_threads": _missing("torch.set_num_threads(n) says how many threads torch has.", off=()),
    "num_thread": _missing("torch.set_num_threads(n) says how many threads torch has.", off=()),
    "n_gpu_layers": _missing("LLM.load(name, device_map=...) spreads a model over devices.", off=()),
    "num_gpu": _missing("LLM.load(name, device_map=...) spreads a model over devices.", off=()),
    "num_batch": _left_out("batch_size says how many prompts decode at a time."),
    "draft_max": _is("num_draft_tokens", strategy="speculative"),
    "draft_min": _left_out(_DRAFTED),
    "draft_p_min": _left_out(_DRAFTED),
    "format": _format,
    "options": _missing("options are given one by one.", off=()),
    "keep_alive": _left_out("a model stays as long as its LLM."),
    "think": _missing("dk.Reasoned(constraint) puts free text before a constraint."),
    "raw": _left_out("a text is taken as it is; messages go through the chat template."),
    "system": _missing('it is a message: LLM.generate([{"role": "system", ...}, ...]).', off=()),
}
"""Of llama.cpp and Ollama."""

_OPENAI: Final[Mapping[str, Rule]] = {
    "max_completion_tokens": _is("max_new_tokens"),
    "max_output_tokens": _is("max_new_tokens"),
    "max_tokens_to_sample": _is("max_new_tokens"),
    "response_format": _schema,
    "text_format": _schema,
    "response_model": _schema,
    "stop_sequences": _is("stop"),
    "top_logprobs": _top_logprobs,
    "messages": _missing(_PROMPT, off=()),
    "prompt": _missing(_PROMPT, off=()),
    "input": _missing(_PROMPT, off=()),
    "instructions": _missing('they are a message: LLM.generate([{"role": "system", ...}, ...]).', off=()),
    "model": _missing("the model is loaded before: LLM.load(name).", off=()),
    "stream": _missing(_STREAMED),
    "stream_options": _left_out("Completion.stats has counts and times."),
    "tools": _tools,
    "functions": _tools,
    "tool_choice": _tool_choice,
    "function_call": _tool_choice,
    "parallel_tool_calls": _left_out("dk.tools says whether several calls may come."),
    "echo": _missing("a Completion has the new text alone; put the prompt before it."),
    "suffix": _missing('strategy="suffix" is look-ups in earlier text; nothing is filled in before a suffix.', off=()),
    "user": _left_out(_SERVED),
    "metadata": _left_out(_SERVED),
    "store": _left_out(_SERVED),
    "service_tier": _left_out(_SERVED),
    "safety_identifier": _left_out(_SERVED),
    "prompt_cache_key": _left_out(_SERVED),
    "timeout": _missing("a text has no limit of time: leave the loop over LLM.stream when the time is up.", off=()),
    "reasoning_effort": _missing("it belongs to the chat template of the model; write the prompt with it.", off=()),
    "reasoning": _missing("it belongs to the chat template of the model; write the prompt with it.", off=()),
    "chat_template_kwargs": _missing(
        "write the prompt with tokenizer.apply_chat_template(..., tokenize=False).", off=()
    ),
    "verbosity": _missing("max_new_tokens bounds a text.", off=()),
    "prediction": _missing('speculate="prompt-lookup" drafts from the prompt.', off=()),
    "logits_bias": _is("logit_bias"),
}
"""Of OpenAI, Anthropic and Instructor."""

_MLX: Final[Mapping[str, Rule]] = {
    "repetition_context_size": _window,
    "presence_context_size": _window,
    "frequency_context_size": _window,
    "min_tokens_to_keep": _missing("a truncation keeps one token at least.", off=(0, 1)),
    "xtc_special_tokens": _missing("dk.XTC(probability, spared=(...)) has token ids that it never removes.", off=()),
    "max_kv_size": _left_out(_CACHE),
    "prompt_cache": _left_out(_CACHE),
    "kv_bits": _missing("keys and values are kept as the model gives them.", off=()),
    "kv_group_size": _left_out(_CACHE),
    "quantized_kv_start": _left_out(_CACHE),
    "prefill_step_size": _left_out("long prompts are read in chunks."),
    "prompt_progress_callback": _missing(_STREAMED, off=()),
    "verbose": _missing(_STREAMED),
}


def _table() -> dict[str, Known]:
    """All libraries in one; who comes first says what a name means."""
    libraries = {
        "transformers": _TRANSFORMERS,
        "vLLM": _VLLM,
        "Outlines": _OUTLINES,
        "llama.cpp": _LLAMA_CPP,
        "OpenAI": _OPENAI,
        "mlx-lm": _MLX,
    }
    shared = {
        "max_tokens": ("OpenAI", "Outlines", "mlx-lm"),
        "n": ("OpenAI",),
        "temp": ("mlx-lm",),
        "json_schema": ("llama.cpp",),
        "stop_token_ids": ("Outlines",),
        "ignore_eos": ("llama.cpp",),
        "grammar": ("vLLM",),
        "regex": ("vLLM",),
        "choice": ("vLLM",),
        "return_full_text": ("text-generation-inference",),
        "num_predict": ("Ollama",),
        "num_ctx": ("Ollama",),
        "format": ("Ollama",),
        "stop_sequences": ("Anthropic",),
        "max_tokens_to_sample": ("Anthropic",),
        "response_model": ("Instructor",),
    }
    only_others = {"num_predict", "num_ctx", "format", "stop_sequences", "max_tokens_to_sample", "response_model"}
    found: dict[str, Known] = {}
    for library, rules in libraries.items():
        for name, rule in rules.items():
            others = shared.get(name, ())
            names = others if name in only_others else (library, *others)
            found.setdefault(name, Known(", ".join(names), rule))
    return found


KNOWN_OPTIONS: Final[Mapping[str, Known]] = _table()
"""Options of other libraries by name; none of them is an option of decodekit, but for ``n`` and
``do_sample``, which mean something else there."""
