# %% [markdown]
# # What logits processors do to a distribution
#
# A processor takes the logits of the next token and the text before it, and gives other logits. It is a pure
# function with a value for its setting, so that it can be tried on a distribution and looked at.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import decodekit as dk
from decodekit.sampling import LogitsProcessor, Pipeline

torch.set_num_threads(1)
llm = dk.LLM.load("tiny")


# %%
def logits_after(text: str) -> Tensor:
    """The model's logits after a text, float32 [1, V]."""
    tokens = torch.tensor([llm.tokenizer(text)["input_ids"]])
    cache = llm.model.new_cache(1, tokens.shape[1])
    with torch.inference_mode():
        return llm.model.forward(tokens, [tokens.shape[1]], cache).clone()


# The document does not say what the meeting is about, so that the model has to choose.
logits = logits_after('There is a meeting some day with somebody.\n{"title":"')
before = logits.softmax(dim=-1)[0]
shown = before.argsort(descending=True)[:16].tolist()
names = [llm.vocabulary.decode([token]).decode("utf-8", "replace") or "<eos>" for token in shown]
print([(name, round(float(before[token]), 3)) for name, token in zip(names, shown, strict=True)])
assert math.isclose(float(before.sum()), 1.0, abs_tol=1e-5)

# %% [markdown]
# ## Before and after
#
# Grey: the model's own distribution over its sixteen likeliest tokens. Blue: what the processor leaves. The number says
# how many tokens are left of all.


# %%
def draw(processors: list[LogitsProcessor | Pipeline], columns: int = 3) -> list[Tensor]:
    """A picture for each processor; the distributions that they leave, [V] each."""
    rows = -(-len(processors) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 2.4 * rows), sharey=True, squeeze=False)
    afters = []
    for axis in axes.flat[len(processors) :]:
        axis.axis("off")
    for axis, processor in zip(axes.flat, processors, strict=False):
        pipeline = processor if isinstance(processor, Pipeline) else Pipeline([processor])
        after = pipeline(logits).softmax(dim=-1)[0]
        afters.append(after)
        places = range(len(shown))
        axis.bar(places, before[shown], width=0.9, color="0.8")
        axis.bar(places, after[shown], width=0.5, color="tab:blue")
        axis.set_title(f"{processor!r}: {int((after > 0).sum())}", fontsize=9)
        axis.set_xticks(places, names, rotation=90, fontsize=7)
    figure.tight_layout()
    return afters


# %% [markdown]
# ### Temperature changes the shape and keeps the order

# %%
cold, same, hot = draw([dk.Temperature(0.5), dk.Temperature(1.0), dk.Temperature(2.0)])
assert cold.argsort(descending=True)[:16].tolist() == shown == hot.argsort(descending=True)[:16].tolist()
assert cold.max() > same.max() > hot.max()

# %% [markdown]
# ### Truncations remove what is unlikely, each by another measure
#
# `TopK` by rank, `TopP` by the mass of what is likelier, `MinP` by the distance from the likeliest, `Epsilon` by
# the probability itself, `TopNSigma` by the spread of the logits, `Typical` by the distance of the surprise from
# the entropy.

# %%
truncations = [dk.TopK(5), dk.TopP(0.8), dk.MinP(0.1), dk.Epsilon(0.02), dk.TopNSigma(1.0), dk.Typical(0.8)]
afters = draw(truncations)
assert int((afters[0] > 0).sum()) == 5
kept = afters[1] > 0
assert before[kept].sum() >= 0.8 > before[kept].sum() - before[kept].min()  # the smallest set with that mass
assert ((afters[2] > 0) == (before >= 0.1 * before.max())).all()
assert all((after[after > 0] >= before[after > 0]).all() for after in afters)  # what is left shares what was removed

# %% [markdown]
# ### Where the distribution is flat, they differ most
#
# How many tokens are left as the temperature rises. A fixed number ignores the shape. A share of the mass follows
# it, up to hundreds of tokens that hardly ever come; min-p follows it, too, and stays far below.

