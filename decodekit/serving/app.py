"""The endpoint as an ASGI application.

    service = Service(dk.LLM.load("tiny"), "tiny", Limits())
    app = make_app(service)                     # for uvicorn, or any other ASGI server

A request goes its way through these modules::

    connection  bytes of a client that does something     400
    gate        where from, the key, the counts           401, 403, 503
    bodies      bytes, then fields                        400, 408, 413, 429
    chat, ...   fields, then an `Asked`                   400
    prompts     messages, then tokens                     400
    compiler    a constraint that may be hostile          400
    service     handles of the engine                     429; their chunks, until the client leaves
    chat, ...   completions or chunks, then an answer     422, 500, 504
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from decodekit import __version__
from decodekit.errors import NotServedError
from decodekit.serving.gate import Gate
from decodekit.serving.requests.bodies import SHORT_BYTES, Bodies, fields_of
from decodekit.serving.requests.engine_requests import Asked
from decodekit.serving.requests.fair_turns import Client, client_of
from decodekit.serving.requests.fields import ErrorReply
from decodekit.serving.requests.refusals import CLIENT_CLOSED, ERROR_TABLE, body_of, refused
from decodekit.serving.routes.chat import ChatRoute
from decodekit.serving.routes.client_answers import EventStream, JsonPieces, pieces_of, size_of, told, unless_gone
from decodekit.serving.routes.responses import ResponsesRoute
from decodekit.serving.routes.route import Route
from decodekit.serving.routes.systemone import DecisionsRoute
from decodekit.serving.routes.text_completions import CompletionsRoute
from decodekit.serving.service import Running, Service

SEED_HEADER: Final = "X-Decodekit-Seed"
"""The seed of an answer: sent again, the request has the same text."""
DOCS: Final = "docs/serve.md of decodekit, and `decodekit serve --help`"


class IndexReply(BaseModel):
    """The description of the endpoint."""

    about: str
    routes: dict[str, str] = Field(description="What each route does.")
    fields: str = Field(description="Where the fields of requests are described.")
    docs: str = Field(description="Where all of it is explained.")
    key: bool = Field(description="Whether routes other than `/` and `/health` ask for a key.")


ROUTES: Final[tuple[type[Route[Any]], ...]] = (ChatRoute, CompletionsRoute, ResponsesRoute, DecisionsRoute)
"""Those that the model runs for."""


class ModelReply(BaseModel):
    """A model that is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "decodekit"
    max_model_len: int | None = Field(description="Tokens of its context; null without a bound.")


class ModelsReply(BaseModel):
    """The models that are served."""

    object: str = "list"
    data: list[ModelReply]


class HealthReply(BaseModel):
    """Whether requests are taken."""

    status: str


def make_app(
    service: Service, *, api_key: str | None = None, cors: Sequence[str] = (), hosts: Collection[str] | None = None
) -> FastAPI:
    """The application of a service. Whoever makes it closes the service.

    Args:
        service: answers.
        api_key: what clients have to send as a bearer token; None takes everybody.
        cors: origins whose pages may call the endpoint; ``"*"`` for all.
        hosts: names by which it may be called, as `hosts_of` gives them; None for any.
    """
    app = FastAPI(title="decodekit", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    bodies = Bodies(service.limits, service.most_requests)
    for kind in ROUTES:
        _add_writing_route(app, kind(service), service, bodies)
    _add_reading_routes(app, service, has_key=api_key is not None)

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        at = "method" if error.status_code == 405 else "path"
        fault = NotServedError(f"{request.method} {request.url.path[:200]}: {error.detail}", at=at)
        return JSONResponse(body_of(fault), error.status_code, error.headers)

    async def of_own(request: Request, error: Exception) -> Response:
        return refused(told(error), service.limits.retry_s)

    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(NotServedError, of_own)
    app.add_middleware(Gate, service=service, bodies=bodies, api_key=api_key, origins=cors, hosts=hosts)
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[*cors],
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=[SEED_HEADER, "Retry-After"],
        )
    app.openapi = lambda: _description(app)  # type: ignore[method-assign]
    return app


