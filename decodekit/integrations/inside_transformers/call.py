"""The arguments of transformers' `generate` for a `custom_generate` function, read as options of decodekit.

    model.generate(**inputs, do_sample=True, temperature=0.7, max_new_tokens=9, custom_generate=dk.hf())

arrives as input ids [N, S] that are expanded already (N counts beams and samples), a list of processors that holds the
temperature and top-k 50 (a default), a list of criteria, and a configuration in which nobody can tell what this call
gave from what the model came with. Options that are arguments of ``generate`` itself, as ``streamer``, do not arrive at
all. Both stand in the frame of the caller, where `Caller` reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from traceback import walk_stack
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.errors import DecodekitError, OptionError
from decodekit.strategy.options.known_options import answer

_MOST_FRAMES: Final = 6

TAKEN: Final = frozenset(
    (
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample"),
        *("num_beams", "early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty", "penalty_alpha"),
        *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "renormalize_logits"),
        *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "remove_invalid_values"),
        *("suppress_tokens", "begin_suppress_tokens", "guidance_scale", "watermarking_config", "dola_layers"),
        *("num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate", "token_healing"),
        *("pad_token_id", "eos_token_id", "num_assistant_tokens", "prompt_lookup_num_tokens"),
        *("max_matching_ngram_size", "assistant_early_exit"),
    )
)
"""Options of a `GenerationConfig` that mean here what they mean there."""

FORWARD: Final = frozenset(
    ["attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position"]
)
"""Arguments of the model's forward pass that `generate` always makes; they are made anew for every row."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The arguments of the call of ``generate``, as far as its frame shows them."""

    options: Mapping[str, Any] = field(default_factory=dict)  # keywords that are no arguments of their own
    processors: Sequence[Any] = ()  # those of its configuration are not among them
    streamer: Any = None
    assistant_model: Any = None

    @classmethod
    def of(cls, model: object) -> Caller:
        """The nearest ``generate`` of the model on the stack; an empty one if nobody called it."""
        for frame, _ in islice(walk_stack(sys._getframe(1)), _MOST_FRAMES):
            seen = frame.f_locals
            if frame.f_code.co_name == "generate" and seen.get("self") is model and "custom_generate" in seen:
                named = {name: value for name, value in (seen.get("kwargs") or {}).items() if value is not None}
                processors = tuple(seen.get("logits_processor") or ())
                return cls(named, processors, seen.get("streamer"), seen.get("assistant_model"))
        return cls()


@dataclass(frozen=True, eq=False)
class PromptRows:
    """The prompts of a call: rows as they were given, with padding on either side, and their tokens without it."""

    given: Tensor  # int64 [N, S] on the host, one for each prompt
    tokens: list[list[int]]
    num_copies: int  # how often `generate` wrote each down, for beams or samples
    device: torch.device

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor | None, num_copies: int) -> PromptRows:
        """The rows of a call, each prompt once."""
        given = input_ids[::num_copies].cpu()
        mask = torch.ones_like(given) if attention_mask is None else attention_mask[::num_copies].cpu()
        tokens = [row[seen].tolist() for row, seen in zip(given, mask.bool(), strict=True)]
        return cls(given, tokens, num_copies, input_ids.device)

    @property
    def width(self) -> int:
        """S."""
        return self.given.shape[1]

    @property
    def is_padded(self) -> bool:
        """Whether some row has padding."""
        return any(len(tokens) < self.width for tokens in self.tokens)

    def index_of(self, prompt: Sequence[int]) -> int:
        """The first row with these tokens."""
        return self._index[tuple(prompt)]

    @cached_property
    def _index(self) -> dict[tuple[int, ...], int]:
        return {tuple(tokens): number for number, tokens in reversed([*enumerate(self.tokens)])}

    def __call__(self, prompt: Tensor) -> Tensor:
        """The row of a prompt with its padding: what processors of transformers are shown; see `foreign.RowLayout`."""
        return self.given[self.index_of(prompt.tolist())].to(prompt.device)


