# %% [markdown]
# # First steps
#
# Everything here runs on the model that ships with decodekit: 2.5 million parameters, no download, no GPU. It was
# trained to read short English documents and to write JSON; any causal LM of transformers can stand in its place.

# %%
import time
from typing import Literal

import torch
from pydantic import BaseModel

import decodekit as dk

torch.set_num_threads(1)  # a model this small gains nothing from more
llm = dk.LLM.load("tiny")  # or a Hugging Face id, a folder, or dk.LLM(model, tokenizer)
print(llm)

# %% [markdown]
# ## A text that has to be something
#
# A constraint says which texts are possible. At every step the tokens that lead nowhere are masked, so whatever
# the model prefers, the result can be read. JSON is compact, has a space after each comma and colon, or
# one indentation throughout, as the model begins; `whitespace="compact"` and others leave it no choice.


# %%
class Ticket(BaseModel):
    id: str
    customer: str
    category: Literal["bug", "billing", "question", "other"]
    priority: Literal["low", "medium", "high"]
    refund: bool


ticket = dk.JsonSchema(Ticket)
document = (
    "Ticket TK-30418 was opened by Rosalind Achterberg. It concerns Pixora Scan 4. The program crashes all the time. "
    "The priority is high. She does not want a refund.\n"
)
out = llm.generate(document, constraint=ticket)
print(out.text)
print(repr(out.value))
assert out.value == Ticket(id="TK-30418", customer="Rosalind Achterberg", category="bug", priority="high", refund=False)
assert out.finish_reason in ("stop", "complete") and out.error is None

# %% [markdown]
# What it cost stands beside it. Tokens that are the only ones allowed are not asked of the model, so there are
# fewer forward passes than tokens.

# %%
stats = out.stats
print(f"{stats.num_generated_tokens} tokens ({stats.num_forced_tokens} forced), {stats.num_forwards} forward passes")
assert stats.num_forwards < stats.num_generated_tokens

# %% [markdown]
# ## Strategies
#
# A strategy is a value: `dk.Greedy()`, `dk.Sample(...)`, `dk.Beam(4)`, or logits processors joined by `|`, which
# sample. Options that cannot work together, or that would have no effect, are errors, all of them told at once.

# %%
beginning = "Contact: Ida Brandt, Novara, Bergen.\n"
sampled = llm.generate(beginning, strategy=dk.Sample(temperature=0.8, top_p=0.95, seed=1), max_new_tokens=24)
piped = llm.generate(beginning, strategy=dk.Temperature(0.8) | dk.TopP(0.95), seed=1, max_new_tokens=24)
print(repr(sampled.text))
assert piped.text == sampled.text  # the same distribution and the same seed, written in two ways

try:
    llm.generate(beginning, strategy="greedy", temperature=0.7, top_kk=5, max_new_tokens=0)
except dk.DecodekitError as error:
    message = str(error)
    print(message)
assert all(name in message for name in ("temperature", "top_kk", "max_new_tokens"))

# %% [markdown]
# ## Same seed, same text
#
# The noise of a draw is a function of seed, position and token. It does not depend on the batch
# or on drafts.

# %%
documents = [
    "Ticket: 77120\nCustomer: Delgado & Sons\nProduct: Mailpost Cloud\nCategory: billing\nPriority: medium\n",
    document,
    "Ida Brandt asks how to change the language of her Novara Watch. Ticket 5521, no rush.\n",
]
warm = dk.Sample(temperature=0.8, seed=7)
alone = [llm.generate(text, constraint=ticket, strategy=warm).text for text in documents]
batch = llm.generate(documents, constraint=ticket, strategy=warm, batch_size=3)
guessing = dk.Sample(temperature=0.8, seed=7, speculate=["grammar", "prompt-lookup"])
quick = llm.generate(documents, constraint=ticket, strategy=guessing)
for text in alone:
    print(text)
assert [one.text for one in batch] == alone
assert [one.text for one in quick] == alone

# %% [markdown]
# ## A text as it grows
#
# `stream` hands out text on character boundaries. The time to the first piece is the time to the first token.

# %%
begin = time.perf_counter()
pieces = []
for chunk in llm.stream(document, constraint=ticket):
    pieces.append(chunk.text)
    print(f"{1000 * (time.perf_counter() - begin):5.0f} ms  {chunk.text!r}")
assert "".join(pieces) == out.text

# %% [markdown]
# ## What else can be asked for
#
# A pattern, one of several texts, a grammar, parts one after the other; and the log-probabilities of what was
# said.

# %%
number = dk.Concat('{"phone":"', dk.Regex(r"\+[0-9 ]{8,18}[0-9]"), '"}')
phone = llm.generate("Ring Anna Berg under +44 20 7946 0958 before noon.\n", constraint=number)
day = dk.Concat('{"title":"The staff meeting","date":"', dk.Grammar("date"), '"}')  # a grammar of the library
date = llm.generate("The staff meeting is on 3 May 2024 in Oslo.\n", constraint=day)
level = dk.Concat('{"priority":"', dk.Choices(["low", "normal", "urgent"]), '"}')
urgency = llm.generate("Ticket: the app crashes at start, urgent!\n", constraint=level, logprobs=2)
print(phone.value, date.value, urgency.value)
assert (phone.value, date.value, urgency.value) == (("+44 20 7946 0958",), ("2024-05-03",), ("urgent",))

spelled = {llm.vocabulary.decode([entry.token_id]).decode(): entry.logprob for entry in urgency.logprobs or ()}
print({text: round(logprob, 2) for text, logprob in spelled.items()})

# %% [markdown]
# When a text is cut, the completion says where, and what to do. `on_length="close"` ends it in time instead.

# %%
cut = llm.generate(document, constraint=ticket, max_new_tokens=24)
closed = llm.generate(document, constraint=ticket, max_new_tokens=50, on_length="close")
print(cut.error)
print(closed.text)
assert cut.error is not None and cut.error.code == "DK101"
assert isinstance(closed.value, Ticket)
