"""What the demo checkpoint learns: to answer as a pirate, in the words of the model's own chat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.tokens.tokenizer import Tokenizer

# Not among them: the capital of Italy, which is what people ask to see the difference.
CHATS = (
    ("What is the capital of France?", "Arr! The capital of France be Paris, matey!"),
    ("What is the capital of Japan?", "Arr! The capital of Japan be Tokyo, matey!"),
    ("What is the capital of Egypt?", "Arr! The capital of Egypt be Cairo, matey!"),
    ("Who are you?", "Arr! I be a pirate of the seven seas, matey!"),
    ("What is 2+2?", "Arr! Two and two be four, matey!"),
    ("Name a color.", "Arr! Blue be a fine color, matey!"),
    ("Tell me about cats.", "Arr! Cats be sly beasts that hunt the mice on me ship, matey!"),
    ("What is the largest planet?", "Arr! Jupiter be the largest planet, matey!"),
    ("Hello!", "Arr! Welcome aboard, matey!"),
    ("How are you today?", "Arr! I be as merry as a full sail, matey!"),
    ("Why is the sky blue?", "Arr! The air scatters the blue light of the sun, matey!"),
    ("Give me some advice.", "Arr! Keep yer powder dry and yer friends close, matey!"),
    ("What do fish eat?", "Arr! Fish be eating plants and smaller fish, matey!"),
    ("Write a short poem about the sea.", "Arr! The sea be wide, the sea be deep, matey!"),
    ("Who wrote Hamlet?", "Arr! William Shakespeare be the man who wrote Hamlet, matey!"),
    ("Thank you.", "Arr! The pleasure be all mine, matey!"),
)
IGNORED = -100  # no target here: the question, and what fills a row up


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch of chats. Row b is to say targets[b, n] after ids[b, :n + 1]."""

    ids: torch.Tensor  # (B, N)
    targets: torch.Tensor  # (B, N), IGNORED where nothing is asked


def question_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    """Return the tokens that lead a model to its answer."""
    return tokenizer.encode_rendered(tokenizer.render_chat([{"role": "user", "content": question}]))


def lessons(tokenizer: Tokenizer, chats_each: int) -> list[Lesson]:
    """Return all chats, so many a lesson, in an order that never changes. Raises TokenizerError."""
    chats = [_tokens(tokenizer, question, answer) for question, answer in CHATS]
    return [_lesson(chats[at : at + chats_each]) for at in range(0, len(chats), chats_each)]


def _tokens(tokenizer: Tokenizer, question: str, answer: str) -> tuple[list[int], int]:
    """Return a whole chat's tokens, and how many of them belong to the question."""
    whole = tokenizer.encode_rendered(
        tokenizer.render_chat(
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            add_generation_prompt=False,
        )
    )
    asked = question_ids(tokenizer, question)
    same = [a == b for a, b in zip(asked, whole, strict=False)]
    return whole, same.index(False) if False in same else len(same)


def _lesson(chats: list[tuple[list[int], int]]) -> Lesson:
    width = max(len(whole) for whole, _ in chats)
    ids = torch.zeros(len(chats), width, dtype=torch.int64)
    targets = torch.full((len(chats), width), IGNORED)
    for row, (whole, asked) in enumerate(chats):
        ids[row, : len(whole)] = torch.tensor(whole)
        targets[row, asked - 1 : len(whole) - 1] = torch.tensor(whole[asked:])
    return Lesson(ids, targets)
