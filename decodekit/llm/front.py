"""The class `LLM` and the function `generate`."""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack, overload

from torch import Tensor

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.tools import format_of
from decodekit.constraints.tool_calls import ToolFormat
from decodekit.decoding.loop.device_pass import warm_up
from decodekit.decoding.loop.scheduler import overdue
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.completion import Chunk, Completion, Score
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.prompt import (
    Messages,
    Prompt,
    TokenIds,
    check_prompt,
    each_prompt,
    encode,
    is_messages,
    is_single,
)
from decodekit.decoding.search.text_scores import token_logprobs
from decodekit.errors import (
    ContextLengthError,
    DecodekitError,
    OptionError,
    TooManyRowsError,
    UselessOptionError,
    collecting,
)
from decodekit.llm.awaited import awaited
from decodekit.llm.completions import GrowingText, completed, whole
from decodekit.llm.decisions import DecideKeywords, Decision, Question
from decodekit.llm.engine import ENGINE_OPTIONS, Engine
from decodekit.llm.plans.option_rules import (
    deadline_after,
    seeds_fit,
    template_arguments_of,
    timeout_fits,
    warn_of_equal_prompts,
)
from decodekit.llm.plans.plan import Plan
from decodekit.llm.retries import Attempt, first_attempts, is_refused, rename, template_arguments_again
from decodekit.llm.vocabulary_cache import facts_of
from decodekit.models.causal_lm import CausalLM
from decodekit.models.encoding import check_bytes, most_bytes_per_token
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.strategy import Guidance
from decodekit.strategy.options.generate_options import GenerateKeywords, GenerateOptions
from decodekit.strategy.options.recommended import read_recommended
from decodekit.vocabulary import Vocabulary

OnePrompt: TypeAlias = str | Messages | Sequence[int]
ManyPrompts: TypeAlias = Sequence[str] | Sequence[Messages] | Sequence[TokenIds]
UnknownPrompts: TypeAlias = Tensor | Mapping[str, Any]
"""One prompt or several, as its dimensions say."""

_MAKING: Final = threading.Lock()  # of the engines that calls share
_SHORT_TOKEN: Final = 32
"""Bytes; a text of no more for each token of the context is divided, without asking how long tokens are."""


class TimedKeywords(GenerateKeywords, total=False):
    """Keywords of `LLM.agenerate`: those of the texts, and the time of the call."""

    timeout: float | None


class CallKeywords(TimedKeywords, total=False):
    """Keywords of `LLM.generate`."""

    progress: bool


