"""GET /audit, /audit/{seq}, /audit/head, /audit/verify, /audit/export."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from ninja import Path, Query, Router

from api.auth import actor
from api.query import only_query
from api.schemas.inputs import AuditExportQuery, AuditQuery, AuditVerifyQuery
from api.schemas.outputs import AuditHeadOut, AuditOut, AuditPage, AuditVerdictOut, Problem
from console.downloads import streamed
from console.requests import rights_in
from console.selectors.audit import FILTER_NAMES, audit_get, audit_list
from console.selectors.audit_payloads import (
    audit_head_payload,
    audit_payload,
    audit_verdict_payload,
)
from console.services.audit_check import audit_check
from console.services.audit_export import EXPORT_TYPES, audit_export
from console.services.audit_key import signer
from console.services.audit_reads import audit_read

router = Router(tags=["audit"])

_PROBLEMS = {401: Problem, 403: Problem, 422: Problem, 503: Problem}


@router.get(
    "", response={200: AuditPage, **_PROBLEMS}, url_name="audit", summary="Search the audit log"
)
@only_query("cursor", *FILTER_NAMES)
def audit(request: HttpRequest, query: Query[AuditQuery]) -> dict[str, Any]:
    """Entries that fit, newest first."""
    asker = actor(request)
    page = audit_list(rights=asker.rights, cursor=query.cursor, chosen=query.chosen())
    audit_read(actor=asker)
    return {
        "items": [audit_payload(entry) for entry in page.items],
        "next_cursor": page.next_cursor,
    }


@router.get("/head", response={200: AuditHeadOut, **_PROBLEMS}, summary="The newest entry")
@only_query()
def head(request: HttpRequest) -> dict[str, Any]:
    """The newest entry, the newest signed head, and which key signs."""
    return audit_head_payload(signer().public_hex, rights=rights_in(request))


@router.get("/verify", response={200: AuditVerdictOut, **_PROBLEMS}, summary="Check the chain")
@only_query("full")
def verify(request: HttpRequest, query: Query[AuditVerifyQuery]) -> dict[str, Any]:
    """Check what is new since the last time, or all of it, in the database and against the signed
    heads. What it cannot see, `bin/audit-verify` sees in an export."""
    return audit_verdict_payload(audit_check(rights=rights_in(request), is_full=query.full))


@router.get(
    "/export",
    response=_PROBLEMS,
    summary="Export the log, or what is chosen of it",
    openapi_extra={
        "responses": {
            200: {
                "description": "JSON lines or CSV, as a file",
                "content": {kind: {"schema": {"type": "string"}} for kind in EXPORT_TYPES.values()},
            }
        }
    },
)
@only_query("form", *FILTER_NAMES)
def export(request: HttpRequest, query: Query[AuditExportQuery]) -> HttpResponseBase:
    """JSON lines that prove themselves (docs/audit.md), or CSV, which proves nothing."""
    made = audit_export(chosen=query.chosen(), actor=actor(request), form=query.form)
    return streamed(
        request,
        made.pieces(query.form),
        content_type=EXPORT_TYPES[query.form],
        file_name=made.file_name(query.form),
    )


@router.get(
    "/{seq}",
    response={200: AuditOut, 404: Problem, **_PROBLEMS},
    url_name="audit-entry",
    summary="Read an entry",
)
@only_query()
def entry(request: HttpRequest, seq: Path[int]) -> dict[str, Any]:
    """One entry."""
    asker = actor(request)
    found = audit_get(seq=seq, rights=asker.rights)
    audit_read(actor=asker)
    return audit_payload(found)
