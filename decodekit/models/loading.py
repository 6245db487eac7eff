"""Loading a model and its tokenizer by folder, hub id or bundled name, with errors that say what to do."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from decodekit.errors import ModelError, OptionError, VocabularyMismatchError
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.merged_products import lay_together

BUNDLED = ("tiny", "tiny-draft")

# How long the first question to the hub may take; after it, downloads have their own limits.
_HUB_TIMEOUT_S = 10.0


def load(
    name_or_path: str | os.PathLike[str],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    cache_dtype: Literal["int8"] | None = None,
    compile_layers: bool | None = None,
    **from_pretrained: Any,
) -> tuple[HuggingFaceLM, Any]:
    """Load a causal language model of transformers with its tokenizer.

    Args:
        name_or_path: "tiny" or "tiny-draft" (bundled), a local folder, or the id of a model on the Hugging Face hub.
        dtype: "auto" (that of the checkpoint), or a name such as "bfloat16", or a `torch.dtype`.
        device: where the model goes; by default CUDA where there is a GPU, else the CPU.
        device_map: how `accelerate` spreads the model, instead of `device`.
        revision: branch, tag or commit of a model on the hub.
        cache_dtype, compile_layers: see `HuggingFaceLM`.
        **from_pretrained: handed on to `AutoModelForCausalLM.from_pretrained`; `trust_remote_code` and `token` to the
            tokenizer too.

    Returns:
        The model and its tokenizer.

    Raises:
        ModelError: the model is not found or cannot be loaded or run.
        VocabularyMismatchError: the tokenizer has tokens that the model does not know.
        OptionError: `device` together with `device_map`, or a device or dtype that does not exist.
    """
    if device is not None and device_map is not None:
        raise OptionError("device and device_map exclude each other", at="device", hint="leave one of them out")
    target = None if device_map is not None else _device(device)
    if not (isinstance(dtype, str) and dtype == "auto"):
        dtype = _dtype(dtype)
    spread: object = device_map
    if not isinstance(spread, str | Mapping | int | torch.device | None):
        cause = f"device_map={spread!r:.60} is neither a name nor devices by the names of modules"
        raise OptionError(cause, at="device_map", hint='"auto"')
    branch: object = revision
    if not isinstance(branch, str | None):
        raise OptionError(f"revision={branch!r:.60} is no text", at="revision", hint="a branch, tag or commit")
    source, is_local = _resolve(name_or_path, revision, from_pretrained)
    shared = {name: value for name, value in from_pretrained.items() if name in ("trust_remote_code", "token")}
    if not is_local and revision is not None:
        shared["revision"] = revision
    arguments = {**from_pretrained, **shared, "dtype": dtype}
    if device_map is not None:
        arguments["device_map"] = device_map
    with nullcontext() if name_or_path not in BUNDLED else _no_progress_bar():
        model = _load_model(source, arguments)
    tokenizer = _load_tokenizer(source, shared)
    if target is not None:
        model = model.to(target)
        if target.type == "cuda":
            lay_together(model)  # what could not be is told by `PagedModel.not_merged`
    lm = HuggingFaceLM(model, cache_dtype=cache_dtype, compile_layers=compile_layers)
    check_tokenizer(lm, tokenizer)
    return lm, tokenizer


def load_config(name_or_path: str | os.PathLike[str], revision: str | None = None, **from_pretrained: Any) -> Any:
    """The configuration of a model, without its weights.

    Args:
        name_or_path: as `load` takes it, or a ``config.json``.
        revision: branch, tag or commit of a model on the hub.
        **from_pretrained: handed on to `AutoConfig.from_pretrained`.

    Raises:
        ModelError: it is not found, or is none.
    """
    from transformers import AutoConfig

    is_file = isinstance(name_or_path, str | os.PathLike) and os.fspath(name_or_path).endswith(".json")
    if is_file and os.path.isfile(name_or_path):
        source = os.fspath(name_or_path)
    else:
        source, is_local = _resolve(name_or_path, revision, from_pretrained)
        if not is_local and revision is not None:
            from_pretrained["revision"] = revision
    try:
        return AutoConfig.from_pretrained(source, **from_pretrained)
    except (OSError, ValueError, KeyError, ImportError) as problem:
        raise ModelError(
            f"the configuration cannot be read: {_first_line(problem)}", at=source, hint=_load_hint(problem)
        ) from problem


def _load_model(source: str, arguments: dict[str, Any]) -> Any:
    """The model of transformers in a folder or repository; `ModelError` says why there is none.

    Of a model that reads images, too, the part for text is used; see `HuggingFaceLM`.
    """
    from transformers import AutoModelForCausalLM

    try:
        return (_image_text_class(source, arguments) or AutoModelForCausalLM).from_pretrained(source, **arguments)
    except ModelError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as problem:
        raise ModelError(
            f"the model cannot be loaded: {_first_line(problem)}", at=source, hint=_load_hint(problem)
        ) from problem


def _image_text_class(source: str, arguments: dict[str, Any]) -> Any:
    """The class that loads a model of images and text that `AutoModelForCausalLM` does not know; None for all others.

    Raises:
        ModelError: the model is of a kind that continues no text.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    if os.path.isdir(source) and not os.path.isfile(os.path.join(source, "config.json")):
        return None  # an adapter, whose base says what it is; or a GGUF file, which is of text
    names = ("trust_remote_code", "token", "revision", "cache_dir", "local_files_only", "subfolder")
    config: Any = AutoConfig.from_pretrained(
        source, **{name: value for name, value in arguments.items() if name in names}
    )
    kind = getattr(config, "model_type", "")
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "auto_map"):
        return None
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{kind} is an encoder-decoder model: its decoder continues what its encoder has read, not a prompt",
            at=source,
            hint="a decoder-only model",
        )
    return AutoModelForImageTextToText if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else None


