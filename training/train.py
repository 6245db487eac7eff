"""Train the bundled models to read documents.

    python -m training.train tiny --minutes 61 --processes 2
    python -m training.train tiny-draft --minutes 9 --processes 2
    python -m training.train tiny --export-only          # write the model folder from the last checkpoint
    python -m training.train tiny --minutes 60 --from-model   # no checkpoint at hand: go on from the written model

The learning rate follows the clock (constant, then linear to zero over the last part of `--minutes`), so a slow machine
ends with a finished model too. Stopped at any time, the same command goes on from the last checkpoint. The batches
depend on seed, process and the step at which the run began, their mixture on the clock. Copying from the document is
what has to be learned, and it does not emerge soon by itself: it is written into the initial weights
(`Network.write_induction_heads`). The hidden matrices are trained by Muon (Jordan et al. 2024), the rest by AdamW.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from training.batches import NO_LOSS, Batches, Encode, encode_document
from training.documents import make_document
from training.kinds import KINDS
from training.network import Network, NetworkShape
from training.peers import Peers
from training.tokenizer import MAX_LENGTH, VOCAB_SIZE

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "training" / "checkpoints"
MODELS = ROOT / "decodekit" / "models"
SAVE_EVERY = 100
CHECK_SECONDS = 180.0


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run but its length."""

    shape: NetworkShape
    batch_tokens: int = 3600
    matrix_rate: float = 3e-3
    other_rate: float = 2e-3
    warmup_steps: int = 50
    decay_part: float = 0.45
    seed: int = 1


RECIPES = {
    "tiny": Recipe(NetworkShape(VOCAB_SIZE, hidden_size=192, num_layers=5, num_heads=6, intermediate_size=512)),
    "tiny-draft": Recipe(
        NetworkShape(VOCAB_SIZE, hidden_size=128, num_layers=3, num_heads=4, intermediate_size=320), seed=2
    ),
}


def task_shares(progress: float, *, is_warm: bool) -> tuple[float, float]:
    """The parts of samples that are copy tasks and partial documents.

    Short contexts first: a partial document has few places where a value can be. With mostly whole documents, finding
    the first token of a value had not begun after 4.2M tokens; with this order (and a lower rate) it did within 1.2M.
    """
    if progress < 0.25 and not is_warm:
        return 0.15, 0.8
    return (0.05, 0.4) if progress < 0.33 and not is_warm else (0.03, 0.17)


def rate_factor(step: int, progress: float, recipe: Recipe) -> float:
    """Learning rate relative to its peak; progress in [0, 1] is the part of the time that has passed."""
    warmup = min(1.0, (step + 1) / recipe.warmup_steps)
    return warmup * max(0.0, min(1.0, (1.0 - progress) / recipe.decay_part))


