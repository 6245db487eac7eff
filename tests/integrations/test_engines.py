"""Masks inside of other engines, against stand-ins with the signatures that the engines publish.

What a stand-in has is what was read in vLLM (``vllm/v1/sample/logits_processor/interface.py``,
``vllm/v1/worker/gpu/sample/logits_processor/interface.py``), mlx-lm (``mlx_lm/generate.py``), llama-cpp-python
(``llama_cpp/llama.py``) and SGLang (``python/sglang/srt/sampling/custom_logit_processor.py``).
"""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from decodekit.errors import OptionError, VocabularyMismatchError
from decodekit.integrations.sglang import SglangProcessor
from decodekit.integrations.vllm import VllmProcessor, register
from decodekit.vocabulary import Vocabulary

VOCABULARY = Vocabulary([*(bytes([i]) for i in range(256)), None, b"12", b"ab"], [256])
WIDTH = 264  # logits are wider than the tokenizer
PATTERN = dk.Regex("a(b|c)[0-9]+")


def allowed_after(text: Sequence[int], constraint: object = PATTERN) -> set[int]:
    """Slow and obviously right: each token tried by itself."""
    matcher = dk.compile(constraint, VOCABULARY).matcher()
    if matcher.validate(text) < len(text):
        return {256}
    return {token for token in range(VOCABULARY.size) if matcher.validate([*text, token]) > len(text)}


def kept(scores: Any) -> set[int]:
    return set(np.flatnonzero(np.asarray(scores) > -np.inf).tolist())


# --- llama-cpp-python: (input_ids intc [S], scores single [V]) -> single [V] -----------------------------------------


def test_llama_cpp_python() -> None:
    processor = dk.processor(constraint=PATTERN, tokenizer=VOCABULARY, framework="numpy")
    prompt = [*b"Q: "]
    scores = np.linspace(-1, 1, WIDTH, dtype=np.single)
    for text in (b"", b"a", b"ab", b"ab1", b"ab", b"ab", b"ac", b"ac9", b"ac93", b"", b"a"):  # forth and back
        given = np.array([*prompt, *text], np.intc)
        masked = processor(given, scores)
        assert masked.dtype == np.single and masked.shape == (WIDTH,) and np.isfinite(scores).all()
        assert kept(masked) == allowed_after(text)
        assert (masked[sorted(kept(masked))] == scores[sorted(kept(masked))]).all()
    assert kept(processor(np.array([7, 7], np.intc), scores)) == allowed_after(b"")  # another prompt


def test_rows_of_numpy_and_wrong_shapes() -> None:
    processor = dk.processor(constraint=PATTERN, tokenizer=VOCABULARY, framework="numpy")
    rows = np.array([[1, 1], [2, 2]])
    scores = np.zeros((2, WIDTH))
    processor(rows, scores)
    masked = processor(np.array([[1, 1, 97], [2, 2, 258]]), scores)
    assert [kept(row) for row in masked] == [allowed_after(b"a"), allowed_after(b"ab")]
    with pytest.raises(OptionError, match=r"token ids of shape \(2, 2\) for scores of shape \(264,\)"):
        processor(rows, scores[0])
    with pytest.raises(VocabularyMismatchError, match="259 ids, the logits 200 columns"):
        processor(rows, scores[:, :200])
    assert repr(processor).startswith("NumpyProcessor(Regex(")
    processor.reset()
    assert [kept(row) for row in processor(rows, scores)] == [allowed_after(b"")] * 2


# --- mlx-lm: (tokens array [S], logits array [1, V]) -> array [1, V] -------------------------------------------------


