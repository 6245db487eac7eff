"""Train the bundled models: first to copy, then to read documents.

    python -m training.train tiny --minutes 80
    python -m training.train tiny-draft --minutes 15
    python -m training.train tiny --export-only          # write the model folder from the last checkpoint

The learning rate follows the clock (constant, then linear to zero over the last part of `--minutes`), so a slow machine
ends with a finished model too. Stopped at any time, the same command goes on from the last checkpoint. The batches
depend on seed and step alone. The hidden matrices are trained by Muon (Jordan et al. 2024), the rest by AdamW: on two
CPU cores copying emerged after 200 steps of 2,048 tokens with Muon, 1,060 with AdamW.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from training.batches import NO_LOSS, Encode, encode_document, make_batch, make_copy_batch
from training.documents import make_document
from training.kinds import KINDS
from training.network import Network, NetworkShape
from training.tokenizer import MAX_LENGTH, VOCAB_SIZE

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "training" / "checkpoints"
MODELS = ROOT / "decodekit" / "models"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run but its length."""

    shape: NetworkShape
    rows: int = 12
    row_length: int = 512
    matrix_rate: float = 5e-3
    other_rate: float = 3e-3
    warmup_steps: int = 50
    copy_steps: int = 300
    copy_rows: int = 32
    copy_length: int = 32
    decay_part: float = 0.45
    seed: int = 1


RECIPES = {
    "tiny": Recipe(NetworkShape(VOCAB_SIZE, hidden_size=192, num_layers=5, num_heads=6, intermediate_size=512)),
    "tiny-draft": Recipe(
        NetworkShape(VOCAB_SIZE, hidden_size=128, num_layers=3, num_heads=4, intermediate_size=320), rows=12, seed=2
    ),
}


def copy_share(step: int, recipe: Recipe) -> float:
    """The part of packed samples that are copy tasks (the fillers of gaps not counted)."""
    return 0.3 if step < 2 * recipe.copy_steps else 0.05


def rate_factor(step: int, progress: float, recipe: Recipe) -> float:
    """Learning rate relative to its peak; progress in [0, 1] is the part of the time that has passed."""
    warmup = min(1.0, (step + 1) / recipe.warmup_steps)
    return warmup * max(0.0, min(1.0, (1.0 - progress) / recipe.decay_part))