def _add_writing_route(app: FastAPI, route: Route[Any], service: Service, bodies: Bodies) -> None:
    """A route that writes text."""

    def read(data: bytes) -> tuple[Any, Asked]:
        body = fields_of(data, route.body, service.limits.max_values)
        service.check_model(body.model)
        asked = route.asked(body)
        if asked.structure is not None and len(data) > service.limits.max_constraint_bytes:
            asked.structure.check_size(service.limits.max_constraint_bytes)
        return body, asked

    async def begun(data: bytes, client: Client) -> tuple[Any, Running]:
        with bodies.whole():
            body, asked = await service.read(client, partial(read, data)) if len(data) > SHORT_BYTES else read(data)
            return body, await service.begin(asked, client)

    async def written(body: Any, running: Running) -> list[bytes]:
        completions = await running.completions()
        size = sum(size_of(one) for one in completions)
        return await service.aside(running.client, size, lambda: pieces_of(route.reply(body, running, completions)))

    async def answer(request: Request) -> Response:
        try:
            data, client = await bodies.read(request), client_of(request.scope)
            body, running = await unless_gone(begun(data, client), request.receive)
            headers = {} if running.asked.seed is None else {SEED_HEADER: str(running.asked.seed)}
            if body.stream:
                return EventStream(route.events(body, running), route.failed, running.cancel, headers)
            try:
                pieces = await unless_gone(written(body, running), request.receive)
                return JsonPieces(pieces, headers)
            finally:
                running.cancel()
        except ClientDisconnect:
            request.scope["decodekit.client_closed"] = True
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            return refused(told(error), service.limits.retry_s, route.limit_field)

    name = route.body.__name__
    app.add_api_route(
        route.path,
        answer,
        methods=["POST"],
        operation_id=name.removesuffix("Body").lower(),
        summary=route.says,
        response_model=None,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
            }
        },
        responses={
            200: {
                "model": route.reply_model,
                "description": "The answer; with `stream`, server-sent events.",
                "headers": {SEED_HEADER: {"schema": {"type": "string"}, "description": "The seed of the texts."}},
                "content": {
                    "text/event-stream": {"schema": {"description": "The data of an event, as OpenAI has it."}}
                },
            },
            **_refusals(400, 401, 403, 404, 408, 413, 422, 429, 500, 503, 504),
        },
    )


def _add_reading_routes(app: FastAPI, service: Service, *, has_key: bool) -> None:
    """The routes that tell of the endpoint."""

    async def index() -> IndexReply:
        """The description of the endpoint, for whoever opens it in a browser."""
        every = [one for one in app.routes if isinstance(one, APIRoute)]
        named = [f"{next(iter(one.methods or ('GET',)))} {one.path_format}" for one in every]
        says = [(one.summary or one.description).partition(":")[0] for one in every]
        routes = dict(zip(named, says, strict=True))
        about = "decodekit: OpenAI's API over one model, for OpenAI's clients with the base URL that ends in /v1"
        return IndexReply(about=about, routes=routes, fields="/openapi.json", docs=DOCS, key=has_key)

    model = ModelReply(id=service.name, created=int(time.time()), max_model_len=service.llm.model.context_length)

    async def health() -> Response:
        """Whether requests are taken: 200, or 503 when the endpoint shuts down, or the engine has failed or stalls."""
        is_open = not service.is_draining and service.engine.is_open
        status = "shutting down" if not is_open else "stalled" if service.watchdog.is_stalled else "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models() -> ModelsReply:
        """The models that are served: one."""
        return ModelsReply(data=[model])

    async def one_model(name: str) -> ModelReply:
        """A model that is served."""
        service.check_model(name)
        return model

    unhealthy: Any = {503: {"model": HealthReply, "description": "Requests are refused."}}
    plain: Any = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The figures."}}
    refusals = _refusals(401, 403)
    add = app.add_api_route
    add("/", index, response_model=IndexReply, responses=_refusals(403))
    add("/health", health, response_model=HealthReply, responses=unhealthy)
    add("/metrics", metrics, response_class=Response, responses=plain | refusals)
    add("/v1/models", models, response_model=ModelsReply, responses=refusals)
    add("/v1/models/{name:path}", one_model, response_model=ModelReply, responses=_refusals(401, 403, 404))


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorReply, "description": ERROR_TABLE[status]} for status in statuses}


def _description(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the fields of requests, which the routes read by themselves."""
    if app.openapi_schema is None:
        says = "OpenAI's protocol over a decodekit engine."
        found = get_openapi(title=app.title, version=app.version, routes=app.routes, description=says)
        kinds: list[Any] = [(kind.body, "validation") for kind in ROUTES]
        _, definitions = models_json_schema(kinds, ref_template="#/components/schemas/{model}")
        found.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = found
    return app.openapi_schema
