"""The main job: data, features, fit, judge, write, measure, select, report, each stage on the results of those before.

Every stage writes its results as it goes, and finds those of an earlier run: the same command continues.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxalign import tracking
from jaxalign.data.prompts import Prompt, identity
from jaxalign.data.splits import row_key
from jaxalign.evaluation import accuracies, distributed, quality, sources
from jaxalign.evaluation.accuracies import Choice
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.folder_lock import only_run
from jaxalign.evaluation.forms import entries_of
from jaxalign.evaluation.judging import Judgements, Judging, collect
from jaxalign.evaluation.likelihood import judged_rows, score_pairs
from jaxalign.evaluation.models import Blocks, prepare
from jaxalign.evaluation.roster import Roster
from jaxalign.evaluation.run_folder import RunFolder
from jaxalign.evaluation.selecting import select
from jaxalign.evaluation.sharding import spans_processes
from jaxalign.evaluation.shards import Shards
from jaxalign.evaluation.table import Table
from jaxalign.evaluation.task import Task
from jaxalign.evaluation.writing import in_context_prompts, jobs_of, write
from jaxalign.files import cache_dir, remove_leftovers
from jaxalign.models.language_model import LanguageModel
from jaxalign.progress import Progress, silent
from jaxalign.rewards.export import REPORT
from jaxalign.rewards.features import TextFeatures, chat_prompt, extract
from jaxalign.rewards.protocol import RewardModel


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run ends with; all of it is also in the folder.

    Attributes:
      folder: where everything is.
      metrics: rows of `metrics.jsonl`.
      generations: rows of `generations.jsonl`.
      selection: `selection.json`, or None where nothing can be selected.
      report: the report's file.
    """

    folder: Path
    metrics: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    selection: dict[str, Any] | None
    report: Path


def run(experiment: Experiment, lm: LanguageModel, progress: Progress = silent, mesh: Mesh | None = None) -> Results:
    """Runs all stages, or those that are not finished.

    Raises:
      InputError: a config that cannot work, or a results folder of another config or other data.
      DataError: data that breaks the schema, or too little of it.
    """
    experiment.check()
    if distributed.process_index():
        return _run(experiment, lm, progress, mesh)
    with only_run(experiment.folder):
        remove_leftovers(experiment.folder)
        return _run(experiment, lm, progress, mesh)


def _run(experiment: Experiment, lm: LanguageModel, progress: Progress, mesh: Mesh | None) -> Results:
    folder = RunFolder(experiment.folder, experiment, experiment.plugin_versions())
    if mesh is None:  # on a mesh the parameters stay as they were put there
        lm = lm.reader
    task, origin = sources.load(experiment, lm, progress, cache_dir() / "samples")
    digest = folder.digest(_digest(task), lm.weights_digest)
    distributed.check_same({"config, data and model": digest})
    folder.check_data(_digest(task))
    features = _features(experiment, lm, task, progress)
    blocks = Blocks.of(task, features, experiment)
    folder.write("data.json", _card(experiment, task, origin, blocks, features))
    models, reports = prepare(blocks, experiment, lm.fingerprint, folder, progress)
    folder.write_lines("fits.jsonl", reports)

    table = Table(seed=experiment.seed)
    accuracies.add_rm_accuracy(table, models, blocks)
    texts = _texts(task, features)
    accuracies.add_controls(table, blocks, features, task.simulated, [response for _, response in texts])
    judged = _judge(experiment, lm, models, blocks, features, texts, folder, digest, mesh, progress)
    choices = accuracies.add_policy_accuracy(table, judged, blocks, list(models), experiment)
    folder.write_lines("pairs.jsonl", accuracies.pair_rows(judged, blocks, choices, experiment))
    folder.write_lines("texts.jsonl", _text_rows(texts))

    in_context = _in_context_pairs(experiment, lm, task, features, folder, digest, progress)
    accuracies.add_in_context(table, in_context, experiment)
    generations = _write(experiment, lm, task, models, choices, table, folder, digest, progress)
    quality.add_quality(table, generations, experiment.top_ks[0], experiment.measures)

    without = list(dict.fromkeys(row["method"] for row in generations if row["kind"] in ("in_context", "graded")))
    parameters = float(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(lm.params)))
    selection = None
    for group, name in (("seen", "selection.json"), ("unseen", "selection_unseen.json")):
        found = select(table, experiment, group, without, parameters)
        if found is not None:
            folder.write(name, found)
            selection = selection or found
    folder.write_lines("metrics.jsonl", table.rows)
    folder.write_lines("users.jsonl", table.users)
    from jaxalign import report

    page = folder.path / "report.html"
    if not distributed.process_index():
        page = report.write(folder.path)
        fits = (folder.read(f"models/{name}/{REPORT}")["report"] for name in models)
        points = tracking.run_points(table.rows, fits)
        tracking.write(experiment.track, folder.path, name=experiment.name, config=folder.config, points=points)
    return Results(folder.path, table.rows, generations, selection, page)