class LLM:
    """A causal language model and its tokenizer.

    Threads may share one: every call has a cache of its own.

    Args:
        model: a causal language model of transformers, or any `models.causal_lm.CausalLM`.
        tokenizer: its tokenizer.

    Raises:
        VocabularyMismatchError: the tokenizer belongs to another model.
        TokenizerError: the bytes of its tokens cannot be known.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model: CausalLM = _as_causal_lm(model)
        self.tokenizer = tokenizer
        self.vocabulary: Vocabulary
        self._division: Canonical | None
        self.vocabulary, self._division = facts_of(tokenizer, self.model)
        self._engine: Engine | None = None

    if not TYPE_CHECKING:  # a checker knows the names that there are

        def __getattr__(self, name: str) -> Any:
            hint = ": generate(messages) and agenerate(messages) take a conversation" if name.endswith("chat") else ""
            raise AttributeError(f"an LLM has no {name!r}{hint}", name=name, obj=self)

    @classmethod
    def load(
        cls,
        name_or_path: str,
        dtype: Any = "auto",
        device: Any = None,
        device_map: Any = None,
        revision: str | None = None,
        cache_dtype: Literal["int8"] | None = None,
        compile_layers: bool | None = None,
        **from_pretrained: Any,
    ) -> LLM:
        """Load a model: ``"tiny"`` and ``"tiny-draft"`` are bundled, else a folder or a Hugging Face id.

        Args:
            name_or_path: bundled name, folder or id.
            dtype: of the weights; "auto" takes what the model was saved in.
            device: where it runs; None takes the GPU if there is one.
            device_map: spread over devices by transformers.
            revision: branch, tag or commit on the hub.
            cache_dtype: "int8" stores keys and values in eight bits: about a quarter of the memory of float32, half of
                that of bfloat16, and other texts. By default they are stored as the model makes them.
            compile_layers: whether the layers of steps are compiled; by default on CUDA. See `HuggingFaceLM`.
            from_pretrained: passed on to transformers.

        Raises:
            ModelError: there is no such model, or it cannot be loaded.
        """
        from decodekit.models.loading import load

        model, tokenizer = load(
            name_or_path,
            dtype=dtype,
            device=device,
            device_map=device_map,
            revision=revision,
            cache_dtype=cache_dtype,
            compile_layers=compile_layers,
            **from_pretrained,
        )
        return cls(model, tokenizer)

    @property
    def recommended(self) -> dict[str, Any]:
        """The sampling options that the model's generation config recommends; ``strategy="sample"`` takes them."""
        return read_recommended(getattr(self.model, "generation_config", {}))

    @property
    def tool_format(self) -> ToolFormat:
        """The format in which the model calls tools, as its chat template tells; "hermes" if it has no template.

        Raises:
            ChatTemplateError: the chat template does not tell.
        """
        return format_of(self.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_division": None, "_engine": None}  # of this process, and of this LLM alone

    def __repr__(self) -> str:
        return f"LLM({self.model.name!r}, {self.model.dtype}, {self.model.device})"

    @overload
    def generate(self, prompts: OnePrompt, **call: Unpack[CallKeywords]) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: ManyPrompts, **call: Unpack[CallKeywords]) -> list[Completion]: ...
    @overload
    def generate(self, prompts: UnknownPrompts, **call: Unpack[CallKeywords]) -> Any: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        progress: bool = False,
        timeout: float | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Completion | list[Completion]:
        """Continue prompts. A list in gives a list out, in order: one `Completion` for each prompt.

        Where a prompt has several texts (``num_return_sequences``, ``n``, beams), its completion is the first or best
        of them, and has the others in `Completion.others`.

        Args:
            prompts: a text, a conversation (list of messages with ``role`` and ``content``), token ids, or a list of
                these. Token ids are a list or a tensor of integers, or what the tokenizer returns (``input_ids`` and
                ``attention_mask``; padding is left out), and are taken as they are. Two dimensions are a list of
                prompts, as in ``tokenizer(text, return_tensors="pt")``, which has one row.
            progress: show a bar on stderr, or in a notebook, that counts the prompts that are done.
            timeout: seconds for all of the call. What is not done then ends after the step under way, with what was
                written so far, the finish reason "error" and a `RequestTimeoutError`; None for any time.
            options: those of `GenerateOptions`, which says what each does (``strategy``, ``constraint``,
                ``max_new_tokens``, ``stop``, ``stop_token_ids``, ``include_stop``, ``seed``, ``logprobs``,
                ``trace``, ``on_length``, ``on_error``, ``max_rollbacks``, ``max_retries``, ``fast_forward``, ``masks``,
                ``batch_size``, ``tools``, ``enable_thinking``, ``chat_template_kwargs``, ``split_special_tokens``,
                ``reasoning``, ``max_reasoning_tokens``);
                and those of a strategy that is given by name, such as ``temperature=0.7``.

        Raises:
            OptionError: options that are unknown, out of range, without effect or in conflict; all of them together.
            UnknownNameError: no strategy of this name.
            ConstraintError: the constraint cannot be used.
        """
        chunks = self._begun_call(prompts, timeout, options, is_whole=True)
        if progress:
            chunks = _with_bar(chunks, len(each_prompt(prompts)))
        done: list[Chunk] = [*chunks]
        completions = [chunk.completion for chunk in sorted(done, key=lambda chunk: chunk.index) if chunk.completion]
        return completions[0] if is_single(prompts) else completions

    def stream(
        self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None, **options: Unpack[GenerateKeywords]
    ) -> Iterator[Chunk]:
        """Continue prompts and hand out the texts as they grow. Options and errors are those of `generate`.

        `Chunk.completion` is None until the last chunk of a prompt. With `timeout` the time of the caller between two
        chunks counts, too.
        """
        return self._begun_call(prompts, timeout, options)

    def _begun_call(
        self, prompts: Any, timeout: float | None, options: GenerateKeywords, *, is_whole: bool = False
    ) -> Iterator[Chunk]:
        """The chunks of a call; with `is_whole` one for each text."""
        deadline = deadline_after(timeout, time.monotonic())
        listed, plan = self._planned(prompts, timeout, options)
        if plan.is_drawn_unseeded:
            warn_of_equal_prompts(listed)
        num_prompts = min(plan.batch_size, max(1, len(listed)))
        plan.check_memory(num_prompts, num_prompts)
        return self._decode(listed, plan, num_prompts, TooManyRowsError, deadline, is_whole=is_whole)

    @overload
    async def agenerate(self, prompts: OnePrompt, **call: Unpack[TimedKeywords]) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    async def agenerate(self, prompts: ManyPrompts, **call: Unpack[TimedKeywords]) -> list[Completion]: ...
    @overload
    async def agenerate(self, prompts: UnknownPrompts, **call: Unpack[TimedKeywords]) -> Any: ...
    async def agenerate(
        self, prompts: Prompt | Sequence[Prompt], *, timeout: float | None = None, **options: Unpack[GenerateKeywords]
    ) -> Completion | list[Completion]:
        """`generate` for asyncio: the same completions, awaited. The event loop is never held up.

        All calls of an `LLM` share an engine with the defaults of `engine`, which the first call makes and which ends
        with the `LLM`: what is asked for at the same time is decoded together. A task that is cancelled frees its rows.
        For streams, priorities, or another number of rows make an `engine`.

        Args:
            prompts, timeout: as in `generate`.
            options: as in `generate`, less `batch_size` and several negative prompts.

        Raises:
            DecodekitError: as `generate` raises it.
        """
        deadline = deadline_after(timeout, time.monotonic())
        listed, plan = await asyncio.to_thread(self._planned, prompts, timeout, options)
        if plan.is_drawn_unseeded:
            warn_of_equal_prompts(listed)
        attempts = first_attempts(listed, plan.seeds)
        completions = await awaited(self._shared_engine, attempts, options, deadline, self.tokenizer)
        return completions[0] if is_single(prompts) else completions

    def _planned(self, prompts: Any, timeout: float | None, options: GenerateKeywords) -> tuple[list[Any], Plan]:
        """The prompts of a call, and its checked options."""
        faults: list[DecodekitError] = [*timeout_fits(timeout)]
        listed = self._listed(prompts, faults)
        asked = GenerateOptions.of(**options)
        faults += seeds_fit(asked.seed, len(listed))
        with collecting(faults, UselessOptionError):
            _check_template_arguments(template_arguments_of(asked, []), [*enumerate(listed)])
        plan = self.plan(asked, faults)
        if isinstance(plan.contrast, Guidance) and plan.contrast.num_prompts not in (None, len(listed)):
            cause = f"{plan.contrast.num_prompts} negative prompts for {len(listed)} prompts"
            raise OptionError(cause, at="negative_prompt")
        if timeout is not None and plan.search is not None and not hasattr(plan.search, "decoder"):
            cause = f"{plan.search!r:.60} decodes in a way of its own, which has no limit of time"
            raise OptionError(cause, at="timeout", hint="leaving the loop over LLM.stream; or a Searching")
        return listed, plan

    def _shared_engine(self) -> Engine:
        """The engine of `agenerate`, made when it is first needed, and anew in another process or after a failure."""
        with _MAKING:
            if self._engine is None or not self._engine.is_open:
                self._engine = Engine(copy.copy(self))  # of a copy, since an engine holds its LLM
            return self._engine

    def as_completed(
        self, prompts: Iterable[Prompt], **options: Unpack[GenerateKeywords]
    ) -> Iterator[tuple[int, Completion]]:
        """Continue a stream of prompts, possibly endless; completions with the numbers of their prompts as they finish.

        Prompts, and seeds where there is one for each, are taken one by one when there is room for them in the batch,
        so memory does not grow with their number. Options and errors are those of `generate`. What is not a prompt, or
        has no room in memory even alone, is the error of its completion.
        """
        if is_single(prompts) or isinstance(prompts, Mapping) or hasattr(prompts, "ndim"):
            prompts = each_prompt(prompts)
        if not isinstance(prompts, Iterable):
            raise OptionError(f"prompts={prompts!r:.60} are no prompts to go through", at="prompts", hint="a list")
        plan = self.plan(GenerateOptions.of(**options), [])
        plan.check_memory(plan.batch_size, 1)
        chunks = self._decode(prompts, plan, plan.batch_size, is_whole=True)
        return ((chunk.index, chunk.completion) for chunk in chunks if chunk.completion is not None)

    @overload
    def score(self, texts: str | Sequence[int]) -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str] | Sequence[TokenIds]) -> list[Score]: ...
    @overload
    def score(self, texts: Tensor | Mapping[str, Any]) -> Any: ...
    def score(self, texts: Any) -> Any:
        """Log-probabilities of texts under the model. A list in gives a list out, in order.

        Args:
            texts: a text, or token ids as `generate` takes them; or a list of these.

        Raises:
            OptionError: a text has fewer than two tokens, so that there is nothing to predict; or is none.
            ContextLengthError: a text is longer than the model's context.
        """
        if not isinstance(texts, Iterable):
            check_prompt(texts, "texts")
        token_ids = [
            encode(self.tokenizer, text, f"text {index}", self.vocabulary.size)
            for index, text in enumerate(each_prompt(texts))
        ]
        context_length = self.model.context_length
        for index, ids in enumerate(token_ids):
            if len(ids) < 2:
                raise OptionError(f"a text of {len(ids)} tokens has nothing to predict", at=f"text {index}")
            if context_length is not None and len(ids) > context_length:
                cause = f"the text has {len(ids):,} tokens, the context of the model {context_length:,}"
                raise ContextLengthError(cause, at=f"text {index}")
        scores = [
            Score(tuple(ids), tuple(logprobs))
            for ids, logprobs in zip(token_ids, token_logprobs(self.model, token_ids), strict=True)
        ]
        return scores[0] if is_single(texts) else scores

    @overload
    def decide(self, prompts: OnePrompt, choices: Any, **options: Unpack[DecideKeywords]) -> Decision: ...
    @overload
    def decide(self, prompts: ManyPrompts, choices: Any, **options: Unpack[DecideKeywords]) -> list[Decision]: ...
    @overload
    def decide(self, prompts: UnknownPrompts, choices: Any, **options: Unpack[DecideKeywords]) -> Any: ...
    def decide(self, prompts: Any, choices: Any, **options: Unpack[DecideKeywords]) -> Any:
        """Choose, with the exact probability of every choice. A list of prompts gives a list out, in order.

        Args:
            prompts: as `generate` takes them.
            choices: a list of texts or `Choices`; a dict from texts to what they mean; an Enum, a Literal or `bool`,
                written in JSON as ``constraint=`` writes them; or a range of integers. The keys of
                `Decision.probabilities` are the texts, the values of the dict, the members, and so on.
            options: those of `decisions.DecideKeywords`.

        Raises:
            OptionError, InvalidConstraintError, ResourceLimitError, ContextLengthError: what cannot be used.
            DecodekitError: that of the first prompt that fails.
        """
        question = self.question(choices, **options)
        done = self.generate(prompts, on_error="raise", **question.options)
        return [question.decision(one) for one in done] if isinstance(done, list) else question.decision(done)

    def question(self, choices: Any, **options: Unpack[DecideKeywords]) -> Question:
        """The question of `decide`, for an engine: ``question.decision(engine.submit(prompt,
        **question.options).result())``.

        Arguments and errors are those of `decide`.
        """
        return Question.of(choices, self.vocabulary, self._canonical(), options)

    def _listed(self, prompts: Any, faults: list[DecodekitError]) -> list[Any]:
        """The prompts of a call; `faults` gets what is wrong with them."""
        listed: list[Any] = []
        with collecting(faults, OptionError):
            listed = each_prompt(prompts)
        for index, prompt in enumerate(listed):
            with collecting(faults, OptionError):
                check_prompt(prompt, f"prompt {index}", self.vocabulary.size)
        return listed

    def engine(self, **options: Any) -> Engine:
        """An engine that takes requests of any options, at any time and from any thread; see `Engine` for the options.

        with llm.engine(batch_size=32) as engine:
            completion = engine.submit("Invoice A-17", max_new_tokens=64).result()

        Raises:
            OptionError: an option is unknown or out of range.
        """
        unknown = [name for name in options if name not in ENGINE_OPTIONS]
        if unknown:
            cause = f"{', '.join(unknown)}: no option of an engine"
            raise OptionError(
                cause, at="engine", hint=f"{', '.join(ENGINE_OPTIONS)}; the options of texts go to submit"
            )
        return Engine(self, **options)

    def warm_up(self, batch_size: int | None = None, *, drafts: bool = False) -> int:
        """Compile the layers and capture the decoding steps of a model on a GPU now, and not in the middle of traffic.

        A step is captured for 1, 2, 4, 8, ... rows of 1, 4, 8 and 16 tokens; each takes parts of a second, and memory.
        Layers take about a minute. Texts are the same with and without, in 16 bits up to near ties (docs/gpu.md).
        Where steps are not captured, as on a CPU, nothing is done.

        Args:
            batch_size: most rows, as of `engine`.
            drafts: whether texts will have drafts.

        Returns:
            How many steps are captured.

        Raises:
            OptionError: no integer from 1 on.
            TooManyRowsError: there is no memory for so many rows.
        """
        COUNT.or_none.require("batch_size", batch_size)
        return warm_up(self.model, batch_size, drafts=drafts)

    def plan(self, options: GenerateOptions, faults: list[DecodekitError]) -> Plan:
        """Check options and compile their constraint; `faults`, and what else is wrong with them, are raised together.

        Raises:
            OptionError: as `generate` raises it.
            ConstraintError: the constraint cannot be used.
        """
        faults += template_arguments_of(options, []).faults(self.tokenizer)
        return Plan.of(self.model, self.vocabulary, self._canonical, options, faults, self.tokenizer)

    def request(self, prompt: Prompt, plan: Plan, seed: int | None = None) -> Request:
        """A prompt as the loops take it.

        Raises:
            OptionError, ChatTemplateError: it cannot be read.
        """
        seed = plan.strategy.seed or 0 if seed is None else seed
        return self._begun(prompt, plan, plan.chat, "prompt", seed, 0)

    def _begun(self, prompt: Prompt, plan: Plan, chat: TemplateArguments, at: str, seed: int, index: int) -> Request:
        """A prompt in tokens, with the thought that its text may have, and its matcher."""
        if plan.reasoning is not None:
            chat = plan.reasoning.chat(chat, prompt)
        _check_template_arguments(chat, [(at, prompt)])
        token_ids = encode(self.tokenizer, prompt, at, self.vocabulary.size, chat, self._check_bytes)
        thought, matcher = plan.begun(prompt, token_ids, chat)
        negative = self._negative_prompt(plan, index)
        return Request(token_ids, matcher, seed, negative_prompt=negative, thought=thought)

    def _canonical(self) -> Canonical:
        """The tokenizer's divisions of texts; one object for all calls, since it remembers them."""
        if self._division is None:  # a copy of another process
            self._division = facts_of(self.tokenizer, self.model)[1]
        return self._division

    def _decode(
        self,
        prompts: Iterable[Prompt],
        plan: Plan,
        num_rows: int,
        raised: type[DecodekitError] | tuple[()] = (),
        deadline: float | None = None,
        *,
        is_whole: bool = False,
    ) -> Iterator[Chunk]:
        """Chunks of texts as they grow, or whole; errors are those of completions, except what is `raised`."""
        fresh, again = first_attempts(prompts, plan.seeds), deque[Attempt]()
        running: dict[int, Attempt] = {}  # by number in the round
        is_whole |= plan.choice is not None or plan.options.max_retries > 0  # a text may be none, or another one

        def requests() -> Iterator[Request | DecodekitError]:
            for number in itertools.count():
                one = again.popleft() if again else next(fresh, None)
                if one is None:
                    return
                running[number] = one
                yield self._request(one, plan, deadline)

        while True:
            if plan.search is None:
                updates = decode_texts(plan.model, plan, num_rows, requests(), plan.num_samples)
            else:
                updates = plan.search.decode(plan.model, plan, num_rows, requests())
            for update in updates:
                one, completion = running[update.index], None
                one.text += update.text
                if update.result is not None:
                    del running[update.index]
                    ended = completed(plan, one.index, one.text, update.result, one.thought)
                    rename(ended, update.index, one.index)
                    ended = one.named(ended)
                    if is_refused(ended) and len(one.before) < plan.options.max_retries:
                        again.append(one.again(ended, self.tokenizer))
                    else:
                        completion = one.finished(ended)
                    error = None if completion is None else completion.error
                    if error is not None and (plan.options.on_error == "raise" or isinstance(error, raised)):
                        raise error
                if not is_whole:
                    one.growing = one.growing or GrowingText(plan, one.thought)
                    yield one.growing.chunk(one.index, update, completion)
                elif completion is not None:
                    yield whole(plan, one.index, completion)
            if not again:
                return

    def _request(self, one: Attempt, plan: Plan, deadline: float | None = None) -> Request | DecodekitError:
        """An attempt as the loops take it; the error of one that cannot be read, or comes too late to be."""
        try:
            if isinstance(one.seed, DecodekitError):
                return one.seed
            if deadline is not None and time.monotonic() >= deadline:
                return overdue(f"prompt {one.index}")
            chat = template_arguments_again(plan.chat) if one.before else plan.chat
            begun = self._begun(one.prompt, plan, chat, f"prompt {one.index}", one.seed, one.index)
            one.thought = begun.thought
            return begun if deadline is None else replace(begun, deadline=deadline)
        except Exception as error:  # of a tokenizer, say
            return fault_of(error, "reading the prompt", at=f"prompt {one.index}")

    def _check_bytes(self, text: str, at: str) -> None:
        """Refuse a text that cannot fit into the context; of long ones it is asked how long tokens are."""
        most_tokens = self.model.context_length
        if most_tokens is None or 4 * len(text) <= (most := _SHORT_TOKEN * most_tokens):
            return
        if len(text.encode(errors="replace")) > most:
            check_bytes(text, at, most_tokens, most_bytes_per_token(self.tokenizer, self.vocabulary))

    def _negative_prompt(self, plan: Plan, index: int) -> list[int]:
        """The prompt with which guidance contrasts a prompt; empty for its last token, or without guidance."""
        given = plan.contrast.negative_prompt_of(index) if isinstance(plan.contrast, Guidance) else None
        if given is None:
            return []
        at, size = f"negative prompt {index}", self.vocabulary.size
        return encode(self.tokenizer, given, at, size, plan.chat, self._check_bytes)


