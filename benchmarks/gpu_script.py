"""A model of random weights that prefers texts drawn beforehand, so that a constraint meets what it meets in use.

Random weights like a legal token about never: under a constraint every token would be refused and masked. Here the
token that a script has for a position gets a bonus on its logit. Eight texts lie behind prompts of eight lengths, so
that position alone tells which text a row follows:

    prompt of 704 tokens   { " id " : " 5 7 ...          positions 704, 705, ...
    prompt of 896 tokens   { " id " : " c 0 ...          positions 896, 897, ...

Once in `REFUSED_EVERY` tokens the script prefers a token that the schema does not allow, and the right one after it.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.gpu_models import SHAPES, VOCAB_SIZE, prompts, ready
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching.compiler import compile

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "mail": {"type": "string", "format": "email"},
        "tree": {"$ref": "#/$defs/node"},
    },
    "required": ["id", "at", "mail", "tree"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "weight": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 4},
            },
            "required": ["name", "weight", "children"],
        }
    },
}
"""Recursion and formats."""

REFUSED_EVERY: Final = 40
NUM_TEXTS: Final = 8
BONUS: Final = 40.0
"""Many deviations of a random model's logits."""
WORDS: Final = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "inlet",
    "jetty",
    "knoll",
    "ledge",
)


class ScriptedLlama(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama whose logits have a bonus for the tokens that its script has at a position: the first, and the second."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        shape = 2, config.max_position_embeddings
        self.register_buffer("script", torch.full(shape, -1, dtype=torch.int64), persistent=False)

    def forward(  # named parameters, by which a runner knows what it may hand over
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        """As Llama's, with the bonus."""
        positions = position_ids
        if positions is None:
            start = 0 if past_key_values is None else past_key_values.get_seq_length()
            positions = start + torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        out = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )
        logits, keep = out.logits, logits_to_keep
        if isinstance(keep, Tensor):
            positions = positions[:, keep] if keep.ndim == 1 else positions.expand(len(keep), -1).gather(1, keep)
        elif keep:
            positions = positions[:, -keep:]
        for bonus, script in zip((BONUS, BONUS / 2), self.script, strict=True):
            wanted = script[positions].expand(logits.shape[:2])[..., None]
            added = torch.where(wanted >= 0, bonus, 0.0).to(logits.dtype)
            logits = logits.scatter_add(-1, wanted.clamp_min(0), added)
        out.logits = logits
        return out


def drawn_text(draw: random.Random) -> str:
    """A value of `SCHEMA` with a tree of some hundred characters and more, as JSON without needless white space."""

    def node(depth: int) -> dict[str, Any]:
        children = [node(depth - 1) for _ in range(draw.randint(2, 4))] if depth else []
        return {"name": " ".join(draw.sample(WORDS, 3)), "weight": draw.randint(1, 9999) / 100, "children": children}

    at = f"20{draw.randint(10, 39)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:30:00Z"
    head = {"id": str(uuid.UUID(int=draw.getrandbits(128))), "at": at, "mail": f"{draw.choice(WORDS)}@example.com"}
    return json.dumps({**head, "tree": node(3)}, separators=(",", ":"))


@dataclass(frozen=True)
class ScriptedModel:
    """How to build a scripted model, and the prompts that its texts follow.

    Args:
        script: int64 [2, positions].
        lengths: of the prompts, one for each text.
    """

    script: Tensor
    lengths: tuple[int, ...]

    def build(self, shape: str, device: torch.device, dtype: torch.dtype) -> Any:
        """See `gpu_models.build`."""
        config = SHAPES[shape].config(1536 if shape == "tiny" else VOCAB_SIZE)
        torch.manual_seed(0)
        with torch.device(device):
            model = ScriptedLlama._from_config(config, dtype=dtype)
            model.script.fill_(-1)
        model.script[:, : self.script.shape[1]] = self.script.to(device)
        return ready(model, device)

    def prompts(self, count: int, vocab_size: int) -> list[list[int]]:
        """Prompts of random tokens, each as long as its text wants."""
        longest = prompts(count, max(self.lengths), vocab_size)
        return [row[: self.lengths[number % len(self.lengths)]] for number, row in enumerate(longest)]


def scripted_model(tokenizer: Any, context: int, spacing: int, seed: int = 0) -> ScriptedModel:
    """Texts that `SCHEMA` accepts token by token, behind prompts whose mean length is `context`, or as near as it goes.

    Args:
        spacing: positions that a text may take: more than are decoded.

    Raises:
        ValueError: a drawn text is not accepted.
    """
    draw = random.Random(seed)
    grammar = compile(JsonSchema(SCHEMA), tokenizer)
    begin = max(8, context - spacing * (NUM_TEXTS - 1) // 2)
    lengths = tuple(begin + spacing * number for number in range(NUM_TEXTS))
    script = torch.full((2, lengths[-1] + spacing), -1, dtype=torch.int64)
    for length in lengths:
        text = drawn_text(draw)
        ids = tokenizer.encode(text, add_special_tokens=False)[:spacing]
        matcher = grammar.matcher()
        for number, token in enumerate(ids):
            if matcher.validate([token]) != 1:
                raise ValueError(f"token {number} of {text[:80]!r} is not allowed")
            place = length - 1 + number  # the logits there take the next token
            script[1, place] = token
            if number % REFUSED_EVERY == REFUSED_EVERY // 2 - 1:
                wrong = next(
                    one for one in iter(lambda: draw.randrange(100, 1500), None) if not matcher.validate([one])
                )
                script[0, place] = wrong
            matcher.accept(token)
    return ScriptedModel(script, lengths)