def _load_tokenizer(source: str, arguments: dict[str, Any]) -> Any:
    """The tokenizer in a folder or repository; `ModelError` says why there is none."""
    from transformers import AutoTokenizer

    hint = "put the tokenizer's files beside the model, or use LLM(model, tokenizer) with one of your own"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
    except Exception as problem:  # what tokenizers raise for a missing or broken file varies widely
        raise ModelError(f"the tokenizer cannot be loaded: {_first_line(problem)}", at=source, hint=hint) from problem
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        # What transformers makes of a folder without a tokenizer, for some architectures.
        raise ModelError("the folder holds no tokenizer: its vocabulary is empty", at=source, hint=hint)
    return tokenizer


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Without transformers' bar for the reading of weights, which a model of some megabytes does not need."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def check_tokenizer(lm: HuggingFaceLM, tokenizer: Any) -> None:
    """Refuse a tokenizer whose tokens do not fit into the model's logits, naming the first one."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    outside = min(((i, token) for token, i in vocabulary.items() if i >= lm.vocab_size), default=None)
    if outside is not None:
        raise VocabularyMismatchError(
            f"the tokenizer has {len(vocabulary)} tokens, the model {lm.vocab_size} logits: "
            f"token {outside[0]} {outside[1]!r} has none",
            at=lm.name,
            hint="load the tokenizer from the model's own folder, or call model.resize_token_embeddings",
        )


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        given: Any = device
        if isinstance(given, bool):
            raise TypeError("a bool is no device")
        found = torch.device(given)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, TypeError, ValueError) as problem:
        raise OptionError(
            f"the device {device!r:.60} cannot be used: {_first_line(problem)}", at="device", hint='"cpu" or "cuda"'
        ) from problem
    return found


def _dtype(name: object) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(
            f"{name!r:.60} is not a type of weights", at="dtype", hint='"auto", "float32", "bfloat16" or "float16"'
        )
    return found


def _resolve(
    name_or_path: str | os.PathLike[str], revision: str | None, from_pretrained: dict[str, Any]
) -> tuple[str, bool]:
    """The folder or hub id to load, and whether it is a folder."""
    name = os.fspath(name_or_path) if isinstance(name_or_path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name:
        raise OptionError(
            f"{name_or_path!r:.60} is neither the name of a model nor a folder", at="name_or_path", hint='"tiny"'
        )
    if name in BUNDLED and not os.path.isdir(name):
        folder = Path(__file__).parent / name
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"the bundled model {name!r} is not part of this installation",
                at=str(folder),
                hint="install the package from its wheel or repository, or name a folder or hub id",
            )
        return str(folder), True
    path = Path(name).expanduser()
    if os.path.isdir(path):
        # An adapter of peft names its base; a GGUF file has its configuration inside.
        if not any((path / one).is_file() for one in ("config.json", "adapter_config.json")) and not [
            *path.glob("*.gguf")
        ]:
            raise ModelError(
                "the folder holds no model: config.json is missing",
                at=str(path),
                hint="a folder that save_pretrained wrote, with config.json, weights and tokenizer files"
                + _near(path / "config.json", (p.parent for p in path.glob("*/config.json")), "did you mean "),
            )
        return str(path), True
    if os.path.isfile(path):
        raise ModelError("a file was given where a model folder is expected", at=str(path), hint=f'"{path.parent}"')
    if _is_path(name):
        raise ModelError(
            "there is no such model folder",
            at=str(path),
            hint="check the path" + _near(path, _folders(path.parent), "; did you mean "),
        )
    near = difflib.get_close_matches(name, [*BUNDLED, *(p.name for p in _folders(Path()))], n=1, cutoff=0.75)
    if near and "/" not in name:
        raise ModelError(f"there is no model {name!r}", at="model", hint=f'"{near[0]}", or a hub id such as "org/name"')
    _ask_hub(name, revision, from_pretrained)
    return name, False


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: hub ids have at most one slash and no dot segment."""
    return name.count("/") > 1 or "\\" in name or name.startswith((".", "~", "/")) or name == "" or name.endswith("/")