class MlxArray:
    """What of ``mx.array`` a processor meets; anything else fails."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values.values if isinstance(values, MlxArray) else values)
        self.shape = self.values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype)


def mlx_where(condition: MlxArray, one: MlxArray, other: float) -> MlxArray:
    assert isinstance(condition, MlxArray) and isinstance(one, MlxArray) and isinstance(other, float)
    return MlxArray(np.where(condition.values, one.values, other))


@pytest.fixture
def mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace(array=MlxArray, where=mlx_where))


@pytest.mark.usefixtures("mlx")
def test_mlx_lm_with_a_draft_model() -> None:
    """The calls of ``speculative_generate_step``: the draft model's, then, from the same place, the model's own."""
    processor = dk.processor(constraint=PATTERN, tokenizer=VOCABULARY, framework="mlx")
    logits = MlxArray(np.zeros((1, WIDTH), np.float32))
    for text in (b"", b"a", b"ab", b"", b"a", b"ac", b"ac1", b"ac", b"ac2", b"ac21"):
        tokens = MlxArray(np.array([ord("Q"), *text], np.uint32))  # the last token of the prompt alone
        masked = processor(tokens, logits)
        assert isinstance(masked, MlxArray) and masked.shape == (1, WIDTH)
        assert kept(masked.values[0]) == allowed_after(text)


def test_mlx_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    processor = dk.processor(constraint=PATTERN, tokenizer=VOCABULARY, framework="mlx")
    with pytest.raises(OptionError, match='framework="mlx" needs the package mlx'):
        processor(MlxArray([1]), MlxArray(np.zeros((1, WIDTH))))


# --- vLLM ------------------------------------------------------------------------------------------------------------


def test_a_processor_of_one_request_of_vllm() -> None:
    """``Callable[[list[int], Tensor], Tensor]``: the tokens so far without the prompt, and a row."""
    processor = dk.processor(constraint=PATTERN, tokenizer=VOCABULARY)
    assert len(inspect.signature(processor).parameters) == 2  # with three, vLLM would hand over the prompt first
    row = torch.zeros(WIDTH)
    for text in (b"", b"a", b"ab", b"ab7", b"", b"ac"):  # two requests that take turns
        assert kept(processor([*text], row)) == allowed_after(text)


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]] = ()
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class TheirProcessor(ABC):
    """``vllm.v1.sample.logits_processor.LogitsProcessor``."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None: ...


class Constrained(VllmProcessor):
    tokenizer = VOCABULARY
    constraint = PATTERN


class OnRequest(VllmProcessor):
    tokenizer = VOCABULARY


def params(constraint: object = None) -> SimpleNamespace:
    return SimpleNamespace(extra_args=None if constraint is None else {"decodekit": constraint})


