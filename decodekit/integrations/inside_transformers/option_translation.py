"""Options, processors and criteria of transformers as options of decodekit.

    do_sample=True, temperature=0.7        strategy="sample", processors=[Temperature(0.7), TopK(50)]
    num_beams=4, length_penalty=2.0        strategy="beam", num_beams=4, length_penalty=2.0
    prompt_lookup_num_tokens=3             speculate=PromptLookup(3)

Processors are taken from the list that `generate` made, so that what it adds later is not missed. Where a strategy is
given as a value, those that come of the model's own configuration are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.decoding.request.stopping import StopRule
from decodekit.errors import DecodekitError, OptionError, collecting, raise_faults
from decodekit.integrations.inside_transformers.call import PromptRows, TheirCall
from decodekit.sampling import LogitsProcessor, Stage
from decodekit.sampling.processors.bans import MinTokens
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.transformers_processors import WARPERS, as_processor, class_in_transformers
from decodekit.speculation import DraftModel, EarlyExit, PromptLookup
from decodekit.strategy import DoLa, Guidance, Strategy, resolve_strategy
from decodekit.strategy.options.generate_options import GenerateOptions

OPTION_OF: Final[Mapping[str, tuple[str, str]]] = {
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
    "TopHLogitsWarper": ("top_h", "top_h"),
    "TypicalLogitsWarper": ("typical_p", "typical_p"),
    "EpsilonLogitsWarper": ("epsilon_cutoff", "epsilon_cutoff"),
    "EtaLogitsWarper": ("eta_cutoff", "eta_cutoff"),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "repetition_penalty"),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram_size", "no_repeat_ngram_size"),
    "SequenceBiasLogitsProcessor": ("sequence_bias", "sequence_bias"),
    "NoBadWordsLogitsProcessor": ("bad_words_ids", "bad_words"),
    "MinLengthLogitsProcessor": ("min_length", "min_tokens"),
    "MinNewTokensLengthLogitsProcessor": ("min_new_tokens", "min_tokens"),
    "WatermarkLogitsProcessor": ("watermarking_config", "watermark"),
    "SynthIDTextWatermarkLogitsProcessor": ("watermarking_config", "watermark"),
}
"""By the class of a processor, the option that makes it in transformers, and what does the same here."""

OF_PROMPTS: Final = ("EncoderRepetitionPenaltyLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor")
"""Processors that tell rows by their place in the batch."""

GUIDANCE: Final = "UnbatchedClassifierFreeGuidanceLogitsProcessor"


@dataclass(frozen=True, eq=False, repr=False)
class AllowedByPrefix(LogitsProcessor):
    """`prefix_allowed_tokens_fn` of transformers: a function of the number of the prompt and its row so far."""

    function: Any  # gives the tokens that may follow, for (number, int64 [S])
    rows: PromptRows
    num_copies: int  # how many numbers a prompt has there; it gets its first

    stage = Stage.BIAS
    needs_history = True
    is_tokenwise = False  # masks are made before what follows

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Logits of tokens that the function does not allow become -inf."""
        assert history is not None
        made = torch.full_like(logits, -torch.inf)
        for row, length in enumerate(history.lengths.tolist()):
            tokens, num_prompt = history.token_ids[row, :length], int(history.prompt_lengths[row])
            number = self.rows.index_of(tokens[:num_prompt].tolist())
            shown = torch.cat((self.rows(tokens[:num_prompt]), tokens[num_prompt:]))
            allowed = torch.as_tensor(list(self.function(number * self.num_copies, shown)), device=logits.device)
            if not allowed.numel():
                raise OptionError(f"no token is allowed for prompt {number}", at="prefix_allowed_tokens_fn")
            made[row, allowed] = logits[row, allowed]
        return made


@dataclass(frozen=True, eq=False)
class RowRule:
    """A criterion of transformers, shown the row with its padding; see `decoding.request.stopping.StopRule`."""

    criterion: Any  # called with int64 [1, S] and no scores
    rows: PromptRows

    def __call__(self, prompt: Sequence[int], text: Sequence[int]) -> bool:
        """Whether the criterion ends the row."""
        with torch.inference_mode(False):
            shown = torch.cat((self.rows.given[self.rows.index_of(prompt)], torch.tensor(text, dtype=torch.int64)))
            return bool(self.criterion(shown[None].to(self.rows.device), None))


