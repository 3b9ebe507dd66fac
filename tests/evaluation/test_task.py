"""What becomes of rows before any model is asked: parts that share no group and no unseen user, targets, history."""

import dataclasses

import pytest

from jaxalign.data.schema import Completion, Preference
from jaxalign.data.splits import group_of
from jaxalign.errors import DataError, InputError
from jaxalign.evaluation.experiment import Experiment, parse_in_context
from jaxalign.evaluation.task import from_completions, from_preferences, judged_pairs

EXPERIMENT = Experiment(min_pairs=4, test=0.3, validation=0.2, shots=(1, 2), writing_users=3, prompts_per_user=2)


def judged(users=10, pairs=12):
    return [
        Preference(user=f"u{u}", prompt=f"p{p}", chosen=f"good {p}", rejected=f"bad {p}", group=f"g{p}")
        for u in range(users)
        for p in range(pairs)
    ]


def own(users=10, texts=12):
    return [
        Completion(user=f"u{u}", prompt=f"p{t} {u % 3}", completion=f"text {t} of {u % 3}", group=f"g{t} {u % 3}")
        for u in range(users)
        for t in range(texts)
    ]


def completed(rows, experiment=EXPERIMENT, tmp_path=None):
    return from_completions(rows, experiment, lambda prompts: [f"sample for {p}" for p in prompts], "s", tmp_path)


def check_parts(task):
    """No group is on two sides, and no unseen or validation user is among those that training sees."""
    split = task.split
    groups = {
        "train": {group_of(row) for row in [*split.train, *split.validation.pool, *split.unseen.pool]},
        "validation": {group_of(row) for row in [*split.seen_validation, *split.validation.query]},
        "test": {group_of(row) for row in [*split.seen_test, *split.unseen.query]},
    }
    for one in groups:
        for two in groups:
            assert one == two or not groups[one] & groups[two]
    seen = {row.user for row in split.train}
    for few in (split.validation, split.unseen):
        users = {row.user for row in [*few.pool, *few.query]}
        assert users
        assert not users & seen
    # What may be shown in context is never of a group that is tested or chosen by.
    shown = {group_of(row) for row in task.history}
    assert shown
    assert not shown & (groups["validation"] | groups["test"])


def test_preferences():
    rows = judged()
    tie = dataclasses.replace(rows[0], label=0.5, group="tied")
    task = from_preferences([*rows, tie], EXPERIMENT)
    check_parts(task)
    assert task.notes == ("1 ties were left out",)
    assert not task.own_texts
    assert all(target.reference is None for target in task.targets)


def test_own_texts(tmp_path):
    task = completed(own(), tmp_path=tmp_path)
    check_parts(task)
    assert task.own_texts
    texts = {row.completion for row in own()}
    for row in task.preferences:
        assert row.chosen in texts
        assert row.rejected == f"sample for {row.prompt}"
    for target in task.targets:
        assert target.reference == target.row.completion
    both = completed(own(), dataclasses.replace(EXPERIMENT, rejected=("lm_sample", "other_user")), tmp_path)
    kinds = {row.kind for row in both.preferences}
    assert kinds == {"lm_sample", "other_user"}
    # Texts of others come from the same part: nothing of a test group is a rejected text of training.
    trained = {row.rejected for row in both.split.train if row.kind == "other_user"}
    tested = {row.chosen for row in both.split.seen_test}
    assert trained
    assert not trained & tested


def test_stated_queries_are_the_test_groups(tmp_path):
    rows = [dataclasses.replace(row, split="query" if row.group.startswith("g0 ") else "support") for row in own()]
    task = completed(rows, tmp_path=tmp_path)
    check_parts(task)
    assert {row.group.split()[0] for row in task.split.seen_test} == {"g0"}


def test_targets_are_of_every_group_and_limited():
    task = from_preferences(judged(), EXPERIMENT)
    by_group = {}
    for target in task.targets:
        by_group.setdefault(target.group, {}).setdefault(target.row.user, []).append(target.row.prompt)
    assert set(by_group) == {"validation", "seen", "unseen"}
    assert all(len(users) <= 3 for users in by_group.values())
    for group, users in by_group.items():
        for prompts in users.values():
            assert len(prompts) == len(set(prompts)) == (1 if group == "validation" else 2)


def test_the_order_of_rows_changes_nothing():
    one, two = (from_preferences(rows, EXPERIMENT) for rows in (judged(), judged()[::-1]))
    assert one.targets == two.targets
    for part in ("train", "seen_validation", "seen_test"):
        key = repr
        assert sorted(map(key, getattr(one.split, part))) == sorted(map(key, getattr(two.split, part)))


def test_limit_takes_users_by_hash():
    few = from_preferences(judged(), dataclasses.replace(EXPERIMENT, limit=6))
    many = from_preferences(judged(), dataclasses.replace(EXPERIMENT, limit=8))
    assert len({row.user for row in few.preferences}) == 6
    assert {row.user for row in few.preferences} < {row.user for row in many.preferences}


def test_too_little_data_is_said(tmp_path):
    with pytest.raises(DataError, match="No user has min_pairs = 40 pairs"):
        from_preferences(judged(), dataclasses.replace(EXPERIMENT, min_pairs=40))
    with pytest.raises(DataError, match="No user has min_pairs = 40 texts"):
        completed(own(), dataclasses.replace(EXPERIMENT, min_pairs=40), tmp_path)
    with pytest.raises(DataError, match="No row is left for seen_test"):
        from_preferences(judged(pairs=4), dataclasses.replace(EXPERIMENT, test=0.0))


@pytest.mark.parametrize(
    "name", ["in_context_best_4", "in_context_bm25", "graded_bm25_0", "bm25_4", "in_context_bm25_4 "]
)
def test_names_of_in_context_learning_are_checked(name):
    with pytest.raises(InputError, match="KIND_SELECT_COUNT"):
        parse_in_context(name, EXPERIMENT)


def test_names_of_in_context_learning():
    spec = parse_in_context("in_context_others_recent_3", EXPERIMENT)
    assert (spec.select, spec.count, spec.of_others, spec.graded) == ("recent", 3, True, False)
    assert parse_in_context("graded_random_12", EXPERIMENT).graded


def test_accuracies_of_few_prompts():
    task = from_preferences(judged(pairs=30), EXPERIMENT)
    everything, few = (judged_pairs(task, dataclasses.replace(EXPERIMENT, test_prompts=n)) for n in (None, 2))
    prompts = {row.prompt for part in ("seen", "unseen") for row in few[part]}
    assert len(prompts) == 2
    for part, rows in few.items():
        assert rows == [row for row in everything[part] if row.prompt in prompts]
    assert few["seen"]
    assert few["unseen"]
    assert len(everything["seen"]) > len(few["seen"])
    # The same prompts whatever the order of the rows.
    again = from_preferences(judged(pairs=30)[::-1], EXPERIMENT)
    other = judged_pairs(again, dataclasses.replace(EXPERIMENT, test_prompts=2))
    assert {row.prompt for row in other["seen"]} <= prompts
