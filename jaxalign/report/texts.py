"""Generated texts side by side: which are shown, and their tokens in runs that guidance changed or left."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxalign.report import numbers
from jaxalign.report.clean import prompt_messages

# A page of everything that was written would be megabytes; generations.jsonl has the rest.
MOST_TASKS = 12
MOST_LETTERS = 3000
_KINDS = {"plain": 0, "in_context": 1, "graded": 2, "guided": 3, "guided_in_context": 4}
_KIND_NAMES = {
    "plain": "the language model alone",
    "in_context": "with the user\u2019s examples in the prompt",
    "graded": "with graded examples in the prompt",
    "guided": "guided by the reward",
    "guided_in_context": "guided, with examples in the prompt",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """One text: method, what kind it is, (text, changed) runs, letters cut off, and facts about it in words."""

    method: str
    kind: str
    runs: Sequence[tuple[str, bool]]
    cut: int
    facts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Task:
    """A prompt of a user: (role, text, letters cut off) of its messages, the user's own text, and what was written."""

    user: str
    group: str
    prompt: Sequence[tuple[str, str, int]]
    own: tuple[str, int] | None
    texts: Sequence[Written]


def shorten(text: str, limit: int = MOST_LETTERS) -> tuple[str, int]:
    """The beginning of a text and the number of letters that were cut off."""
    return text[:limit], max(0, len(text) - limit)


def tasks(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Task], int]:
    """The tasks to show, first prompts of users before second ones, and the number of all tasks."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["user"], repr(row.get("prompt"))), []).append(row)
    seen: dict[str, int] = {}
    ranked = []
    for user, prompt in groups:
        seen[user] = seen.get(user, 0) + 1
        ranked.append((seen[user], len(ranked), (user, prompt)))
    shown = [key for _, _, key in sorted(ranked)[:MOST_TASKS]]
    return [_task(groups[key]) for key in shown], len(groups)


def _task(rows: Sequence[Mapping[str, Any]]) -> Task:
    first = rows[0]
    own = next((row["reference"] for row in rows if row.get("reference") is not None), None)
    ordered = sorted(rows, key=lambda row: _KINDS.get(str(row.get("kind")), len(_KINDS)))
    return Task(
        user=first["user"],
        group=str(first.get("group") or ""),
        prompt=[(role, *shorten(text)) for role, text in prompt_messages(first.get("prompt"))],
        own=None if own is None else shorten(str(own)),
        texts=[_written(row) for row in ordered],
    )


def _written(row: Mapping[str, Any]) -> Written:
    pieces = row.get("pieces") or [(row["text"] or "", False)]
    runs: list[tuple[str, bool]] = []
    left, cut = MOST_LETTERS, 0
    for piece in pieces:
        text, changed = str(piece[0]), bool(piece[1])
        kept, left = text[:left], max(0, left - len(text))
        cut += len(text) - len(kept)
        if not kept:
            continue
        word = kept.lstrip()
        # The blank before a word belongs to the token, and looks better unmarked.
        for part, marked in ((kept[: len(kept) - len(word)], False), (word, changed)):
            if part and runs and runs[-1][1] == marked:
                runs[-1] = (runs[-1][0] + part, marked)
            elif part:
                runs.append((part, marked))
    facts = [f"w = {row['weight']:g}"] if isinstance(row.get("weight"), int | float) else []
    if row.get("pieces"):
        facts.append(f"{sum(bool(piece[1]) for piece in pieces)} of {len(pieces)} tokens changed")
    for name, value in list((row.get("quality") or {}).items())[:4]:
        if isinstance(value, int | float):
            measure = numbers.measure(name)
            facts.append(f"{measure.label} {measure.text(value)}")
    if row.get("stop_reason") == "length":
        facts.append("stopped at the length limit")
    return Written(row["method"], _KIND_NAMES.get(str(row.get("kind")), ""), runs, cut, facts)