@dataclass
class Translation:
    """The call of decodekit for a call of ``generate`` with a `Decoding`."""

    call: TheirCall
    given: GenerateOptions
    names: frozenset[str]  # of the options that were given
    assistant: Any  # a smaller model, or None

    def options(self, faults: list[DecodekitError]) -> GenerateOptions:
        """The options to decode by; `faults` gets what is wrong, and is raised at once if there is no strategy."""
        found: list[Strategy] = []
        with collecting(faults):
            found.append(self._strategy(faults))
        length, ours = int(self.call.config.max_length - self.call.rows.width), self.given.max_new_tokens
        if "max_new_tokens" in self.names:
            if not {"max_new_tokens", "max_length"}.isdisjoint(self.call.caller.options) and length != ours:
                faults.append(_conflict("max_new_tokens", length, ours))
            length = ours
        if not found:
            raise_faults(faults)
        options = replace(self.given, strategy=found[0], strategy_options={}, max_new_tokens=length)
        return replace(options, on_length=self.given.on_length or "return")

    # --- the strategy ------------------------------------------------------------------------------------------------

    def _strategy(self, faults: list[DecodekitError]) -> Strategy:
        asked, own = self.given.strategy, dict(self.given.strategy_options)
        if "strategy" not in self.names:
            asked, mode = self._mode()
        else:
            mode = {name: value for name, value in self._mode()[1].items() if self._is_asked(name)} | self._shapes()
        if not isinstance(asked, str):
            return self._completed(resolve_strategy(asked, own), mode, faults)
        is_likeliest = asked in ("greedy", "prompt-lookup", "suffix")
        if is_likeliest and self._is_asked("do_sample") and self.call.config.do_sample:
            faults.append(_conflict("do_sample", True, f"strategy={asked!r}"))
        for name, theirs in mode.items():
            if name in own and own[name] != theirs and self._is_asked(name):
                faults.append(_conflict(name, theirs, own[name]))
        extras = self._processors(own, faults, is_complete=False)
        options = {**mode, **own}
        if extras:
            options["processors"] = [*extras, *_listed(own.get("processors", ()))]
        return resolve_strategy(asked, options)

    def _mode(self) -> tuple[str, dict[str, Any]]:
        """The strategy of the configuration and its options, under the names that they have here."""
        config, call = self.call.config, self.call
        options: dict[str, Any] = {}
        name = "sample" if config.do_sample else "greedy"
        if call.num_beams > 1:
            name = "beam"
            options |= {
                "num_beams": call.num_beams,
                "length_penalty": 1.0 if config.length_penalty is None else config.length_penalty,
                "early_stopping": config.early_stopping or False,
                "num_return_sequences": call.num_returned,
            }
            options |= {"do_sample": True} if config.do_sample else {}
            if (config.num_beam_groups or 1) > 1:
                options |= {"num_beam_groups": config.num_beam_groups, "diversity_penalty": config.diversity_penalty}
        elif not config.do_sample and config.penalty_alpha and (config.top_k or 0) > 1:
            name, options = "contrastive", {"top_k": config.top_k, "penalty_alpha": config.penalty_alpha}
        if config.dola_layers is not None:
            options["contrast"] = DoLa(config.dola_layers)
        guidance = next((one for one in call.processors if type(one).__name__ == GUIDANCE), None)
        if guidance is not None:
            options["contrast"] = _guidance(guidance)
        proposer = self._proposer()
        if proposer is not None:
            options["speculate"] = proposer
        return name, options

    def _shapes(self) -> dict[str, Any]:
        """Temperature and truncations that the call gives and `generate` leaves out, because it would not sample."""
        if self.call.config.do_sample:
            return {}
        warpers = [OPTION_OF[kind] for kind in WARPERS if kind in OPTION_OF]
        return {ours: getattr(self.call.config, theirs) for theirs, ours in warpers if self.call.is_given(theirs)}

    def _proposer(self) -> Any:
        config = self.call.config
        if self.assistant is not None:
            num_tokens = {"num_tokens": config.num_assistant_tokens} if self._is_asked("num_assistant_tokens") else {}
            model = self.assistant
            if hasattr(model, "get_input_embeddings"):
                from decodekit.models.huggingface import HuggingFaceLM

                model = HuggingFaceLM(model)
            return DraftModel(model, **num_tokens)
        if config.prompt_lookup_num_tokens is not None:
            ngram = {} if config.max_matching_ngram_size is None else {"max_ngram": config.max_matching_ngram_size}
            return PromptLookup(num_tokens=config.prompt_lookup_num_tokens, **ngram)
        if config.assistant_early_exit is not None:
            return EarlyExit(config.assistant_early_exit)
        return None

    def _is_asked(self, name: str) -> bool:
        """Whether the call, and not the model's configuration, gives an option of decodekit."""
        sources = {
            "contrast": ("guidance_scale", "dola_layers"),
            "speculate": ("prompt_lookup_num_tokens", "assistant_early_exit"),
        }.get(name, (name,))
        is_drafted = name == "speculate" and self.assistant is not None
        return is_drafted or any(self.call.is_given(source) for source in sources)

    def _completed(self, value: Strategy, mode: dict[str, Any], faults: list[DecodekitError]) -> Strategy:
        """A strategy that is a value, with the processors of the call; what contradicts it is a fault."""
        config = self.call.config
        is_drawing = any(one.name == "seed" for one in fields(value)) and getattr(value, "do_sample", True)  # type: ignore[arg-type]
        if self._is_asked("do_sample") and bool(config.do_sample) != is_drawing:
            faults.append(_conflict("do_sample", config.do_sample, repr(value)))
        for name, theirs in mode.items():
            if name == "do_sample" or (name == "num_return_sequences" and not hasattr(value, "num_beams")):
                continue
            if name == "speculate" and getattr(value, "speculate", 0) is None:
                value = replace(value, speculate=theirs)  # type: ignore[type-var]
            elif getattr(value, name, None) != theirs:
                faults.append(_conflict(name, theirs, repr(value)))
        samples, wanted = getattr(value, "num_return_sequences", 1), self.call.num_returned
        if wanted > 1 and samples not in (1, wanted):
            faults.append(_conflict("num_return_sequences", wanted, repr(value)))
        own = {name: getattr(value, name) for _, name in OPTION_OF.values() if hasattr(value, name)}
        extras = self._processors(own, faults, is_complete=True)
        if not extras:
            return value
        if not hasattr(value, "processors"):
            cause = f"{value!r:.80} has no place for {', '.join(map(repr, extras))}"
            faults.append(OptionError(cause, at="logits_processor", hint="a strategy with processors="))
            return value
        return replace(value, processors=[*_listed(value.processors), *extras])  # type: ignore[type-var]

    # --- processors and criteria -------------------------------------------------------------------------------------

    def _processors(
        self, own: Mapping[str, Any], faults: list[DecodekitError], *, is_complete: bool
    ) -> list[LogitsProcessor]:
        """The processors of the list of the call that hold beside the options of decodekit that may say the same.

        With `is_complete`, what the model's configuration alone says is left out.
        """
        made: list[LogitsProcessor] = []
        for one in self.call.processors:
            kind = class_in_transformers(one) or ""
            theirs, ours = OPTION_OF.get(kind, ("", ""))
            is_own = self.call.is_own(one)
            is_given = is_own or not theirs or self._is_asked(theirs) or self.call.is_given(theirs)
            if kind == GUIDANCE or (is_complete and self.call.caller.options and not is_given):
                continue
            if kind in OF_PROMPTS:
                cause = f"{kind} tells rows by their place in a batch, and here they have none"
                hint = "repetition_penalty, no_repeat_ngram_size"
                faults.append(OptionError(cause, at="logits_processor", hint=hint))
                continue
            said = own.get(ours) if not is_own else None
            if said is not None and said != _NEUTRAL.get(ours):
                value = getattr(self.call.config, theirs, None)
                if self.call.is_given(theirs) and value != said:
                    faults.append(_conflict(theirs, value, said))
                continue
            with collecting(faults):
                made.append(self._processor(one, kind))
        return made

    def _processor(self, one: Any, kind: str) -> LogitsProcessor:
        rows, is_plain = self.call.rows, type(one).__name__ == kind
        if kind == "MinLengthLogitsProcessor" and is_plain:
            return MinTokens(max(0, int(one.min_length) - rows.width))
        if kind == "MinNewTokensLengthLogitsProcessor" and is_plain:
            return MinTokens(int(one.min_new_tokens))
        if kind == "PrefixConstrainedLogitsProcessor" and is_plain:
            return AllowedByPrefix(one._prefix_allowed_tokens_fn, rows, rows.num_copies // one._num_beams)
        is_native = bool(self.call.config.do_sample) or kind not in WARPERS
        return as_processor(one, layout=rows if rows.is_padded else None, is_native=is_native)

    def stop_rules(self) -> list[StopRule]:
        """The criteria of the call, but for those of length and end of text, which are options here."""

        def is_option(one: Any) -> bool:
            kind = class_in_transformers(one)
            if kind != type(one).__name__:
                return False
            if kind == "EosTokenCriteria":
                return {int(token) for token in one.eos_token_id.flatten() if token >= 0} == {*self.call.eos_token_ids}
            return kind == "MaxLengthCriteria" and bool(one.max_length == self.call.config.max_length)

        return [RowRule(one, self.call.rows) for one in self.call.criteria if not is_option(one)]


_NEUTRAL: Final[Mapping[str, Any]] = {"temperature": 1.0}


def _conflict(name: str, theirs: object, ours: object) -> OptionError:
    said = ours if isinstance(ours, str) else f"dk.hf({name}={ours!r:.60})"
    cause = f"{name}={theirs!r:.60} of generate and {said:.120} cannot be combined"
    return OptionError(cause, at=name, hint="one of the two")


def _listed(processors: Any) -> list[Any]:
    return [processors] if isinstance(processors, str | LogitsProcessor) else list(processors)


def _guidance(processor: Any) -> Guidance:
    """Guidance with the scale and the negative prompts of a processor of transformers."""
    context = getattr(processor, "unconditional_context", None) or {}
    given, mask = context.get("input_ids"), context.get("attention_mask")
    if given is None:
        return Guidance(scale=processor.guidance_scale)
    mask = torch.ones_like(given) if mask is None else mask
    prompts = [row[seen.bool()].tolist() for row, seen in zip(given, mask, strict=True)]
    return Guidance(scale=processor.guidance_scale, negative_prompt=prompts)
