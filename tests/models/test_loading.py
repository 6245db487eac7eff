"""Loading: what works, and what each mistake is answered with."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from decodekit.errors import ModelError, OptionError, VocabularyMismatchError
from decodekit.models import huggingface, load
from decodekit.models import loading as loading_module
from decodekit.models.checks import self_check
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE
from tests.reference.models import plain_logits


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(size)}
    inner = Tokenizer(WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "some-llama"
    architectures.build("llama").save_pretrained(path)  # type: ignore[operator]
    tokenizer(VOCAB_SIZE).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail loudly where a test would ask the hub."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)


def test_a_folder(folder: Path) -> None:
    lm, found = load(folder)
    assert lm.name == str(folder) and lm.tier.name == "ragged"
    assert lm.dtype == torch.float32 and lm.vocab_size == VOCAB_SIZE
    assert found("w5 w6")["input_ids"] == [5, 6]
    out = lm.forward(torch.tensor([[5, 6]]), [2], lm.new_cache(1, 4))
    torch.testing.assert_close(out[0], plain_logits(lm.model, [5, 6])[-1])


def test_options_are_handed_on(folder: Path) -> None:
    lm, _ = load(folder, dtype="bfloat16", device="cpu", attn_implementation="eager")
    assert lm.dtype == torch.bfloat16
    assert lm.model.config._attn_implementation == "eager"  # type: ignore[union-attr]
    lm, _ = load(str(folder), dtype=torch.float16)
    assert lm.dtype == torch.float16


def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path) -> None:
    architectures.build("llama").save_pretrained(tmp_path)  # type: ignore[operator]
    tokenizer(VOCAB_SIZE + 3).save_pretrained(tmp_path)
    with pytest.raises(VocabularyMismatchError, match="the tokenizer has 163 tokens, the model 160 logits") as caught:
        load(tmp_path)
    assert caught.value.code == "DK301" and "token 160 'w160'" in str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    architectures.build("gpt2").save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(ModelError, match=r"no tokenizer|tokenizer cannot be loaded"):
        load(tmp_path)


def test_a_folder_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(ModelError, match="there is no such model folder") as caught:
        load(folder.parent / "some-lama")
    assert caught.value.code == "DK300"
    assert f'did you mean "{folder}"' in str(caught.value)
    for name in ("./nowhere", "../no/where", "a/b/c", "~/nowhere", "/nowhere/at/all", ""):
        with pytest.raises(ModelError, match=r"no such model folder|config.json is missing"):
            load(name)


def test_a_folder_without_a_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json is missing") as caught:
        load(folder.parent)
    assert f'did you mean "{folder}"' in str(caught.value)
    with pytest.raises(ModelError, match="a file was given") as caught:
        load(folder / "config.json")
    assert str(folder) in str(caught.value)


def test_a_broken_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="the model cannot be loaded"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_architecture"}')
    with pytest.raises(ModelError, match="the model cannot be loaded"):
        load(tmp_path)


def test_a_misspelt_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="there is no model 'tinny'") as caught:
        load("tinny")
    assert '"tiny"' in str(caught.value)
    monkeypatch.chdir(folder.parent)
    assert load("some-llama")[0].name == "some-llama"
    with pytest.raises(ModelError) as caught:
        load("some-lama")
    assert '"some-llama"' in str(caught.value)


def test_a_hub_id_without_the_hub() -> None:
    begin = time.monotonic()
    with pytest.raises(ModelError, match="the hub does not answer: network is unreachable") as caught:
        load("some-organisation/some-model")
    assert "a local folder" in str(caught.value)
    with pytest.raises(ModelError, match="not in the hub's cache"):
        load("some-organisation/some-model", local_files_only=True)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RepositoryNotFoundError", "the hub has no such model"),
        ("GatedRepoError", "the model is gated"),
        ("RevisionNotFoundError", "no revision 'v2'"),
        ("RemoteEntryNotFoundError", r"no config\.json"),
    ],
)
def test_answers_of_the_hub(monkeypatch: pytest.MonkeyPatch, error: str, cause: str) -> None:
    from huggingface_hub import errors

    kind = getattr(errors, error)

    def answer(*args: Any, **kwargs: Any) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer)
    with pytest.raises(ModelError, match=cause):
        load("some-organisation/some-model", revision="v2")


def test_no_hub_id() -> None:
    with pytest.raises(ModelError, match="not a hub id"):
        load("spaces are not allowed")


def test_options_that_cannot_be(folder: Path) -> None:
    with pytest.raises(OptionError, match="exclude each other"):
        load(folder, device="cpu", device_map="auto")
    with pytest.raises(OptionError, match="'cpux' cannot be used"):
        load(folder, device="cpux")
    with pytest.raises(OptionError, match="not a type of weights"):
        load(folder, dtype="float33")
    with pytest.raises(OptionError, match="not a type of weights"):
        load(folder, dtype="int8")


def test_device_map(folder: Path) -> None:
    if importlib.util.find_spec("accelerate") is not None:
        assert load(folder, device_map="auto")[0].vocab_size == VOCAB_SIZE
        return
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(folder, device_map="auto")
    assert "pip install accelerate" in str(caught.value)


@pytest.mark.parametrize("name", loading_module.BUNDLED)
def test_bundled_models(name: str) -> None:
    path = Path(loading_module.__file__).parent / name
    if not (path / "config.json").is_file():
        with pytest.raises(ModelError, match="is not part of this installation"):
            load(name)
        return
    lm, found = load(name)
    assert lm.tier.name == "ragged" and len(found) <= lm.vocab_size


def test_a_model_is_checked_once_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    model = architectures.build("llama")
    first = huggingface.HuggingFaceLM(model)
    monkeypatch.setattr(self_check, "largest_error", lambda *_: pytest.fail("checked twice"))
    second = huggingface.HuggingFaceLM(model)
    assert second.tier == first.tier
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(
        second.forward(tokens, [3], second.new_cache(1, 3)), first.forward(tokens, [3], first.new_cache(1, 3))
    )
    monkeypatch.setattr(self_check, "largest_error", lambda *_: 1.0)
    with pytest.raises(ModelError, match="cannot be run"):
        huggingface.HuggingFaceLM(model.double())  # another type is another question


def test_the_bundled_model_loads_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    load("tiny")
    assert "Loading weights" not in capfd.readouterr().err
