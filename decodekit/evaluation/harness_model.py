"""A model of lm-evaluation-harness that decodes with ours: `LM` of lm-eval, whose interface this is.

Token ids of contexts and continuations are divided as lm-eval's own model for transformers (`hf`) divides them, so that
log-likelihoods and greedy texts are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from decodekit.decoding.search.text_scores import token_scores
from decodekit.errors import ChatTemplateError, ContextLengthError
from decodekit.evaluation.comparison_run import name_of, seed_of
from decodekit.llm import LLM, StrategyLike
from decodekit.models.encoding import encode_text

MAX_NEW_TOKENS = 256
"""Of tasks that say nothing; lm-eval's own default."""

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first one that is given
_OF_SAMPLING = ("temperature", "top_p", "top_k", "min_p")  # what tasks say beside do_sample: false


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """Answers the requests of lm-eval; its options are those of `evaluate_tasks`."""

    def __init__(
        self,
        llm: LLM,
        strategy: StrategyLike | None = None,
        seed: int = 0,
        max_new_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.llm, self.tokenizer = llm, llm.tokenizer
        self.errors: list[str] = []
        self.num_shortened = 0
        self.progress = False
        self._strategy, self._seed, self._max_new_tokens = strategy, seed, max_new_tokens
        self._options = dict(options or {})

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        own = getattr(self.tokenizer, "eos_token_id", None)
        return min(self.llm.model.eos_token_ids, default=0) if own is None else int(own)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context: the beginning of a sequence, or else the end of one."""
        begin = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if begin is None else int(begin)

    @property
    def max_length(self) -> int:
        """Tokens that the model can read."""
        return self.llm.model.context_length or 1 << 30

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer, by which kept prompts are told apart."""
        return str(getattr(self.tokenizer, "name_or_path", type(self.tokenizer).__name__)).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """The facts about the model in the results."""
        return {
            "model": name_of(self.llm),
            "model_dtype": str(self.llm.model.dtype).removeprefix("torch."),
            "strategy": None if self._strategy is None else str(self._strategy),
            "seed": self._seed,
            "max_new_tokens": self._max_new_tokens,
            "options": {name: repr(value) for name, value in self._options.items()},
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer adds, but no second beginning."""
        begin = getattr(self.tokenizer, "bos_token", None)
        if add_special_tokens is None:
            add_special_tokens = not (begin and string.startswith(begin))
        return encode_text(self.tokenizer, string, "a prompt of lm-eval", add_special_tokens=add_special_tokens)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template of the tokenizer."""
        return str(getattr(self.tokenizer, "chat_template", None) or "")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as a text."""
        if not self.chat_template():
            raise ChatTemplateError("the tokenizer has no chat template", at="is_chat", hint="plain prompts")
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether greedy decoding would write it.

        A context that does not fit loses its first tokens.
        """
        texts = []
        for _, context, continuation in requests:
            if len(continuation) > self.max_length:
                cause = f"a continuation has {len(continuation):,} tokens, the context {self.max_length:,}"
                raise ContextLengthError(cause, at="loglikelihood")
            whole = [*context, *continuation]
            self.num_shortened += len(whole) > self.max_length + 1
            texts.append(whole[-(self.max_length + 1) :])  # the last token is predicted, never read
        answers = []
        for (_, _, continuation), scores in zip(requests, token_scores(self.llm.model, texts), strict=True):
            own = scores[len(scores) - len(continuation) :]
            answers.append((math.fsum(logprob for logprob, _ in own), all(is_likeliest for _, is_likeliest in own)))
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows of the context that overlap as little as they can."""
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
            ]
            for request in requests
        ]
        answers = iter(self._loglikelihood_tokens([window for each in windows for window in each]))
        return [math.fsum(next(answers)[0] for _ in each) for each in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for each request; requests with the same options are decoded together."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(number)
        texts = [""] * len(requests)
        for numbers in groups.values():
            options, stops = self._options_of(requests[numbers[0]].args[1])
            room = self.max_length - options["max_new_tokens"]
            prompts = [self._fitting(requests[number].args[0], room) for number in numbers]
            seeds = [seed_of(self._seed, number) for number in numbers]
            completions = self.llm.generate(prompts, seed=seeds, on_length="return", progress=self.progress, **options)
            for number, completion in zip(numbers, completions, strict=True):
                texts[number] = _cut(completion.text, stops)
                if completion.error is not None:
                    self.errors.append(f"request {number}: {completion.error}")
        return texts

    def _fitting(self, text: str, room: int) -> list[int]:
        """The token ids of a prompt; one that does not fit loses its first tokens."""
        if room < 1:
            cause = f"texts of {self.max_length - room:,} tokens leave no room in a context of {self.max_length:,}"
            raise ContextLengthError(cause, at="max_new_tokens", hint="a smaller max_new_tokens")
        tokens = self.tok_encode(text) or [self.prefix_token_id]
        self.num_shortened += len(tokens) > room
        return tokens[-room:]

    def _options_of(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """The options of `LLM.generate` for what a request asks for, and where a text ends.

        What a strategy says goes before what is asked for. A constraint says by itself where a text ends, and takes no
        stop strings: they cut the text when it is done.
        """
        wanted = dict(asked)
        until = wanted.pop("until", None) or []
        lengths = [wanted.pop(name) for name in _LENGTHS if name in wanted]
        is_sampled = wanted.pop("do_sample", None)
        if is_sampled is None:
            is_sampled = float(wanted.get("temperature") or 0) > 0
        stops = tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)
        options: dict[str, Any] = {"max_new_tokens": self._max_new_tokens or int((lengths or [MAX_NEW_TOKENS])[0])}
        if self._options.get("constraint") is None:
            options["stop"] = stops
        if self._strategy is not None:
            return {**options, "strategy": self._strategy, **self._options}, stops
        if not is_sampled:
            wanted = {name: value for name, value in wanted.items() if name not in _OF_SAMPLING}
        return {**options, "strategy": "sample" if is_sampled else "greedy", **wanted, **self._options}, stops


def _cut(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of the stop strings."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]
