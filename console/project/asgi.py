"""The web process: HTTP by Django, /ws/live/ by Channels."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
django.setup(set_prefix=False)

# Only after Django is set up can anything that names a model be imported.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.urls import get_resolver, path, re_path  # noqa: E402

from console.consumers.hub import Hub  # noqa: E402
from console.consumers.live import LiveConsumer  # noqa: E402
from console.consumers.origin import SameOrigin, refuse  # noqa: E402
from console.pages.fragments import register_all  # noqa: E402
from console.project.garbage import keep_what_is_loaded  # noqa: E402
from console.project.handler import OneThreadHandler  # noqa: E402
from console.project.limits import BodyLimit  # noqa: E402
from console.project.threads import take_turns  # noqa: E402

if not settings.ENV.secret_key:
    raise ImproperlyConfigured(
        "There is no secret key: set QUIESCE_SECRET_KEY, or run `manage.py prepare_state`."
    )
register_all()
take_turns()

application = ProtocolTypeRouter(
    {
        "http": BodyLimit(
            OneThreadHandler(), settings.MAX_BODY_BYTES, {"/api/v1/uploads/": settings.PIECE_BYTES}
        ),
        "websocket": SameOrigin(
            AuthMiddlewareStack(
                URLRouter([path("ws/live/", LiveConsumer.as_asgi(hub=Hub())), re_path("", refuse)])
            ),
            allowed_hosts=settings.ALLOWED_HOSTS,
            trusted_origins=settings.CSRF_TRUSTED_ORIGINS,
        ),
    }
)
_ = get_resolver().url_patterns  # all pages and the API: else the first request would load them
keep_what_is_loaded()
