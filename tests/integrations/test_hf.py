"""`custom_generate=dk.hf()` returns what `generate` of transformers returns, and drops nothing that it is given."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    TextIteratorStreamer,
    TopKLogitsWarper,
)
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput

import decodekit as dk
from decodekit.errors import LengthError, OptionError, UselessOptionError
from decodekit.integrations.folder import FOLDER
from decodekit.integrations.inside_transformers.call import Caller
from tests.integrations.calls import CONSTRAINT, TOKENIZER, WIDTH, model_of, prompts
from tests.models.architectures import build
from tests.sizes import few, thinned

ARCHITECTURES = ["llama", "gpt2", "qwen2", "mistral", "gemma2", "opt", "gpt_neox", "mixtral", "bloom", "lfm2"]
ARCHITECTURE = thinned("name", ARCHITECTURES, keep=("llama",))
NEW = 8
pytestmark = pytest.mark.filterwarnings("ignore:.*not satisfy the constraint")  # short texts, of which some are cut


def inputs() -> dict[str, Any]:
    return {**prompts(), "max_new_tokens": NEW}


def both(name: str, **options: Any) -> tuple[Any, Any]:
    """What transformers gives and what we give."""
    given = {**inputs(), **options}
    return model_of(name).generate(**given), model_of(name).generate(**given, custom_generate=dk.hf())


class Even(LogitsProcessor):
    """Even tokens only."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 1::2] = -torch.inf  # in place, as many do
        return scores


