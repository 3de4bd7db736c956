"""Key files: their modes, their lines, and what is refused before an engine starts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils import z85

from engine import keys
from engine.config import ConfigError, EngineConfig, check

ROOT = Path(__file__).parents[2]
TCP = {"control_tcp": "tcp://127.0.0.1:5600", "events_tcp": "tcp://127.0.0.1:5601"}


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """Of a model that is there, with a key, for one console."""
    (tmp_path / "config.json").write_text("{}")
    keys.make(tmp_path)
    (tmp_path / "authorized").write_text(zmq.curve_keypair()[0].decode())
    return EngineConfig(
        model_path=str(tmp_path),
        run_dir="/run/q",
        journal_path="",
        ext_cache_dir="",
        weights_dir="",
        curve_key=str(tmp_path / "engine-curve"),
        authorized_keys=str(tmp_path / "authorized"),
        **TCP,
    )


def test_the_pair_is_private_kept_and_its_public_half_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    pair = keys.make(folder)
    path = folder / "engine-curve"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert zmq.curve_public(path.read_bytes().strip()) == pair.public
    assert (folder / "engine-curve.pub").read_text().strip() == pair.public.decode()
    assert keys.make(folder) == pair, "made once"
    assert pair.secret.decode() not in repr(pair)


def test_the_command_prints_the_public_key_and_never_the_secret(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "keys", "--dir", tmp_path / "state"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.strip() == (tmp_path / "state" / "engine-curve.pub").read_text().strip()
    assert (tmp_path / "state" / "engine-curve").read_text().strip() not in done.stdout


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    keys.make(tmp_path)
    (tmp_path / "engine-curve").chmod(mode)
    with pytest.raises(ConfigError, match="0600"):
        keys.read(tmp_path / "engine-curve")
    with pytest.raises(ConfigError, match="0600"):
        keys.make(tmp_path)


@pytest.mark.parametrize("text", ["", "short", "x" * 41, "~" * 40, "#" * 40, "é" * 40])
def test_a_secret_that_is_no_key_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine-curve"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="40 characters") as refused:
        keys.read(path)
    assert not text or text not in str(refused.value)


def test_lines_name_keys_and_what_is_none_is_told_by_its_number(tmp_path: Path) -> None:
    key, named = (zmq.curve_keypair()[0].decode() for _ in range(2))
    path = tmp_path / "authorized"
    path.write_text(f"# consoles\n\n  {key}\n{named} of Berlin \n#{key}\n# {key}\nnonsense x\n")
    found = keys.read_authorized(path)
    assert found.names == {key.encode(): "", named.encode(): "of Berlin"}
    assert found.problems == (f"line 7 of {path} begins with no public key",)


def test_no_key_begins_as_a_comment_does() -> None:
    """84, which # stands for, times 85⁴ is more than 32 bits: even the largest key begins lower."""
    assert keys.is_key(z85.encode(b"\xff" * 32).decode())
    assert not keys.is_key("#" + "0" * 39)


def test_ipc_needs_no_keys(config: EngineConfig) -> None:
    ipc = msgspec.structs.replace(
        config, control_tcp="", events_tcp="", curve_key="/none", authorized_keys=""
    )
    keys.check(check(ipc))
    assert ipc.control_address == "ipc:///run/q/control.sock"


def test_tcp_with_keys_is_taken(config: EngineConfig) -> None:
    keys.check(check(config))
    assert config.control_address == TCP["control_tcp"]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("authorized_keys", "", "--authorized-keys"),
        ("authorized_keys", "/nowhere/authorized", "cannot read authorized keys"),
        ("authorized_keys", os.devnull, "holds no public key"),
        ("curve_key", "/nowhere/key", "python -m engine keys"),
    ],
)
def test_tcp_without_keys_is_refused_with_a_sentence(
    config: EngineConfig, field: str, value: str, word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as refused:
        keys.check(msgspec.structs.replace(config, **{field: value}))
    assert "\n" not in str(refused.value)


def test_a_bad_line_stops_a_start(config: EngineConfig) -> None:
    Path(config.authorized_keys).write_text("# one\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2 of"):
        keys.check(config)


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://*:5600", "tcp://localhost:5600", "tcp://127.0.0.1", "tcp://127.0.0.1:0"),
        *("tcp://127.0.0.1:65536", "tcp://::1:5600", "tcp://eth0:5600", "udp://127.0.0.1:5600"),
        *("127.0.0.1:5600", "tcp://[127.0.0.1]:5600", "tcp://:5600"),
    ],
)
def test_an_address_that_is_not_explicit_is_refused(config: EngineConfig, address: str) -> None:
    with pytest.raises(ConfigError, match="--control-address"):
        check(msgspec.structs.replace(config, control_tcp=address))


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5600", "tcp://[::1]:5600", "tcp://10.0.0.7:1"])
def test_an_explicit_address_is_taken(config: EngineConfig, address: str) -> None:
    assert check(msgspec.structs.replace(config, control_tcp=address)).control_address == address


def test_one_address_for_both_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="differ"):
        check(msgspec.structs.replace(config, events_tcp=config.control_tcp))
