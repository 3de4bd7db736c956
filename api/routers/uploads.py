"""POST /uploads, PATCH /uploads/{id}, GET /uploads, GET and DELETE /uploads/{id}."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status

from api.auth import actor
from api.query import only_query
from api.schemas.inputs import PieceQuery, UploadIn
from api.schemas.outputs import Problem
from api.schemas.weights import UploadOut, UploadPage
from console.exceptions import UnsupportedMediaType
from console.requests import rights_in
from console.selectors.payloads import upload_payload
from console.selectors.uploads import upload_get, uploads_coming, uploads_whole
from console.services.uploads import upload_append, upload_begin, upload_delete

router = Router(tags=["uploads"])

_PROBLEMS = {401: Problem, 403: Problem, 404: Problem, 422: Problem}
_WRITE_PROBLEMS = {400: Problem, 409: Problem, 413: Problem, 415: Problem, 503: Problem}


@router.post(
    "",
    response={201: UploadOut, 200: UploadOut, **_PROBLEMS, **_WRITE_PROBLEMS},
    url_name="uploads",
    summary="Begin to upload a file of weights",
)
@only_query()
def begin(request: HttpRequest, response: HttpResponse, body: UploadIn) -> Status[dict[str, Any]]:
    """Make room (201); a file that is here, or half here, already says where to go on (200)."""
    upload = upload_begin(
        name=body.name,
        size_bytes=body.size_bytes,
        sha256=body.sha256 or "",
        actor=actor(request),
    )
    payload = upload_payload(upload)
    response["Location"] = payload["links"]["self"]
    return Status(200 if payload["offset"] else 201, payload)


@router.patch(
    "/{uuid:upload_id}",
    response={200: UploadOut, **_PROBLEMS, **_WRITE_PROBLEMS},
    url_name="upload",
    summary="Send a piece of it",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
@only_query("offset")
def append(request: HttpRequest, upload_id: UUID, query: Query[PieceQuery]) -> dict[str, Any]:
    """Bytes from `offset` on, at most `piece_bytes`. One out of place is 409, with the place.

    With the last piece the file's header is checked and its SHA-256 told; a file that is no
    safetensors is refused and gone.
    """
    if request.content_type != "application/octet-stream":
        raise UnsupportedMediaType("send the piece as application/octet-stream")
    upload = upload_append(
        upload_id=upload_id,
        offset=query.offset,
        body=request,  # type: ignore[arg-type]  # it reads like a file
        actor=actor(request),
    )
    return upload_payload(upload)


@router.get("", response={200: UploadPage, **_PROBLEMS}, summary="List uploaded files")
@only_query()
def uploads(request: HttpRequest) -> dict[str, Any]:
    """Whole files, newest first, then those that you have begun to send."""
    user_id = actor(request).user_id
    coming = uploads_coming(user_id=user_id) if user_id is not None else []
    found = [*uploads_whole(rights=rights_in(request)), *coming]
    return {"items": [upload_payload(one) for one in found], "next_cursor": None}


@router.get(
    "/{uuid:upload_id}", response={200: UploadOut, **_PROBLEMS}, summary="How much has come"
)
@only_query()
def upload(request: HttpRequest, upload_id: UUID) -> dict[str, Any]:
    """One file."""
    return upload_payload(upload_get(upload_id=upload_id, rights=rights_in(request)))


@router.delete(
    "/{uuid:upload_id}",
    response={204: None, 409: Problem, **_PROBLEMS},
    summary="Delete an uploaded file",
)
@only_query()
def delete(request: HttpRequest, upload_id: UUID) -> Status[None]:
    """Gone at once; refused while a job that has not ended names it."""
    upload_delete(upload_id=upload_id, actor=actor(request))
    return Status(204, None)
