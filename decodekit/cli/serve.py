"""`serve`: an endpoint that speaks OpenAI's protocol."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import CRASH, DONE, note
from decodekit.errors import OptionError

_of_address = partial(typer.Option, rich_help_panel="Address")
_of_limits = partial(typer.Option, rich_help_panel="Limits")
_of_texts = partial(typer.Option, rich_help_panel="Texts")


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """The options of the endpoint's address and of its clients."""

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
    allowed_host: Annotated[
        list[str] | None,
        _of_address(
            metavar="NAME",
            help="Name by which clients call; may be repeated, * for any. By default this machine's own names at an "
            "address of this machine alone, any name elsewhere.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Options for the limits of the endpoint."""

    batch_size: Annotated[
        int | None, _of_limits(min=1, help="Texts that are written together; by default 32, more on a GPU with room.")
    ] = None
    max_queue: Annotated[int, _of_limits(min=0, help="Texts that may wait; one more is answered with 429.")] = 256
    max_new_tokens: Annotated[
        int | None, _of_limits(min=1, help="Most tokens of a text; by default the context of the model.")
    ] = None
    max_body_mb: Annotated[float, _of_limits(help="Most megabytes of a request.")] = 4.0
    max_constraint_kb: Annotated[
        float, _of_limits(help="Most kilobytes of the schema, grammar or tools of a request.")
    ] = 256.0
    max_connections: Annotated[int, _of_limits(min=1, help="Most connections of clients.")] = 1024
    timeout: Annotated[float, _of_limits(help="Seconds for a request, waiting included.")] = 600.0
    compile_seconds: Annotated[float, _of_limits(help="Seconds for the schema or grammar of a request.")] = 5.0
    share_prefixes: Annotated[
        str | None,
        _of_limits(
            metavar="WHO",
            help="Who shares what was read of prompts: all; client, those of a key or else of an address; none. By "
            "default all where only this machine can call without a key, client elsewhere.",
        ),
    ] = None
    grace: Annotated[float, _of_limits(min=0, help="Seconds for what runs when the endpoint is stopped.")] = 30.0


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """The options of reading and writing texts."""

    name: Annotated[str | None, _of_texts(help="Name of the model for clients; by default as --model.")] = None
    chat_template: Annotated[Path | None, _of_texts(help="A file with a chat template.")] = None
    tool_format: Annotated[
        str,
        _of_texts(help="How the model writes calls of tools: auto, as its chat template tells; or a format by name."),
    ] = "auto"
    speculate: Annotated[
        str | None, _of_texts(metavar="NAMES", help="Proposers of drafts, as in `generate`; they change no text.")
    ] = None


@command
def serve(*, model: o.ModelOptions, address: AddressOptions, limits: LimitOptions, served: ServedOptions) -> int:
    """Serve a model to clients of OpenAI's API."""
    make_app, Limits, server, Service = _parts()
    speculate = o.parse_speculate(served.speculate) or ()
    template = _read(served.chat_template)
    if address.api_key == "":
        raise OptionError("the key is empty", at="api_key", hint="a key, or no --api-key")
    own = {
        "max_queue": limits.max_queue,
        "max_body_bytes": int(limits.max_body_mb * (1 << 20)),
        "max_constraint_bytes": int(limits.max_constraint_kb * (1 << 10)),
        "max_connections": limits.max_connections,
        "timeout_s": limits.timeout,
        "compile_s": limits.compile_seconds,
        "shared_prefixes": limits.share_prefixes or "client",
        "tool_format": served.tool_format,
    }
    Limits(**own, max_new_tokens=limits.max_new_tokens or 4096)  # what is wrong is told before a model is loaded
    listening = server.bound(address.host, address.port)
    if limits.share_prefixes is None and address.api_key is None and server.is_local(listening):
        own["shared_prefixes"] = "all"  # of one person
    hosts = server.hosts_of(listening, address.allowed_host or ())
    from decodekit.chat.tools import told_of
    from decodekit.cli.jobs.extract import load_model

    llm = load_model(model.model, model.dtype, model.device_map)
    checked = Limits(**own, max_new_tokens=limits.max_new_tokens or llm.model.context_length or 4096)
    name = served.name or model.model
    service = Service(llm, name, checked, batch_size=limits.batch_size, speculate=speculate, template=template)
    service.compiler.start()
    if not service.prompts.has_template:
        note(f"{name} has no chat template: the messages of a chat are put one after the other, each with a line end")
    elif served.tool_format == "auto":
        note(f"tools are called {told_of(llm.tokenizer, template)}")
    host, port = listening.getsockname()[:2]

    def ready() -> None:
        note(f"serving {name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    if address.api_key is None and not server.is_local(listening):
        note(f"anybody who reaches {host} can use this endpoint: DECODEKIT_API_KEY asks for a key")
    app = make_app(service, api_key=address.api_key, cors=address.cors or (), hosts=hosts)
    is_well = server.serve(app, service, listening, limits.grace, ready, note)
    note("stopped")
    if service.is_stuck:  # a step of the engine does not come to its end, and would be waited for
        note("the engine did not come back from its last step")
        sys.stdout.flush()
        os._exit(CRASH)
    return DONE if is_well else CRASH


def _parts() -> tuple[Any, ...]:
    """The modules that an endpoint is made of, loaded when they are asked for; OptionError if a package is missing."""
    try:
        from decodekit.serving import server
        from decodekit.serving.app import make_app
        from decodekit.serving.limits import Limits
        from decodekit.serving.service import Service
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("decodekit"):
            raise
        cause = f"the package {error.name} is missing, which an endpoint needs"
        raise OptionError(cause, at="serve", hint="pip install 'decodekit[serve]'") from error
    return make_app, Limits, server, Service


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise OptionError(f"the chat template cannot be read: {error}", at="chat_template") from error