@overload
def generate(model: Any, tokenizer: Any, prompts: OnePrompt, **call: Unpack[CallKeywords]) -> Completion: ...
@overload
def generate(model: Any, tokenizer: Any, prompts: ManyPrompts, **call: Unpack[CallKeywords]) -> list[Completion]: ...
@overload
def generate(model: Any, tokenizer: Any, prompts: UnknownPrompts, **call: Unpack[CallKeywords]) -> Any: ...
def generate(model: Any, tokenizer: Any, prompts: Any, **call: Unpack[CallKeywords]) -> Any:
    """`LLM.generate` for a model that is loaded: ``generate(model, tokenizer, prompts, strategy=..., constraint=...)``.

    What is learned of the model and of the tokenizer (how the model may be run, which takes some forward passes, and
    the bytes of the tokens) is kept as long as they live, so a further call costs about a millisecond more than one of
    an `LLM`. A model that has changed, or was switched to another adapter, is looked at again; see
    `models.checks.model_notes`.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        prompts, call: as in `LLM.generate`.

    Returns:
        A `Completion`, or a list of them for a list of prompts.
    """
    return LLM(model, tokenizer).generate(prompts, **call)


def _with_bar(chunks: Iterator[Chunk], num_prompts: int) -> Iterator[Chunk]:
    """The chunks, with a bar that counts the prompts that are done."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a package that transformers needs

    with tqdm(total=num_prompts, unit="prompt", disable=False) as bar:  # asked for, whoever else wants none
        for chunk in chunks:
            bar.update(chunk.completion is not None)
            yield chunk


def _check_template_arguments(chat: TemplateArguments, prompts: Iterable[tuple[object, Any]]) -> None:
    """Raise the UselessOptionError of the first prompt that no chat template writes, where one is told something."""
    for place, prompt in prompts if chat else ():
        if not is_messages(prompt):
            raise UselessOptionError(
                f"{chat.names}: only conversations go through the chat template, and this prompt is none",
                at=f"prompt {place}" if isinstance(place, int) else str(place),
                hint='[{"role": "user", "content": "..."}] as the prompt',
            )


def _as_causal_lm(model: Any) -> CausalLM:
    if hasattr(model, "new_cache") and hasattr(model, "forward"):
        return model  # type: ignore[no-any-return]
    from decodekit.models.huggingface import HuggingFaceLM

    return HuggingFaceLM(model)
