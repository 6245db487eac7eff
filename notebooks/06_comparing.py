# %% [markdown]
# # Comparing strategies
#
# Which strategy is best is a question about quality *and* time, on one's own task. `dk.compare` runs strategies
# on the same prompts with the same seeds, in turn, so that pairs meet the same machine; it gives intervals
# instead of bare means, and says where texts must be the same and whether they are.

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import decodekit as dk
from decodekit.evaluation import Example, Task, load_task, shipped_tasks

torch.set_num_threads(1)
llm = dk.LLM.load("tiny")
print(shipped_tasks())

# %% [markdown]
# ## Strategies beside each other
#
# A strategy is named by a value, or by a text as on the command line. What only guesses ahead is another entry of
# the comparison, not another kind of thing. Two short documents are enough to see how it works, and far too few
# to decide anything: take more of them.

# %%
strategies = {
    "greedy": dk.Greedy(),
    "greedy, guessing": dk.Greedy(speculate=[dk.GrammarDraft(), dk.PromptLookup()]),
    "hot": dk.Sample(temperature=2.5),
}
task = load_task("extraction").first(2)
comparison = dk.compare(llm, strategies, [task], seeds=(0, 1, 2))
print(comparison.table())

# %% [markdown]
# ## What can be said
#
# Every figure has an interval of 95 %, by Student's t over seeds; differences are paired by example and seed. A
# field is right if its value is that of the reference: the F1 of fields weighs what is missing and what is too
# much.

# %%
summaries = {name: comparison.summary(name, task.name) for name in strategies}
measure = comparison.metrics[task.name][0]
for name, summary in summaries.items():
    quality = summary.quality[measure]
    difference = summary.difference.get(measure)
    print(f"{name:18} {measure} {quality.text():18}", "" if difference is None else f"{difference.text()} to greedy")
assert summaries["hot"].quality[measure].value < summaries["greedy"].quality[measure].value

# %% [markdown]
# Speed options never change the text. The comparison finds the strategies that differ by nothing else, and
# counts.

# %%
same = summaries["greedy, guessing"].same_text
print(f"{same.num_same} of {same.num_texts} texts are those of {same.strategy!r}")
print(f"{summaries['greedy, guessing'].forwards_saved:.0%} of the forward passes saved")
assert same.strategy == "greedy" and same.num_same == same.num_texts == 6
assert summaries["greedy, guessing"].forwards_saved > 0.3
assert summaries["hot"].same_text is None  # another distribution, so nothing is promised

# %% [markdown]
# ## Quality against time
#
# Up and to the left is better. The bars are the intervals: those of times are wide on a machine that does other
# things, and `repeats=` narrows them. A strategy that another one beats in both directions is not worth its time.

# %%
figure, axis = plt.subplots(figsize=(6, 3.2))
for name, summary in summaries.items():
    quality, tpot = summary.quality[measure], summary.speed["tpot_s"]
    times = [[1000 * (tpot.value - tpot.low)], [1000 * (tpot.high - tpot.value)]]
    scores = [[quality.value - quality.low], [quality.high - quality.value]]
    axis.errorbar([1000 * tpot.value], [quality.value], xerr=times, yerr=scores, fmt="o", label=name)
axis.set_xlim(left=0)
axis.set_ylim(0, 1.05)
axis.set_xlabel("ms per token")
axis.set_ylabel(measure)
axis.legend(loc="lower left")
figure.tight_layout()

# %% [markdown]
# ## A task of one's own
#
# Prompts, what is right, and what the text must be. Tasks are also JSONL files, and `decodekit bench` takes them
# by name.

# %%
amounts = Task(
    name="amounts",
    examples=(
        Example("one", "Invoice A-17, total 40.20 EUR.\n", {"number": "A-17", "total": 40.2}),
        Example("two", "Invoice number: B-4\nTotal: 12.00 GBP\n", {"number": "B-4", "total": 12.0}),
    ),
    constraint=dk.JsonSchema(
        {
            "type": "object",
            "properties": {"number": {"type": "string", "maxLength": 20}, "total": {"type": "number"}},
            "required": ["number", "total"],
            "additionalProperties": False,
        },
        whitespace="compact",
    ),
    max_new_tokens=60,
)
own = dk.compare(llm, ["greedy", "beam:num_beams=3", "greedy+suffix"], [amounts], seeds=(0, 1, 2))
print(own.table())
assert {row.strategy for row in own.rows} == {"greedy", "beam:num_beams=3", "greedy+suffix"}
assert all(row.num_failed == 0 for row in own.rows)

# %% [markdown]
# ## To keep, and to look at
#
# `to_jsonl` writes a line for each strategy, task and seed, with machine, versions and every single outcome;
# `to_html` a page without JavaScript.

# %%
with tempfile.TemporaryDirectory() as folder:
    comparison.to_jsonl(Path(folder) / "bench.jsonl")
    comparison.to_html(Path(folder) / "bench.html")
    records = [json.loads(line) for line in (Path(folder) / "bench.jsonl").read_text().splitlines()]
    page = (Path(folder) / "bench.html").read_text()
print(sorted(records[0]))
assert len(records) == len(strategies) * 3
assert "<svg" in page and "<script" not in page
