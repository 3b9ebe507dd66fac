"""How good written texts are: against what the user wrote, against how the user writes, and under the true taste."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.data.attributes import Standardiser, attribute_table
from jaxalign.evaluation.accuracies import label_of
from jaxalign.evaluation.in_context import preferred
from jaxalign.evaluation.table import Table
from jaxalign.evaluation.task import Task
from jaxalign.metrics import measures
from jaxalign.metrics.quality import CORPUS_MEASURES, TEXT_MEASURES, corpus_quality, text_quality
from jaxalign.metrics.similarity import cosine
from jaxalign.metrics.style import style_distance
from jaxalign.models.language_model import LanguageModel
from jaxalign.progress import Progress, silent
from jaxalign.rewards.features import extract

# A text is embedded under one request, whatever it was written for: the prompt would dominate the hidden states.
_REQUEST = "Write a text."
MEASURES = (*TEXT_MEASURES, "style_distance", "embedding_similarity", "true_utility", "own_reward", "changed")


def measure(
    task: Task,
    lm: LanguageModel,
    rows: Sequence[Mapping[str, Any]],
    cache: Path,
    batch_size: int,
    progress: Progress = silent,
    more: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Rows of `generations.jsonl` with their `quality`, a dictionary from measure to number or None.

    `more` names measures of plugins.
    """
    histories = _histories(task)
    style = _Style(histories)
    similar = _similarities(lm, rows, cache, batch_size, progress)
    measured = []
    for row, similarity in zip(rows, similar, strict=True):
        quality: dict[str, float | None] = dict(text_quality(row["text"], row["reference"]))
        quality["style_distance"] = style(row["user"], row["text"])
        quality["embedding_similarity"] = similarity
        if task.simulated is not None:
            quality["true_utility"] = float(task.simulated.reward(row["user"], [row["text"]])[0])
        quality |= {name: row[name] for name in ("own_reward", "changed") if row[name] is not None}
        quality |= {name: measures.value(name, row, histories.get(row["user"], [])) for name in more}
        measured.append({**row, "quality": quality})
    return measured


def _histories(task: Task) -> dict[str, list[str]]:
    """By user, the texts that they wrote or chose in training groups."""
    own: dict[str, list[str]] = {}
    for row in task.history:
        own.setdefault(row.user, []).append(preferred(row))
    return own


class _Style:
    """Distance of a text from the user's own history, in deviations over all users' texts."""

    def __init__(self, histories: Mapping[str, Sequence[str]]):
        self._tables = {user: attribute_table(sorted(set(texts))) for user, texts in histories.items()}
        everything = sorted({text for texts in histories.values() for text in texts})
        self._standardiser = Standardiser.of(attribute_table(everything)) if everything else None

    def __call__(self, user: str, text: str) -> float | None:
        if self._standardiser is None or user not in self._tables or not text.strip():
            return None
        return float(style_distance(attribute_table([text]), self._tables[user], self._standardiser)[0])


def _similarities(
    lm: LanguageModel,
    rows: Sequence[Mapping[str, Any]],
    cache: Path,
    batch_size: int,
    progress: Progress,
) -> list[float | None]:
    """Cosine of mean hidden states of each text and of its reference, about the mean of all references."""
    there = [number for number, row in enumerate(rows) if row["reference"] and row["text"].strip()]
    found: list[float | None] = [None] * len(rows)
    if not there:
        return found
    texts = {text for number in there for text in (rows[number]["text"], rows[number]["reference"])}
    asked = [(_REQUEST, text) for text in sorted(texts)]
    with progress("quality of texts", len(asked)) as done:
        features = extract(lm, asked, cache=cache, batch_size=batch_size, progress=done)

    def embedded(name: str) -> np.ndarray:
        return features.mean[[features.of(_REQUEST, rows[number][name]) for number in there]]

    references = embedded("reference")
    values = cosine(embedded("text"), references, references.mean(axis=0))
    for number, value in zip(there, values, strict=True):
        found[number] = None if np.isnan(value) else float(value)
    return found


def add_quality(table: Table, rows: Sequence[Mapping[str, Any]], top_k: int, more: Sequence[str] = ()) -> None:
    """Means over users of every measure (and of those named in `more`), by method and group, and the measures of all
    texts together."""
    for method, group in sorted({(row["method"], row["group"]) for row in rows}):
        own = [row for row in rows if (row["method"], row["group"]) == (method, group)]
        users = sorted({row["user"] for row in own})
        weight = own[0]["weight"]
        for name in (*MEASURES, *more):
            values, counts = np.full(len(users), np.nan), np.zeros(len(users))
            for place, user in enumerate(users):
                known = [row["quality"].get(name) for row in own if row["user"] == user]
                known = [value for value in known if value is not None]
                if known:
                    values[place], counts[place] = np.mean(known), len(known)
            if counts.any():
                setting = {"weight": weight, "top_k": None if weight is None else top_k}
                table.mean(name, method, group, users, values, counts, label=label_of(name, group), **setting)
        corpus = corpus_quality([row["text"] for row in own], [row["reference"] for row in own])
        for name in CORPUS_MEASURES:
            if corpus.get(name) is not None:
                table.value(name, method, group, corpus[name], len(own), "corpus")
