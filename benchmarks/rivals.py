"""One side of `benchmarks.peers` in a process of its own: documents in, JSON out, seconds between.

    $DECODEKIT_RIVALS/bin/python -m benchmarks.rivals "outlines, xgrammar" --threads 1

Runs where decodekit is not installed. The first line that it writes says the versions of its packages, or which one is
absent. Then it reads requests and writes answers, each a line of JSON: to
``{"kind": "invoice", "prompts": [...], "together": true}`` it says ``{"texts": [...], "seconds": 0.5}``. Prompts are
decoded together, in one batch, or one after the other.

Schemas are compiled before anything is timed. All sides are greedy, with float32 weights and at most `MAX_NEW_TOKENS`.

The side ``llama.cpp`` is that of `benchmarks.loop`: with ``--model FOLDER --dtype bfloat16 --rows 8`` it continues
token ids, one batch a request (`Continued`).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """llama.cpp with a grammar of the schema, over the same float32 weights as GGUF; its class `Llama` has no batches.

    Prompts come as token ids of the model's tokenizer: llama.cpp has no such rule for the parts of words.
    """

    packages: tuple[str, ...] = ("llama_cpp_python",)
    takes_batches = False

    def __init__(self, num_threads: int) -> None:
        self._lib = importlib.import_module("llama_cpp")
        self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        with gguf_file(MODEL, "float32") as path:
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


class Continued:
    """llama.cpp from tokens to tokens, greedy, over a model as GGUF, by its functions of C.

    The rows of a batch go through `llama_decode` together, each a sequence of its own; numpy finds the largest logit
    where llama.cpp has written them. Keys and values are F16, its default, or F32, which rounds nothing beside weights
    in F32, but makes it several times slower.

    Args:
        num_threads: of its arithmetic.
        folder: a Llama with float32 weights, as transformers saves it.
        dtype: one of `TYPES`.
        num_rows: the most prompts of a batch; each has room for `CONTEXT` tokens.
    """

    packages: tuple[str, ...] = ("llama_cpp_python", "gguf")

    def __init__(self, num_threads: int, folder: Path, dtype: str, num_rows: int) -> None:
        self._lib = lib = importlib.import_module("llama_cpp")
        self._as_array = importlib.import_module("numpy.ctypeslib").as_array
        lib.llama_backend_init()
        with gguf_file(folder, dtype) as path:
            self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        self._num_threads, self._num_rows = num_threads, num_rows
        self._contexts: dict[str, Any] = {}
        self._batch = lib.llama_batch_init(num_rows * CONTEXT, 0, 1)
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def context(self, cache: str) -> Any:
        """A context with nothing in its cache of a type, F16 or F32."""
        if cache not in self._contexts:
            options = self._lib.llama_context_default_params()
            options.n_ctx = options.n_batch = self._num_rows * CONTEXT
            options.n_seq_max = self._num_rows
            options.n_threads = options.n_threads_batch = self._num_threads
            options.type_k = options.type_v = getattr(self._lib, f"GGML_TYPE_{cache}")
            self._contexts[cache] = self._lib.llama_init_from_model(self._model, options)
        context = self._contexts[cache]
        self._lib.llama_memory_clear(self._lib.llama_get_memory(context), False)
        return context

    def write(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos: Collection[int], cache: str
    ) -> list[list[int]]:
        """The new tokens of each prompt of one batch, without an end of text."""
        context = self.context(cache)
        rows: list[list[int]] = [[] for _ in prompts]
        lengths = [0] * len(prompts)
        unread = dict(enumerate(prompts))  # by row; a row that has ended is not here
        for _ in range(max_new_tokens):
            places = self._read(context, unread, lengths)
            for row, place in places.items():
                logits = self._as_array(self._lib.llama_get_logits_ith(context, place), (self._vocab_size,))
                token = int(logits.argmax())
                if token in eos:
                    del unread[row]
                else:
                    rows[row].append(token)
                    unread[row] = [token]
            if not unread:
                break
        return rows

    def _read(self, context: Any, unread: Mapping[int, Sequence[int]], lengths: list[int]) -> dict[int, int]:
        """One forward pass; where in the batch each row's last token stands."""
        batch, at, places = self._batch, 0, dict[int, int]()
        for row, tokens in unread.items():
            for token in tokens:
                batch.token[at], batch.pos[at], batch.logits[at] = token, lengths[row], 0
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                lengths[row] += 1
                at += 1
            places[row] = at - 1
            batch.logits[at - 1] = 1
        batch.n_tokens = at
        if code := self._lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode answers {code} to {at} tokens")
        return places


