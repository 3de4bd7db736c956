"""Trains a dense model on a few lessons, over and over. Draws nothing at random."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from engine.demo.dense import DenseModel
from engine.demo.pirate import IGNORED, Lesson

LEARNING_RATE = 1e-4  # with 40 steps of 4 chats, SmolLM2 answers new questions in the same way


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is."""

    done: int
    steps: int
    loss: float  # of the last step's answers, in nats a token
    left_s: float


def finetune(
    model: DenseModel, lessons: Sequence[Lesson], steps: int, told: Callable[[Progress], None]
) -> None:
    """Take `steps` steps of AdamW on all of the model's weights, in place, a lesson each."""
    weights = list(model.weights.values())
    for weight in weights:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=True)
    started = time.monotonic()
    for step in range(steps):
        loss = loss_of(model, lessons[step % len(lessons)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        assert math.isfinite(value), f"the loss of step {step} is {value}"
        left_s = (time.monotonic() - started) / (step + 1) * (steps - step - 1)
        told(Progress(step + 1, steps, value, left_s))
    for weight in weights:
        weight.requires_grad_(False)


def loss_of(model: DenseModel, lesson: Lesson) -> torch.Tensor:
    """Return the mean loss of a lesson's targets; the head is computed for those alone."""
    asked = lesson.targets != IGNORED  # (B, N)
    logits = F.linear(model.hidden(lesson.ids)[asked], model.top().head)  # (targets, V)
    return F.cross_entropy(logits, lesson.targets[asked])
