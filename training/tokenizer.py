"""The tokenizer: byte-level BPE in which digits, white space and punctuation are tokens of their own.

    python -m training.tokenizer decodekit/models/tiny decodekit/models/tiny-draft

Merges never leave a run of letters, so a word has the same tokens in a document, inside quotes, and at the start of a
line: copying a value never needs a second spelling of it. All 256 bytes are tokens, so any text round-trips.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.documents import make_document, make_partial_document, to_json
from training.kinds import KINDS

VOCAB_SIZE = 1536
MAX_LENGTH = 1024
PAD = "<pad>"
EOS = "<eos>"
# A run of letters, else one character: digit, blank, line feed, punctuation mark.
PIECES = r"\p{L}+|[^\p{L}]"


def corpus(num_documents: int, seed: int) -> Iterator[str]:
    """Training documents with their JSON."""
    rng = random.Random(seed)
    for _ in range(num_documents):
        kind = rng.choice(list(KINDS.values()))
        make = make_partial_document if rng.random() < 0.2 else make_document
        document = make(kind, rng)
        yield f"{document.text}\n{to_json(document.record)}"


def train_tokenizer(num_documents: int = 12_000, seed: int = 1) -> PreTrainedTokenizerFast:
    """Learn the merges and wrap them as a standard fast tokenizer; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(num_documents, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def main(folders: list[str]) -> None:
    """Train once, save to every folder."""
    tokenizer = train_tokenizer()
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(folder)
        # The class name that every release of transformers knows.
        path = Path(folder) / "tokenizer_config.json"
        options = json.loads(path.read_text(encoding="utf-8"))
        options.pop("backend", None)
        options["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