def test_vllm_has_requests_that_come_go_and_move() -> None:
    processor = OnRequest(SimpleNamespace(), torch.device("cpu"), False)
    assert not processor.is_argmax_invariant()
    one, two, three = [list[int]() for _ in range(3)]
    digits = {"type": "integer"}
    first = (0, params({"enum": ["ab"]}), [1], one)
    added = [first, (1, params(), [1], two), (2, params(json.dumps(digits)), None, three)]
    processor.update_state(BatchUpdate(3, added=added))
    enum, integer = dk.JsonSchema({"enum": ["ab"]}), dk.JsonSchema(digits)

    def rows() -> list[set[int]]:
        logits = torch.zeros(3, WIDTH)
        assert processor.apply(logits) is logits
        return [kept(row) for row in logits]

    everything = set(range(WIDTH))
    assert rows() == [allowed_after(b"", enum), everything, allowed_after(b"", integer)]
    one += b'"a'  # vLLM appends to the lists that it gave
    three += b"12"
    processor.update_state(None)
    assert rows() == [allowed_after(b'"a', enum), everything, allowed_after(b"12", integer)]
    processor.update_state(BatchUpdate(3, moved=[(0, 2, MoveDirectionality.SWAP)]))
    assert rows() == [allowed_after(b"12", integer), everything, allowed_after(b'"a', enum)]
    processor.update_state(BatchUpdate(2, removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    assert rows() == [allowed_after(b'"a', enum), everything, everything]
    processor.update_state(BatchUpdate(2, added=[(0, params(), [1], [])]))  # in the place of one that has gone
    assert rows() == [everything] * 3


def test_a_tokenizer_is_read_once_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tokenizer:
        """Something that can be read, and is no `Vocabulary`."""

    seen: list[Any] = []
    monkeypatch.setattr(Vocabulary, "from_tokenizer", lambda tokenizer: seen.append(tokenizer) or VOCABULARY)

    class Served(VllmProcessor):
        tokenizer = Tokenizer()
        constraint = PATTERN

    processor = Served(SimpleNamespace(), torch.device("cpu"), False)
    for place in range(4):
        Served.validate_params(params())
        processor.update_state(BatchUpdate(place + 1, added=[(place, params(), [1], [])]))
    assert kept(processor.apply(torch.zeros(4, WIDTH))[3]) == allowed_after(b"") and len(seen) == 1


def test_one_constraint_for_every_request_and_what_vllm_does_not_know_yet() -> None:
    processor = Constrained(SimpleNamespace(), torch.device("cpu"), True)
    text = [97]
    processor.update_state(BatchUpdate(1, added=[(0, params(), [1], text)]))
    assert kept(processor.apply(torch.zeros(1, WIDTH))[0]) == allowed_after(b"a")
    text.append(-1)  # a place that asynchronous scheduling fills later
    with pytest.raises(OptionError, match="places that are not filled yet"):
        processor.apply(torch.zeros(1, WIDTH))


def test_vllm_refuses_a_request_by_value_error() -> None:
    OnRequest.validate_params(params())
    OnRequest.validate_params(params({"type": "integer"}))
    for wrong in ('{"type": ', {"type": "intger"}, "no-such-grammar", {"type": "integer", "minimum": 3, "maximum": 1}):
        with pytest.raises(ValueError, match="DK"):
            OnRequest.validate_params(params(wrong))


def test_vllm_takes_it_for_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.v1.sample.logits_processor", raising=False)
    assert not register(VllmProcessor) and not issubclass(Constrained, TheirProcessor)
    module = SimpleNamespace(LogitsProcessor=TheirProcessor)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", module)

    class Later(VllmProcessor):
        tokenizer = VOCABULARY

    assert issubclass(Later, TheirProcessor) and not issubclass(Constrained, TheirProcessor)
    assert register(VllmProcessor) and issubclass(Constrained, TheirProcessor)
    for name, theirs in inspect.getmembers(TheirProcessor, inspect.isfunction):
        if name != "__init__" and not name.startswith("__"):
            ours = list(inspect.signature(getattr(VllmProcessor, name)).parameters)
            assert ours[: len(inspect.signature(theirs).parameters)] == list(inspect.signature(theirs).parameters), name


def test_the_second_interface_of_vllm() -> None:
    """Rows in any order, several for a request with draft tokens; slots that are used again."""
    tokens = torch.zeros(4, 12, dtype=torch.int32)
    state = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=tokens), prompt_len=SimpleNamespace(np=np.array([0, 2, 0, 3]))
    )
    processor = Constrained(SimpleNamespace(), state)
    assert processor.add_request(1, params()) and processor.add_request(3, params({"type": "integer"}))
    assert not OnRequest(SimpleNamespace(), state).add_request(0, params())
    processor.apply_staged_writes()
    tokens[1, :4] = torch.tensor([7, 7, ord("a"), ord("b")])
    tokens[3, :4] = torch.tensor([7, 7, 7, ord("1")])
    context = SimpleNamespace(
        idx_mapping_np=np.array([3, 0, 1]),
        expanded_idx_mapping=torch.tensor([3, 0, 1, 1, 1]),
        expanded_local_pos=torch.tensor([0, 0, 0, 1, 2]),
        input_ids=torch.tensor([ord("1"), 5, ord("b"), ord("4"), ord("x")]),  # "4" and "x" are a draft
        pos=torch.tensor([3, 0, 3, 4, 5]),
    )
    logits = processor.apply(torch.zeros(5, WIDTH), context)
    integer = dk.JsonSchema({"type": "integer"})
    wanted = [allowed_after(b"1", integer), set(range(WIDTH)), *map(allowed_after, (b"ab", b"ab4", b"ab4x"))]
    assert [kept(row) for row in logits] == wanted
    context.idx_mapping_np = np.array([0])
    assert kept(processor.apply(torch.zeros(5, WIDTH), context)) == set(range(5 * WIDTH))  # nobody's rows


# --- SGLang: (logits [N, V], a dictionary for each request) -> [N, V] ------------------------------------------------


class TheirRequest:
    """``Req``: the scheduler puts it into the parameters of the request as ``__req__``."""

    def __init__(self) -> None:
        self.origin_input_ids = [7, 7]
        self.output_ids: list[int] = []
        self.tokenizer = VOCABULARY


