"""Django's `CELERY_…` settings as Celery's own, in a plain dict.

Celery asks for some twenty of its settings with each message. From Django's, a name that is not set
is looked up five ways and fails with an exception each time.
"""

from __future__ import annotations

from typing import Any  # settings of any kind

from django.conf import settings

_PREFIX = "CELERY_"

CELERY: dict[str, Any] = {
    name.removeprefix(_PREFIX).lower(): getattr(settings, name)
    for name in dir(settings)
    if name.startswith(_PREFIX)
}