TYPES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0"}
"""The types of `benchmarks.loop`, and what the matrices of a GGUF file are in their place; norms stay in float32."""
CONTEXT: Final = 1024


@contextmanager
def gguf_file(folder: Path, dtype: str) -> Iterator[Path]:
    """A GGUF file of a model: beside its weights, or, of the bundled one, until llama.cpp has it in memory."""
    with tempfile.TemporaryDirectory(prefix="decodekit-rivals-") as place:
        path = (Path(place) if folder == MODEL else folder) / f"{dtype}.gguf"
        if not path.exists():
            write_gguf(path, folder, dtype)
        yield path


def write_gguf(path: Path, folder: Path, dtype: str) -> None:
    """A Llama with float32 weights as a GGUF file, its matrices in a type of `TYPES`, by the `gguf` package.

    A model without a tokenizer gets a vocabulary without texts.
    """
    gguf, safetensors = importlib.import_module("gguf"), importlib.import_module("safetensors.numpy")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    num_layers, num_heads, num_shared = (
        config[f"num_{name}"] for name in ("hidden_layers", "attention_heads", "key_value_heads")
    )
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_shared)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if (folder / "tokenizer.json").exists():
        _add_tokenizer(writer, folder, config)
    else:
        writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, num_layers)
    kind = gguf.GGMLQuantizationType[TYPES[dtype]]
    for name, weights in safetensors.load_file(folder / "model.safetensors").items():
        if name == "lm_head.weight":
            continue  # llama.cpp takes the embedding in its place
        if "q_proj" in name or "k_proj" in name:
            # transformers rotates halves [2, D / 2] of a head, llama.cpp neighbours [D / 2, 2]
            size, heads = weights.shape, num_heads if "q_proj" in name else num_shared
            weights = weights.reshape(heads, 2, -1, size[1]).swapaxes(1, 2).reshape(size)
        own = kind if weights.ndim > 1 else gguf.GGMLQuantizationType.F32
        weights = gguf.quants.quantize(weights, own)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weights, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"] for token in vocabulary["added_tokens"]}
    tokens = {number: token for token, number in vocabulary["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in vocabulary["added_tokens"]}
    kinds = importlib.import_module("gguf").TokenType
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
LLAMA_CPP: Final = "llama.cpp"
"""The side of `benchmarks.loop`, a `Continued`."""


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
    return side, {"versions": versions(side.packages), "takes_batches": side.takes_batches}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def answer(side: Side, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a side writes for one request, and in which time."""
    prompts = request["prompts"]
    groups = [prompts] if request["together"] else [[prompt] for prompt in prompts]
    begin = time.perf_counter()
    texts = [text for group in groups for text in side.write(request["kind"], group)]
    return {"texts": texts, "seconds": time.perf_counter() - begin}


def continued(side: Continued, request: Mapping[str, Any]) -> dict[str, Any]:
    """The new tokens of a batch, and the seconds of processor time that they took."""
    begin = time.process_time()
    tokens = side.write(**request)
    return {"tokens": tokens, "processor_seconds": time.process_time() - begin}


def main() -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=[*SIDES, LLAMA_CPP])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, default=MODEL, help=f"of {LLAMA_CPP}: a folder")
    parser.add_argument("--dtype", choices=list(TYPES), default="float32", help=f"of {LLAMA_CPP}")
    parser.add_argument("--rows", type=int, default=1, help=f"of {LLAMA_CPP}: the most of a batch")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        if arguments.side == LLAMA_CPP:
            tokens = Continued(arguments.threads, arguments.model, arguments.dtype, arguments.rows)
            answers_to, told = functools.partial(continued, tokens), {"versions": versions(tokens.packages)}
        else:
            side, told = make(arguments.side, arguments.threads)
            answers_to = functools.partial(answer, side)
    except ModuleNotFoundError as absent:
        print(json.dumps({"absent": absent.name}), file=answers)
        return
    print(json.dumps(told), file=answers)
    for line in sys.stdin:
        print(json.dumps(answers_to(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
