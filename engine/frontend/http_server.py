"""The engine's HTTP application: routes, access, error bodies, and the server that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.frontend import (
    http_admin,
    http_generate,
    http_generation,
    http_info,
    http_openai,
    http_push,
    http_score,
    http_storage,
    http_weights,
)
from engine.frontend.core import Frontend
from engine.frontend.http_auth import Access, refusal
from engine.frontend.http_errors import HTTPError, Shape, error_response, json_response
from engine.frontend.http_protocol import BoundedProtocol
from engine.log import get_logger
from engine.tokens.tokenizer import Tokenizer

log = get_logger()

Handler = Callable[[Request], Awaitable[Response]]
READ = ["GET"]
POST = ["POST"]
ROUTES: list[tuple[str, Handler, list[str], Access]] = [
    ("/health", http_info.health, READ, Access.OPEN),
    ("/health_generate", http_info.health_generate, READ, Access.OPEN),
    ("/ready", http_info.ready, READ, Access.OPEN),
    ("/ping", http_info.ping, READ, Access.OPEN),
    ("/metrics", http_info.metrics, READ, Access.OPEN),
    ("/generate", http_generate.generate, ["POST", "PUT"], Access.NORMAL),
    ("/v1/completions", http_openai.completions, POST, Access.NORMAL),
    ("/v1/chat/completions", http_openai.chat_completions, POST, Access.NORMAL),
    ("/v1/score", http_score.score, POST, Access.NORMAL),
    ("/v1/models", http_info.models, READ, Access.NORMAL),
    ("/v1/models/{model_id:path}", http_info.model, READ, Access.NORMAL),
    ("/v1/loads", http_info.loads, READ, Access.NORMAL),
    ("/model_info", http_info.model_info, READ, Access.NORMAL),
    ("/get_model_info", http_info.model_info, READ, Access.NORMAL),
    ("/server_info", http_info.server_info, READ, Access.NORMAL),
    ("/get_server_info", http_info.server_info, READ, Access.NORMAL),
    ("/flush_cache", http_admin.flush_cache, ["GET", "POST"], Access.ADMIN),
    ("/abort_request", http_admin.abort_request, POST, Access.ADMIN),
    ("/update_weights_from_disk", http_weights.update_from_disk, POST, Access.ADMIN),
    ("/update_weights_from_tensor", http_push.update_from_tensor, POST, Access.ADMIN),
    ("/update_weights_from_distributed", http_push.update_from_distributed, POST, Access.ADMIN),
    ("/init_weights_update_group", http_push.init_group, POST, Access.ADMIN),
    ("/destroy_weights_update_group", http_push.destroy_group, POST, Access.ADMIN),
    ("/begin_weight_update", http_push.begin, POST, Access.ADMIN),
    ("/end_weight_update", http_push.end, POST, Access.ADMIN),
    ("/update_weight_version", http_weights.update_version, POST, Access.ADMIN),
    ("/get_weights_by_name", http_weights.get_by_name, ["GET", "POST"], Access.ADMIN),
    ("/weights_checker", http_weights.check, ["GET", "POST"], Access.ADMIN),
    ("/pause_generation", http_generation.pause_generation, POST, Access.ADMIN),
    ("/continue_generation", http_generation.continue_generation, POST, Access.ADMIN),
    ("/release_memory_occupation", http_generation.release_memory, POST, Access.ADMIN),
    ("/resume_memory_occupation", http_generation.resume_memory, POST, Access.ADMIN),
    ("/hicache/storage-backend", http_storage.attach, ["PUT"], Access.ADMIN),
    ("/hicache/storage-backend", http_storage.detach, ["DELETE"], Access.ADMIN),
    ("/hicache/storage-backend", http_storage.status, READ, Access.ADMIN),
    ("/hicache/storage-backend/clear", http_storage.clear, POST, Access.ADMIN),
    ("/get_hicache_l3_cache_layout", http_storage.layout, READ, Access.NORMAL),
    ("/operations/repair", http_admin.repair, POST, Access.ADMIN),
    ("/operations", http_admin.list_operations, READ, Access.ADMIN),
    ("/operations/{op_id}", http_admin.get_operation, READ, Access.ADMIN),
    ("/operations/{op_id}/{act}", http_admin.change_operation, POST, Access.ADMIN),
]


def make_app(frontend: Frontend, tokenizer: Tokenizer) -> Starlette:
    """The application over one Frontend."""
    middleware = []
    if frontend.config.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(frontend.config.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        )
    app = Starlette(
        routes=_routes(),
        middleware=middleware,
        exception_handlers={HTTPException: _http_exception, Exception: _fault},
    )
    app.router.redirect_slashes = False  # a path is the route's or it is unknown
    app.state.frontend = frontend
    app.state.tokenizer = tokenizer
    return app


def _routes() -> list[Route]:
    """One a path: a method that it does not take is answered with all that it takes (Allow)."""
    paths: dict[str, tuple[Access, dict[str, Handler]]] = {}
    for path, handler, methods, access in ROUTES:
        known, handlers = paths.setdefault(path, (access, {}))
        assert known is access, f"{path} has two kinds of access"
        handlers.update(dict.fromkeys(methods, _guarded(handler, access)))
    return [_route(path, handlers, access) for path, (access, handlers) in paths.items()]


def _route(path: str, handlers: dict[str, Handler], access: Access) -> Route:
    async def call(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    route = Route(path, call, methods=list(handlers))
    if access is Access.ADMIN and route.methods is not None:
        route.methods.discard("HEAD")  # comes with GET, and must change nothing: GET flushes
    return route


def _guarded(handler: Handler, access: Access) -> Handler:
    async def call(request: Request) -> Response:
        config = request.app.state.frontend.config
        refused = refusal(request, access, config)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except HTTPError as error:
            return error_response(error, _shape(request))
        except ClientDisconnect:  # while its body was read
            return Response(status_code=499)

    return call


def _shape(request: Request) -> Shape:
    return "openai" if request.url.path.startswith("/v1/") else "native"


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return json_response({"detail": error.detail}, error.status_code, headers)


async def _fault(request: Request, error: Exception) -> Response:
    """A fault of ours: logged with its trace, answered without it."""
    log.error("request failed", path=request.url.path, exc_info=error)
    return error_response(HTTPError(500, "internal error; see the engine's log"), _shape(request))


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process's main handles signals."""

    def install_signal_handlers(self) -> None:
        """Nothing to install."""


def make_server(app: Starlette, host: str, port: int) -> Server:
    """A server that is not running yet."""
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
            server_header=False,
            http=BoundedProtocol,
            ws="none",
        )
    )
