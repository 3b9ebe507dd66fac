"""What an experiment is about: preferences divided over users and groups, the users' history, what to write for them.

Preferences come as they are; own texts (a Pref-LaMP style benchmark) are first divided, and then each part is turned
into preferences by itself, so that no rejected text comes from another part.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxalign.data import presets, recipe, splits
from jaxalign.data.prompts import Prompt, identity
from jaxalign.data.schema import Completion, Preference
from jaxalign.data.simulated import SimulatedUsers
from jaxalign.data.splits import FewShot, PersonalSplit
from jaxalign.errors import DataError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.progress import Progress, silent

Sampler = Callable[[list[Prompt]], list[str]]
Rows = list[Preference] | list[Completion]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A text that is to be written for a user.

    Attributes:
      row: the row that it comes from: user, prompt and group, and the texts that may not be shown in context.
      reference: what the user wrote themselves, or None.
      group: `validation`, `seen` or `unseen`.
    """

    row: Preference | Completion
    reference: str | None
    group: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is known before any model is asked.

    Attributes:
      split: preferences by user and by group.
      history: what may be shown in context, or measured as a user's style: training groups of all users.
      targets: what to write.
      simulated: the users with known tastes, or None.
      notes: what a reader of the results must know about the data.
    """

    split: PersonalSplit[Preference]
    history: Rows
    targets: list[Target]
    simulated: SimulatedUsers | None
    notes: tuple[str, ...]

    @property
    def own_texts(self) -> bool:
        """Whether the history is what users wrote, rather than what they chose."""
        return any(isinstance(row, Completion) for row in self.history)

    @property
    def preferences(self) -> list[Preference]:
        """All pairs that any part uses."""
        split = self.split
        parts = (split.train, split.seen_validation, split.seen_test)
        shots = (split.validation, split.unseen)
        return [row for part in parts for row in part] + [row for s in shots for row in (*s.pool, *s.query)]


def judged_pairs(task: Task, experiment: Experiment) -> dict[str, list[Preference]]:
    """The pairs on which accuracies are measured: by part, those of `experiment.test_prompts` prompts."""
    split = task.split
    parts = {
        "validation": [*split.seen_validation, *split.validation.query],
        "seen": split.seen_test,
        "unseen": split.unseen.query,
    }
    if experiment.test_prompts is None:
        return parts
    names = {identity(row.prompt) for row in (*split.seen_test, *split.unseen.query)}
    in_order = sorted(names, key=lambda name: splits.digest(experiment.seed, "test prompts", name))
    kept = set(in_order[: experiment.test_prompts])
    return {part: [row for row in rows if identity(row.prompt) in kept] for part, rows in parts.items()}


def from_preferences(
    rows: Sequence[Preference],
    experiment: Experiment,
    simulated: SimulatedUsers | None = None,
    notes: Sequence[str] = (),
) -> Task:
    """A task of users who judged, and wrote nothing themselves.

    Raises:
      DataError: too few users or pairs for the shares of the split.
    """
    ties = sum(row.is_tie for row in rows)
    rows = splits.at_least([row for row in rows if not row.is_tie], experiment.min_pairs)
    if not rows:
        raise DataError(
            f"No user has min_pairs = {experiment.min_pairs} pairs with a preferred side. Give more pairs, or a "
            "smaller min_pairs."
        )
    rows = _first_users(rows, experiment)
    split = _personal(rows, experiment)
    history = [*split.train, *split.validation.pool, *split.unseen.pool]
    sources = {"validation": split.seen_validation, "seen": split.seen_test, "unseen": split.unseen.query}
    told = [f"{ties} ties were left out"] if ties else []
    return Task(
        split=split,
        history=history,
        targets=_targets(sources, experiment),
        simulated=simulated,
        notes=(*notes, *told),
    )


def from_completions(
    rows: Sequence[Completion],
    experiment: Experiment,
    sample: Sampler,
    sampler: str,
    cache: Path,
    notes: Sequence[str] = (),
    progress: Progress = silent,
) -> Task:
    """A task of users who wrote texts themselves.

    Args:
      sample: writes a text of the unpersonalised language model for each prompt.
      sampler: names what `sample` depends on.
      cache: folder of sampled texts.

    Raises:
      DataError: too few users or texts for the shares of the split.
    """
    rows = splits.at_least(rows, experiment.min_pairs)
    if not rows:
        raise DataError(f"No user has min_pairs = {experiment.min_pairs} texts. Give more, or a smaller min_pairs.")
    rows = _first_users(rows, experiment)
    own = _personal(rows, experiment)

    def pairs(part: Sequence[Completion]) -> list[Preference]:
        made: list[Preference] = []
        if recipe.LM_SAMPLE in experiment.rejected:
            made += recipe.against_lm(part, sample, sampler=sampler, cache=cache, progress=progress)
        if recipe.OTHER_USER in experiment.rejected:
            made += recipe.against_others(part, seed=experiment.seed)
        return made

    def few(part: FewShot[Completion]) -> FewShot[Preference]:
        pool = pairs(part.pool)
        return FewShot(splits.few_shot(pool, experiment.shots, seed=experiment.seed), pool, pairs(part.query))

    sources = {"validation": own.seen_validation, "seen": own.seen_test, "unseen": own.unseen.query}
    return Task(
        split=PersonalSplit(
            train=pairs(own.train),
            seen_validation=pairs(own.seen_validation),
            seen_test=pairs(own.seen_test),
            validation=few(own.validation),
            unseen=few(own.unseen),
        ),
        history=[*own.train, *own.validation.pool, *own.unseen.pool],
        targets=_targets(sources, experiment),
        simulated=None,
        notes=(*notes, f"rejected texts: {' and '.join(experiment.rejected)}"),
    )


def _personal(rows: Sequence, experiment: Experiment) -> PersonalSplit:
    """By the published protocol of the source where there is one, else by shares of users and groups."""
    shares: dict[str, Any] = {
        "unseen_users": experiment.unseen_users,
        "validation_users": experiment.validation_users,
        "sizes": experiment.shots,
        "seed": experiment.seed,
    }
    if experiment.source in ("tldr", "prism"):
        protocol = presets.tldr_protocol if experiment.source == "tldr" else presets.prism_protocol
        split = protocol(rows, **shares)
        if not split.seen_validation:
            # The published codes chose on test; here a part of what is for training is set apart.
            held = splits.by_group(split.train, test=experiment.validation, seed=experiment.seed)
            split = dataclasses.replace(split, train=held.train, seen_validation=held.test)
    elif any(row.split == "query" for row in rows):
        split = _stated(rows, experiment)
    else:
        groups: dict[str, Any] = {"test_groups": experiment.test, "validation_groups": experiment.validation}
        split = splits.personal_split(rows, **shares, **groups)
    for part, share in (("train", "test or validation"), ("seen_validation", "validation"), ("seen_test", "test")):
        if not getattr(split, part):
            raise DataError(
                f"No row is left for {part} out of {len(rows)} rows of {len({row.user for row in rows})} users: give "
                f"more rows, or another share for {share}."
            )
    return split


def _stated(rows: Sequence, experiment: Experiment) -> PersonalSplit:
    """Rows that state what is history ("support") and what is to be written ("query"), as LaMP's do: the groups of
    queries are the test groups, and validation groups come from the history."""
    asked = {splits.group_of(row) for row in rows if row.split == "query"}
    rows = [row for row in rows if (row.split == "query") == (splits.group_of(row) in asked)]
    rest = [splits.group_of(row) for row in rows if row.split != "query"]
    shares = {"validation": experiment.validation}
    part = splits.pick(rest, shares, "train", seed=experiment.seed, purpose="group") | dict.fromkeys(asked, "test")
    users = splits.by_user(
        rows, unseen=experiment.unseen_users, validation=experiment.validation_users, seed=experiment.seed
    )

    def where(chosen: Sequence, name: str) -> list:
        return [row for row in chosen if part[splits.group_of(row)] == name]

    def few(chosen: Sequence, query: str) -> FewShot:
        pool = where(chosen, "train")
        return FewShot(splits.few_shot(pool, experiment.shots, seed=experiment.seed), pool, where(chosen, query))

    return PersonalSplit(
        train=where(users.seen, "train"),
        seen_validation=where(users.seen, "validation"),
        seen_test=where(users.seen, "test"),
        validation=few(users.validation, "validation"),
        unseen=few(users.unseen, "test"),
    )


def _first_users(rows: Sequence, experiment: Experiment) -> list:
    """The rows of at most `users` users, or `limit`, chosen by hash: not by anything that they wrote."""
    counts = [count for count in (experiment.users, experiment.limit) if count is not None]
    names = sorted({row.user for row in rows}, key=lambda name: splits.digest(experiment.seed, "users", name))
    kept = set(names[: min(counts, default=len(names))])
    return [row for row in rows if row.user in kept]


def _targets(sources: Mapping[str, Sequence], experiment: Experiment) -> list[Target]:
    """A few prompts for each of a few users of every group, chosen by hash."""
    targets = []
    for group, rows in sources.items():
        count = experiment.validation_prompts if group == "validation" else experiment.prompts_per_user
        own: dict[str, dict[str, Preference | Completion]] = {}
        for row in splits.in_fixed_order(rows, experiment.seed):
            own.setdefault(row.user, {}).setdefault(identity(row.prompt), row)
        users = sorted(own, key=lambda name: splits.digest(experiment.seed, "targets", name))[
            : experiment.writing_users
        ]
        for user in users if count else ():
            for row in list(own[user].values())[:count]:
                reference = row.completion if isinstance(row, Completion) else None
                targets.append(Target(row=row, reference=reference, group=group))
    return targets
