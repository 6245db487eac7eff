# %% [markdown]
# # Speculation, and what it buys
#
# A forward pass over five tokens costs little more than one over a single token: reading the weights takes most
# of the time. So a proposer guesses how the text continues, the model reads the guess in one pass, and keeps the part
# that it would have written anyway. **The text does not change**; only the number of passes does.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import decodekit as dk

torch.set_num_threads(1)
llm = dk.LLM.load("tiny")
EXAMPLES = Path(dk.__file__).parents[1] / "examples"
schema = dk.JsonSchema(json.loads((EXAMPLES / "ticket" / "schema.json").read_text()), whitespace="compact")
prompts = [(EXAMPLES / "ticket" / f"00{number}.txt").read_text().strip() + "\n" for number in range(1, 4)]


def run(speculate: object, **options: object) -> list[dk.Completion]:
    """The completions of all prompts with a proposer."""
    strategy = dk.Greedy(speculate=speculate)
    return llm.generate(prompts, constraint=schema, strategy=strategy, max_new_tokens=300, **options)


# %% [markdown]
# ## Proposers
#
# - `fast_forward="off"` asks the model for every token; by default tokens that are the only ones allowed are not
#   asked.
# - `GrammarDraft` guesses what the schema leaves no choice about but for its division into tokens: keys, quotes,
#   commas.
# - `PromptLookup` and `Suffix` copy what followed the last tokens when they came before.
# - `DraftModel` is a smaller model of the same vocabulary; here one of 0.8 million parameters for one of 2.5
#   million.
# - A list tries them in order; names between `+` are joined in one draft, each going on where another one ends.

# %%
guessers = {
    "nobody, nothing forced": (None, {"fast_forward": "off"}),
    "nobody": (None, {}),
    "grammar": (dk.GrammarDraft(), {}),
    "prompt lookup": (dk.PromptLookup(), {}),
    "suffix": (dk.Suffix(), {}),
    "grammar, then prompt lookup": ([dk.GrammarDraft(), dk.PromptLookup()], {}),
    "grammar with prompt lookup": ("grammar+prompt-lookup", {}),
    "draft model": (dk.DraftModel("tiny-draft", num_tokens=8), {}),
}
found = {name: run(speculate, **options) for name, (speculate, options) in guessers.items()}
texts = [one.text for one in found["nobody"]]
per_token = {}
for name, completions in found.items():
    assert [one.text for one in completions] == texts  # the promise
    num_tokens = sum(one.stats.num_generated_tokens for one in completions)
    num_forwards = sum(one.stats.num_forwards for one in completions)
    per_token[name] = num_forwards / num_tokens
    print(f"{name:28} {num_forwards:4} passes for {num_tokens} tokens: {per_token[name]:.2f} per token")
assert per_token["nobody, nothing forced"] == 1.0
assert per_token["grammar, then prompt lookup"] < per_token["grammar"] < per_token["nobody"]
assert per_token["grammar with prompt lookup"] < per_token["grammar, then prompt lookup"]
assert per_token["draft model"] < 0.5

# %%
figure, axis = plt.subplots(figsize=(7, 2.8))
axis.barh(list(per_token)[::-1], list(per_token.values())[::-1], color="tab:blue")
axis.set_xlabel("forward passes of the model per token")
figure.tight_layout()

# %% [markdown]
# ## How far a guess is right
#
# `acceptance_histogram` counts the drafts whose token at each position was kept. Its sum over the number of draft
# tokens is the acceptance rate; a draft that is right to its end brings one token more than it has.

# %%
figure, axis = plt.subplots(figsize=(7, 2.8))
for name in ("prompt lookup", "suffix", "draft model"):
    stats = [one.stats for one in found[name]]
    kept = [sum(sum(one.acceptance_histogram[i : i + 1]) for one in stats) for i in range(8)]
    num_drafts = sum(one.num_drafts for one in stats)
    axis.plot(range(1, 9), [count / num_drafts for count in kept], marker="o", label=name)
    assert kept == sorted(kept, reverse=True)
axis.set_xlabel("position in the draft")
axis.set_ylabel("share of drafts kept so far")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## Sampling, too
#
# The noise of a draw is a function of seed and position. The target draws its own token at every place of a draft
# with the noise of that place, and keeps the draft as long as it agrees (coupled verification). So a sampled text
# is the same with and without drafts; a draft model draws with the same noise and mostly agrees.

# %%
sampled = {}
for speculate in (None, dk.Suffix(), dk.DraftModel("tiny-draft")):
    strategy = dk.Sample(temperature=2.5, top_k=20, seed=5, speculate=speculate)
    completions = llm.generate(prompts[:2], constraint=schema, strategy=strategy, max_new_tokens=150)
    sampled[repr(speculate)] = [one.text for one in completions]
    print(sum(one.stats.num_forwards for one in completions), "passes,", repr(speculate)[:40])
assert len(set(map(tuple, sampled.values()))) == 1
assert sampled["None"] != texts[:2]

# %% [markdown]
# ## When it does not pay
#
# A draft costs, too: its tokens are read whether they are kept or not, and a draft model has passes of its own.
# `Adaptive` measures acceptance while it decodes, takes the length that brings the most tokens per time, and asks
# a proposer that does not pay only now and then. What a longer draft costs on a machine,
# `decodekit.speculation.measured_costs(llm.model)` measures; here it is made up.

# %%
noise = "".join(chr(97 + (7 * i * i + 3 * i) % 26) for i in range(120)) + "\n"
costs = tuple(1 + 0.3 * k for k in range(9))  # a machine on which every draft token costs a third of a pass
patient = dk.Adaptive(dk.PromptLookup(min_ngram=1), costs=costs)
plain, eager, wary = (
    llm.generate(noise, strategy=dk.Sample(temperature=3.0, seed=1, speculate=one), max_new_tokens=150)
    for one in (None, dk.PromptLookup(), patient)
)
print("read and thrown away:", eager.stats.num_draft_tokens, "draft tokens, adaptive:", wary.stats.num_draft_tokens)
assert eager.text == wary.text == plain.text
assert wary.stats.num_draft_tokens < eager.stats.num_draft_tokens / 2
