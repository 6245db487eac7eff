"""One side of `benchmarks.peers` in a process of its own: documents in, JSON out, seconds between.

    $DECODEKIT_RIVALS/bin/python -m benchmarks.rivals "outlines, xgrammar" --threads 1

Runs where decodekit is not installed. The first line that it writes says the versions of its packages, or which one is
absent. Then it reads requests and writes answers, each a line of JSON: to
``{"kind": "invoice", "prompts": [...], "together": true}`` it says ``{"texts": [...], "seconds": 0.5}``. Prompts are
decoded together, in one batch, or one after the other.

Schemas are compiled before anything is timed. All sides are greedy, with float32 weights and at most `MAX_NEW_TOKENS`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

REPOSITORY: Final = Path(__file__).parent.parent
MODEL: Final = REPOSITORY / "decodekit" / "models" / "tiny"
MAX_NEW_TOKENS: Final = 320
SPECULATE: Final = ("grammar", "prompt-lookup")
"""The proposers that `decodekit extract` has by itself."""

Schema = Mapping[str, Any]


class Side(Protocol):
    """Writes JSON for prompts."""

    packages: tuple[str, ...]  # beside which it is measured
    takes_batches: bool

    def compile(self, kind: str, schema: Schema) -> None:
        """Prepare for a schema."""
        ...

    def write(self, kind: str, prompts: Sequence[str]) -> list[str]:
        """The texts of prompts that are decoded together."""
        ...


class Decodekit:
    """`LLM.generate` with a schema, with the drafts of an extraction or without."""

    packages: tuple[str, ...] = ("torch", "transformers", "numba")
    takes_batches = True

    def __init__(self, speculate: Sequence[str]) -> None:
        self._dk = importlib.import_module("decodekit")
        self._llm = self._dk.LLM.load(str(MODEL))
        self._options = {"strategy": self._dk.Greedy(**({"speculate": [*speculate]} if speculate else {}))}
        self._constraints: dict[str, Any] = {}

    def compile(self, kind: str, schema: Schema) -> None:
        """A constraint of the schema; its masks are compiled as texts meet them."""
        self._constraints[kind] = self._dk.JsonSchema(schema)

    def write(self, kind: str, prompts: Sequence[str]) -> list[str]:
        """One call for all."""
        completions = self._llm.generate(
            list(prompts),
            constraint=self._constraints[kind],
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=len(prompts),
            on_length="return",
            **self._options,
        )
        return [completion.text for completion in completions]


class Transformers:
    """`generate` of transformers; here without a schema, and with masks in the classes that follow."""

    packages: tuple[str, ...] = ("torch", "transformers")
    takes_batches = True

    def __init__(self) -> None:
        transformers = importlib.import_module("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, padding_side="left")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).eval()

    def compile(self, kind: str, schema: Schema) -> None:
        """Nothing: the model knows by the document what to write."""

    def processors(self, kind: str) -> list[Any]:
        """What stands between the logits and the choice of a token."""
        return []

    def write(self, kind: str, prompts: Sequence[str]) -> list[str]:
        """One call, padded on the left."""
        batch = self.tokenizer(list(prompts), return_tensors="pt", padding=True, return_token_type_ids=False)
        processors = self.processors(kind)
        out = self.model.generate(
            **batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, logits_processor=processors or None
        )
        texts: list[str] = self.tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts


class XGrammar(Transformers):
    """XGrammar's own processor of logits."""

    packages: tuple[str, ...] = ("torch", "transformers", "xgrammar")

    def __init__(self) -> None:
        self._lib = importlib.import_module("xgrammar")
        self._hf = importlib.import_module("xgrammar.contrib.hf")
        super().__init__()
        info = self._lib.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.model.config.vocab_size)
        self._compiler = self._lib.GrammarCompiler(info)
        self._grammars: dict[str, Any] = {}

    def compile(self, kind: str, schema: Schema) -> None:
        """A compiled grammar."""
        self._grammars[kind] = self._compiler.compile_json_schema(json.dumps(schema))

    def processors(self, kind: str) -> list[Any]:
        """A new one for each call, as its documentation asks."""
        return [self._hf.LogitsProcessor(self._grammars[kind])]