class Trainer:
    """One model in training: network, optimizers, step and time spent."""

    def __init__(self, name: str, recipe: Recipe, device: str, *, compiles: bool, peers: Peers) -> None:
        self.name = name
        self.recipe = recipe
        self.peers = peers
        self.device = device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(MODELS / name)
        torch.manual_seed(recipe.seed)
        self.network = Network(recipe.shape, MAX_LENGTH)
        self.network.write_induction_heads()
        self.network.to(device)
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(self.network, dynamic=False) if compiles else self.network
        )
        self.matrices = [p for n, p in self.network.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.network.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                peers.owned(self.matrices), lr=recipe.matrix_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.peak_rates = [recipe.matrix_rate, recipe.other_rate]
        self.batches: Batches | None = None  # begins with the first step of a run
        self.step = 0
        self.num_tokens = 0
        self.is_warm = False  # started from a model that reads documents already
        # The time spent up to the last step, the same in all processes; and with the last step, by this one's clock.
        self.seconds = self.own_seconds = 0.0

    @property
    def encode(self) -> Encode:
        """Text to token ids."""
        backend = self.tokenizer.backend_tokenizer
        return lambda text: backend.encode(text, add_special_tokens=False).ids

    @property
    def eos_id(self) -> int:
        """The token that ends a document's JSON."""
        return int(self.tokenizer.eos_token_id)

    @property
    def checkpoint_path(self) -> Path:
        """Where this process goes on from; what the processes hold differs in the momentum of the matrices alone."""
        return CHECKPOINTS / f"{self.name}.{self.peers.rank}.pt"

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy over the learned tokens."""
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.forward(inputs)
            chosen = targets != NO_LOSS
            logits = self.network.project(hidden[chosen])
        return F.cross_entropy(logits.float(), targets[chosen])

    def train_step(self, progress: float) -> float:
        """One batch; returns its loss."""
        if self.batches is None:
            key = f"{self.recipe.seed}:{self.step}:{self.peers.rank}{':warm' if self.is_warm else ''}"
            self.batches = Batches(random.Random(key), self.encode, self.eos_id, self.recipe.batch_tokens)
        batch = self.batches.take(*task_shares(progress, is_warm=self.is_warm))
        inputs, targets = (part.to(self.device) for part in batch)
        loss = self.loss(inputs, targets)
        torch.autograd.backward(loss)
        numbers = [loss.item(), self.own_seconds]
        mean_loss, self.seconds = self.peers.average(self.network.parameters(), numbers)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        factor = rate_factor(self.step, progress, self.recipe)
        for optimizer, peak in zip(self.optimizers, self.peak_rates, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
        self.peers.exchange(self.matrices)
        self.network.zero_grad()
        self.step += 1
        self.num_tokens += inputs.numel() * self.peers.size
        return mean_loss

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
            "is_warm": self.is_warm,
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
            # With another number of processes the matrices are shared out otherwise: momentum starts anew.
            if len(saved["param_groups"][0]["params"]) == len(optimizer.param_groups[0]["params"]):
                optimizer.load_state_dict(saved)
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        self.seconds = self.own_seconds = state["seconds"]
        self.is_warm = state.get("is_warm", False)
        return True

    def start_from(self, folder: Path) -> None:
        """Take the weights of a written model, layers added where there are more now; all else begins anew."""
        weights = load_file(folder / "model.safetensors", device=self.device)
        self.network.grow_from({name.removeprefix("model."): weight for name, weight in weights.items()})
        self.is_warm = True

    def export(self, folder: Path) -> None:
        """Write the model as a transformers folder: float32 safetensors, configuration, generation configuration."""
        pad_id = int(self.tokenizer.pad_token_id)
        config = LlamaConfig(**self.network.transformers_config(MAX_LENGTH, self.eos_id, pad_id))
        model = LlamaForCausalLM(config)
        missing, unexpected = model.load_state_dict(self.network.transformers_state(), strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise RuntimeError(f"weights do not fit LlamaForCausalLM: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        model.generation_config = GenerationConfig(eos_token_id=self.eos_id, pad_token_id=pad_id, do_sample=False)
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)

    def run(self, minutes: float) -> None:
        """Train until the time is used up, reporting and saving on the way."""
        budget = 60.0 * minutes
        last_report = last_check = time.monotonic()
        losses: list[float] = []
        while self.seconds < budget:
            started = time.monotonic()
            losses.append(self.train_step(self.seconds / budget))
            now = time.monotonic()
            self.own_seconds = self.seconds + now - started
            if self.step % SAVE_EVERY == 0:
                self.save()
            if not self.peers.is_first:
                continue
            if now - last_report > 20:
                speed = self.num_tokens / self.own_seconds
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.step:5d}  {self.num_tokens / 1e6:6.2f}M tokens  "
                    f"{speed:6.0f} tokens/s  loss {sum(losses) / len(losses):.4f}",
                    flush=True,
                )
                losses, last_report = [], now
            if now - last_check > CHECK_SECONDS:
                known = self.field_accuracy(held_out_wordings=False)
                unseen = self.field_accuracy(held_out_wordings=True)
                print(f"fields right: known wordings {known:.3f}, unseen wordings {unseen:.3f}", flush=True)
                last_check = time.monotonic()
        self.save()


def work(rank: int, size: int, arguments: argparse.Namespace) -> None:
    """One process of a training run."""
    if size > 1:
        os.setsid()  # Linux shares the processor among sessions: a thread of its own is worth a session of its own
    torch.set_num_threads(1 if size > 1 else torch.get_num_threads())
    peers = Peers(rank, size, CHECKPOINTS / f"{arguments.model}.meeting")
    trainer = Trainer(
        arguments.model,
        RECIPES[arguments.model],
        arguments.device,
        compiles=not arguments.no_compile and not arguments.export_only,
        peers=peers,
    )
    is_resumed = trainer.resume()
    if arguments.from_model and not is_resumed:
        trainer.start_from(MODELS / arguments.model)
    if not arguments.export_only:
        if peers.is_first:
            print(f"{'resumed at' if is_resumed else 'start at'} step {trainer.step}", flush=True)
        trainer.run(arguments.minutes)
    if peers.is_first:
        trainer.export(MODELS / arguments.model)
        print(f"written: {arguments.model}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--minutes", type=float, default=80.0, help="time to train, all runs together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=1, help="CPU processes of one thread that share the work")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    parser.add_argument(
        "--from-model", action="store_true", help="without a checkpoint, start from the weights in the model folder"
    )
    parser.add_argument("--export-only", action="store_true", help="write the model folder from the checkpoint")
    arguments = parser.parse_args()
    if arguments.processes == 1 or arguments.export_only:
        work(0, 1, arguments)
        return
    if arguments.device != "cpu":
        parser.error(f"--processes {arguments.processes} is for the CPU; on {arguments.device} train in one process")
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    (CHECKPOINTS / f"{arguments.model}.meeting").unlink(missing_ok=True)
    spawn(work, args=(arguments.processes, arguments), nprocs=arguments.processes)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
