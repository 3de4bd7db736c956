"""Entry point of the frontend process: event loop, sockets, HTTP, orderly end."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys

import uvloop

from engine.config import CANNOT_START, EngineConfig, read
from engine.frontend.control_server import ControlServer
from engine.frontend.core import Frontend
from engine.frontend.http_server import make_app, make_server
from engine.frontend.journal import JournalError
from engine.frontend.journal_records import JournalFullError
from engine.log import get_logger, setup
from engine.tokens.tokenizer import Tokenizer, TokenizerError

log = get_logger()


async def serve(config: EngineConfig) -> None:
    """Run until SIGTERM or SIGINT."""
    frontend = Frontend(config)
    control = ControlServer(frontend)
    server = make_server(make_app(frontend, Tokenizer(config.model_path)), config.host, config.port)
    loop = asyncio.get_running_loop()
    core = [asyncio.ensure_future(frontend.run()), asyncio.ensure_future(control.run())]

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    log.info("frontend started", epoch=frontend.epoch.text, port=config.port)
    http = asyncio.ensure_future(server.serve())
    try:
        done, _ = await asyncio.wait([*core, http], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a core task never ends well
    finally:
        for task in core:
            task.cancel()
        await asyncio.gather(*core, return_exceptions=True)
        control.close()
        frontend.close()


def main(config_path: str) -> None:
    """`python -m engine frontend`."""
    config = read(config_path)
    setup("frontend", config.log_level)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor
    try:
        uvloop.run(serve(config))
    except (JournalError, JournalFullError) as error:
        log.error("cannot use the journal", reason=str(error))
        sys.exit(1)
    except TokenizerError as error:
        log.error("cannot use the model's tokenizer", reason=str(error))
        sys.exit(CANNOT_START)
