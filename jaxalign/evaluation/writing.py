"""Texts written for users: by the language model alone, with texts of theirs in its context, and guided by each reward
model."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxalign.decoding import generate
from jaxalign.evaluation.experiment import Experiment, parse_in_context
from jaxalign.evaluation.in_context import Context, contexts
from jaxalign.evaluation.roster import Roster
from jaxalign.evaluation.task import Target, Task
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.tokenizer import Tokenizer
from jaxalign.rewards.features import chat_prompt

PLAIN = "plain"
Prompt = str | list[dict[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One text to write.

    Attributes:
      target: number of the target.
      method: as tables name it: `plain`, a name of in-context learning, a reward model, or a reward model and a name of
        in-context learning joined by "+".
      kind: `plain`, `in_context`, `graded`, `guided` or `guided_in_context`.
      prompt: as the tokenizer takes it.
      demonstrations: how many are in the prompt.
      reward_model: that guides, or None.
      weight: w of the guidance.
    """

    target: int
    method: str
    kind: str
    prompt: Prompt
    demonstrations: int = 0
    reward_model: str | None = None
    weight: float | None = None


def in_context_prompts(
    task: Task, rows: Sequence[Any], experiment: Experiment, tokenizer: Tokenizer | None
) -> dict[str, list[Context]]:
    """The prompts of rows under each of `experiment.in_context`; own texts are not graded, so they have no such row."""
    found = {}
    for name in experiment.in_context:
        spec = parse_in_context(name, experiment)
        if not (spec.graded and task.own_texts):
            found[name] = contexts(rows, task.history, spec, tokenizer)  # type: ignore[arg-type]
    return found


def jobs_of(
    task: Task, prompts: Mapping[str, Sequence[Context]], weights: Mapping[str, float], both: str | None
) -> list[Job]:
    """All texts to write.

    Args:
      task: whose targets are written.
      prompts: of every target, by name of in-context learning.
      weights: of the guidance, by reward model.
      both: the reward model that also guides on top of the first of `prompts`, or None.
    """
    jobs = []
    for number, target in enumerate(task.targets):
        asked = chat_prompt(target.row.prompt)
        jobs.append(Job(target=number, method=PLAIN, kind=PLAIN, prompt=asked))
        for name, made in prompts.items():
            shown = made[number]
            kind = "graded" if name.startswith("graded") else "in_context"
            jobs.append(
                Job(target=number, method=name, kind=kind, prompt=shown.messages, demonstrations=shown.shown)  # type: ignore[arg-type]
            )
        for name, weight in weights.items():
            jobs.append(Job(target=number, method=name, kind="guided", prompt=asked, reward_model=name, weight=weight))
        if both is not None and prompts:
            name, made = next(iter(prompts.items()))
            jobs.append(
                Job(
                    target=number,
                    method=f"{both}+{name}",
                    kind="guided_in_context",
                    prompt=made[number].messages,  # type: ignore[arg-type]
                    demonstrations=made[number].shown,
                    reward_model=both,
                    weight=weights[both],
                )
            )
    # Guided and plain ones apart, and similar lengths together: batches are then full and few programs are compiled.
    return sorted(jobs, key=lambda job: (job.reward_model is not None, job.kind, job.target, job.method))


def write(
    lm: LanguageModel,
    targets: Sequence[Target],
    jobs: Sequence[Job],
    roster: Roster | None,
    experiment: Experiment,
    progress: Callable[[int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of `generations.jsonl`, without their quality, in the order of `jobs`."""
    guided = [job for job in jobs if job.reward_model is not None]
    settings = {
        "max_new_tokens": experiment.response_tokens,
        "batch_size": experiment.batch_size,
        "on_long_prompt": "truncate_left",
        "record": True,
        "progress": progress,
    }
    results: dict[int, Any] = {}
    plain = [number for number, job in enumerate(jobs) if job.reward_model is None]
    if plain:
        results |= zip(plain, generate(lm, [jobs[number].prompt for number in plain], **settings), strict=True)
    if guided:
        assert roster is not None, "guided jobs need reward models"
        places = [number for number, job in enumerate(jobs) if job.reward_model is not None]
        written = generate(
            lm,
            [job.prompt for job in guided],
            guidance=roster.head([job.weight or 0.0 for job in guided]),
            user=[roster.row(str(job.reward_model), targets[job.target].row.user) for job in guided],
            top_k=experiment.top_ks[0],
            **settings,
        )
        results |= zip(places, written, strict=True)
    for number, job in enumerate(jobs):
        yield _row(lm, targets[job.target], job, results[number], experiment)


def _row(lm: LanguageModel, target: Target, job: Job, result: Any, experiment: Experiment) -> dict[str, Any]:
    guided = job.reward_model is not None
    records = result.records
    prompt = target.row.prompt
    # The reward of a response is read at its last content token, before the end of the turn.
    ended = result.stop_reason == "end_token" and len(result.tokens) > 1
    last = len(result.tokens) - (2 if ended else 1)
    changed = records["changed"] if records else []
    return {
        "user": target.row.user,
        "group": target.group,
        "target": job.target,
        "prompt": prompt if isinstance(prompt, str) else [m._asdict() for m in prompt],
        "reference": target.reference,
        "method": job.method,
        "kind": job.kind,
        "weight": job.weight,
        "top_k": experiment.top_ks[0] if guided else None,
        "text": result.text or "",
        "stop_reason": result.stop_reason,
        "demonstrations": job.demonstrations,
        "prompt_cut": result.prompt_cut,
        "pieces": pieces(lm.tokenizer, result.tokens, changed) if guided and lm.tokenizer is not None else None,
        "own_reward": float(records["reward"][last]) if guided and records and last >= 0 else None,
        "changed": float(np.mean(changed)) if guided and len(changed) else None,
    }


def pieces(tokenizer: Tokenizer, tokens: Sequence[int], changed: Sequence[bool]) -> list[tuple[str, bool]]:
    """The text in pieces of tokens that guidance did, or did not, change from the language model's own choice."""
    found: list[tuple[str, bool]] = []
    before = ""
    for end in range(1, len(tokens) + 1):
        if end < len(tokens) and changed[end] == changed[end - 1]:
            continue
        text = tokenizer.decode(tokens[:end])
        # A character whose bytes lie in two pieces belongs to the later one.
        whole = text.rstrip("\ufffd") if end < len(tokens) else text
        if whole.startswith(before) and len(whole) > len(before):
            found.append((whole[len(before) :], bool(changed[end - 1])))
            before = whole
    return found
