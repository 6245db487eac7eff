"""`serve`: an endpoint that speaks OpenAI's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit.cli import options as o
from decodekit.cli.command import command
from decodekit.cli.console import CRASH, DONE, note
from decodekit.errors import OptionError

_of_address = partial(typer.Option, rich_help_panel="Address")
_of_limits = partial(typer.Option, rich_help_panel="Limits")
_of_texts = partial(typer.Option, rich_help_panel="Texts")


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Where the endpoint listens, and to whom."""

    host: Annotated[str, _of_address(help="Address to listen at; 0.0.0.0 for all. TLS is left to a proxy.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _of_address(min=0, max=65535, help="Port; 0 for any that is free.")] = 8000
    api_key: Annotated[
        str | None,
        _of_address(
            envvar="DECODEKIT_API_KEY",
            show_envvar=True,
            help="Key that clients send. The variable keeps it out of lists of processes.",
        ),
    ] = None
    cors: Annotated[
        list[str] | None, _of_address(metavar="ORIGIN", help="Pages of this origin may call; may be repeated.")
    ] = None


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What the endpoint takes."""

    batch_size: Annotated[int, _of_limits(min=1, help="Texts that are written together.")] = 32
    max_queue: Annotated[int, _of_limits(min=0, help="Texts that may wait; one more is answered with 429.")] = 256
    max_new_tokens: Annotated[
        int | None, _of_limits(min=1, help="Most tokens of a text; by default the context of the model.")
    ] = None
    max_body_mb: Annotated[float, _of_limits(help="Most megabytes of a request.")] = 4.0
    timeout: Annotated[float, _of_limits(help="Seconds for a request, waiting included.")] = 600.0
    compile_seconds: Annotated[float, _of_limits(help="Seconds for the schema or grammar of a request.")] = 5.0
    grace: Annotated[float, _of_limits(min=0, help="Seconds for what runs when the endpoint is stopped.")] = 30.0


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """How texts are read and written."""

    name: Annotated[str | None, _of_texts(help="Name of the model for clients; by default as --model.")] = None
    chat_template: Annotated[Path | None, _of_texts(help="A file with a chat template.")] = None
    tool_format: Annotated[
        str,
        _of_texts(help="How the model writes calls of tools: hermes, llama3, function, mistral, mistral-v11, "
                  "mistral-v13, qwen3-coder."),
    ] = "hermes"  # fmt: skip
    speculate: Annotated[
        str | None,
        _of_texts(metavar="NAMES", help="Proposers of drafts, as in `generate`; they change no text."),
    ] = None


@command
def serve(*, model: o.ModelOptions, address: AddressOptions, limits: LimitOptions, served: ServedOptions) -> int:
    """Serve a model to clients of OpenAI's API."""
    make_app, Limits, bound, run, Service = _parts()
    speculate = o.parse_speculate(served.speculate) or ()
    template = _read(served.chat_template)
    if address.api_key == "":
        raise OptionError("the key is empty", at="api_key", hint="a key, or no --api-key")
    own = {
        "max_queue": limits.max_queue,
        "max_body_bytes": int(limits.max_body_mb * (1 << 20)),
        "timeout_s": limits.timeout,
        "compile_s": limits.compile_seconds,
        "tool_format": served.tool_format,
    }
    checked = Limits(**own, max_new_tokens=limits.max_new_tokens or 4096)
    listening = bound(address.host, address.port)
    from decodekit.cli.extract import load_model

    llm = load_model(model.model, model.dtype, model.device_map)
    if limits.max_new_tokens is None and llm.model.context_length is not None:
        checked = Limits(**own, max_new_tokens=llm.model.context_length)
    name = served.name or model.model
    service = Service(llm, name, checked, batch_size=limits.batch_size, speculate=speculate, template=template)
    service.compiler.start()
    if not service.prompts.has_template:
        note(f"{name} has no chat template: the messages of a chat are put one after the other, each with a line end")
    host, port = listening.getsockname()[:2]

    def ready() -> None:
        note(f"serving {name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    app = make_app(service, api_key=address.api_key, cors=address.cors or ())
    is_well = run(app, service, listening, limits.grace, ready, note)
    note("stopped")
    return DONE if is_well else CRASH


def _parts() -> tuple[Any, ...]:
    """What an endpoint is made of.

    Raises:
        OptionError: a package that it needs is missing.
    """
    try:
        from decodekit.serving.app import make_app
        from decodekit.serving.limits import Limits
        from decodekit.serving.server import bound, serve
        from decodekit.serving.service import Service
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("decodekit"):
            raise
        cause = f"the package {error.name} is missing, which an endpoint needs"
        raise OptionError(cause, at="serve", hint="pip install 'decodekit[serve]'") from error
    return make_app, Limits, bound, serve, Service


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise OptionError(f"the chat template cannot be read: {error}", at="chat_template") from error