class Trainer:
    """One model in training: network, optimizers, step and time spent."""

    def __init__(self, name: str, recipe: Recipe, device: str, *, compiles: bool) -> None:
        self.name = name
        self.recipe = recipe
        self.device = device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(MODELS / name)
        torch.manual_seed(recipe.seed)
        self.network = Network(recipe.shape, MAX_LENGTH).to(device)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.network, dynamic=False) if compiles else self.network
        matrices = [p for n, p in self.network.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.network.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.peak_rates = [recipe.matrix_rate, recipe.other_rate]
        self.step = 0
        self.num_tokens = 0
        self.seconds = 0.0

    @property
    def encode(self) -> Encode:
        """Text to token ids."""
        backend = self.tokenizer.backend_tokenizer
        return lambda text: backend.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    @property
    def eos_id(self) -> int:
        """The token that ends a document's JSON."""
        return int(self.tokenizer.eos_token_id)

    @property
    def checkpoint_path(self) -> Path:
        """Where training goes on from."""
        return CHECKPOINTS / f"{self.name}.pt"

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy over the learned tokens."""
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.forward(inputs)
            chosen = targets != NO_LOSS
            logits = self.network.project(hidden[chosen])
        return F.cross_entropy(logits.float(), targets[chosen])

    def train_step(self, progress: float) -> float:
        """One batch; returns its loss."""
        rng = random.Random(f"{self.recipe.seed}:{self.step}")
        recipe, vocab_size = self.recipe, self.recipe.shape.vocab_size
        if self.step < recipe.copy_steps:
            inputs, targets = make_copy_batch(rng, self.eos_id, vocab_size, recipe.copy_rows, recipe.copy_length)
        else:
            shape, share = (recipe.rows, recipe.row_length), copy_share(self.step, recipe)
            inputs, targets = make_batch(rng, self.encode, self.eos_id, vocab_size, shape, share)
        loss = self.loss(inputs.to(self.device), targets.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        factor = rate_factor(self.step, progress, self.recipe)
        for optimizer, peak in zip(self.optimizers, self.peak_rates, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.num_tokens += inputs.numel()
        return loss.item()

    @torch.no_grad()
    def field_accuracy(self, *, held_out_wordings: bool, num_documents: int = 48) -> float:
        """The part of values whose every token is the likeliest one, given the right tokens before it.

        This is what greedy decoding under a constraint gives, but for an earlier mistake, at the price of one forward.
        """
        rng = random.Random(f"validation:{held_out_wordings}")
        kinds = list(KINDS.values())
        right = total = 0
        samples = []
        for index in range(num_documents):
            document = make_document(
                kinds[index % len(kinds)], rng, held_out_wordings=held_out_wordings, reserved_values=True
            )
            samples.append(encode_document(document, self.encode, self.eos_id))
        length = max(map(len, samples))
        tokens = torch.zeros(num_documents, length, dtype=torch.long)
        for row, sample in enumerate(samples):
            tokens[row, : len(sample)] = torch.tensor(sample.tokens)
        tokens = tokens.to(self.device)
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.network(tokens)
        for row, sample in enumerate(samples):
            best = self.network.project(hidden[row].float()).argmax(-1)
            for start, end in sample.fields:
                total += 1
                right += bool((best[start - 1 : end - 1] == tokens[row, start:end]).all())
        return right / total

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        state = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
        }
        partial = self.checkpoint_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint_path)

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one."""
        if not self.checkpoint_path.exists():
            return False
        state = torch.load(self.checkpoint_path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.num_tokens, self.seconds = state["step"], state["num_tokens"], state["seconds"]
        return True

    def export(self, folder: Path) -> None:
        """Write the model as a transformers folder: float32 safetensors, configuration, generation configuration."""
        pad_id = int(self.tokenizer.pad_token_id)
        config = LlamaConfig(**self.network.transformers_config(MAX_LENGTH, self.eos_id, pad_id))  # type: ignore[arg-type]
        model = LlamaForCausalLM(config)
        missing, unexpected = model.load_state_dict(self.network.transformers_state(), strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise RuntimeError(f"weights do not fit LlamaForCausalLM: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        model.generation_config = GenerationConfig(eos_token_id=self.eos_id, pad_token_id=pad_id, do_sample=False)
        model.save_pretrained(folder)

    def run(self, minutes: float) -> None:
        """Train until the time is used up, reporting and saving on the way."""
        budget = 60.0 * minutes
        last_report = last_save = time.monotonic()
        losses: list[float] = []
        while self.seconds < budget:
            started = time.monotonic()
            losses.append(self.train_step(self.seconds / budget))
            now = time.monotonic()
            self.seconds += now - started
            if now - last_report > 20 and len(losses) >= 10:
                speed = self.num_tokens / self.seconds
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.step:5d}  {self.num_tokens / 1e6:6.2f}M tokens  "
                    f"{speed:6.0f} tokens/s  loss {sum(losses) / len(losses):.4f}",
                    flush=True,
                )
                losses, last_report = [], now
            if now - last_save > 180 or self.seconds >= budget:
                known = self.field_accuracy(held_out_wordings=False)
                unseen = self.field_accuracy(held_out_wordings=True)
                print(f"fields right: known wordings {known:.3f}, unseen wordings {unseen:.3f}", flush=True)
                self.save()
                last_save = time.monotonic()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--minutes", type=float, default=80.0, help="time to train, all runs together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    parser.add_argument("--export-only", action="store_true", help="write the model folder from the checkpoint")
    arguments = parser.parse_args()
    trainer = Trainer(arguments.model, RECIPES[arguments.model], arguments.device, compiles=not arguments.no_compile)
    is_resumed = trainer.resume()
    if not arguments.export_only:
        print(f"{'resumed at' if is_resumed else 'start at'} step {trainer.step}", flush=True)
        trainer.run(arguments.minutes)
    trainer.export(MODELS / arguments.model)
    print(f"written: {MODELS / arguments.model}")


if __name__ == "__main__":
    main()
