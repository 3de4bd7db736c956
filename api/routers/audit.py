"""GET /audit."""

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from api.query import only_query
from api.schemas.inputs import AuditQuery
from api.schemas.outputs import AuditPage, Problem
from console.selectors.audit import audit_list
from console.selectors.payloads import audit_payload

router = Router(tags=["audit"])


@router.get(
    "",
    response={200: AuditPage, 401: Problem, 422: Problem},
    url_name="audit",
    summary="List the audit log",
)
@only_query("cursor", "job")
def audit(request: HttpRequest, query: Query[AuditQuery]) -> dict[str, Any]:
    """The audit log, newest first."""
    page = audit_list(cursor=query.cursor, job_id=query.job)
    return {
        "items": [audit_payload(entry) for entry in page.items],
        "next_cursor": page.next_cursor,
    }
