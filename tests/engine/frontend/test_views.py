"""What the outside is shown of a rank."""

from __future__ import annotations

from engine.frontend.journal_records import JournalIndex
from engine.frontend.rank_table import RankTable
from engine.frontend.views import rank_view
from engine.ipc.messages import RankPhase, RankStats, Report, ServingState, View
from engine.protocol import Places, RankStorage, StorageBackend, StorageView

OLD = StorageView(backend=StorageBackend.FILE, config_id="0" * 16)
NEW = StorageView(backend=StorageBackend.FILE, config_id="1" * 16)


def told(state: StorageView | None, counters: StorageView) -> RankStorage | None:
    """What is shown of a rank in that state, whose newest counters are of that attachment."""
    table = RankTable(epoch=1, index=JournalIndex(initial=ServingState()))
    table.alive[0] = 1
    storage = RankStorage(
        backend=counters.backend, config_id=counters.config_id, config_hash="77e90b14"
    )
    stats = RankStats(places=Places(), storage=storage)
    view = View(
        state=ServingState(storage_backend=state), phase=RankPhase.NONE, ctx=0, closed=False
    )
    table.take(Report(rank=0, inc=1, epoch=1, n=1, view=view, stats=stats, lease_left_s=None), 0.0)
    return rank_view(table, 0, stats, now=0.0, online_s=2.0, config_hash="77e90b14").storage


def test_counters_of_another_attachment_are_not_told_as_of_this_one() -> None:
    """A rank tells its state at once and its counters twice a second: it would seem to drift."""
    now = told(NEW, NEW)
    assert now is not None and now.config_id == NEW.config_id and not now.drifts
    assert told(NEW, OLD) is None
    assert told(None, OLD) is None
