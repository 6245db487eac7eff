"""A constraint as a logits processor of other people's loops: transformers', llama-cpp-python's and mlx-lm's.

    model.generate(**inputs, logits_processor=[dk.processor(constraint=Invoice, tokenizer=tokenizer)])
    llama(prompt, logits_processor=LogitsProcessorList([dk.processor(schema, tokenizer, framework="numpy")]))
    generate(model, tokenizer, prompt, logits_processors=[dk.processor(schema, tokenizer, framework="mlx")])

The loop of transformers hands over whole rows of tokens; `prefix_matchers` finds where each stands in its text. It may
be greedy, sampled, with beams, with an assistant or prompt look-up, in batches with padding on the left.

The others hand over the tokens of one sequence, prompt included (mlx-lm: from the last token of the prompt on), and a
row of logits. Their signatures are those of llama-cpp-python 0.3 (``llama_cpp.llama.LogitsProcessor``) and mlx-lm 0.32
(``generate_step``, ``speculative_generate_step``, ``GenerationBatch``).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodekit.chat.tools import in_format_of
from decodekit.constraints import as_constraint, compile
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import OptionError, VocabularyMismatchError
from decodekit.integrations.prefix_matchers import PrefixMatchers, TokenRows
from decodekit.sampling import apply_bitmask
from decodekit.sampling.checks import one_of, token_ids
from decodekit.vocabulary import Vocabulary

Framework: TypeAlias = Literal["torch", "numpy", "mlx"]


def grammar_of(constraint: object, tokenizer: Any, eos_token_id: int | Sequence[int] | None = None) -> CompiledGrammar:
    """The compiled constraint of a processor; arguments and errors are those of `processor`."""
    if constraint is None:
        raise OptionError("there is no constraint, so nothing to allow or forbid", at="constraint")
    if tokenizer is None:
        raise OptionError("a constraint needs to know the tokens", at="tokenizer", hint="tokenizer=...")
    vocabulary = tokenizer if isinstance(tokenizer, Vocabulary) else Vocabulary.from_tokenizer(tokenizer)
    if eos_token_id is not None:
        ends = token_ids("eos_token_id", [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)
        size = max(vocabulary.size, *(end + 1 for end in ends))
        vocabulary = Vocabulary(vocabulary.token_bytes, ends, size, vocabulary.special_tokens)
    taken = as_constraint(constraint)
    return compile(taken if tokenizer is vocabulary else in_format_of(taken, tokenizer), vocabulary)


def words_for(
    matchers: PrefixMatchers, rows: TokenRows, width: int, prompt_lengths: Sequence[int] | None = None
) -> Int32Array:
    """The masks of rows of scores with `width` columns, int32 [N, ceil(width / 32)]; see `PrefixMatchers.masks`."""
    vocabulary = matchers.grammar.vocabulary
    used = (token for token, data in enumerate(vocabulary.token_bytes[width:], width) if data is not None)
    if width < vocabulary.size and any(end >= width for end in (*used, *vocabulary.eos_token_ids)):
        cause = f"the tokenizer has {vocabulary.size:,} ids, the logits {width:,} columns: they are not a pair"
        raise VocabularyMismatchError(cause, hint="load model and tokenizer from the same folder")
    num_words = -(-width // 32)
    words = np.zeros((len(rows), max(num_words, matchers.num_words)), np.int32)
    return matchers.masks(rows, prompt_lengths, words)[:, :num_words]


class RowProcessor:
    """Masks the scores of the tokens that a constraint does not allow: ``processor(input_ids, scores)``.

    The first rows that it sees are prompts, and rows that continue those of the call before are texts, however they
    were reordered, copied or taken back (`prefix_matchers.PrefixMatchers`). So one object serves one call of
    ``generate`` after another. Where a prompt is the prompt of the call before and one token more, `reset` says that a
    new text begins.

    A row whose text has ended may have end-of-sequence tokens alone, so that its scores stay a distribution. Raises the
    `VocabularyMismatchError` of scores that are narrower than the tokenizer, and the `DeadEndError` of a text that may
    not end where no token is allowed.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.matchers: Final = PrefixMatchers(grammar)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.matchers.grammar.constraint!r:.60})"

    def reset(self) -> None:
        """Take the rows of the next call for prompts."""
        self.matchers.reset()