def _ask_hub(name: str, revision: str | None, from_pretrained: dict[str, Any]) -> None:
    """See that the hub, or its cache on this machine, has the model, without waiting long; or `ModelError`."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    local = "no folder of this name exists here"
    elsewhere = 'a local folder, "tiny" (bundled), or a connection to the hub'
    # The more special error first: a gated repository is also one that is not found.
    known: dict[type[Exception], tuple[str, str]] = {
        errors.HFValidationError: (f"{local}, and it is not a hub id", 'a folder, "tiny", or "org/name"'),
        errors.GatedRepoError: ("the model is gated on the hub", "accept its terms on its page, then `hf auth login`"),
        errors.RevisionNotFoundError: (f"the model has no revision {revision!r}", "see its branches and tags"),
        errors.RepositoryNotFoundError: (
            f"{local}, and the hub has no such model",
            "check the spelling; private models need `hf auth login`",
        ),
        errors.EntryNotFoundError: ("the repository has no config.json", "a repository in transformers' format"),
    }
    try:
        cache_dir = from_pretrained.get("cache_dir")
        if isinstance(try_to_load_from_cache(name, "config.json", cache_dir=cache_dir, revision=revision), str):
            return
        if from_pretrained.get("local_files_only") or constants.HF_HUB_OFFLINE:
            raise ModelError(f"{local}, and the model is not in the hub's cache", at=name, hint=elsewhere)
        url = hf_hub_url(name, "config.json", revision=revision)
        get_hf_file_metadata(url, token=from_pretrained.get("token"), timeout=_HUB_TIMEOUT_S)
    except ModelError:
        raise
    except Exception as problem:  # the hub's client changes its network library, and so its errors, between versions
        for kind, (cause, hint) in known.items():
            if isinstance(problem, kind):
                raise ModelError(cause, at=name, hint=hint) from problem
        raise ModelError(
            f"{local}, the model is not in the hub's cache, and the hub does not answer: {_first_line(problem)}",
            at=name,
            hint=elsewhere,
        ) from problem


def _folders(parent: Path) -> list[Path]:
    """Folders that hold a model, in the nearest existing folder above a path."""
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    try:
        return [p for p in parent.iterdir() if (p / "config.json").is_file()]
    except OSError:
        return []


def _near(wanted: Path, folders: Iterable[Path], prefix: str) -> str:
    """The likeliest of some folders, as the end of a hint."""
    names = {str(folder): folder for folder in folders}
    near = difflib.get_close_matches(str(wanted), list(names), n=1, cutoff=0.6)
    return f'{prefix}"{near[0]}"' if near else ""


def _first_line(problem: BaseException) -> str:
    text = str(problem).strip().split("\n", 1)[0]
    return text or type(problem).__name__


def _load_hint(problem: BaseException) -> str | None:
    text = str(problem)
    if "accelerate" in text:
        return "pip install accelerate, or give device instead of device_map"
    if "trust_remote_code" in text:
        return "trust_remote_code=True, if you trust the model's code"
    if "out of memory" in text:
        return 'dtype="bfloat16", a smaller model, or device="cpu"'
    return None
