"""The endpoint as an ASGI application.

    service = Service(dk.LLM.load("tiny"), "tiny", Limits())
    app = make_app(service)                     # for uvicorn, or any other ASGI server

A request goes its way through these modules::

    gate        the key, the counts                       401, 429, 503
    bodies      bytes, then fields                        400, 413
    chat, ...   fields, then an `Asked`                   400
    prompts     messages, then tokens                     400
    compiler    a constraint that may be hostile          400
    service     handles of the engine                     429; their chunks, until the client leaves
    chat, ...   completions or chunks, then an answer     422, 500, 504
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from decodekit import __version__
from decodekit.errors import NotServedError
from decodekit.serving.answers import EventStream, told, unless_gone
from decodekit.serving.bodies import fields_of, read_body
from decodekit.serving.chat import ChatRoute
from decodekit.serving.completions import CompletionsRoute
from decodekit.serving.fields import ErrorReply, ReplyModel
from decodekit.serving.gate import Gate
from decodekit.serving.refusals import CLIENT_CLOSED, ERROR_TABLE, body_of, refused
from decodekit.serving.responses import ResponsesRoute
from decodekit.serving.route import Route
from decodekit.serving.service import Service

SEED_HEADER: Final = "X-Decodekit-Seed"
"""The seed of an answer: sent again, the request has the same text."""


class ModelReply(ReplyModel):
    """A model that is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "decodekit"
    max_model_len: int | None = Field(description="Tokens of its context; null without a bound.")


class ModelsReply(ReplyModel):
    """The models that are served."""

    object: str = "list"
    data: list[ModelReply]


class HealthReply(ReplyModel):
    """Whether requests are taken."""

    status: str


def make_app(service: Service, *, api_key: str | None = None, cors: Sequence[str] = ()) -> FastAPI:
    """The application of a service. Whoever makes it closes the service.

    Args:
        service: answers.
        api_key: what clients have to send as a bearer token; None takes everybody.
        cors: origins whose pages may call the endpoint; ``"*"`` for all.
    """
    app = FastAPI(title="decodekit", version=__version__, docs_url=None, redoc_url=None)
    for kind in (ChatRoute, CompletionsRoute, ResponsesRoute):
        _add_writing_route(app, kind(service), service)
    _add_reading_routes(app, service)
    _add_error_handlers(app, service)
    app.add_middleware(Gate, service=service, api_key=api_key)
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


def _add_writing_route(app: FastAPI, route: Route[Any], service: Service) -> None:
    """A route that writes text."""

    async def answer(request: Request) -> Response:
        try:
            body = fields_of(await read_body(request, service.limits), route.body)
            service.check_model(body.model)
            asked = route.asked(body)
            headers = {SEED_HEADER: str(asked.seed)}
            if body.stream:
                running = await unless_gone(service.begin(asked), request.receive)
                return EventStream(route.events(body, running), route.failed, running.cancel, headers)

            async def whole() -> dict[str, Any]:
                running = await service.begin(asked)
                try:
                    return await route.reply(body, running)
                finally:
                    running.cancel()

            return JSONResponse(await unless_gone(whole(), request.receive), headers=headers)
        except ClientDisconnect:
            request.scope["decodekit.client_closed"] = True
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            return refused(told(error), service.limits.retry_s)

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
            **_refusals(400, 401, 404, 408, 413, 422, 429, 500, 503, 504),
        },
    )


def _add_reading_routes(app: FastAPI, service: Service) -> None:
    """The routes that tell of the endpoint."""
    model = ModelReply(id=service.name, created=int(time.time()), max_model_len=service.llm.model.context_length)

    async def health() -> Response:
        """Whether requests are taken: 200, or 503 when the endpoint shuts down or the engine has failed."""
        is_open = not service.is_draining and service.engine.is_open
        return JSONResponse({"status": "ok" if is_open else "shutting down"}, 200 if is_open else 503)

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
    refusals = _refusals(401)
    add = app.add_api_route
    add("/health", health, response_model=HealthReply, responses=unhealthy)
    add("/metrics", metrics, response_class=Response, responses=plain | refusals)
    add("/v1/models", models, response_model=ModelsReply, responses=refusals)
    add("/v1/models/{name:path}", one_model, response_model=ModelReply, responses=_refusals(401, 404))


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorReply, "description": ERROR_TABLE[status]} for status in statuses}


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        at = "method" if error.status_code == 405 else "path"
        fault = NotServedError(f"{request.method} {request.url.path[:200]}: {error.detail}", at=at)
        return JSONResponse(body_of(fault), error.status_code, error.headers)

    async def of_own(request: Request, error: Exception) -> Response:
        return refused(told(error), service.limits.retry_s)

    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(NotServedError, of_own)


def _description(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the fields of requests, which the routes read by themselves."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version=app.version,
            routes=app.routes,
            description="OpenAI's protocol over a decodekit engine.",
        )
        kinds: list[Any] = [(kind.body, "validation") for kind in (ChatRoute, CompletionsRoute, ResponsesRoute)]
        _, definitions = models_json_schema(kinds, ref_template="#/components/schemas/{model}")
        found.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = found
    return app.openapi_schema
