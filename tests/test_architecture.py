"""The import rule and the size rule of ARCHITECTURE.md, read from source: nothing is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for top in ("engine", "console", "api") for p in (ROOT / top).rglob("*.py"))
MAX_LINES = 500
# Benchmarks measure; nothing else does.
TESTS = sorted(p for p in (ROOT / "tests").rglob("*.py") if "bench" not in p.parts)

# package -> import prefixes it must not name, even inside a function
FORBIDDEN = {
    "engine": ("console", "api", "django", "celery", "channels", "ninja"),
    "engine/protocol": ("torch", "triton", "numpy", "zmq", "engine.config", "engine.ipc"),
    "engine/frontend": ("torch", "triton", "engine.scheduler", "engine.models"),
    "console": ("torch", "triton"),
    "api": ("torch", "triton", "engine.client"),
}
# Ways to run what a peer sends; none of them has a place in shipped code.
UNSAFE = ("pickle", "cloudpickle", "dill", "marshal", "shelve")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Every absolute module name that `path` imports, at any depth."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))


@each_source
def test_module_respects_its_layer(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    banned = [b for package, bs in FORBIDDEN.items() if name.startswith(package + "/") for b in bs]
    broken = [m for m in imports(path) for b in banned if m == b or m.startswith(b + ".")]
    assert not broken, f"{name} imports {broken}; see ARCHITECTURE.md, 'Who may import whom'"


@each_source
def test_file_has_one_subject(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it by subject"


@each_source
def test_nothing_that_a_peer_sends_is_executed(path: Path) -> None:
    assert not {m.partition(".")[0] for m in imports(path)} & set(UNSAFE)
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
    }
    assert not {"recv_pyobj", "send_pyobj"} & called
    names = {
        node.func.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {"eval", "exec"} & names


@each_source
def test_module_opens_with_a_docstring(path: Path) -> None:
    source = path.read_text()
    if source.strip() and "migrations" not in path.parts:
        assert ast.get_docstring(ast.parse(source)), f"{path.relative_to(ROOT)} has no docstring"


def is_measured(node: ast.expr) -> bool:
    """A stretch of wall time: a difference of two readings, or what is named like one."""
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return any(clock in text for clock in ("monotonic()", "perf_counter()", "time.time()"))
    return isinstance(node, ast.Name | ast.Attribute) and ("took" in text or "elapsed" in text)


def upper_bounds(source: str) -> list[int]:
    """Lines with an assertion that fails when the machine is slow."""
    found = []
    for asserted in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Assert)):
        for node in ast.walk(asserted.test):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                smaller = left if isinstance(operator, ast.Lt | ast.LtE) else right
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    found += [asserted.lineno] if is_measured(smaller) else []
    return found


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_assertion_has_a_stopwatch(path: Path) -> None:
    lines = upper_bounds(path.read_text())
    assert not lines, f"{path.relative_to(ROOT)}:{lines} bounds what a busy machine takes"


def test_a_stopwatch_is_found_on_either_side() -> None:
    bounds = ["time.monotonic() - a < 4", "4 > b - time.time()", "0.9 < took_s <= 2"]
    others = ["time.monotonic() - a > 4", "took_s >= 2", "time.monotonic() < gives_up_at"]
    assert [upper_bounds(f"assert {text}") for text in bounds] == [[1]] * 3
    assert [upper_bounds(f"assert {text}") for text in others] == [[]] * 3


def calls_at_import(tree: ast.Module) -> list[ast.Call]:
    """Calls that are made when a module is imported: all but those inside of functions."""
    found, todo = [], list[ast.AST](tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        found += [node] if isinstance(node, ast.Call) else []
        todo += ast.iter_child_nodes(node)
    return found


def sockets_at_import(tree: ast.Module) -> list[str]:
    texts = [ast.unparse(call.func) for call in calls_at_import(tree)]
    return [one for one in texts if one.split(".")[-1] in ("Context", "socket", "EngineClient")]


def test_no_socket_is_made_at_import_time() -> None:
    """A context made before a fork hangs its child (handed case Z07)."""
    for path in SOURCES:
        assert not sockets_at_import(tree_of(path)), f"{path} makes a context or socket at import"


def test_a_socket_at_import_is_found_however_it_is_written() -> None:
    for line in (
        "c = zmq.Context()",
        "c: zmq.Context = zmq.asyncio.Context()",
        "if True:\n    s = Context.instance().socket(zmq.REQ)",
        "class A:\n    client = EngineClient(None, '')",
    ):
        assert sockets_at_import(ast.parse(line)), line
    assert not sockets_at_import(ast.parse("def f():\n    return zmq.Context()"))


SENDS = ("send_task", "apply_async", "signature")


def delays(tree: ast.Module) -> set[str | None]:
    """Keywords by which a message is sent for later; None is `**`, which may hide one."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    sends = [one for one in calls if ast.unparse(one.func).split(".")[-1] in SENDS]
    return {word.arg for one in sends for word in one.keywords} & {"eta", "countdown", None}


def test_no_message_waits_in_the_broker_for_its_time() -> None:
    """One that did would be delivered again, and again, while it waits (handed case J01)."""
    for path in SOURCES:
        assert not delays(tree_of(path)), f"{path}: the database has `not_before` for that"
    assert delays(ast.parse("app.send_task('x', countdown=3)"))