def test_sglang() -> None:
    made = pickle.loads(bytes.fromhex(json.loads(SglangProcessor.to_str())["callable"]))  # what the server does
    assert made is SglangProcessor
    processor = made()
    requests = [TheirRequest() for _ in range(3)]
    schema = {"enum": ["ab", 12]}
    parameters: list[Any] = [
        {"decodekit": schema, "__req__": requests[0]},
        {"__req__": requests[1]},
        {"decodekit": json.dumps(schema), "__req__": requests[2]},
    ]
    enum = dk.JsonSchema(schema)
    for texts in ((b"", b"", b""), (b'"', b"x", b"1"), (b'"a', b"xy", b"12")):
        for request, text in zip(requests, texts, strict=True):
            request.output_ids = [*text]
        rows = processor(torch.zeros(3, WIDTH), parameters)
        wanted = [allowed_after(texts[0], enum), set(range(WIDTH)), allowed_after(texts[2], enum)]
        assert [kept(row) for row in rows] == wanted
    assert processor(torch.zeros(3, WIDTH)).isfinite().all()
    with pytest.raises(OptionError, match="6 rows of logits for 3 requests"):
        processor(torch.zeros(6, WIDTH), parameters)
    with pytest.raises(OptionError, match="__req__"):
        processor(torch.zeros(1, WIDTH), [{"decodekit": schema}])
    del requests, request, parameters
    assert len(processor._requests) == 0  # nothing is kept of requests that have gone


# --- requests of strangers --------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up among installed packages."""
    from decodekit import plugins

    asked: list[str] = []
    own = plugins.find
    monkeypatch.setattr(plugins, "find", lambda kind, name, known: asked.append(name) or own(kind, name, known))
    return asked


@pytest.mark.parametrize("name", ["somebody.package", "no-such-grammar", "../etc/passwd", "os:system", "", " "])
def test_a_request_names_no_installed_package(installed: list[str], name: str) -> None:
    with pytest.raises(ValueError, match="no grammar of the library"):
        OnRequest.validate_params(params(name))
    processor = OnRequest(SimpleNamespace(), torch.device("cpu"), False)
    processor.update_state(BatchUpdate(1, added=[(0, params(name), [1], [])]))
    assert kept(processor.apply(torch.zeros(1, WIDTH))[0]) == {256}
    assert installed == []
    OnRequest.validate_params(params("json"))  # the library's own
    assert VllmProcessor.validate_params(params("json")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        '{"type": ',
        {"type": "intger"},
        {"type": "integer", "minimum": 3, "maximum": 1},
        "{" * 9_000,
        "{" + " " * 300_000,
    ],
)
def test_a_constraint_that_cannot_be_used_ends_its_own_text(wrong: object, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a processor would end the server for everybody."""
    for kind in (VllmProcessor, OnRequest):
        with pytest.raises(ValueError, match="DK"):
            kind.validate_params(params(wrong))
    processor = OnRequest(SimpleNamespace(), torch.device("cpu"), False)
    processor.update_state(BatchUpdate(2, added=[(0, params(wrong), [1], []), (1, params(INTEGER), [1], [])]))
    rows = processor.apply(torch.zeros(2, WIDTH))
    assert kept(rows[0]) == {256} and kept(rows[1]) == allowed_after(b"", INTEGER)
    assert "the text of a request is ended" in caplog.text
    theirs = TheirRequest()
    row = SglangProcessor()(torch.zeros(1, WIDTH), [{"decodekit": wrong, "__req__": theirs}])[0]
    assert kept(row) == {256}


INTEGER = {"type": "integer"}


def test_a_constraint_that_outgrows_a_bound_ends_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from decodekit.errors import ResourceLimitError
    from decodekit.integrations import request_constraints as requests

    own = requests.words_for

    def bounded(matchers: Any, rows: Any, width: int, prompt_lengths: Any) -> Any:
        if len(rows[0]) == 2 and rows[0][0] == ord("a"):
            raise ResourceLimitError("the mask of this text takes more steps than a text may take")
        return own(matchers, rows, width, prompt_lengths)

    monkeypatch.setattr(requests, "words_for", bounded)
    processor = Constrained(SimpleNamespace(), torch.device("cpu"), False)
    one, two = [97], [97]
    processor.update_state(BatchUpdate(2, added=[(0, params(), [1], one), (1, params(INTEGER), [1], [])]))
    assert kept(processor.apply(torch.zeros(2, WIDTH))[0]) == allowed_after(b"a")
    one.append(ord("b"))
    rows = processor.apply(torch.zeros(2, WIDTH))
    assert kept(rows[0]) == {256} and kept(rows[1]) == allowed_after(b"", INTEGER)
    error = processor._requests[0].error
    assert error is not None and error.code == "DK206" and processor._requests[1].error is None
    one.append(256)  # it stays ended
    masked = torch.full((2, WIDTH), -torch.inf)
    assert kept(processor.apply(masked)[0]) == {256} and two == [97]  # also where nothing else had a chance
