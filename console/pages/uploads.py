"""The page of uploaded files: what is here, who sent it, what needs it; delete."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.choices import Via
from console.pages.shell import page, page_render, see_other
from console.requests import actor_of
from console.selectors.uploads import (
    upload_offset,
    uploads_coming,
    uploads_in_use,
    uploads_whole,
)
from console.services.uploads import upload_delete


@page
@require_safe
def uploads(request: HttpRequest) -> HttpResponse:
    """Whole files, newest first; then what you have begun to send."""
    in_use = uploads_in_use()
    actor = actor_of(request, via=Via.UI)
    assert actor.user_id is not None, "a page has a person"
    whole = uploads_whole(rights=actor.rights)
    return page_render(
        request,
        "uploads.html",
        nav="weights",
        title="Uploaded files",
        context={
            "rows": [(one, one.sha256 in in_use) for one in whole],
            "coming": [(one, upload_offset(one)) for one in uploads_coming(user_id=actor.user_id)],
            "total_bytes": sum(one.size_bytes for one in whole),
            "keep_s": settings.UPLOAD_KEEP_S,
            "max_bytes": settings.UPLOAD_MAX_BYTES,
            "topics": "",
        },
    )


@page
@require_POST
def delete(request: HttpRequest, upload_id: UUID) -> HttpResponseBase:
    """Delete one; refused while a job that has not ended names it."""
    upload_delete(upload_id=upload_id, actor=actor_of(request, via=Via.UI))
    return see_other(reverse("uploads-page"))