@dataclass(frozen=True)
class TheirCall:
    """One call of ``generate`` as a decoding function sees it."""

    model: Any  # of transformers
    rows: PromptRows
    config: Any  # the whole generation configuration
    processors: Sequence[Any]  # that `generate` made of it, and those of the call
    criteria: Sequence[Any]
    forward: Mapping[str, Any]  # arguments of the forward pass
    caller: Caller

    @classmethod
    def of(
        cls, model: Any, input_ids: Tensor, processors: Any, criteria: Any, config: Any, forward: Mapping[str, Any]
    ) -> TheirCall:
        """The call that a decoding function was called by; its frame is looked for on the stack."""
        num_copies = max(config.num_beams or 1, config.num_return_sequences or 1)
        rows = PromptRows.of(input_ids, forward.get("attention_mask"), num_copies)
        return cls(model, rows, config, list(processors or ()), list(criteria or ()), forward, Caller.of(model))

    @property
    def num_beams(self) -> int:
        """At least 1."""
        return self.config.num_beams or 1

    @property
    def num_returned(self) -> int:
        """Texts of a prompt."""
        return self.config.num_return_sequences or 1

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text; a number below 0 is not a token, and says that there are none."""
        given = _ids(getattr(self.config, "_eos_token_tensor", self.config.eos_token_id))
        return tuple(token for token in given if token >= 0)

    @property
    def pad_token_id(self) -> int:
        """The token that fills the end of short rows; 0 if there is none and no end of text either."""
        return (*self._pad_token_ids, *self.eos_token_ids, 0)[0]

    @property
    def beam_pad_token_id(self) -> int:
        """The same where beams are searched: there 0 counts as none, and -1 stands where no token ends a text."""
        if not self.eos_token_ids:
            return -1
        return (*filter(None, self._pad_token_ids), *self.eos_token_ids)[0]

    @property
    def _pad_token_ids(self) -> tuple[int, ...]:
        return _ids(getattr(self.config, "_pad_token_tensor", self.config.pad_token_id))

    def is_given(self, option: str) -> bool:
        """Whether this call gave an option, rather than the model's configuration."""
        if option in self.caller.options:
            return True
        if option in ("max_length", "min_length", "max_new_tokens", "min_new_tokens"):
            return False  # `generate` writes into them; who gave them as an object gave them to be taken
        value = getattr(self.config, option, None)
        own = getattr(self.model, "generation_config", None)
        defaults = self.config._get_default_generation_params()
        return value is not None and value not in (getattr(own, option, None), defaults.get(option))

    def is_own(self, processor: object) -> bool:
        """Whether the caller gave a processor as an object."""
        return any(processor is one for one in self.caller.processors)

    def faults(self) -> Iterator[DecodekitError]:
        """The arguments that decodekit does not have, and what would be lost."""
        yield from self._faults_of_rows()
        for name in sorted(set(vars(self.config)) | set(self.caller.options)):
            value = self.caller.options.get(name, getattr(self.config, name, None))
            if not name.startswith("_") and name not in TAKEN and hasattr(self.config, name) and self.is_given(name):
                known = answer(name, value)
                if known is None:
                    yield OptionError(f"{name}={value!r:.60} is no option that decodekit knows", at=name)
                elif known.write is None:
                    yield OptionError(f"{name}={value!r:.60} is not supported: {known.note}", at=name)
        if self.config.cache_implementation == "quantized":
            cause, hint = "a quantized cache changes texts, and there is none here", 'LLM.load(..., cache_dtype="int8")'
            yield OptionError(cause, at="cache_implementation", hint=hint)

    def _faults_of_rows(self) -> Iterator[DecodekitError]:
        if self.rows.width == 0 or not all(self.rows.tokens):
            cause = "a prompt has no tokens"
            yield OptionError(cause, at="input_ids", hint="token ids; embeddings are not taken in their place")
        for name, value in self.forward.items():
            is_made = name in FORWARD or name.startswith("output_")  # those are options, too
            if value is not None and not is_made:
                cause = f"{name}= is an argument of the model's forward pass, which decodekit runs with token ids alone"
                yield OptionError(cause, at=name, hint="leave it out, or generate without custom_generate")
        past = self.forward.get("past_key_values")
        if past is not None and (getattr(past, "_is_user_defined", False) or past.get_seq_length()):
            cause = "past_key_values= is neither read nor filled: every call has a cache of its own"
            yield OptionError(cause, at="past_key_values", hint="leave it out: the text is the same")
        if "position_ids" in self.caller.options and not self._has_plain_positions():
            cause = "position_ids are not those of the tokens without padding, counted from 0"
            yield OptionError(cause, at="position_ids", hint="leave them out")

    def _has_plain_positions(self) -> bool:
        positions = self.caller.options["position_ids"]
        width = min(self.rows.width, positions.shape[-1])
        mask = self.forward.get("attention_mask")
        mask = torch.ones_like(positions) if mask is None else mask[:: self.rows.num_copies, -width:].to(positions)
        wanted = mask.cumsum(-1) - 1
        return bool(((positions[..., -width:] == wanted) | (mask == 0)).all())


def _ids(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    if isinstance(given, Tensor):
        given = given.flatten().tolist()
    return tuple(given) if isinstance(given, list | tuple) else (int(given),)
