"""What FakeEngine serves: weights a rank, their folders and uploads, pauses and released memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from engine.protocol import (
    AbortRequests,
    CheckpointList,
    CheckpointView,
    ContinueGeneration,
    MemoryTag,
    Operation,
    PauseGeneration,
    PauseMode,
    ReleaseMemory,
    Repair,
    ResumeMemory,
    Staging,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
    UpdateWeightVersion,
    Upload,
    Uploaded,
    WeightSource,
    WeightsRoot,
    WeightsView,
)

GB = 10**9
AT_ONCE = (UpdateWeightVersion, PauseGeneration, ContinueGeneration, ResumeMemory, Repair)
UPDATES = (UpdateWeightsFromDisk, UpdateWeightsFromTensor, UpdateWeightsFromDistributed)


def is_weight_update(operation: Operation) -> bool:
    return isinstance(operation, UPDATES)


def checksum_of(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def view_of(name: str, source: WeightSource = WeightSource.DISK, **more: object) -> WeightsView:
    folder = name.rpartition("/")[2]
    return WeightsView(
        **{
            "version": folder,
            "checksum": checksum_of(folder),
            "source": source,
            "path": f"/srv/models/{folder}" if source in ("disk", "start") else "",
            "label": f"models:{folder}",
            "bytes": GB,
            "num_tensors": 272,
            **more,
        }  # type: ignore[arg-type]
    )


@dataclass
class FakeWeights:
    """State and script; FakeEngine asks it under its lock."""

    dp_size: int
    stage_s: float = 0.0
    total_bytes: int = GB
    refuse_staging: str = ""  # a sentence: each rank refuses once it has staged
    refuse_upload: bool = False
    hold_after_pieces: int | None = None  # then it hears pieces and says nothing
    is_silent_about_checkpoints: bool = False
    prefill_tokens_per_s: float | None = 1000.0
    served: WeightsView = field(default_factory=lambda: view_of("v1", WeightSource.START))
    before: WeightsView | None = None
    fenced: set[int] = field(default_factory=set)
    paused: PauseMode | None = None
    released: list[MemoryTag] = field(default_factory=list)
    needs_weights: bool = False
    roots: list[WeightsRoot] = field(
        default_factory=lambda: [WeightsRoot(label="models", path="/srv/models")]
    )
    checkpoints: list[str] = field(default_factory=lambda: ["v1", "v2"])
    problems: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, dict[str, bytearray]] = field(default_factory=dict)
    num_pieces: int = 0

    def __post_init__(self) -> None:
        self.ranks = [self.served] * self.dp_size

    @property
    def version(self) -> str:
        return self.served.version

    def look(self) -> object:
        """What must be told at once when it changes."""
        return (self.paused, tuple(self.released), self.needs_weights, tuple(self.fenced))

    def is_exclusive(self, operation: Operation) -> bool:
        return not isinstance(operation, AbortRequests)

    def is_repair(self, operation: Operation) -> bool:
        return isinstance(operation, Repair)

    def is_at_once(self, operation: Operation) -> bool:
        return isinstance(operation, AT_ONCE)

    def said(self, operation: Operation) -> str:
        return "flushed" if operation.kind == "flush_cache" else f"{operation.kind} done"

    def refusal(self, operation: Operation) -> str | None:
        """Why an operation is refused at once."""
        match operation:
            case UpdateWeightsFromTensor(upload_id=upload) if upload not in self.uploads:
                return f"no upload is named {upload}"
            case UpdateWeightsFromDisk(model_path=path) if not path.startswith("/srv/models/"):
                return f"{path} is not under an allowed root"
        return None

    def staged_share(self, since_s: float) -> float:
        return 1.0 if self.stage_s <= 0 else min(1.0, since_s / self.stage_s)

    def staging(self, since_s: float, is_ready: bool) -> Staging:
        """The first four fifths are staged, the last fifth is verified."""
        share = self.staged_share(since_s)
        what, part = ("stage", share / 0.8) if share < 0.8 else ("verify", (share - 0.8) / 0.2)
        if is_ready:
            what, part = "ready", 1.0
        return Staging(
            what=what,
            done_bytes=int(self.total_bytes * min(1.0, part)),
            total_bytes=self.total_bytes,
            elapsed_s=min(since_s, self.stage_s),
        )

    def commit(self, operation: Operation, fail_ranks: set[int]) -> None:
        """Serve what was asked for, but on `fail_ranks`, which are fenced with the old."""
        match operation:
            case UpdateWeightsFromDisk(model_path=path, weight_version=version):
                new = view_of(path, **({"version": version} if version else {}))
            case UpdateWeightsFromTensor(upload_id=upload, weight_version=version):
                files = self.uploads[upload]
                text = "".join(f"{name}{bytes(data)!r}" for name, data in sorted(files.items()))
                new = view_of(
                    version or checksum_of(text)[:12],
                    WeightSource.TENSOR,
                    checksum=checksum_of(text),
                    label=", ".join(sorted(files)),
                )
            case UpdateWeightsFromDistributed(weight_version=version, group_name=group):
                new = view_of(version or "trained", WeightSource.DISTRIBUTED, label=group)
            case _:
                self._commit_small(operation)
                return
        self.before, self.served = self.served, new
        self.ranks = [old if rank in fail_ranks else new for rank, old in enumerate(self.ranks)]
        self.fenced = set(fail_ranks)
        self.needs_weights = False

    def _commit_small(self, operation: Operation) -> None:
        match operation:
            case PauseGeneration(pause_mode=mode):
                self.paused = mode
            case ContinueGeneration():
                self.paused = None
            case ReleaseMemory(tags=tags):
                self.released = list(tags)
            case ResumeMemory(tags=tags):
                self.needs_weights = MemoryTag.WEIGHTS in self.released and "weights" in tags
                self.released = [tag for tag in self.released if tag not in tags]
            case Repair():
                self.ranks = [self.served] * self.dp_size
                self.fenced = set()
            case UpdateWeightVersion(new_version=version):
                self.served = view_of(version, checksum=self.served.checksum)
                self.ranks = [self.served] * self.dp_size
            case _:
                return

    def list_checkpoints(self, path: str) -> CheckpointList | None:
        if self.is_silent_about_checkpoints:
            return None
        found = [
            CheckpointView(
                root="models",
                name=name,
                path=f"/srv/models/{name}",
                bytes=GB,
                num_files=1,
                num_tensors=272,
                problem=self.problems.get(name, ""),
            )
            for name in self.checkpoints
        ]
        if path:
            known = [one for one in found if one.path == path]
            found = known or [
                CheckpointView(root="", name=path, path=path, problem="there is no such folder")
            ]
        return CheckpointList(roots=self.roots, checkpoints=found)

    def take(self, piece: Upload) -> Uploaded | None:
        """Keep a piece, and say how much there is; None says nothing."""
        if self.hold_after_pieces is not None and self.num_pieces >= self.hold_after_pieces:
            return None
        self.num_pieces += 1
        data = self.uploads.setdefault(piece.upload_id, {}).setdefault(piece.name, bytearray())
        if piece.offset == len(data):
            data.extend(piece.data)
        return Uploaded(upload_id=piece.upload_id, name=piece.name, received_bytes=len(data))
