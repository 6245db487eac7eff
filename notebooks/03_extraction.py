# %% [markdown]
# # From documents to checked JSON
#
# Sixty-two short documents of six kinds lie in `examples/`, written by hand, with a JSON Schema for each kind and
# the JSON that should be read from each document. Here a few of each kind are read.

# %%
import json
import math
from pathlib import Path

import torch

import decodekit as dk

torch.set_num_threads(1)
llm = dk.LLM.load("tiny")
EXAMPLES = Path(dk.__file__).parents[1] / "examples"
KINDS = ("contact", "event", "ticket")


def read(kind: str, num_documents: int) -> tuple[dict, list[str], list[dict]]:
    """Schema, documents and expected values of a kind."""
    schema = json.loads((EXAMPLES / kind / "schema.json").read_text())
    lines = (EXAMPLES / kind / "expected.jsonl").read_text().splitlines()[:num_documents]
    expected = [json.loads(line) for line in lines]
    documents = [(EXAMPLES / f"{one['id']}.txt").read_text() for one in expected]
    return schema, documents, [one["value"] for one in expected]


# %% [markdown]
# ## What of a schema is enforced
#
# `dk.check` says it before anything is generated: which keywords are in the mask, which are asked of the whole
# text, which only comment. What cannot be enforced is refused by name and place, never ignored.

# %%
schema, documents, expected = read("ticket", 4)
report = dk.check(schema)
print(report)

age = {"type": "integer", "minimum": 5, "maximum": 3}
try:
    dk.compile({"type": "object", "properties": {"age": age}, "required": ["age"]}, llm.tokenizer)
except dk.DecodekitError as error:
    print(error)
    assert "/properties/age" in str(error)

# %% [markdown]
# ## Extraction
#
# A list of prompts gives a list of completions, in order. Every one can be read: that is what the constraint is
# for. Whether it is *right* is another matter, and is counted field by field.

# %%
completions = {}
num_right = num_fields = 0
for kind in KINDS:
    schema, documents, expected = read(kind, 4)
    constraint = dk.JsonSchema(schema)
    prompts = [text.strip() + "\n" for text in documents]  # the format that the bundled model has learnt
    completions[kind] = llm.generate(
        prompts, constraint=constraint, strategy=dk.Greedy(speculate=["grammar", "prompt-lookup"]), max_new_tokens=300
    )
    for completion, wanted in zip(completions[kind], expected, strict=True):
        assert completion.error is None, completion.error
        assert set(completion.value) == set(wanted)
        right = [key for key in wanted if completion.value[key] == wanted[key]]
        num_right, num_fields = num_right + len(right), num_fields + len(wanted)
        wrong = {key: (completion.value[key], wanted[key]) for key in wanted if key not in right}
        print(f"{kind:8} {len(right)} of {len(wanted)} fields", wrong or "")
print(f"{num_right} of {num_fields} fields are right")
assert num_right / num_fields > 0.8

# %% [markdown]
# ## How sure the model was
#
# With `logprobs=True` every token has its log-probability under the model's own distribution, before the constraint. A
# value is as sure as its least likely token; the least sure values are the ones to look at.

# %%
schema, documents, expected = read("ticket", 1)
constraint = dk.JsonSchema(schema)
scored = llm.generate(documents[0].strip() + "\n", constraint=constraint, logprobs=True, max_new_tokens=300)
tokens = [(llm.vocabulary.decode([entry.token_id]).decode(), entry.logprob) for entry in scored.logprobs]
assert "".join(text for text, _ in tokens) == scored.text
for text, logprob in sorted(tokens, key=lambda token: token[1])[:5]:
    print(f"{text!r:12} p = {math.exp(logprob):.3f}")

# %% [markdown]
# ## What no mask can say
#
# A guard is asked when the text may end. What it refuses is taken back as far as needed, and drawn again: the
# text is drawn from the conditional distribution, not repaired.

# %%
hour = dk.Regex("[0-9]|1[0-9]|2[0-4]")
hours = dk.Concat('{"opens":', hour, ',"closes":', hour, "}")  # the value is the tuple of the two texts
shop = "The shop opens at 9 and closes at 17.\n"
hot = [dk.Sample(temperature=3.0, seed=seed) for seed in range(20)]
drawn = [llm.generate(shop, constraint=hours, strategy=strategy) for strategy in hot]
wrong = next(i for i, one in enumerate(drawn) if int(one.value[0]) >= int(one.value[1]))
day = dk.Guarded(hours, lambda value: int(value[0]) < int(value[1]) or "it opens before it closes")
guarded = llm.generate(shop, constraint=day, strategy=hot[wrong])
print(drawn[wrong].text)
print(guarded.text, f"({guarded.stats.num_guard_refusals} times refused)")
assert guarded.error is None and int(guarded.value[0]) < int(guarded.value[1])

# %% [markdown]
# ## Cut short, or ended in time
#
# The number of tokens a schema needs is known before anything is generated; a budget below it is an error that
# says so. With `on_length="close"` no token comes after which the rest would not fit.

# %%
try:
    llm.generate(documents[0], constraint=constraint, max_new_tokens=20, on_length="close")
except dk.DecodekitError as error:
    print(error)
    assert "it needs" in str(error)
short = llm.generate(documents[0].strip() + "\n", constraint=constraint, max_new_tokens=80, on_length="close")
print(short.text)
assert set(short.value) == set(expected[0])

# %% [markdown]
# For thousands of documents there is the command: it resumes where it was stopped, validates every text, and
# writes a report.
#
# ```console
# $ decodekit extract examples/invoice/*.txt --schema examples/invoice/schema.json -o out/
# ```
