"""The control socket (ROUTER) and the event stream (PUB): the console's way in.

Nothing here blocks: a Submit is followed by a task of its own, everything else is answered at once.
A frame that is no message of ours gets a Failure, never an exception.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Coroutine
from typing import Any, assert_never

import zmq

from engine.frontend.authenticator import Authenticator
from engine.frontend.core import Frontend
from engine.frontend.listeners import Listeners
from engine.log import get_logger
from engine.protocol import (
    PROTOCOL_VERSION,
    Accepted,
    Answer,
    Cancel,
    CheckpointList,
    ErrorCode,
    EventList,
    Extend,
    Failure,
    Force,
    Hello,
    KeepSecrets,
    ListCheckpoints,
    ListOperations,
    OperationList,
    OperationResult,
    Progress,
    ProtocolError,
    Query,
    QueryAnswer,
    Replay,
    Request,
    Response,
    SecretsKept,
    Snapshot,
    StateAnswer,
    Submit,
    Upload,
    Uploaded,
    Welcome,
    decode_request,
    encode_event,
    encode_response,
)
from engine.protocol.events import EventBody
from engine.protocol.replies import Reply

log = get_logger()

_MAX_OUTSTANDING = 32  # followed operations of one peer


class ControlServer:
    """Serves one Frontend."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._listeners = Listeners(frontend.config)
        self._outstanding: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        frontend.publish = self.publish

    def publish(self, body: EventBody) -> None:
        """Number an event and send it to whoever listens; never waits."""
        frontend = self._frontend
        event = frontend.events.add(body, time.monotonic())
        if self._listeners.events.closed:
            return  # between two sockets: whoever connects anew sees the gap
        sent = asyncio.ensure_future(self._listeners.events.send(encode_event(event), zmq.NOBLOCK))
        sent.add_done_callback(_read)

    async def run(self) -> None:
        """Serve until cancelled. Over tcp it ends with an error when nobody guards the sockets."""
        authenticator = self._listeners.authenticator
        if authenticator is None:
            await self._receive()
            return
        guard = asyncio.ensure_future(authenticator.run())
        try:
            while True:
                await self._receive_until_removal(authenticator, guard)
                await self._listeners.reopen()
        finally:
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)

    async def _receive_until_removal(
        self, authenticator: Authenticator, guard: asyncio.Future[None]
    ) -> None:
        receiving = asyncio.ensure_future(self._receive())
        removal = asyncio.ensure_future(authenticator.key_removed())
        try:
            await asyncio.wait([guard, receiving, removal], return_when=FIRST_COMPLETED)
            if guard.done():
                why = None if guard.cancelled() else guard.exception()
                raise RuntimeError("the authenticator ended") from why
            for task in (receiving, removal):
                if task.done():
                    task.result()
        finally:
            receiving.cancel()
            removal.cancel()
            await asyncio.gather(receiving, removal, return_exceptions=True)

    async def _receive(self) -> None:
        while True:
            frames = await self._listeners.control.recv_multipart()
            if len(frames) != 2:
                continue  # not our framing; there is nothing to answer to
            peer, frame = frames
            try:
                request = decode_request(frame)
            except ProtocolError as error:
                self._send(peer, "", _failure(error))
            else:
                self._serve(peer, request)
            await asyncio.sleep(0)  # a flood takes turns with everything else

    def close(self) -> None:
        """Give the sockets up."""
        self._listeners.close()

    def _serve(self, peer: bytes, request: Request) -> None:
        try:
            if isinstance(request.command, Submit):
                self._submit(peer, request.id, request.command)
            elif isinstance(request.command, Upload):
                self._start(self._upload(peer, request.id, request.command))
            else:
                self._send(peer, request.id, self._answer(request))
        except ProtocolError as error:
            self._send(peer, request.id, _failure(error))

    def _answer(self, request: Request) -> Reply:
        operations = self._frontend.operations
        command = request.command
        match command:
            case Hello():
                return self._welcome(command)
            case Query():
                status, view, result = operations.query(command.op_id, seal=command.seal)
                return QueryAnswer(
                    op_id=command.op_id,
                    engine_id=self._frontend.journal.index.engine_id,
                    status=status,
                    operation=view,
                    result=result,
                )
            case ListOperations():
                pending = operations.pending()
                return OperationList(
                    open=[pending] if pending else [],
                    finished=operations.finished(command.limit),
                )
            case Extend():
                return Accepted(operation=operations.extend(command.op_id, command.by_s))
            case Cancel():
                return Accepted(operation=operations.cancel(command.op_id))
            case Force():
                return Accepted(operation=operations.force(command.op_id))
            case Snapshot():
                return StateAnswer(state=self._frontend.state())
            case Replay():
                return self._replay(command)
            case ListCheckpoints():
                return self._checkpoints(command)
            case KeepSecrets():
                kept = self._frontend.storage.keep_secrets(command.name, command.values)
                return SecretsKept(name=command.name, fingerprints=kept)
            case Submit() | Upload():
                raise AssertionError("followed, not answered at once")
            case _:
                assert_never(command)

    def _checkpoints(self, command: ListCheckpoints) -> CheckpointList:
        files = self._frontend.files
        found = [files.check(command.path)] if command.path else files.checkpoints()
        return CheckpointList(roots=files.roots(), checkpoints=found)

    def _welcome(self, hello: Hello) -> Welcome:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                ErrorCode.VERSION_MISMATCH,
                f"this engine speaks protocol {PROTOCOL_VERSION}, not {hello.protocol_version}",
            )
        frontend = self._frontend
        return Welcome(
            protocol_version=PROTOCOL_VERSION,
            engine_id=frontend.journal.index.engine_id,
            epoch=frontend.epoch.text,
            clock_s=time.monotonic(),
            dp_size=frontend.config.dp_size,
            model=frontend.config.model_name,
            ready=frontend.coordinator.is_ready,
        )

    def _replay(self, command: Replay) -> EventList:
        log_ = self._frontend.events
        if command.epoch != log_.epoch:
            return EventList(events=[], complete=False)
        events, complete = log_.after(command.after_seq)
        return EventList(events=events[:500], complete=complete and len(events) <= 500)

    def _submit(self, peer: bytes, request_id: str, command: Submit) -> None:
        if command.epoch != self._frontend.epoch.text:
            raise ProtocolError(
                ErrorCode.STALE_EPOCH,
                f"this command is for epoch {command.epoch}; say hello again",
            )
        if self._outstanding[peer] >= _MAX_OUTSTANDING:
            raise ProtocolError(ErrorCode.OVERLOADED, "too many operations followed by one peer")
        log.info(
            "operation asked for",
            op_id=command.op_id,
            kind=command.operation.kind.value,
            requested_by=command.requested_by,
            request_id=command.request_id,
        )
        follower = self._frontend.operations.submit(
            op_id=command.op_id,
            operation=command.operation,
            mode=command.mode,
            timeout_s=command.timeout_s,
            start_by=command.start_by_clock_s,
            requested_by=command.requested_by,
        )
        self._outstanding[peer] += 1

        async def follow() -> None:
            try:
                async for item in self._frontend.operations.progress(follower):
                    body = (
                        Answer(result=item)
                        if isinstance(item, OperationResult)
                        else Progress(operation=item)
                    )
                    self._send(peer, request_id, body)
            finally:
                self._outstanding[peer] -= 1
                if not self._outstanding[peer]:
                    del self._outstanding[peer]

        self._start(follow())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _upload(self, peer: bytes, request_id: str, command: Upload) -> None:
        """On a thread: a disk may take its time, and nobody else is to wait for it."""
        try:
            received = await asyncio.to_thread(
                self._frontend.files.write,
                command.upload_id,
                command.name,
                command.offset,
                command.data,
                command.total_bytes,
            )
        except ProtocolError as error:
            self._send(peer, request_id, _failure(error))
            return
        answer = Uploaded(upload_id=command.upload_id, name=command.name, received_bytes=received)
        self._send(peer, request_id, answer)

    def _send(self, peer: bytes, request_id: str, body: Progress | Reply) -> None:
        try:
            frame = encode_response(Response(id=request_id, body=body))
        except (UnicodeError, TypeError, ValueError, OverflowError) as error:  # a fault of ours
            log.error("an answer cannot be sent", kind=type(body).__name__, exc_info=error)
            fault = ProtocolError(ErrorCode.INTERNAL, "the answer cannot be sent; see the log")
            frame = encode_response(Response(id=request_id, body=_failure(fault)))
        # A peer that left hears nothing; what it asked for goes on and can be queried.
        socket = self._listeners.control
        if not socket.closed:
            sent = asyncio.ensure_future(socket.send_multipart([peer, frame], zmq.NOBLOCK))
            sent.add_done_callback(_read)


def _failure(error: ProtocolError) -> Failure:
    return Failure(
        code=error.code,
        message=error.message,
        retryable=error.is_retryable,
        holder=error.holder,
        remaining_s=error.remaining_s,
    )


def _read(future: asyncio.Future[Any]) -> None:
    """Take the outcome of a send, so that a peer that left is no unhandled error."""
    if not future.cancelled():
        error = future.exception()
        if error is not None and not isinstance(error, zmq.ZMQError):
            raise error