class ConstraintProcessor(RowProcessor):
    """Masks tensors of torch, as transformers has them."""

    supports_continuous_batching = False

    def __repr__(self) -> str:
        return f"processor({self.matchers.grammar.constraint!r:.60})"

    def __call__(self, input_ids: Tensor | Sequence[int], scores: Tensor) -> Tensor:
        """The scores with -inf for what may not follow.

        Args:
            input_ids: int64 [N, S], prompts included. A list is the text alone, without its prompt, as vLLM's
                processors of one request are given it.
            scores: [N, V]; V is the width of the model's logits, at least the size of the tokenizer. [V] with a list.
        """
        if isinstance(input_ids, Tensor):
            words = words_for(self.matchers, input_ids.cpu().numpy(), scores.shape[-1])
            return apply_bitmask(scores, torch.from_numpy(words).to(scores.device))
        words = words_for(self.matchers, [input_ids], scores.shape[-1], [0])
        return apply_bitmask(scores[None], torch.from_numpy(words).to(scores.device))[0]


class NumpyProcessor(RowProcessor):
    """Masks logits of numpy, as llama-cpp-python has them."""

    def __call__(self, input_ids: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The scores with -inf for what may not follow; those given stay as they are.

        Args:
            input_ids: integers [S] or [N, S], prompts included.
            scores: floats [V] or [N, V], as many rows, else an OptionError; V is at least the size of the tokenizer.
        """
        masked = np.where(self._allowed(np.asarray(input_ids), scores.shape), scores, -np.inf)
        return masked.astype(scores.dtype, copy=False)

    def _allowed(self, tokens: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """bool of the shape of the scores."""
        rows, width = np.atleast_2d(tokens), shape[-1]
        if len(shape) not in (1, 2) or rows.ndim != 2 or len(rows) != math.prod(shape[:-1]):
            cause = f"token ids of shape {tokens.shape} for scores of shape {shape}"
            raise OptionError(cause, at="input_ids", hint="[S] and [V], or [N, S] and [N, V]")
        words = words_for(self.matchers, rows, width)
        octets = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
        return np.unpackbits(octets, axis=1, count=width, bitorder="little").view(np.bool_).reshape(shape)


class MlxProcessor(NumpyProcessor):
    """Masks the logits of mlx-lm: ``processor(tokens, logits)`` with ``mx.array`` in and out.

    Needs the package mlx, which mlx-lm brings along. Reading the tokens waits for what computes them.
    """

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The logits with -inf for what may not follow, of the same type.

        Args:
            input_ids: ``mx.array`` of integers [S]; its first call's are the end of the prompt.
            scores: ``mx.array`` [1, V] or [V], else an OptionError, as where mlx is not installed.
        """
        try:
            mx = importlib.import_module("mlx.core")
        except ImportError as error:
            cause = f'framework="mlx" needs the package mlx: {error}'
            raise OptionError(cause, at="framework", hint="pip install mlx-lm, on a Mac with Apple silicon") from error
        return mx.where(mx.array(self._allowed(np.array(input_ids), tuple(scores.shape))), scores, -math.inf)


_KINDS: Final[Mapping[Framework, type[RowProcessor]]] = {
    "torch": ConstraintProcessor,
    "numpy": NumpyProcessor,
    "mlx": MlxProcessor,
}


def processor(
    constraint: object = None,
    tokenizer: Any = None,
    *,
    framework: Framework = "torch",
    eos_token_id: int | Sequence[int] | None = None,
) -> Any:
    """A constraint as a logits processor for somebody else's loop.

    ``model.generate(**inputs, logits_processor=[dk.processor(constraint=Invoice, tokenizer=tokenizer)])``

    Args:
        constraint: what the text must be, as `LLM.generate` takes it.
        tokenizer: of the model; or a `Vocabulary`.
        framework: of the arrays that the loop has: "torch" for transformers, "numpy" or "mlx".
        eos_token_id: the tokens that end a text in the loop, if they are not those of the tokenizer:
            ``model.generation_config.eos_token_id``.

    Raises:
        OptionError: there is no constraint or no tokenizer, or no such framework.
        ConstraintError: the constraint cannot be used.
        ChatTemplateError: the chat template does not tell how tools are called.
        TokenizerError: the bytes of the tokens cannot be known.
    """
    one_of(*get_args(Framework)).require("framework", framework)
    return _KINDS[framework](grammar_of(constraint, tokenizer, eos_token_id))
