# %% [markdown]
# # Your own processor, constraint and proposer
#
# The parts of decodekit are small protocols. A new one is a class of some ten lines, and `dk.testing` has the
# laws that its author can run: they find what breaks later, in a batch, under a draft, on a row with one token
# left.

# %%
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import decodekit as dk
from decodekit import testing
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.network import Frame
from decodekit.sampling import History, LogitsProcessor, Stage
from decodekit.sampling.processors.pointwise import with_history
from decodekit.speculation import Context, Draft

torch.set_num_threads(1)
llm = testing.toy_llm()  # pseudo-random logits and no weights: quick, and it likes to repeat itself

# %% [markdown]
# ## A processor: no stuttering
#
# A processor is a pure function of logits `[N, V]` and history. This one lowers the token that came last. Its
# stage says that it changes single logits, so that it comes before the constraint's mask; `can_forbid` says that
# it never removes a token, so that what is the only allowed token stays certain.


# %%
@dataclass(frozen=True, repr=False)
class NoStutter(LogitsProcessor):
    """Lowers the logit of the token that came last."""

    penalty: float = 5.0
    stage = Stage.BIAS
    needs_history = True

    @property
    def can_forbid(self) -> bool:
        return False

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        last = with_history(self, history).last(1)  # [N, 1]; -1 where there is none
        is_last = torch.arange(logits.shape[-1], device=logits.device) == last
        return torch.where(is_last, logits - self.penalty, logits)


testing.check_processor(NoStutter())
a_lot = dk.LogitBias({97: 9.0})  # of the toy's tokens the first 256 are bytes; 97 is "a"
stutters = llm.generate("aaaa", strategy=dk.Sample(processors=a_lot, min_tokens=12), max_new_tokens=12)
calm = llm.generate("aaaa", strategy=dk.Sample(processors=a_lot | NoStutter(20.0), min_tokens=12), max_new_tokens=12)
print(repr(stutters.text), repr(calm.text))
assert "aa" in stutters.text and "aa" not in calm.text

# %% [markdown]
# A processor that breaks a law is found before it does harm. This one normalises over the whole batch, so that a
# text would depend on its neighbours.


# %%
@dataclass(frozen=True, repr=False)
class Centred(LogitsProcessor):
    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - logits.clamp(min=-50).mean()


try:
    testing.check_processor(Centred())
except AssertionError as error:
    complaint = str(error)
    print(complaint)
assert "breaks the law 'rows'" in complaint

# %% [markdown]
# ## A constraint: number plates
#
# A constraint says what its texts are, in terms of those that exist (a pattern, a grammar, a schema, parts), and
# what value a text stands for. Masks, forced tokens, streaming and completions come by themselves.


# %%
@dataclass(frozen=True)
class Plate(Constraint):
    """Number plates, such as ``HB-KX 417``; their value is the tuple of the three parts."""

    def root(self) -> Frame:
        return dk.Regex("[A-Z]{1,3}-[A-Z]{1,2} [1-9][0-9]{0,3}").root()

    def parse(self, text: str) -> object:
        place, _, rest = text.partition("-")
        letters, _, number = rest.partition(" ")
        return place, letters, int(number)


testing.check_language(
    Plate(), accepts=["HB-KX 417", "B-A 1"], rejects=["HB-KX 0417", "hb-kx 417", "HB-KX", "B-A 12345"]
)
testing.check_matcher(dk.compile(Plate(), llm.vocabulary).matcher(), llm.vocabulary)
plate = llm.generate("The car is ", constraint=Plate(), strategy=dk.Sample(seed=3))
print(plate.text, plate.value)
assert plate.value == Plate().parse(plate.text)

# It goes into others, as any constraint does.
cars = llm.generate("The car is ", constraint=dk.OneOf(Plate(), "none"), strategy=dk.Sample(seed=4))
print(cars.text, cars.value)
assert cars.error is None

# %% [markdown]
# ## A proposer: once more
#
# A proposer guesses how a text continues. It may be wrong as often as it likes: the model keeps only what it would
# have taken anyway, so the text is the same. This one guesses that the last tokens come again.


# %%
@dataclass(frozen=True)
class Again:
    """Guesses that the last tokens come again."""

    num_tokens: int = 4

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft(tuple(context.text[-self.num_tokens :])[:limit])
            for context, limit in zip(contexts, limits, strict=True)
        ]


testing.check_proposer(Again())
bored = dk.LogitBias({97: 9.0, 98: 8.9})  # little but "a" and "b"
slow = llm.generate("abab", strategy=dk.Greedy(processors=bored), max_new_tokens=40)
quick = llm.generate("abab", strategy=dk.Greedy(processors=bored, speculate=Again()), max_new_tokens=40)
print(repr(quick.text), f"{slow.stats.num_forwards} forward passes, {quick.stats.num_forwards} with drafts")
assert quick.text == slow.text and quick.stats.num_forwards < slow.stats.num_forwards

# %% [markdown]
# ## Found by name
#
# A package names its parts in its `pyproject.toml`, and they are found by these names wherever a part can be
# given: `processors=["no-stutter"]`, `constraint="plate"`, `speculate="again"`. They are loaded when asked for,
# so a broken package harms nobody else.
#
# ```toml
# [project.entry-points."decodekit.processors"]
# no-stutter = "my_package:NoStutter"
# ```

# %%
try:
    llm.generate("x", constraint="plates", max_new_tokens=4)
except dk.DecodekitError as error:
    print(error)
    assert error.code == "DK401"
