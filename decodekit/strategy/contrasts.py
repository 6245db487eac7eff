"""The option `contrast`: the distribution that tokens are taken from is that of the model against another one.

Each value makes a model of a model (`models.guidance`, `models.dola`, `models.contrast`), so that everything else goes
on as before: penalties, constraint, temperature and truncation see the logits of the contrast, and so do `logprobs=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from decodekit.decoding.request.prompt import Prompt, check_prompt, each_prompt, in_lists, is_single
from decodekit.errors import (
    DecodekitError,
    ModelError,
    OptionError,
    UselessOptionError,
    VocabularyMismatchError,
    collecting,
    out_of_domain,
    raise_faults,
)
from decodekit.sampling.checks import FLAG, MASS, NUMBER, Domain, faults_of, is_count, is_number, numbers
from decodekit.speculation.proposers.draft_model import causal_lm_of, first_difference, loaded

if TYPE_CHECKING:
    from decodekit.models.causal_lm import CausalLM
    from decodekit.models.wrappers.dola import Layers
    from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance (Sanchez et al. 2023): away from what would follow another prompt.

    The distribution is that of u + scale (c - u), with log-probabilities c after the prompt and u after the negative
    one. Both are read in one forward pass, which has twice the rows. As in transformers (`guidance_scale`,
    `negative_prompt_ids`).

    Args:
        scale: above 1 the prompt is followed more closely; 0 follows the negative prompt.
        negative_prompt: a text, messages or token ids for all prompts, or a list with one for each; encoded as a prompt
            is. None: the last token of the prompt.
    """

    scale: float = 1.5
    negative_prompt: Prompt | Sequence[Prompt] | None = None

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = [*faults_of(self, {"scale": NUMBER})]
        if not faults and self.scale == 1:
            faults.append(UselessOptionError("scale=1 has no effect", at="scale", hint="scale=1.5, or no contrast="))
        with collecting(faults, OptionError):
            object.__setattr__(self, "negative_prompt", in_lists(self.negative_prompt))
            given = self.negative_prompt
            every = [] if given is None else each_prompt(given)
            for one in every:
                check_prompt(one, "negative_prompt")
            if given is not None and not all(map(len, every or [[]])):
                hint = "negative_prompt=None for the last token of the prompt"
                raise out_of_domain("negative_prompt", "prompts that are not empty", given, hint=hint)
        raise_faults(faults)

    def applied_to(self, model: CausalLM, vocabulary: Vocabulary) -> CausalLM:
        """The guided model; see `models.contrast.Contrast`."""
        from decodekit.models.wrappers.guidance import GuidedLM

        return GuidedLM(model, float(self.scale))

    @property
    def num_prompts(self) -> int | None:
        """The number of prompts that have negative ones; None if all have the same."""
        given = self.negative_prompt
        return None if given is None or is_single(given) else len(given)

    def negative_prompt_of(self, index: int) -> Prompt | None:
        """The prompt with which the one of this number is contrasted; None for its last token."""
        given: Any = self.negative_prompt
        if self.num_prompts is None:
            return given  # type: ignore[no-any-return]
        if index >= len(given):
            raise OptionError(f"there are prompts but only {len(given)} negative prompts", at=f"prompt {index}")
        return given[index]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class DoLa:
    """Decoding by contrasting layers (Chuang et al. 2023): the last layer against an earlier one.

    Of the tokens that the last layer finds plausible, those that became likelier on the way are preferred; see
    `models.dola`. The paper recommends ``repetition_penalty=1.2`` with it, and ``layers="high"`` for short answers that
    must be true, ``"low"`` for reasoning at length. Steps are not replayed on a CPU, and each candidate layer costs an
    output projection.

    Args:
        layers: the candidates: "high" or "low", the even layers of the upper or the lower half, or their numbers from 0
            (the embeddings) to that before the last.
        relative_top: a token is plausible if the last layer finds it at least this many times as likely as the
            likeliest; from above 0 to 1.
        final_norm: apply the final norm to early layers. False as in the authors' code and transformers 4.
    """

    layers: Layers = "high"
    relative_top: float = 0.1
    final_norm: bool = True

    def __post_init__(self) -> None:
        raise_faults([*faults_of(self, {"layers": _LAYERS, "relative_top": MASS, "final_norm": FLAG})])

    def applied_to(self, model: CausalLM, vocabulary: Vocabulary) -> CausalLM:
        """The model against its layers; see `models.contrast.Contrast`."""
        from decodekit.models.layers import EarlyExits
        from decodekit.models.wrappers.dola import DoLaLM

        if not isinstance(model, EarlyExits):
            cause = f"{type(model).__name__} does not show its layers, which DoLa contrasts"
            hint = "a model of transformers, or models.layers.EarlyExits implemented for it"
            raise ModelError(cause, at="contrast", hint=hint)
        return DoLaLM(model, self.layers, float(self.relative_top), self.final_norm)


@dataclass(frozen=True)
class Amateur:
    """Contrastive decoding (Li et al. 2023): against a weaker model, whose habits are subtracted.

    The distribution is that of (1 + beta) e - beta a of the tokens that the expert finds plausible, with
    log-probabilities e and a (O'Brien & Lewis 2023; with a large beta the original of Li et al.). Both models read
    every token.

    Args:
        model: the amateur, an `LLM` of the same vocabulary, or the name of a model, which is loaded when it is first
            used; or a `CausalLM`, whose tokens must be those of the expert.
        alpha: a token is plausible if the expert finds it at least this many times as likely as the likeliest; from
            above 0 to 1.
        beta: how much of the amateur is subtracted; above 0.
    """

    model: Any
    alpha: float = 0.1
    beta: float = 0.5
    _loaded: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        if not isinstance(self.model, str) and causal_lm_of(self.model) is None:
            hint = 'Amateur(LLM.load("tiny-draft")), or its name'
            faults.append(out_of_domain("model", "an LLM, a CausalLM or the name of a model", self.model, hint=hint))
        faults += faults_of(self, {"alpha": MASS, "beta": numbers("a finite number above 0", lambda beta: beta >= 0)})
        if is_number(self.beta) and self.beta == 0:
            cause = "beta=0 leaves the amateur without effect"
            faults.append(UselessOptionError(cause, at="beta", hint="beta=0.5, or no contrast="))
        raise_faults(faults)

    def applied_to(self, model: CausalLM, vocabulary: Vocabulary) -> CausalLM:
        """The model against the amateur, which is loaded if need be; see `models.contrast.Contrast`."""
        from decodekit.models.wrappers.contrast_model import AmateurLM

        amateur, theirs = self.causal_lm(), self._loaded[1]
        different = None if theirs is None else first_difference(theirs, vocabulary)
        if different is not None:
            raise VocabularyMismatchError(
                f"the amateur {amateur.name} has another vocabulary than the model: token {different} is not the same",
                at="contrast",
                hint="an amateur with the tokenizer of the model, from the same family",
            )
        return AmateurLM(model, amateur, float(self.alpha), float(self.beta))

    def causal_lm(self) -> CausalLM:
        """The amateur, which is loaded if need be."""
        if self._loaded is None:
            object.__setattr__(self, "_loaded", loaded(self.model))
        amateur: CausalLM = self._loaded[0]
        return amateur

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loaded": None}


def _are_layers(layers: object) -> bool:
    if isinstance(layers, str):
        return layers in ("low", "high")
    return isinstance(layers, Sequence) and bool(layers) and all(is_count(layer, 0) for layer in layers)


_LAYERS: Final = Domain('"low", "high" or a list of layers', _are_layers)
