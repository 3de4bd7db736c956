"""bin/audit-verify: what was exported is as it was written, and every change of it is found."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import io
import json
import random
import re

import pytest

from console.chain import body_digest, entry_hash
from console.selectors.audit import AuditFilter
from console.services.audit_key import signer
from console.signing import Signer, line_of
from tests.console.audit.exports import VERIFY, Files, exported, fill

pytestmark = pytest.mark.django_db


def load_verifier():
    loader = importlib.machinery.SourceFileLoader("audit_verify", str(VERIFY))
    spec = importlib.util.spec_from_loader("audit_verify", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


verifier = load_verifier()


class Checker:
    """The verifier in this process: a hundred thousand files are too many for processes."""

    def __init__(self, files: Files) -> None:
        key = verifier.read_key(files.key)
        self.anchors, self.keys = verifier.read_anchors(files.anchors, key)

    def fault(self, content: bytes):
        """The first bad sequence, or None where nothing is found."""
        try:
            export = verifier.Export(
                io.BytesIO(content), self.keys, {a["seq"] for a in self.anchors}
            )
            verifier.compare(export, self.anchors)
        except verifier.Bad as bad:
            return bad
        return None


@pytest.fixture
def files(tmp_path):
    fill(199, anchor_every=50)
    return exported(tmp_path)


def test_an_export_is_as_it_was_written(files):
    done = files.verify()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "1 to 200, 200 shown, 0 by their digests only" in done.stdout
    assert "anchored to 200 of 200" in done.stdout
    assert "no anchors given" in files.verify(anchors=False).stdout
    assert "no public key given" in files.verify(key=False).stdout


def test_a_filtered_export_proves_what_it_leaves_out(tmp_path):
    fill(60)
    files = exported(tmp_path, AuditFilter(engine="engine-1", action="test."))
    done = files.verify()
    assert done.returncode == 0, done.stdout
    assert "1 to 61, 20 shown, 41 by their digests only" in done.stdout
    lines = files.export.read_bytes().splitlines(keepends=True)
    bodies = [json.loads(json.loads(line)["body"]) for line in lines if b'"body"' in line]
    assert {(b["engine"], b["action"]) for b in bodies} == {("engine-1", "test.done")}
    checker = Checker(files)
    for number, line in enumerate(lines):
        if b"digests" not in line:
            continue
        changed = re.sub(
            rb'"digests":"(.)', lambda m: m[0][:-1] + (b"1" if m[1] == b"0" else b"0"), line
        )
        found = checker.fault(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
        assert found.seq == json.loads(line)["first"]


@pytest.mark.parametrize(
    "part", [12, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_every_changed_byte_is_found_and_its_entry_named(files, part):
    """Three changes of each byte in `--full`; else one, of one byte in so many."""
    content = files.export.read_bytes()
    checker = Checker(files)
    starts = [0, *(match.end() for match in re.finditer(rb"\n", content))]
    rng = random.Random(7)
    for number, start in enumerate(starts[:-1]):
        for at in range(start + number % part, starts[number + 1], part):
            for _ in range(3 if part == 1 else 1):
                changed = bytearray(content)
                changed[at] ^= rng.randrange(1, 256)
                found = checker.fault(bytes(changed))
                assert found is not None, f"byte {at} of line {number}"
                if 1 <= number <= 200:
                    assert found.seq == number, (at, number, str(found))


def test_a_signature_is_written_in_one_way_only(files):
    content = files.export.read_bytes()
    at = content.rfind(b'"signature":"') + len(b'"signature":"')
    signature = content[at : at + 128]
    assert signature.upper() != signature
    for other in (signature.upper(), signature[:2] + b" " + signature[2:]):
        fault = Checker(files).fault(content[:at] + other + content[at + 128 :])
        assert "the signature of the closing record is not 128 hex digits" in str(fault)


def test_each_line_removed_doubled_or_swapped_is_found(files):
    lines = files.export.read_bytes().splitlines(keepends=True)
    checker = Checker(files)
    for at in range(1, 201):
        removed = checker.fault(b"".join(lines[:at] + lines[at + 1 :]))
        doubled = checker.fault(b"".join([*lines[:at], lines[at], *lines[at:]]))
        assert removed.seq == at and doubled.seq == at + 1, at
        if at < 200:
            swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
            assert checker.fault(b"".join(swapped)).seq == at


def test_each_cut_is_found(files):
    content = files.export.read_bytes()
    lines = content.splitlines(keepends=True)
    checker = Checker(files)
    for at in range(1, 202):
        found = checker.fault(b"".join(lines[:at]))
        assert found is not None and found.seq == at, at
    for size in range(len(content) - 600, len(content)):
        assert checker.fault(content[:size]) is not None, size
    assert checker.fault(b"") is not None


def rechained(lines: list[bytes], key: Signer | None) -> bytes:
    """Someone with all of the database changes entry 120 and makes all later hashes anew."""
    header, *entries, closing = [json.loads(line) for line in lines]
    head = bytes(32)
    for entry in entries:
        if entry["seq"] == 120:
            entry["body"] = entry["body"].replace('"ana"', '"bob"')
        head = entry_hash(head, entry["seq"], body_digest(entry["body"]))
        entry["hash"] = head.hex()
    content = "".join(line_of(part) + "\n" for part in [header, *entries]).encode()
    record = closing["record"] | {"head": head.hex()}
    record["sha256"] = hashlib.sha256(content).hexdigest()
    last = key.sign(record) if key else line_of(closing | {"record": record})
    return content + (last + "\n").encode()


def test_a_chain_made_anew_is_found_by_its_signature_and_by_anchors(files, tmp_path):
    lines = files.export.read_bytes().splitlines()
    path = tmp_path / "other.pem"
    path.write_text(Signer.new().private_pem())
    for key, word in ((None, "signature"), (Signer.read(path), "another key")):
        files.export.write_bytes(rechained(lines, key))
        done = files.verify(anchors=False)
        assert done.returncode == 1 and word in done.stdout
    # Even with the console's own key, the heads that were signed before betray it.
    files.export.write_bytes(rechained(lines, signer()))
    assert files.verify(anchors=False).returncode == 0
    done = files.verify()
    assert done.returncode == 1 and "from sequence number 101 on: chained anew" in done.stdout


def test_anchors_betray_a_tail_that_was_cut_and_closed_again(files, tmp_path):
    lines = files.export.read_bytes().splitlines()
    header, *entries, closing = [json.loads(line) for line in lines]
    content = "".join(line_of(part) + "\n" for part in [header, *entries[:180]]).encode()
    record = closing["record"] | {"last": 180, "head": entries[179]["hash"]}
    record["sha256"] = hashlib.sha256(content).hexdigest()
    files.export.write_bytes(content + (signer().sign(record) + "\n").encode())
    assert files.verify(anchors=False).returncode == 0
    done = files.verify()
    assert done.returncode == 1 and "from sequence number 181 on: cut" in done.stdout


@pytest.mark.parametrize("how", ["removed", "swapped", "edited", "cut", "forged"])
def test_anchors_that_were_touched_are_found(files, tmp_path, how):
    lines = files.anchors.read_bytes().splitlines(keepends=True)
    if how == "removed":
        del lines[1]
    elif how == "swapped":
        lines[0], lines[1] = lines[1], lines[0]
    elif how == "edited":
        lines[2] = lines[2].replace(b'"seq":150', b'"seq":151')
    elif how == "cut":
        lines[-1] = lines[-1][:-20]
    else:
        path = tmp_path / "other.pem"
        path.write_text(Signer.new().private_pem())
        record = json.loads(lines[0])["record"]
        lines[0] = (Signer.read(path).sign(record) + "\n").encode()
    files.anchors.write_bytes(b"".join(lines))
    done = files.verify()
    assert done.returncode == 1 and "anchor" in done.stdout, done.stdout


def test_an_older_export_holds_beside_newer_anchors(files):
    before = files.verify()
    fill(20, anchor_every=5)
    files.anchors.write_bytes(exported(files.export.parent / ".").anchors.read_bytes())
    assert before.returncode == 0


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"[]\n", b"{}\n", b"\xff\n", b'{"export":1}\n', b"[" * 10**6]
)
def test_nonsense_is_a_sentence_and_not_a_traceback(files, content):
    files.export.write_bytes(content)
    done = files.verify()
    assert done.returncode == 1 and "Traceback" not in done.stderr and done.stdout.startswith("NOT")


def test_a_file_that_is_not_there_is_status_2(files):
    files.export.unlink()
    done = files.verify()
    assert done.returncode == 2 and "No such file" in done.stderr
