"""Uploads in pieces: resumed, checked, kept by checksum, cleared when nobody needs them."""

from __future__ import annotations

import hashlib
import io
import os
from datetime import timedelta

import pytest

from console.actors import Actor
from console.choices import OnConflict, Via
from console.clock import db_now
from console.exceptions import Conflict, Invalid, NotFound
from console.models import AuditEntry, Upload
from console.params import params_of
from console.selectors.access import rights_of
from console.selectors.uploads import part_path, upload_offset, upload_path, uploads_dir
from console.services.jobs import job_create
from console.services.uploads import (
    upload_append,
    upload_begin,
    upload_delete,
    uploads_sweep,
)
from console.services.users import user_create
from tests.console.conftest import PASSWORD
from tests.console.test_safetensors import whole

pytestmark = pytest.mark.django_db

FILE = whole()


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    settings.STATE_DIR = tmp_path


def send(ana, content=FILE, name="w.safetensors", piece=16):
    upload = upload_begin(name=name, size_bytes=len(content), actor=ana)
    for at in range(0, len(content), piece):
        body = io.BytesIO(content[at : at + piece])
        upload = upload_append(upload_id=upload.pk, offset=at, body=body, actor=ana)
    return upload


def test_a_file_in_pieces_is_whole_and_kept_by_its_checksum(ana):
    upload = send(ana)
    digest = hashlib.sha256(FILE).hexdigest()
    assert (upload.sha256, upload.num_tensors) == (digest, 1)
    assert upload_path(digest).read_bytes() == FILE
    assert upload_path(digest).stat().st_mode & 0o077 == 0
    assert [path.name for path in uploads_dir().iterdir()] == [f"{digest}.safetensors"]
    assert AuditEntry.objects.filter(action="upload.kept").count() == 1


def test_a_broken_upload_goes_on_where_it_stopped(ana):
    begun = upload_begin(name="w.safetensors", size_bytes=len(FILE), actor=ana)
    upload_append(upload_id=begun.pk, offset=0, body=io.BytesIO(FILE[:10]), actor=ana)
    again = upload_begin(name="w.safetensors", size_bytes=len(FILE), actor=ana)
    assert again.pk == begun.pk
    assert upload_offset(again) == 10
    for wrong in (0, 9, 11):
        with pytest.raises(Conflict) as refused:
            upload_append(upload_id=begun.pk, offset=wrong, body=io.BytesIO(b"x"), actor=ana)
        assert refused.value.facts["offset"] == 10
    done = upload_append(upload_id=begun.pk, offset=10, body=io.BytesIO(FILE[10:]), actor=ana)
    assert done.sha256


def test_a_piece_that_passes_the_end_changes_nothing(ana, settings):
    begun = upload_begin(name="w.safetensors", size_bytes=len(FILE), actor=ana)
    with pytest.raises(Invalid, match="pass the file's end"):
        upload_append(upload_id=begun.pk, offset=0, body=io.BytesIO(FILE + b"x"), actor=ana)
    assert upload_offset(begun) == 0
    settings.PIECE_BYTES = 8
    with pytest.raises(Invalid, match="at most 8 bytes"):
        upload_append(upload_id=begun.pk, offset=0, body=io.BytesIO(FILE[:9]), actor=ana)


def test_what_is_no_safetensors_is_refused_and_gone(ana):
    with pytest.raises(Invalid, match="not a whole safetensors file"):
        send(ana, b"\x80\x04\x95" + b"pickle" * 20)
    assert not Upload.objects.exists()
    assert list(uploads_dir().iterdir()) == []


def test_the_same_bytes_twice_are_one_file_and_need_not_be_sent_again(ana):
    first = send(ana)
    second = send(ana, name="other.safetensors")
    assert second.pk == first.pk
    known = upload_begin(name="x.safetensors", size_bytes=len(FILE), actor=ana, sha256=first.sha256)
    assert known.pk == first.pk
    assert Upload.objects.count() == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "w.bin",
        "../w.safetensors",
        ".w.safetensors",
        "a/b.safetensors",
        "w.safetensors\n",
        "é.safetensors",
    ],
)
def test_a_bad_name_is_refused(ana, name):
    with pytest.raises(Invalid, match="name must be"):
        upload_begin(name=name, size_bytes=100, actor=ana)


def test_a_file_over_the_limit_is_refused_before_a_byte(ana, settings):
    settings.UPLOAD_MAX_BYTES = 1000
    with pytest.raises(Invalid, match="from 8 to 1000"):
        upload_begin(name="w.safetensors", size_bytes=1001, actor=ana)


def test_a_part_belongs_to_whoever_began_it(ana):
    begun = upload_begin(name="w.safetensors", size_bytes=len(FILE), actor=ana)
    bob = user_create(
        username="bob", password=PASSWORD, roles=["operator"], actor=Actor.system("test")
    )
    stranger = Actor(user_id=bob.pk, name="bob", via=Via.API, rights=rights_of(bob))
    with pytest.raises(NotFound):
        upload_append(upload_id=begun.pk, offset=0, body=io.BytesIO(b"x"), actor=stranger)
    with pytest.raises(NotFound):
        upload_delete(upload_id=begun.pk, actor=stranger)


def ask(ana, engine, *shas):
    return job_create(
        engine_name=engine.name,
        params=params_of("update_weights_from_tensor", {"uploads": list(shas)}),
        reason="",
        on_conflict=OnConflict.QUEUE,
        actor=ana,
    ).job


def test_a_job_names_files_that_are_here(ana, engine):
    upload = send(ana)
    assert ask(ana, engine, upload.sha256).params["uploads"] == [upload.sha256]
    with pytest.raises(Invalid, match="was uploaded"):
        ask(ana, engine, "0" * 64)
    upload_path(upload.sha256).unlink()
    with pytest.raises(Invalid, match="cleared"):
        ask(ana, engine, upload.sha256)


def test_two_files_of_one_name_are_refused(ana, engine):
    one = send(ana)
    other = send(ana, whole(data=b"\x01" * 8))
    with pytest.raises(Invalid, match="two of the files are named"):
        ask(ana, engine, one.sha256, other.sha256)


def test_old_files_are_cleared_but_not_while_a_job_needs_them(
    ana, engine, django_capture_on_commit_callbacks
):
    needed, spare = send(ana), send(ana, whole(data=b"\x02" * 8), name="s.safetensors")
    ask(ana, engine, needed.sha256)
    half = upload_begin(name="half.safetensors", size_bytes=50, actor=ana)
    upload_append(upload_id=half.pk, offset=0, body=io.BytesIO(b"half"), actor=ana)
    orphan = uploads_dir() / ("f" * 64 + ".safetensors")
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    assert uploads_sweep() == 1
    assert not orphan.exists()
    with pytest.raises(Conflict):
        upload_delete(upload_id=needed.pk, actor=ana)
    Upload.objects.update(used_at=db_now() - timedelta(days=60))
    with django_capture_on_commit_callbacks(execute=True):
        assert uploads_sweep() == 2
    assert [one.pk for one in Upload.objects.all()] == [needed.pk]
    assert upload_path(needed.sha256).exists()
    assert not upload_path(spare.sha256).exists()
    assert not part_path(half.pk).exists()