class AtThree(StoppingCriteria):
    """Ends a text at a multiple of three."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids[:, -1] % 3 == 0


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.tolist())

    def end(self) -> None:
        self.seen.append("end")


GREEDY: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[5, 6], [7]]},
    "biases": {"sequence_bias": {(5,): 2.0, (6, 7): 5.0}, "suppress_tokens": [9], "begin_suppress_tokens": [10, 11]},
    "ends": {"eos_token_id": [2, 9, 33, 40, 44, 97], "min_new_tokens": 3, "min_length": 11},
    "no end": {"eos_token_id": -1},
    "forced": {"forced_eos_token_id": 2, "exponential_decay_length_penalty": (3, 1.5), "renormalize_logits": True},
    "processor": {"logits_processor": [Even()], "remove_invalid_values": True},
    "prefix": {"prefix_allowed_tokens_fn": lambda number, row: [10 + number, 20 + number, int(row[-1]) // 2 + 3]},
    "guidance": {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[50, 60], [70, 80]])},
    "criterion": {"stopping_criteria": [AtThree()]},
    "max_length": {"max_new_tokens": None, "max_length": WIDTH + 3},
    "config": {"generation_config": GenerationConfig(repetition_penalty=1.5, max_new_tokens=4), "max_new_tokens": None},
}


@few(5)
@pytest.mark.parametrize("case", GREEDY)
def test_greedy(case: str) -> None:
    theirs, ours = both("llama", **GREEDY[case])
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("case", ["plain", "ends", "processor", "prefix", "criterion"])
def test_beams(case: str) -> None:
    options = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.5, "early_stopping": True}
    theirs, ours = both("llama", **options, **GREEDY[case])
    assert ours.tolist() == theirs.tolist()


def assert_equal_steps(ours: Any, theirs: Any, rows: slice = slice(None)) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        torch.testing.assert_close(one[rows], other[rows], rtol=1e-3, atol=1e-3)


DICT = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@ARCHITECTURE
def test_greedy_with_scores(name: str) -> None:
    theirs, ours = both(name, **DICT, no_repeat_ngram_size=2, bad_words_ids=[[1, 0]])
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert_equal_steps(ours.logits, theirs.logits)
    assert_equal_steps(ours.scores, theirs.scores)
    assert ours.past_key_values is None and ours.attentions is None
    model = model_of(name)
    transitions = model.compute_transition_scores(ours.sequences, ours.scores, normalize_logits=True)
    wanted = model.compute_transition_scores(theirs.sequences, theirs.scores, normalize_logits=True)
    torch.testing.assert_close(transitions, wanted, rtol=1e-3, atol=1e-3)


@ARCHITECTURE
def test_beams_with_scores(name: str) -> None:
    theirs, ours = both(name, **DICT, num_beams=3, num_return_sequences=2, no_repeat_ngram_size=2)
    assert isinstance(ours, GenerateBeamDecoderOnlyOutput)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert ours.beam_indices.tolist() == theirs.beam_indices.tolist()
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-4, atol=1e-4)
    assert_equal_steps(ours.logits, theirs.logits)
    assert_equal_steps(ours.scores, theirs.scores)


@ARCHITECTURE
def test_samples(name: str) -> None:
    """Drawn by another noise: shapes are compared, and the scores of the first step, before anything is drawn."""
    options = {"do_sample": True, "num_return_sequences": 2, "top_k": 10, "top_p": 0.7, "temperature": 0.7, **DICT}
    theirs, ours = both(name, **options)
    assert ours.sequences.shape == theirs.sequences.shape
    assert_equal_steps(ours.scores[:1], theirs.scores[:1])
    for step, row in ((step, row) for step in range(NEW) for row in range(4)):
        assert ours.scores[step][row, ours.sequences[row, WIDTH + step]] > -torch.inf
    again = [model_of(name).generate(**inputs(), **options, custom_generate=dk.hf(seed=seed)) for seed in (5, 5, 6)]
    assert again[0].sequences.tolist() == again[1].sequences.tolist() != again[2].sequences.tolist()


@ARCHITECTURE
def test_left_padding_changes_nothing(name: str) -> None:
    alone = {
        **inputs(),
        "input_ids": inputs()["input_ids"][1:, 2:],
        "attention_mask": inputs()["attention_mask"][1:, 2:],
    }
    for options in ({}, {"do_sample": True}, {"num_beams": 2}):
        decoding = dk.hf(seed=1) if "do_sample" in options else dk.hf()
        padded = model_of(name).generate(**inputs(), **options, custom_generate=decoding)
        single = model_of(name).generate(**alone, **options, custom_generate=decoding)
        assert padded[1, WIDTH:].tolist()[: single.shape[1] - WIDTH + 2] == single[0, WIDTH - 2 :].tolist()


def test_padding_on_the_right_is_left_out() -> None:
    ids, mask = (inputs()[name].roll(-2, dims=1) for name in ("input_ids", "attention_mask"))
    mask[0], ids[0] = 1, inputs()["input_ids"][0]
    ours = model_of("llama").generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW, custom_generate=dk.hf())
    left = model_of("llama").generate(**inputs(), custom_generate=dk.hf())
    assert ours[:, :WIDTH].tolist() == ids.tolist()
    assert ours[:, WIDTH:].tolist() == left[:, WIDTH:].tolist()


@ARCHITECTURE
@pytest.mark.parametrize("kind", ["assistant", "lookup", "early exit"])
def test_assisted_is_greedy(name: str, kind: str) -> None:
    if name == "lfm2":
        with pytest.raises((OptionError, ValueError)):
            both(name, prompt_lookup_num_tokens=2)
        return
    plain, _ = both(name)
    options: dict[str, Any] = {
        "assistant": {"assistant_model": model_of(name), "num_assistant_tokens": 2},
        "lookup": {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 1},
        "early exit": {"assistant_early_exit": 1},
    }[kind]
    ours = model_of(name).generate(**inputs(), **options, custom_generate=dk.hf())
    assert ours.tolist() == plain.tolist()


def test_streamers() -> None:
    theirs, passed, bound = Recorder(), Recorder(), Recorder()
    model, given = model_of("llama"), {**inputs(), "eos_token_id": [2, 9, 40, 97]}
    model.generate(**given, streamer=theirs)
    model.generate(**given, streamer=passed, custom_generate=dk.hf())
    model.generate(**given, custom_generate=dk.hf(streamer=bound))
    assert passed.seen == bound.seen == theirs.seen
    assert passed.seen[-1] == "end" and len(passed.seen) > 3
    with pytest.raises(OptionError, match="nothing to stream"):
        model.generate(**inputs(), custom_generate=dk.hf(strategy=dk.Beam(2), streamer=Recorder()))


def test_a_streamer_ends_when_decoding_fails() -> None:
    class Failing(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    streamer = TextIteratorStreamer(TOKENIZER, timeout=20)
    given = {"input_ids": inputs()["input_ids"][:1], "logits_processor": [Failing()], "streamer": streamer}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            model_of("llama").generate(**given, custom_generate=dk.hf())
        except ZeroDivisionError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert "".join(streamer)
    thread.join()
    assert len(failed) == 1


STRATEGIES: dict[str, Any] = {
    "greedy": dk.Greedy(),
    "lookup": dk.Greedy(speculate=dk.PromptLookup()),
    "sample": dk.Sample(temperature=0.8, seed=4),
    "samples": dk.Sample(temperature=0.8, min_p=0.01, seed=4, num_return_sequences=2),
    "beams": dk.Beam(3, num_return_sequences=2),
    "particles": dk.Particles(4, strategy=dk.Sample(seed=3)),
}


@pytest.mark.parametrize(
    ("kind", "is_constrained"),
    [(kind, True) for kind in STRATEGIES] + [(kind, False) for kind in STRATEGIES if kind != "particles"],
)
def test_the_tokens_are_those_of_llm_generate(kind: str, is_constrained: bool) -> None:
    options: dict[str, Any] = {"strategy": STRATEGIES[kind], "constraint": CONSTRAINT if is_constrained else None}
    llm = dk.LLM(model_of("llama"), TOKENIZER)
    completions = llm.generate(
        {name: inputs()[name] for name in ("input_ids", "attention_mask")},
        **options,
        max_new_tokens=NEW,
        on_length="return",
    )
    wanted = [one.token_ids for each in completions for one in (each, *each.others)]
    ours = model_of("llama").generate(**inputs(), custom_generate=dk.hf(tokenizer=TOKENIZER, **options))
    wanted = wanted if len(wanted) == len(ours) else [one.token_ids for one in completions]
    found = [tuple(row[WIDTH : WIDTH + len(tokens)].tolist()) for row, tokens in zip(ours, wanted, strict=True)]
    assert found == wanted
    if is_constrained:
        masked = model_of("llama").generate(
            **inputs(), **DICT, custom_generate=dk.hf(tokenizer=TOKENIZER, strategy=dk.Greedy(), constraint=CONSTRAINT)
        )
        assert int((masked.scores[0] > -torch.inf).sum(dim=-1).max()) <= 4  # a, c, ab


def test_torch_seeds() -> None:
    """Without a seed, torch's generator says which texts are drawn, other ones for every prompt."""
    ids = inputs()["input_ids"][:1].expand(3, -1)
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(
            model_of("llama").generate(ids, do_sample=True, custom_generate=dk.hf(), max_new_tokens=NEW).tolist()
        )
    assert texts[0] == texts[1] != texts[2]
    assert len({tuple(row) for row in texts[0]}) == 3
    before = torch.random.get_rng_state()
    model_of("llama").generate(ids, custom_generate=dk.hf(), max_new_tokens=2)
    assert torch.equal(torch.random.get_rng_state(), before)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, {}, "output_attentions"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, {}, "output_hidden_states"),
    "a cache": ({"past_key_values": DynamicCache()}, {}, "past_key_values"),
    "positions": ({"position_ids": torch.arange(WIDTH).expand(2, -1) + 1}, {}, "position_ids"),
    "phrases": ({"force_words_ids": [[5]], "num_beams": 2}, {}, "force_words_ids"),
    "encoder": ({"encoder_repetition_penalty": 1.2}, {}, "encoder_repetition_penalty"),
    "temperatures": ({"do_sample": True, "temperature": 0.5}, {"strategy": dk.Sample(temperature=0.9)}, "temperature"),
    "beams": ({"num_beams": 3}, {"strategy": dk.Sample()}, "num_beams"),
    "lengths": ({}, {"max_new_tokens": 3}, "max_new_tokens"),
    "greedy": ({"do_sample": True}, {"strategy": "greedy"}, "do_sample"),
    "top_p": ({"top_p": 0.4}, {"strategy": dk.Sample(top_p=0.5)}, "top_p"),
    "no tokenizer": ({}, {"constraint": CONSTRAINT}, "tokenizer"),
    "scores of several": (DICT, {"strategy": dk.ContrastiveSearch()}, "output_scores"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(case: str) -> None:
    call, ours, place = REFUSED[case]
    with pytest.raises(OptionError) as caught:
        model_of("llama").generate(**inputs(), **call, custom_generate=dk.hf(**ours))
    assert place in {fault.at for fault in (caught.value, *caught.value.faults)}


def test_options_that_belong_to_no_call() -> None:
    with pytest.raises(OptionError, match="2 options"):
        dk.hf(logprobs=True, on_error="return")
    with pytest.raises(LengthError, match="max_new_tokens=8"):
        model_of("llama").generate(
            **inputs(), custom_generate=dk.hf(constraint=CONSTRAINT, tokenizer=TOKENIZER, on_length="error")
        )


@pytest.mark.parametrize("kind", STRATEGIES)
def test_texts_that_were_cut_are_warned_of_once(kind: str) -> None:
    """What is returned does not satisfy the constraint, unless that was asked for or it fits by chance."""
    given: dict[str, Any] = {"tokenizer": TOKENIZER, "strategy": STRATEGIES[kind]}
    cut = dk.Regex("[ab]{40}")
    with pytest.warns(UserWarning, match=r"(?s)not satisfy the constraint: DK101 .*max_new_tokens=8 .* try a la") as w:
        rows = model_of("llama").generate(**inputs(), custom_generate=dk.hf(constraint=cut, **given))
    (warning,) = w
    assert warning.filename == __file__ and f"{len(rows)} texts" in str(warning.message)
    assert "prompt 0" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_of("llama").generate(**inputs(), custom_generate=dk.hf(constraint=cut, on_length="return", **given))
        model_of("llama").generate(**inputs(), custom_generate=dk.hf(constraint=dk.Regex("[ab]*"), **given))


def test_the_configuration_of_a_model_holds_unless_a_strategy_is_a_value() -> None:
    model = build("llama")
    model.generation_config.update(repetition_penalty=1.5, do_sample=True, temperature=1e-3, top_k=0)
    plain, penalised = both("llama"), both("llama", repetition_penalty=1.5)
    cold = model.generate(**inputs(), custom_generate=dk.hf(seed=1))
    assert cold.tolist() == penalised[0].tolist() != plain[0].tolist()
    whole = model.generate(**inputs(), custom_generate=dk.hf(strategy=dk.Greedy()))
    assert whole.tolist() == plain[0].tolist()
    given = model.generate(**inputs(), repetition_penalty=1.5, custom_generate=dk.hf(strategy=dk.Greedy()))
    assert given.tolist() == penalised[0].tolist()


def test_options_of_decodekit_come_before_the_defaults_of_transformers() -> None:
    """top_k is 50 there unless somebody says something else."""
    given = {**inputs(), **DICT, "do_sample": True}
    by_default = model_of("llama").generate(**given, custom_generate=dk.hf())
    ours = model_of("llama").generate(**given, custom_generate=dk.hf(top_k=7))
    assert int((by_default.scores[0] > -torch.inf).sum(dim=-1).max()) == 50
    assert int((ours.scores[0] > -torch.inf).sum(dim=-1).max()) == 7


def test_a_folder_for_the_hub() -> None:
    model, given = model_of("llama"), {**inputs(), "custom_generate": str(FOLDER), "trust_remote_code": True}
    ours = model.generate(**given, tokenizer=TOKENIZER, constraint=CONSTRAINT)
    wanted = model.generate(**inputs(), custom_generate=dk.hf(tokenizer=TOKENIZER, constraint=CONSTRAINT))
    assert ours.tolist() == wanted.tolist()
    assert model.generate(**given, num_beams=2).tolist() == both("llama", num_beams=2)[0].tolist()
    with pytest.raises(UselessOptionError, match="synced_gpus"):
        model.generate(**given, synced_gpus=True)


def test_the_caller_is_found_by_its_model_alone() -> None:
    def generate(self: object, custom_generate: object, **kwargs: Any) -> Caller:
        return Caller.of(self)

    one, other = object(), object()
    assert generate(one, None, temperature=2, top_k=None).options == {"temperature": 2}
    assert (lambda: Caller.of(other))() == Caller()


def test_theirs_inside_of_ours() -> None:
    llm = dk.LLM(model_of("llama"), TOKENIZER)
    ids = inputs()["input_ids"][0].tolist()
    even = llm.generate(ids, processors=[Even()], max_new_tokens=NEW)
    assert [*even.token_ids] == both("llama", logits_processor=[Even()])[0][0, WIDTH:].tolist()
    warped = llm.generate(ids, strategy="sample", processors=[TopKLogitsWarper(1), Even()], max_new_tokens=NEW)
    assert warped.error is not None or all(token % 2 == 0 for token in warped.token_ids)
    narrow = dk.Sample(processors=[TopKLogitsWarper(4)])
    assert narrow.pipeline.processors == (dk.TopK(4),)
    stopped = llm.generate(ids, stop=[AtThree(), "zz"], max_new_tokens=NEW)
    assert stopped.token_ids[-1] % 3 == 0 and all(token % 3 for token in stopped.token_ids[:-1])
    assert stopped.finish_reason == "stop"
    with llm.engine() as engine:  # rows of equal batch_key have rules of their own
        rules = [AtThree(), None, lambda row, scores: row.shape[1] == WIDTH + 2]
        handles = [engine.submit(ids, stop=rule, max_new_tokens=NEW) for rule in rules]
        lengths = [len(handle.result().token_ids) for handle in handles]
    assert lengths == [len(stopped.token_ids), NEW, 2]