def _digest(task: Task) -> str:
    """SHA-256 of all that the task holds, whatever the order of the rows of its files."""
    keys = sorted(row_key(row) for row in [*task.preferences, *task.history, *(t.row for t in task.targets)])
    return hashlib.sha256(b"".join(keys)).hexdigest()


def _features(experiment: Experiment, lm: LanguageModel, task: Task, progress: Progress) -> TextFeatures:
    pairs = sorted(
        {(row.prompt, text) for row in task.preferences for text in (row.chosen, row.rejected)},
        key=lambda pair: (identity(pair[0]), pair[1]),
    )
    settings: dict[str, Any] = {
        "cache": cache_dir() / "features",
        "batch_size": max(1, experiment.batch_size // 4),
    }
    with progress("features", len(pairs)) as done:
        if distributed.process_count() > 1:
            # Each process reads its share, and then finds those of the others in the cache, where they have one cache.
            extract(lm, pairs, share=(distributed.process_index(), distributed.process_count()), **settings)
            distributed.barrier("features", timeout=24 * 3600)
        return extract(lm, pairs, progress=done, **settings)


def _card(experiment: Experiment, task: Task, origin: sources.Origin, blocks: Blocks, features: TextFeatures) -> dict:
    split = task.split
    tokens = features.tokens
    few = experiment.test_prompts
    told = [] if few is None else [f"accuracies are of the test pairs of at most {few} prompts, chosen by hash"]
    return {
        "title": experiment.title or experiment.name,
        "source": origin.source,
        "licence": origin.licence,
        "users": {
            "seen": len(blocks.train.users),
            "validation": len({row.user for row in split.validation.query}),
            "unseen": len({row.user for row in split.unseen.query}),
        },
        "pairs": {
            "train": int(blocks.train.mask.sum()),
            "validation": int(blocks.tests["validation"].mask.sum()),
            "seen_test": int(blocks.tests["seen"].mask.sum()),
            "unseen_test": int(blocks.tests["unseen"].mask.sum()),
        },
        "texts": len(tokens),
        "response_tokens": {f"p{q}": float(np.percentile(tokens, q)) for q in (10, 50, 90)},
        "notes": [*task.notes, *told],
    }


def _texts(task: Task, features: TextFeatures) -> list[tuple[Prompt, str]]:
    """Prompt and response of every row of the table of texts."""
    found: list[tuple[Prompt, str]] = [("", "")] * len(features.row)
    for row in task.preferences:
        for text in (row.chosen, row.rejected):
            found[features.of(row.prompt, text)] = (row.prompt, text)
    return found


def _text_rows(texts: Sequence[tuple[Prompt, str]]) -> Iterator[dict[str, Any]]:
    for number, (prompt, response) in enumerate(texts):
        yield {"text": number, "prompt": chat_prompt(prompt), "response": response}


def _judge(
    experiment: Experiment,
    lm: LanguageModel,
    models: dict[str, RewardModel],
    blocks: Blocks,
    features: TextFeatures,
    texts: Sequence[tuple[Prompt, str]],
    folder: RunFolder,
    digest: str,
    mesh: Mesh | None,
    progress: Progress,
) -> Judgements:
    """One teacher-forced pass over the texts of all test and validation pairs, as each of the users who judged them."""
    users: dict[int, list[str]] = {}
    for entry in entries_of(list(blocks.tests.values())):
        users.setdefault(entry.text, []).append(entry.user)
    # Texts of one shard are of similar length, so that little is padded.
    order = sorted(users, key=lambda text: (-features.tokens[text], text))
    slots = max(map(len, users.values()))
    judging = Judging(
        lm,
        models,
        sorted({user for own in users.values() for user in own}),
        weights=experiment.weights,
        top_ks=experiment.top_ks,
        batch_size=max(1, experiment.batch_size // 4),
        pooling=experiment.pooling,
        mesh=mesh,
    )
    size = 2 * experiment.batch_size
    names, costs = [str(text) for text in order], [float(features.tokens[text]) for text in order]
    with (
        Shards(
            folder.path,
            "judged",
            names,
            kind="arrays",
            config_digest=digest,
            costs=costs,
            size=size,
            lockstep=spans_processes(mesh),
        ) as shards,
        progress("policies judged", len(order)) as done,
    ):
        finished = len(order)
        for shard in shards.unfinished():
            part = order[shard.first : shard.first + len(shard.items)]
            finished -= len(part)
            shards.save(shard, judging.run([texts[t] for t in part], [users[t] for t in part], slots, done))
        done(finished)
        return collect(shards.merged(), order, [users[t] for t in order], experiment.weights, experiment.top_ks)


def _in_context_pairs(
    experiment: Experiment,
    lm: LanguageModel,
    task: Task,
    features: TextFeatures,
    folder: RunFolder,
    digest: str,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Scored test pairs under each of the in-context prompts, and under none for comparison on the same pairs."""
    rows = judged_rows(task, experiment.in_context_pairs, experiment.seed)
    if not rows:
        return []
    made = in_context_prompts(task, [row for _, row in rows], experiment, lm.tokenizer)
    found = []
    for group, row in rows:
        one, two = features.of(row.prompt, row.chosen), features.of(row.prompt, row.rejected)
        found.append(
            {
                "method": "in_context_none",
                "group": group,
                "user": row.user,
                "label": row.label,
                "log_prob_chosen": float(features.log_prob[one]),
                "log_prob_rejected": float(features.log_prob[two]),
                "tokens_chosen": int(features.tokens[one]),
                "tokens_rejected": int(features.tokens[two]),
            }
        )
    jobs = [(name, number) for name in made for number in range(len(rows))]
    names = [f"{name} {number}" for name, number in jobs]
    with (
        Shards(
            folder.path, "in_context", names, kind="rows", config_digest=digest, size=experiment.batch_size
        ) as shards,
        progress("in-context policies judged", 2 * len(jobs)) as done,
    ):
        for shard in shards.unfinished():
            part = [jobs[place] for place in shard.places]
            chosen = [(name, rows[number], made[name][number]) for name, number in part]
            shards.save(shard, score_pairs(lm, chosen, max(1, experiment.batch_size // 8), done))
        return found + shards.merged()


def _write(
    experiment: Experiment,
    lm: LanguageModel,
    task: Task,
    models: dict[str, RewardModel],
    choices: dict[str, Choice],
    table: Table,
    folder: RunFolder,
    digest: str,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Texts of all methods for all targets, with their quality."""
    if not task.targets:
        return []
    weights = {name: choice.of(experiment) for name, choice in choices.items() if name != "reference"}
    prompts = in_context_prompts(task, [target.row for target in task.targets], experiment, lm.tokenizer)
    both = _best_on_validation(table, list(weights)) if experiment.guided_in_context and prompts else None
    jobs = jobs_of(task, prompts, weights, both)
    users = tuple(sorted({target.row.user for target in task.targets}))
    roster = Roster({name: models[name] for name in weights}, users, experiment.pooling) if weights else None
    names = [f"{job.method} {job.target}" for job in jobs]
    # Guided texts cost more than plain ones, and a shard should be lost in about the same time.
    costs = [1.0 if job.reward_model is None else 3.0 for job in jobs]
    with (
        Shards(
            folder.path, "texts", names, kind="rows", config_digest=digest, costs=costs, size=experiment.batch_size
        ) as shards,
        progress("texts", len(jobs)) as done,
    ):
        for shard in shards.unfinished():
            part = [jobs[place] for place in shard.places]
            shards.save(shard, list(write(lm, task.targets, part, roster, experiment, done)))
        rows = shards.merged()
    batch_size = max(1, experiment.batch_size // 4)
    kept = cache_dir() / "features"
    rows = quality.measure(task, lm, rows, kept, batch_size, progress, more=experiment.measures)
    folder.write_lines("generations.jsonl", rows)
    return rows


def _best_on_validation(table: Table, methods: Sequence[str]) -> str | None:
    """The reward model with the highest policy accuracy on validation pairs."""
    label = f"validation {accuracies.POLICY}"
    known = {name: table.values.get((label, name, "validation")) for name in methods}
    means = {name: float(np.mean(list(values.values()))) for name, values in known.items() if values}
    return max(means, key=lambda name: (means[name], name)) if means else None
