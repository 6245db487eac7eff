"""Results as a caller gets them: completions, the chunks of a stream, scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.decoding.request.stats import DERIVED, Stats
from decodekit.decoding.request.stopping import FinishReason
from decodekit.decoding.request.token_traces import TokenTrace
from decodekit.decoding.search.beam_tree import BeamTree
from decodekit.errors import DecodekitError, OptionError


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of one prompt; where it has several texts, the first or best one, with the rest in `others`.

    Args:
        text: the generated text: the bytes of the tokens as UTF-8, without end-of-sequence token and stop string.
            Special tokens that the constraint asked for, and those around a thought, are part of it, by name (by id as
            ``<[7]>``); others are not.
        token_ids: all generated tokens; an end-of-sequence token, and the tokens of a stop string, are among them.
        value: what the text means under the constraint (parsed JSON, an object of the Python type, a string); None
            without a constraint, or if the text is not complete. A text that was cut has one if its constraint is
            satisfied all the same: ``[0-9]+`` by ``555``, which could have gone on.
        finish_reason: ``stop`` (end-of-sequence token or stop string), ``length`` (`max_new_tokens` or the context is
            used up), ``complete`` (the constraint is satisfied and nothing can follow), ``dead_end`` or ``error``.
        error: why there is no usable value, None if all is well.
        logprobs: one entry per token if asked for.
        stats: times and counts.
        score: by what a strategy of several texts ranks it: of a beam search, the log-probability divided by a power
            of the length; of `BestOf`, what its `rank` says; of `SelfConsistency`, the share of the samples with this
            answer; of `Particles`, the share of the weight; else None.
        others: the further texts of a beam search, of samples with `num_return_sequences`, of `BestOf`,
            `SelfConsistency` and `Particles`; in the order of their scores, or of the samples.
        trace: how each token was taken, with ``trace=True``; else None. See `decoding.request.token_traces`.
        tree: with ``trace=True``, of the best text of a beam search: what the search looked at. See
            `decoding.search.beam_tree`.
        reasoning: the thought before the answer, without its marks; None of a text that has none, or was not asked for
            one. See ``reasoning=`` of `LLM.generate`.
        content_at: where the answer begins in the text.
        attempts: with `max_retries`, the completions of the attempts before this one, each with the error for which it
            was refused; `Stats.num_retries` is their number.
        prompt, seed: what `LLM.generate` was asked with, for `to_pandas`; None of an engine. Completions that differ in
            these alone are equal.
    """

    text: str
    token_ids: tuple[int, ...]
    value: Any
    finish_reason: FinishReason
    error: DecodekitError | None
    logprobs: tuple[TokenLogprob, ...] | None
    stats: Stats
    score: float | None = None
    others: tuple[Completion, ...] = ()
    trace: tuple[TokenTrace, ...] | None = None
    tree: BeamTree | None = None
    attempts: tuple[Completion, ...] = ()
    reasoning: str | None = None
    content_at: int = 0
    prompt: Any = field(default=None, compare=False, repr=False)
    seed: int | None = field(default=None, compare=False, repr=False)

    @property
    def content(self) -> str:
        """The answer: the text, without a thought before it."""
        return self.text[self.content_at :]

    def to_html(self) -> str:
        """A page of how each token was taken: one file, without scripts. See `html_pages.tokens`.

        Raises:
            OptionError: it was not recorded.
        """
        from decodekit.html_pages.tokens import token_page

        return token_page([self._traced(), *(one for one in self.others if one.trace is not None)])

    def show(self) -> None:
        """Show in a notebook how each token was taken.

        Raises:
            OptionError: it was not recorded, or this is not a notebook.
        """
        html = self._traced()._repr_html_()
        try:
            from IPython import get_ipython
            from IPython.display import HTML, display
        except ImportError:
            get_ipython = None
        if get_ipython is None or get_ipython() is None:
            hint = 'pathlib.Path("out.html").write_text(completion.to_html(), encoding="utf-8")'
            raise OptionError("show() needs a notebook, and this is none", at="show", hint=hint)
        display(HTML(html))

    def _repr_html_(self) -> str | None:
        """The page that a notebook shows of a completion with a trace; without one it shows the text form."""
        from decodekit.html_pages.tokens import token_view

        return None if self.trace is None else token_view(self)

    def _traced(self) -> Completion:
        if self.trace is None:
            cause = "how the tokens were taken was not recorded"
            raise OptionError(cause, at="trace", hint="llm.generate(..., trace=True)")
        return self

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain types, for `json.dumps`: lists, dictionaries, texts and numbers.

        The error becomes ``code``, ``error`` (its class), ``message``, ``at`` and ``hint``; a value that has no form in
        JSON its `repr`. `stats` has the derived figures (``tokens_per_second``, ...), too.
        """
        from pydantic_core import to_jsonable_python  # which not every user needs

        stats = asdict(self.stats) | {name: getattr(self.stats, name) for name in DERIVED}
        record = {
            "text": self.text,
            "reasoning": self.reasoning,
            "content": self.content,
            "token_ids": self.token_ids,
            "value": self.value,
            "finish_reason": self.finish_reason,
            "error": None if self.error is None else self.error.to_dict(),
            "logprobs": None if self.logprobs is None else [asdict(one) for one in self.logprobs],
            "stats": stats | {"recommended": dict(self.stats.recommended)},
            "score": self.score,
        }
        plain: dict[str, Any] = to_jsonable_python(record, fallback=repr, inf_nan_mode="null")
        plain["others"] = [other.to_dict() for other in self.others]
        plain["attempts"] = [attempt.to_dict() for attempt in self.attempts]
        return plain


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream.

    The texts of the chunks of a prompt, concatenated, are ``Completion.text``; so are their token ids its tokens.
    Text comes on character boundaries and is never taken back, so a token and its text may be in different chunks.

    Args:
        index: number of the prompt.
        text: text that is new.
        token_ids: tokens that are new.
        completion: the whole, with the last chunk of a prompt; None with those before.
        logprobs: an entry for each of the tokens if asked for.
        reasoning, content: what is new of the thought and of the answer; together they are those of the completion.
        num_reasoning_tokens: how many of the tokens stand before the answer.
        value_so_far: makes `partial`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    content: str = ""
    num_reasoning_tokens: int = 0
    value_so_far: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def partial(self) -> Any:
        """The value so far of a text that is JSON; None before it begins, and of other texts.

        Of a schema that is what `json.loads` would give: strings grow, and a number or a word is there when it is
        complete. Of a type it is a value of a class with the same fields, None for those that are not there yet. Of
        calls of tools it is the list of the calls so far (`ToolCall`). Of a composition it is the value of the JSON in
        it; the list of them, if it may hold several.

        It is made when it is asked for, from text that was read once. What is complete in it is shared with the values
        of other chunks, so it is not to be changed.
        """
        return None if self.value_so_far is None else self.value_so_far()


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a text under the model.

    Args:
        token_ids: its n tokens, with the special tokens that the tokenizer adds.
        logprobs: natural log-probabilities of its tokens from the second on, n - 1 of them; nothing precedes the first.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))