class LLGuidance(Transformers):
    """llguidance's matchers and its kernel for torch; the processor of a few lines is here, as it brings none."""

    packages: tuple[str, ...] = ("torch", "transformers", "llguidance")

    def __init__(self) -> None:
        self._lib = importlib.import_module("llguidance")
        self._kernels = importlib.import_module("llguidance.torch")
        super().__init__()
        size = self.model.config.vocab_size
        self._tokens = importlib.import_module("llguidance.hf").from_tokenizer(self.tokenizer, n_vocab=size)
        self._size, self._first = size, dict[str, Any]()

    def compile(self, kind: str, schema: Schema) -> None:
        """A matcher that stands at the beginning."""
        grammar = self._lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self._first[kind] = self._lib.LLMatcher(self._tokens, grammar)
        if self._first[kind].is_error():
            raise ValueError(self._first[kind].get_error())

    def processors(self, kind: str) -> list[Any]:
        """One with a matcher for each row."""
        matchers: list[Any] = []
        mask: Any = None

        def masked(tokens: Any, logits: Any) -> Any:
            nonlocal mask
            if mask is None:
                matchers.extend(self._first[kind].deep_copy() for _ in range(len(tokens)))
                mask = self._kernels.allocate_token_bitmask(len(tokens), self._size)
            else:
                for matcher, token in zip(matchers, tokens[:, -1].tolist(), strict=True):
                    if not matcher.is_stopped():
                        matcher.consume_token(token)
            for row, matcher in enumerate(matchers):
                self._kernels.fill_next_token_bitmask(matcher, mask, row)
            self._kernels.apply_token_bitmask_inplace(logits, mask)
            return logits

        return [masked]


class Outlines(Transformers):
    """Outlines over transformers, with one of its back ends."""

    def __init__(self, backend: str) -> None:
        self._lib = importlib.import_module("outlines")
        importlib.import_module(backend)  # named if it is absent
        super().__init__()
        self.packages = ("torch", "transformers", "outlines", backend)
        self._backend = backend
        self._over = self._lib.from_transformers(self.model, self.tokenizer)
        self._generators: dict[str, Any] = {}

    def compile(self, kind: str, schema: Schema) -> None:
        """A generator, which is used again and again."""
        wanted = self._lib.json_schema(json.dumps(schema))
        self._generators[kind] = self._lib.Generator(self._over, wanted, backend=self._backend)

    def write(self, kind: str, prompts: Sequence[str]) -> list[str]:
        """Its call for one, and its `batch` for several."""
        generator, options = self._generators[kind], {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": False}
        if len(prompts) == 1:
            return [generator(prompts[0], **options)]
        return list(generator.batch(list(prompts), **options))


class LlamaCpp:
    """llama.cpp with a grammar of the schema, over the same float32 weights as GGUF; it has no batches from Python.

    Prompts come as token ids of the model's tokenizer: llama.cpp has no such rule for the parts of words.
    """

    packages: tuple[str, ...] = ("llama_cpp_python",)
    takes_batches = False

    def __init__(self, num_threads: int) -> None:
        self._lib = importlib.import_module("llama_cpp")
        self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        with tempfile.TemporaryDirectory(prefix="decodekit-rivals-") as folder:
            path = Path(folder) / "tiny.gguf"
            write_gguf(path)
            self._llama = self._lib.Llama(
                str(path), n_ctx=1024, n_threads=num_threads, n_threads_batch=num_threads, verbose=False
            )
        self._grammars: dict[str, Any] = {}

    def compile(self, kind: str, schema: Schema) -> None:
        """Its own translation of the schema into GBNF."""
        self._grammars[kind] = self._lib.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)

    def write(self, kind: str, prompts: Sequence[str]) -> list[str]:
        """One after the other."""
        texts = []
        for prompt in prompts:
            answer = self._llama.create_completion(
                self._tokenizer.encode(prompt).ids,
                grammar=self._grammars[kind],
                max_tokens=MAX_NEW_TOKENS,
                temperature=0.0,
                repeat_penalty=1.0,
            )
            texts.append(answer["choices"][0]["text"])
        return texts


