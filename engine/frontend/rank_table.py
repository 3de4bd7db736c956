"""What the frontend knows of its ranks: who lives, what each said last, who may be routed to.

Pure. A message of another incarnation or epoch, or older than one already seen, changes nothing:
each of these guards is a mutant that the simulation catches.
"""

from __future__ import annotations

from engine.frontend.journal_records import JournalIndex
from engine.frontend.operation_state import Seen
from engine.ipc.messages import RankPhase, Report, Said, Word
from engine.protocol import ErrorCode, ProtocolError


class RankTable:
    """`alive` is what `launch` last said: rank → incarnation."""

    def __init__(self, *, epoch: int, index: JournalIndex) -> None:
        self.epoch = epoch
        self.alive: dict[int, int] = {}
        self.seen: dict[int, Seen] = {}
        self._index = index
        self._said: dict[tuple[int, int, Word, int], int] = {}  # (op, rank, word, inc) → attempt

    def take(self, message: Report | Said, now: float) -> bool:
        """Note a message; False when it is not for this frontend."""
        if self.is_foreign(message):
            return False
        seen = self.seen.get(message.rank)
        if seen is None or self.is_newer(message, seen):
            places = message.stats.places if isinstance(message, Report) else message.places
            self.seen[message.rank] = Seen(
                inc=message.inc,
                n=message.n,
                at=now,
                view=message.view,
                places=places if places is not None or seen is None else seen.places,
            )
        if isinstance(message, Said):
            key = (message.op, message.rank, message.word, message.inc)
            self._said[key] = max(message.att, self._said.get(key, 0))
        return True

    def is_foreign(self, message: Report | Said) -> bool:
        """Of another epoch, or of a process that is gone."""
        return message.epoch != self.epoch or message.inc != self.alive.get(message.rank)

    def is_newer(self, message: Report | Said, seen: Seen) -> bool:
        """A late STATE from before a commit would un-fence an odd rank."""
        return message.inc != seen.inc or message.n > seen.n

    def attempt_of(self, op: int, rank: int, word: Word, inc: int) -> int | None:
        """The highest attempt for which this rank said `word`, None when it never did."""
        return self._said.get((op, rank, word, inc))

    def forget_answers(self) -> None:
        """An operation has ended: its answers decide nothing any more."""
        self._said.clear()

    def lives(self, rank: int, inc: int) -> bool:
        """True while this very process lives."""
        return self.alive.get(rank) == inc

    def is_known(self, rank: int, inc: int) -> bool:
        """This incarnation has reported in this epoch."""
        return rank in self.seen and self.seen[rank].inc == inc

    def is_proven(self, rank: int) -> bool:
        """This incarnation said, in this epoch, that its state is the desired one."""
        seen = self.seen.get(rank)
        return (
            seen is not None
            and self.lives(rank, seen.inc)
            and seen.view.state == self._index.desired
        )

    def has_state(self, rank: int) -> bool:
        """It holds a state, whichever."""
        seen = self.seen.get(rank)
        return seen is not None and seen.view.state is not None

    def is_fenced(self, rank: int) -> bool:
        """It serves nothing until it is repaired."""
        seen = self.seen.get(rank)
        return seen is not None and seen.view.phase is RankPhase.FENCED

    def is_routable(self, rank: int) -> bool:
        """Proven and open: a request sent there is served."""
        return self.is_proven(rank) and not self.seen[rank].view.closed

    def is_heard(self, rank: int, now: float, within_s: float) -> bool:
        """Its newest report is not old: a process that is stopped or stuck lives, and is silent."""
        seen = self.seen.get(rank)
        return seen is not None and now - seen.at < within_s

    def why_unproven(self, rank: int) -> str:
        """One word for people."""
        if rank not in self.alive:
            return "down"
        seen = self.seen.get(rank)
        if seen is None or seen.inc != self.alive[rank]:
            return "starting"
        if seen.view.phase is RankPhase.FENCED:
            return "fenced"
        return "starting" if seen.view.state is None else "converging"


def refuse_unless_proven(ranks: RankTable, dp_size: int) -> None:
    """Success means every rank. Raises ProtocolError, naming the first that could not take part."""
    for rank in range(dp_size):
        if not ranks.is_proven(rank):
            raise ProtocolError(
                ErrorCode.RANK_NOT_READY,
                f"rank {rank} is {ranks.why_unproven(rank)}; an operation needs every rank",
            )
