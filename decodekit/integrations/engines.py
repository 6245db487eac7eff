"""A constraint as a logits processor of engines without torch: numpy arrays for llama-cpp-python, and mlx-lm's.

    llama(prompt, logits_processor=LogitsProcessorList([dk.processor(schema, tokenizer, framework="numpy")]))
    generate(model, tokenizer, prompt, logits_processors=[dk.processor(schema, tokenizer, framework="mlx")])

Both loops hand over the tokens of one sequence, prompt included (mlx-lm: from the last token of the prompt on), and a
row of logits. Their signatures are those of llama-cpp-python 0.3 (``llama_cpp.llama.LogitsProcessor``) and mlx-lm 0.32
(``generate_step``, ``speculative_generate_step``, ``GenerationBatch``).
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import OptionError
from decodekit.integrations.mask_processor import words_for
from decodekit.integrations.prefix_matchers import PrefixMatchers


class NumpyProcessor:
    """Masks numpy logits: ``processor(input_ids, scores)``, as llama-cpp-python calls it.

    The first tokens that it sees are a prompt, and tokens that continue those of the call before a text (see
    `PrefixMatchers`), so one object serves one completion after another. `reset` says that what comes is a prompt.

    Args:
        grammar: of the constraint.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.matchers: Final = PrefixMatchers(grammar)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.matchers.grammar.constraint!r:.60})"

    def reset(self) -> None:
        """Take the tokens of the next call for a prompt."""
        self.matchers.reset()

    def __call__(self, input_ids: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The scores with -inf for what may not follow; those given stay as they are.

        Args:
            input_ids: integers [S] or [N, S], prompts included.
            scores: floats [V] or [N, V], as many rows; V is at least the size of the tokenizer.

        Raises:
            OptionError: other shapes.
            VocabularyMismatchError: the scores are narrower than the tokenizer.
            DeadEndError: a text may not end, and no token is allowed.
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
            scores: ``mx.array`` [1, V] or [V].

        Raises:
            OptionError: mlx is not installed, or other shapes.
            VocabularyMismatchError: the logits are narrower than the tokenizer.
            DeadEndError: a text may not end, and no token is allowed.
        """
        try:
            mx = importlib.import_module("mlx.core")
        except ImportError as error:
            cause = f'framework="mlx" needs the package mlx: {error}'
            raise OptionError(cause, at="framework", hint="pip install mlx-lm, on a Mac with Apple silicon") from error
        return mx.where(mx.array(self._allowed(np.array(input_ids), tuple(scores.shape))), scores, -math.inf)