# %%
temperatures = [0.25 * step for step in range(1, 13)]
figure, axis = plt.subplots(figsize=(6, 3))
sizes = {}
for truncation in (dk.TopK(40), dk.TopP(0.9), dk.MinP(0.1)):
    sizes[repr(truncation)] = [
        int((Pipeline([dk.Temperature(t), truncation])(logits) > -math.inf).sum()) for t in temperatures
    ]
    axis.plot(temperatures, sizes[repr(truncation)], label=repr(truncation))
axis.set_xlabel("temperature")
axis.set_ylabel("tokens left")
axis.set_yscale("log")
axis.legend()
assert set(sizes["TopK(40)"]) == {40}
assert sizes["TopP(0.9)"][-1] > sizes["MinP(0.1)"][-1] > sizes["MinP(0.1)"][0]

# %% [markdown]
# ### XTC removes the likeliest
#
# With probability 0.5 all tokens above the threshold but the least likely of them are left out. That is one fixed
# distribution, the mean over both outcomes of the coin, and so no coin is thrown here.

# %%
[mixed, cut] = draw([dk.XTC(0.5, threshold=0.05), dk.XTC(1.0, threshold=0.05)], columns=2)
assert torch.allclose(mixed, (before + cut) / 2, atol=1e-6)

# %% [markdown]
# ## Processors that look back
#
# Penalties and DRY look at the text so far. What they change depends on it, which `History` holds.

# %%
history = dk.sampling.History.from_lists([[shown[0], shown[2]]], [[shown[1], shown[1], shown[3]]])
once = dk.PresencePenalty(1.0)(logits, history)
often = dk.FrequencyPenalty(1.0)(logits, history)
either = dk.RepetitionPenalty(1.5)(logits, history)
changed = [
    [name for name, token in zip(names, shown, strict=True) if after[0, token] != logits[0, token]]
    for after in (once, often, either)
]
print(changed)
assert changed[0] == changed[1] == [names[1], names[3]]  # what was generated
assert set(changed[2]) == set(names[:4])  # the prompt counts, too
assert math.isclose(float(logits[0, shown[1]] - often[0, shown[1]]), 2.0, abs_tol=1e-5)

# %% [markdown]
# ## The order matters
#
# `Pipeline.trace` shows what every step leaves. The constraint's mask comes after penalties and before
# temperature and truncation: top-k of a row that is not masked may keep only tokens that are not allowed.

# %%
allowed = shown[8:12]  # four tokens that the model would not choose by itself
words = torch.zeros(1, (logits.shape[-1] + 31) // 32, dtype=torch.int64)
for token in allowed:
    words[0, token // 32] |= 1 << token % 32
mask = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
pipeline = dk.Temperature(0.8) | dk.TopK(4)
for step in pipeline.trace(logits, mask=mask):
    print(f"{step.name:20} {step.support[0]:5} tokens, mass {step.mass[0]:.4f}")
left = (pipeline(logits, mask=mask) > -math.inf)[0].nonzero().flatten().tolist()
assert sorted(left) == sorted(allowed)
unmasked = pipeline(logits) > -math.inf
assert not unmasked[0, allowed].any()  # masked afterwards, the row would be empty

# %% [markdown]
# Libraries put the same settings in different orders, and so give different distributions. `order=` takes theirs.

# %%
options = {"temperature": 2.0, "top_p": 0.6, "min_p": 0.2}
orders = {name: dk.Sample(**options, order=name).pipeline for name in ("decodekit", "hf", "vllm", "llamacpp")}
supports = {name: int((one(logits) > -math.inf).sum()) for name, one in orders.items()}
for name, one in orders.items():
    print(f"{name:10} {supports[name]:4} tokens  {one!r}")
assert supports["llamacpp"] < supports["hf"]  # it cuts before the temperature flattens
