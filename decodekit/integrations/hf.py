"""decodekit inside of transformers' `generate`: a function for its argument ``custom_generate``.

    model.generate(**inputs, max_new_tokens=64, custom_generate=dk.hf(constraint=Invoice, tokenizer=tokenizer))

What `generate` prepared is read by `call`, turned into a strategy by `translation`, decoded by the loops of decodekit,
and returned as `generate` returns it, by `outputs`. No option is dropped: it is taken, or named in an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, Unpack

import torch
from torch import Tensor

from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.prompt import encode
from decodekit.decoding.request.updates import Result, Update
from decodekit.errors import DecodekitError, DecodingError, LengthError, OptionError, raise_faults, warn
from decodekit.integrations.inside_transformers.call import TheirCall
from decodekit.integrations.inside_transformers.option_translation import Translation
from decodekit.integrations.inside_transformers.outputs import (
    ReturnedText,
    Taps,
    TokenStreamer,
    WatchedBeams,
    output_of,
)
from decodekit.llm.completions import completed, length_error
from decodekit.llm.plans.option_rules import seeds_fit
from decodekit.llm.plans.plan import Plan
from decodekit.llm.vocabulary_cache import facts_of
from decodekit.models.causal_lm import CausalLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.sampling.checks import plain
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.strategy import Beam, Guidance
from decodekit.strategy.options.generate_options import GenerateKeywords, GenerateOptions
from decodekit.vocabulary import Vocabulary

UNUSED: Final = {
    "logprobs": "output_scores=True or output_logits=True of generate",
    **dict.fromkeys(
        ("tools", "enable_thinking", "chat_template_kwargs"), "tokenizer.apply_chat_template of the prompt"
    ),
    "split_special_tokens": "split_special_tokens of the tokenizer, which makes the prompt",
    "max_retries": "LLM(model, tokenizer).generate, which knows the prompt as it was given",
    "on_error": "nothing: generate has no place for the error of a row, so an error is raised",
}
"""Options of `LLM.generate` that `generate` of transformers has no place for, and what to use."""

_FRAMEWORKS: Final = ("decodekit", "transformers", "transformers_modules", "torch")


def hf(
    *, tokenizer: Any = None, streamer: Any = None, assistant_model: Any = None, **options: Unpack[GenerateKeywords]
) -> Decoding:
    """A function for ``model.generate(**inputs, custom_generate=dk.hf(...))``, which returns what `generate` returns.

    Everything that `generate` is given, or finds in the model's generation configuration, holds; an option that is
    given here comes before one of the configuration, and is in conflict with another value in the same call. A
    ``strategy=`` that is a value, such as ``dk.Sample(temperature=0.7)``, is complete: the sampling options of the
    model's configuration do not hold for it, as in `LLM.generate`.

    Args:
        tokenizer: of the model; needed for a constraint and for ``stop`` strings.
        streamer: as in `generate`; it may be given there, too.
        assistant_model: a smaller model of transformers that drafts; the same.
        options: those of `LLM.generate`. ``seed`` None: with sampling, every prompt has a seed of its own, drawn from
            torch's generator, so that ``torch.manual_seed`` fixes the texts; an integer gives the texts of
            `LLM.generate` with that seed. ``on_length`` is "return" unless given, with a
            warning for a text that was cut before its constraint was satisfied.

    Raises:
        OptionError: (when called, with all faults) an option of `generate` that decodekit does not have, or two that
            contradict each other.
        DecodekitError: (when called) a row failed.
    """
    faults: list[DecodekitError] = [
        OptionError(f"{name}={options[name]!r:.60} has no place in generate", at=name, hint=hint)  # type: ignore[literal-required]
        for name, hint in UNUSED.items()
        if name in options
    ]
    raise_faults(faults)
    return Decoding(tokenizer, streamer, assistant_model, GenerateOptions.of(**options), frozenset(options))


@dataclass(frozen=True)
class Decoding:
    """The function that `hf` makes: called by ``generate`` in place of a loop of its own; `given` names the options."""

    tokenizer: Any
    streamer: Any
    assistant_model: Any
    options: GenerateOptions
    given: frozenset[str]

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode as `generate` asks; see `hf`.

        Args:
            model: of transformers.
            input_ids: int64 [N, S], expanded for beams or samples.
            logits_processor, stopping_criteria: as `generate` prepared them.
            generation_config: whole.
            model_kwargs: for the forward pass.

        Returns:
            int64 [N', S + T], or a `GenerateDecoderOnlyOutput` or `GenerateBeamDecoderOnlyOutput`.
        """
        call = TheirCall.of(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        faults = list(call.faults())
        lm = HuggingFaceLM(call.model)
        needs_text = self.options.constraint is not None or bool(self.options.stop)
        if needs_text and self.tokenizer is None:
            cause = "a constraint and stop strings need to know the tokens, and generate keeps its tokenizer for itself"
            faults.append(OptionError(cause, at="tokenizer", hint="dk.hf(tokenizer=tokenizer, ...)"))
        vocabulary, canonical = _vocabulary_of(self.tokenizer, lm, call.eos_token_ids)
        assistant = self.assistant_model if self.assistant_model is not None else call.caller.assistant_model
        translation = Translation(call, self.options, self.given, assistant)
        options, rules = translation.options(faults), translation.stop_rules()
        streamer = self.streamer if self.streamer is not None else call.caller.streamer
        faults += seeds_fit(options.seed, len(call.rows.tokens))
        plan = Plan.of(lm, vocabulary, lambda: canonical, options, faults, self.tokenizer)
        plan = replace(plan, stop_rules=(*plan.stop_rules, *rules))
        is_bound, is_batch_given = self.streamer is not None, "batch_size" in self.given
        run_of_call = _Run(call, plan, streamer, self.tokenizer, is_bound, is_batch_given)
        output, cut = run_of_call.output(), run_of_call.cut
        # `generate` returns tokens, and has no place for an error beside them.
        if cut and "on_length" not in self.given:
            _, first = min(cut, key=itemgetter(0))
            what = "a text does" if len(cut) == 1 else f"{len(cut):,} texts do"
            warn(f"{what} not satisfy the constraint: {first}", _FRAMEWORKS)
        return output

    @property
    def __name__(self) -> str:
        """The name by which `generate` may call it."""
        return "decodekit"


@dataclass
class _Run:
    """One call, checked and ready."""

    call: TheirCall
    plan: Plan
    streamer: Any
    tokenizer: Any
    is_bound: bool  # `generate` knows nothing of the streamer, and has not shown it the prompts
    is_batch_given: bool  # the plan says how many prompts decode at a time; otherwise all do
    cut: list[tuple[int, LengthError]] = field(default_factory=list)
    """Of the returned texts that were cut before their constraint was satisfied, in the order in which they ended, the
    number of the prompt, and what `LLM.generate` would say."""

    def output(self) -> Any:
        """Decode, and return what `generate` returns."""
        call, plan = self.call, self.plan
        num_prompts = len(call.rows.tokens)
        is_beam = isinstance(plan.strategy, Beam)
        wants_rows = call.config.return_dict_in_generate and (call.config.output_scores or call.config.output_logits)
        is_several = plan.search is not None or plan.choice is not None
        if wants_rows and is_several and not is_beam:
            cause = f"output_scores and output_logits are those of one text, and {plan.strategy!r:.60} has several"
            raise OptionError(cause, at="output_scores", hint="a strategy of single texts, or beams")
        if self.streamer is not None and is_several:
            raise OptionError(f"{plan.strategy!r:.60} has nothing to stream before its end", at="streamer")
        num_rows = plan.batch_size if self.is_batch_given else num_prompts
        plan.check_memory(min(num_rows, num_prompts), min(num_rows, num_prompts))
        taps, watched = None, None
        if wants_rows:
            taps = None if is_beam else Taps()
            pipeline = plan.pipeline if taps is None else taps.along(plan.pipeline)
            self.plan = plan = replace(plan, pipeline=pipeline, masks="always")
        if is_beam and call.config.return_dict_in_generate:
            assert isinstance(plan.strategy, Beam)
            watched = WatchedBeams(plan.model, plan, plan.strategy, keeps_logits=bool(wants_rows))
        if is_several:
            texts = self._searched(num_rows, watched)
        else:
            texts = self._streamed(num_rows * self._num_texts)
        return output_of(call, texts, taps, watched, getattr(plan.strategy, "num_beams", 1))

    @property
    def _num_texts(self) -> int:
        """Texts of a prompt."""
        return max(self.plan.num_samples, self.call.num_returned)

    def _requests(self, num_samples: int) -> Iterator[Request]:
        """A request for each prompt and sample."""
        plan, contrast = self.plan, self.plan.contrast
        for number, (tokens, seed) in enumerate(zip(self.call.rows.tokens, self._seeds(), strict=True)):
            given = contrast.negative_prompt_of(number) if isinstance(contrast, Guidance) else None
            negative: list[int] = []
            if given is not None:
                negative = encode(self.tokenizer, given, f"negative prompt {number}", plan.vocabulary.size)
            for sample in range(num_samples):
                thought, matcher = plan.begun(tokens, tokens, plan.chat)
                yield Request(tokens, matcher, seed, sample, negative_prompt=negative, thought=thought)

    def _seeds(self) -> list[int]:
        num_prompts = len(self.call.rows.tokens)
        if self.plan.is_drawn_unseeded:
            return [int(seed) for seed in torch.randint(1 << 62, (num_prompts,))]
        seeds = iter(self.plan.seeds)
        return [int(plain(next(seeds))) for _ in range(num_prompts)]

    def _streamed(self, num_rows: int) -> list[ReturnedText]:
        """Single texts, whose tokens are streamed."""
        num_samples = self._num_texts
        num_texts = len(self.call.rows.tokens) * num_samples
        streamer = None
        if self.streamer is not None:
            streamer = TokenStreamer(self.streamer, num_texts, self.call.pad_token_id)
        results: dict[int, Result] = {}
        try:
            if self.is_bound:
                self.streamer.put(self.call.rows.given.repeat_interleave(num_samples, dim=0))
            requests = self._requests(num_samples)
            for update in decode_texts(self.plan.model, self.plan, num_rows, requests):
                if streamer is not None:
                    streamer.push(update.index, update.token_ids, is_last=update.result is not None)
                if update.result is not None:
                    prompt = update.index // num_samples
                    result = results[update.index] = self._checked(update, update.result, prompt)
                    self._note(prompt, result.token_ids, result.finish_reason, result.is_satisfied)
        finally:
            if streamer is not None:
                streamer.end()  # whoever waits for the rest must not wait for ever
        return [ReturnedText(index // num_samples, results[index].token_ids) for index in range(num_texts)]

    def _searched(self, num_rows: int, watched: WatchedBeams | None) -> list[ReturnedText]:
        """Prompts of several hypotheses or samples each."""
        plan, requests = self.plan, self._requests(1)
        updates: Iterator[Update]
        if watched is not None:
            updates = run(watched, plan, num_rows, requests)
        elif plan.search is not None:
            updates = plan.search.decode(plan.model, plan, num_rows, requests)
        else:
            updates = decode_texts(plan.model, plan, num_rows, requests, plan.num_samples)
        found: dict[int, list[ReturnedText]] = {}
        for update in updates:
            if update.result is not None:
                self._checked(update, update.result, update.index)
                found[update.index] = self._several(update.index, update.result)
        return [text for prompt in range(len(found)) for text in found[prompt]]

    def _several(self, prompt: int, result: Result) -> list[ReturnedText]:
        """The texts of a prompt, best first, as many as are wanted."""
        if self.plan.choice is not None:
            best = completed(self.plan, prompt, "", result)
            if best.error is not None:
                raise _as_raised(best.error)
            every = [best, *best.others][: self.call.num_returned]
            for one in every:
                self._note(prompt, one.token_ids, one.finish_reason, one.value is not None)
            return [ReturnedText(prompt, one.token_ids, one.score) for one in every]
        results = [result, *(one.result for one in result.others if one.result is not None)]
        for each in results:
            self._note(prompt, each.token_ids, each.finish_reason, each.is_satisfied)
        return [ReturnedText(prompt, one.token_ids, one.score) for one in results]

    def _note(self, prompt: int, tokens: Sequence[int], reason: str, is_satisfied: bool) -> None:
        """Remember a returned text that was cut before its constraint was satisfied."""
        if self.plan.grammar is not None and reason == "length" and not is_satisfied:
            text = self.plan.vocabulary.decode(tokens).decode(errors="replace")
            self.cut.append((prompt, length_error(self.plan, prompt, text, len(tokens), is_satisfied)))

    def _checked(self, update: Update, result: Result, prompt: int) -> Result:
        """The result; its error, and what `on_length` makes one, is raised."""
        if result.error is not None:
            raise _as_raised(result.error)
        if self.plan.on_length != "return" and result.finish_reason == "length":
            error = completed(self.plan, prompt, update.text, result).error
            if isinstance(error, LengthError):
                raise error
        return result


def _as_raised(error: DecodekitError) -> Exception:
    """The exception of code of the user's own, which comes through in transformers, too; else the error itself."""
    cause = error.__cause__
    is_own = isinstance(error, DecodingError) and isinstance(cause, Exception) and not isinstance(cause, DecodekitError)
    return cause if is_own else error  # type: ignore[return-value]


_vocabularies: weakref.WeakKeyDictionary[Any, dict[object, Vocabulary]] = weakref.WeakKeyDictionary()


def _vocabulary_of(tokenizer: Any, model: CausalLM, eos_token_ids: Sequence[int]) -> tuple[Vocabulary, Canonical]:
    """The tokens of the model, of which those end a text that `generate` says end one; errors are as of an `LLM`."""
    if tokenizer is None:
        vocabulary = _nameless(tuple(eos_token_ids), model.vocab_size)
        return vocabulary, Canonical(_encode_nothing, vocabulary)
    known, canonical = facts_of(tokenizer, model)
    ends = frozenset(eos_token_ids) or known.eos_token_ids
    if ends == known.eos_token_ids:
        return known, canonical
    kept = _vocabularies.setdefault(tokenizer, {})
    key = (known.fingerprint, ends)
    if key not in kept:
        kept[key] = Vocabulary(known.token_bytes, ends, known.size, known.special_tokens)
    return kept[key], canonical


@lru_cache(maxsize=8)
def _nameless(eos_token_ids: tuple[int, ...], size: int) -> Vocabulary:
    return Vocabulary((), eos_token_ids, size)


def _encode_nothing(text: str) -> list[int]:
    raise OptionError("a text is to be encoded, and there is no tokenizer", at="tokenizer", hint="dk.hf(tokenizer=...)")