def write_gguf(path: Path) -> None:
    """The bundled model as a GGUF file, weights as they are (float32), by the `gguf` package."""
    gguf, safetensors = importlib.import_module("gguf"), importlib.import_module("safetensors.numpy")
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    num_layers, num_heads = config["num_hidden_layers"], config["num_attention_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    special = {token["id"] for token in vocabulary["added_tokens"]}
    tokens = {number: token for token, number in vocabulary["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in vocabulary["added_tokens"]}
    kinds = gguf.TokenType
    numbers = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(number, f"[{number}]") for number in numbers])
    writer.add_token_types(
        [kinds.UNUSED if one not in tokens else kinds.CONTROL if one in special else kinds.NORMAL for one in numbers]
    )
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, num_layers)
    for name, weights in safetensors.load_file(MODEL / "model.safetensors").items():
        if name == "lm_head.weight":
            continue  # llama.cpp takes the embedding in its place
        if "q_proj" in name or "k_proj" in name:
            # transformers rotates halves [2, D / 2] of a head, llama.cpp neighbours [D / 2, 2]
            size = weights.shape
            weights = weights.reshape(num_heads, 2, -1, size[1]).swapaxes(1, 2).reshape(size)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


OWN: Final = ("decodekit with drafts", "decodekit")
"""The sides that run in decodekit's own environment; the first is compared with all others."""

SIDES: Final[dict[str, Callable[[int], Side]]] = {
    "decodekit with drafts": lambda _: Decodekit(SPECULATE),
    "decodekit": lambda _: Decodekit(()),
    "outlines, outlines_core": lambda _: Outlines("outlines_core"),
    "outlines, llguidance": lambda _: Outlines("llguidance"),
    "outlines, xgrammar": lambda _: Outlines("xgrammar"),
    "transformers, llguidance": lambda _: LLGuidance(),
    "transformers, xgrammar": lambda _: XGrammar(),
    "transformers, no schema": lambda _: Transformers(),
    "llama.cpp, its grammar": LlamaCpp,
}
"""Sides by name, each made for a number of threads."""


def schemas() -> dict[str, Schema]:
    """The schemas of the sample documents by kind."""
    paths = sorted((REPOSITORY / "examples").glob("*/schema.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def make(name: str, num_threads: int) -> tuple[Side, dict[str, Any]]:
    """A side that has compiled all schemas, and what it says of itself."""
    if name != "llama.cpp, its grammar":
        importlib.import_module("torch").set_num_threads(num_threads)
    side = SIDES[name](num_threads)
    for kind, schema in schemas().items():
        side.compile(kind, schema)
    versions = {package: importlib.metadata.version(package) for package in side.packages}
    return side, {"versions": versions, "takes_batches": side.takes_batches}


def answer(side: Side, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a side writes for one request, and in which time."""
    prompts = request["prompts"]
    groups = [prompts] if request["together"] else [[prompt] for prompt in prompts]
    begin = time.perf_counter()
    texts = [text for group in groups for text in side.write(request["kind"], group)]
    return {"texts": texts, "seconds": time.perf_counter() - begin}


def main() -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        side, told = make(arguments.side, arguments.threads)
    except ModuleNotFoundError as absent:
        print(json.dumps({"absent": absent.name}), file=answers)
        return
    print(json.dumps(told), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(side, json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
