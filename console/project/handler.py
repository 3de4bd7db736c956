"""Django's ASGI handler, with a request's whole way through middleware and view in one thread.

Django would take the innermost step back to the event loop and from there into the thread again,
although nearly all of our middleware and views are synchronous: two changes of threads, each of
which waits for whoever holds Python's lock.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class OneThreadHandler(ASGIHandler):
    """A request's thread is its own, as with Django; an asynchronous view runs in the loop."""

    def load_middleware(self, is_async: bool = False) -> None:
        """All of it synchronous, whatever the server is."""
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """The response to a request, whose body has been read."""
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)
