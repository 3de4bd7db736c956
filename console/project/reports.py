"""Django's error reports, those of debug pages too, without values: any of them may be a secret.

Names, files and lines stay. A debugger at hand shows more; a page is looked at by others too.
"""

from __future__ import annotations

from types import FrameType
from typing import Any  # values of any type are masked

from django.http import HttpRequest, QueryDict
from django.views.debug import SafeExceptionReporterFilter

MASK = SafeExceptionReporterFilter.cleansed_substitute


class ValuesHidden(SafeExceptionReporterFilter):
    """Masks every posted value and every local variable, whether DEBUG is on or not."""

    def get_post_parameters(self, request: HttpRequest | None) -> Any:
        """The names that were posted."""
        if request is None:
            return {}
        hidden = QueryDict(mutable=True)
        for name in request.POST:
            hidden[name] = MASK
        return hidden

    def get_traceback_frame_variables(
        self, request: HttpRequest | None, tb_frame: FrameType
    ) -> list[tuple[str, Any]]:
        """The names of a frame's variables."""
        return [(name, MASK) for name in tb_frame.f_locals]
