"""The recipe: what may be rejected, shown or asked for, and what may not."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data.nearest import Nearest
from jaxalign.data.reader import load_completions
from jaxalign.data.recipe import against_lm, against_others, history_and_targets
from jaxalign.data.schema import Completion
from jaxalign.data.splits import group_of
from jaxalign.errors import DataError, InputError

WORDS = "parse tag words count bridge rain".split()  # noqa: SIM905
ROW = st.builds(
    Completion,
    user=st.sampled_from("abcd"),
    prompt=st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
    completion=st.sampled_from(["T1", "T2", "T3", "T4", " T4"]),
    group=st.none() | st.sampled_from([f"g{n}" for n in range(8)]),
)
ROWS = st.lists(ROW, min_size=1, max_size=25)
QUICK = settings(max_examples=40)


def paper(user, group, prompt="p", completion=None, split=None):
    return Completion(user=user, prompt=prompt, completion=completion or f"title {group}", group=group, split=split)


def slow_cosine(texts):
    """TF-IDF cosine as its docstring states it, one number at a time."""
    counts = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    seen = Counter(word for count in counts for word in count)
    vectors = [
        {word: (1 + math.log(n)) * (math.log((1 + len(texts)) / (1 + seen[word])) + 1) for word, n in count.items()}
        for count in counts
    ]

    def cosine(a, b):
        dot = sum(value * b.get(word, 0.0) for word, value in a.items())
        norms = math.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))
        return dot / norms if norms else 0.0

    return np.array([[cosine(a, b) for b in vectors] for a in vectors])


@QUICK
@given(st.lists(st.lists(st.sampled_from([*WORDS, "!"]), max_size=4).map(" ".join), min_size=1, max_size=8))
def test_nearest_equals_a_slow_cosine(texts):
    expected = np.round(slow_cosine(texts), 9)
    for query, order in enumerate(Nearest(texts).order(range(len(texts)), block=3)):
        assert sorted(order) == list(range(len(texts)))
        np.testing.assert_allclose(expected[query][order], np.sort(expected[query])[::-1], atol=1e-8)


@QUICK
@given(ROWS, st.integers(0, 3))
def test_targets_and_history_share_no_group(rows, seed):
    try:
        parts = history_and_targets(rows, targets=0.3, validation=0.2, seed=seed)
    except DataError:
        return
    sides = [parts["test"].history, parts["test"].targets, parts["validation"].targets]
    groups = [{group_of(row) for row in side} for side in sides]
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    assert not groups[1] & groups[2]
    history = {row.user for row in sides[0]}
    assert all(row.user in history for side in sides[1:] for row in side)


def test_lamp_splits_are_kept_and_leaking_profile_items_dropped():
    rows = [paper("u", "1", split="support"), paper("u", "2", split="support"), paper("u", "2", split="query")]
    parts = history_and_targets(rows)["test"]
    assert (parts.history, parts.targets) == (rows[:1], rows[2:])


def test_too_little_data_is_refused():
    with pytest.raises(DataError, match="both are needed"):
        history_and_targets([paper("u", "1")], targets=1.0)


@QUICK
@given(ROWS, st.integers(1, 3))
def test_other_users_texts(rows, count):
    pairs = against_others(rows, count=count)
    owners = {}
    for row in rows:
        owners.setdefault(group_of(row), set()).add(row.user)
    for pair in pairs:
        assert pair.kind == "other_user"
        assert pair.chosen.strip() != pair.rejected.strip()
        # Some text of that wording is another user's, in a group that the user has no part in.
        assert any(row.completion == pair.rejected and pair.user not in owners[group_of(row)] for row in rows)
    made = Counter((pair.user, pair.prompt, pair.chosen, pair.group) for pair in pairs)
    assert all(
        n <= count * sum((r.user, r.prompt, r.completion, r.group) == key for r in rows) for key, n in made.items()
    )


def test_the_same_prompt_comes_before_the_nearest_one():
    rows = [
        paper("a", "1", "count words in text"),
        paper("b", "2", "count words in text", "same prompt"),
        paper("b", "3", "count words", "near prompt"),
        paper("b", "4", "rain on a bridge", "far prompt"),
        paper("a", "5", "rain on a bridge", "own"),
    ]
    rejected = [pair.rejected for pair in against_others(rows[:4], count=3) if pair.user == "a"]
    assert rejected == ["same prompt", "near prompt", "far prompt"]


def test_a_co_authors_copy_is_never_rejected():
    rows = [paper("a", "1"), paper("b", "1", completion="Title 1"), paper("b", "2", completion="other")]
    assert [pair.rejected for pair in against_others(rows, count=5) if pair.user == "a"] == ["other"]


def test_order_of_rows_changes_no_pair():
    rows = [paper(user, f"{user}{n}", f"{WORDS[n]} {WORDS[(n + 1) % 6]}") for user in "abc" for n in range(6)]
    assert Counter(against_others(rows)) == Counter(against_others(rows[::-1]))


class Sampler:
    """Counts its calls, and can fail after some of them."""

    def __init__(self, fail_after=None):
        self.prompts = []
        self.fail_after = fail_after

    def __call__(self, prompts):
        if self.fail_after is not None and len(self.prompts) >= self.fail_after:
            raise KeyboardInterrupt
        self.prompts += prompts
        return [f"sample {len(self.prompts) + n} \ud83d" for n, _ in enumerate(prompts)]


def test_lm_samples_are_cached_and_continue(tmp_path):
    rows = [paper("a", str(n), f"prompt {n}") for n in range(10)]
    stopped = Sampler(fail_after=4)
    with pytest.raises(KeyboardInterrupt):
        against_lm(rows, stopped, sampler="lm", cache=tmp_path, chunk=2)
    rest = Sampler()
    pairs = against_lm(rows, rest, sampler="lm", cache=tmp_path, chunk=2)
    assert stopped.prompts + rest.prompts == [row.prompt for row in rows]
    assert [(pair.user, pair.chosen, pair.kind) for pair in pairs] == [
        ("a", f"title {n}", "lm_sample") for n in range(10)
    ]
    none = Sampler()
    assert against_lm(rows, none, sampler="lm", cache=tmp_path) == pairs
    assert not none.prompts
    other = Sampler()
    against_lm(rows, other, sampler="another lm", cache=tmp_path)
    assert len(other.prompts) == 10


def test_users_who_share_a_prompt_share_its_samples(tmp_path):
    sampler = Sampler()
    pairs = against_lm([paper("a", "1"), paper("b", "1")], sampler, sampler="lm", cache=tmp_path, samples=3)
    assert len(sampler.prompts) == 3
    assert [pair.rejected for pair in pairs[:3]] == [pair.rejected for pair in pairs[3:]]


def test_samples_that_say_nothing_give_no_pair(tmp_path):
    rows = [paper("a", "1", "p"), paper("a", "2", "q"), paper("a", "3", "r")]
    texts = {"p": " title 1\n", "q": "  ", "r": "other"}
    pairs = against_lm(rows, lambda prompts: [texts[p] for p in prompts], sampler="s", cache=tmp_path)
    assert [pair.rejected for pair in pairs] == ["other"]


def test_a_damaged_sample_file_is_sampled_again(tmp_path, caplog):
    rows = [paper("a", "1")]
    against_lm(rows, Sampler(), sampler="lm", cache=tmp_path)
    (path,) = tmp_path.glob("*/*.jsonl")
    path.write_text("{", encoding="utf-8")
    again = Sampler()
    assert against_lm(rows, again, sampler="lm", cache=tmp_path)
    assert len(again.prompts) == 1
    assert "damaged" in caplog.text


def test_a_sampler_must_answer_every_prompt(tmp_path):
    with pytest.raises(InputError, match="0 texts for 1 prompts"):
        against_lm([paper("a", "1")], lambda prompts: [], sampler="lm", cache=tmp_path)


def test_acl_titles(shared):
    rows = load_completions(shared / "data" / "acl_titles")
    few = [row for row in rows if row.user < "a0040"]
    parts = history_and_targets(few, min_history=4)["test"]
    pairs = against_others(parts.history)
    assert len(pairs) == len(parts.history)
    titles = {row.completion for row in parts.targets}
    assert not titles & {pair.chosen for pair in pairs}
    assert not titles & {pair.rejected for pair in pairs}
