"""Which rows are shown in context: never the answer, always the right ones first, whatever the order of the file."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data.demonstrations import demonstrations, words
from jaxalign.data.schema import Completion, Preference, responses_of
from jaxalign.data.splits import group_of, row_key
from jaxalign.errors import InputError

WORDS = "parse tag words count bridge rain".split()  # noqa: SIM905
TEXTS = st.sampled_from(["T1", "T2", "T3", "T4", " T4"])
COMMON = {
    "user": st.sampled_from("abcd"),
    "prompt": st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
    "group": st.none() | st.sampled_from([f"g{n}" for n in range(8)]),
}
COMPLETIONS = st.lists(st.builds(Completion, completion=TEXTS, **COMMON), max_size=25)
PREFERENCES = st.lists(
    st.builds(Preference, chosen=TEXTS, rejected=TEXTS, label=st.sampled_from([1.0, 0.5, 0.2]), **COMMON), max_size=25
)
QUICK = settings(max_examples=40)
SELECTS = ["random", "recent", "bm25"]


def paper(user, group, prompt="p", completion=None):
    return Completion(user=user, prompt=prompt, completion=completion or f"title {group}", group=group)


def texts(row):
    return {text.strip() for text in responses_of(row)}


@pytest.mark.parametrize("select", SELECTS)
@QUICK
@given(st.one_of(COMPLETIONS, PREFERENCES), st.one_of(COMPLETIONS, PREFERENCES), st.integers(0, 4), st.booleans())
def test_nothing_of_the_target_is_shown(select, history, targets, count, of_others):
    shown = demonstrations(targets, history, count, select=select, of_others=of_others)
    assert len(shown) == len(targets)
    for target, rows in zip(targets, shown, strict=True):
        assert len(rows) <= count
        groups = [group_of(row) for row in rows]
        assert group_of(target) not in groups
        assert len(set(groups)) == len(groups)
        assert sum(len(texts(row)) for row in rows) == len(set().union(*map(texts, rows)))
        assert all(not texts(row) & texts(target) for row in rows)
        assert not any(isinstance(row, Preference) and row.is_tie for row in rows)
        assert all((row.user == target.user) != of_others for row in rows)
        if of_others:
            assert not {group_of(row) for row in history if row.user == target.user} & set(groups)


@pytest.mark.parametrize("select", SELECTS)
def test_as_many_as_there_are(select):
    history = [paper("a", str(n)) for n in range(5)]
    (shown,) = demonstrations([paper("a", "3")], history, 9, select=select)
    assert sorted(row.group or "" for row in shown) == ["0", "1", "2", "4"]
    assert demonstrations([paper("new", "9")], history, 2, select=select) == [[]]
    (others,) = demonstrations([paper("new", "9")], history, 2, select=select, of_others=True)
    assert len(others) == 2


@QUICK
@given(COMPLETIONS, COMPLETIONS, st.randoms())
def test_order_of_the_file_matters_to_recent_only(history, targets, random):
    shuffled = random.sample(history, len(history))
    for select in ("random", "bm25"):
        assert demonstrations(targets, history, 3, select=select) == demonstrations(targets, shuffled, 3, select=select)


def test_random_is_the_same_for_all_targets_of_a_user_and_nested():
    history = [paper("a", str(n), f"{WORDS[n % 6]} {n}") for n in range(12)]
    targets = [paper("a", f"t{n}", WORDS[n]) for n in range(6)]
    shown = demonstrations(targets, history, 3, select="random")
    assert all(rows == shown[0] for rows in shown)
    more = demonstrations(targets, history, 5, select="random")
    assert more[0][-3:] == shown[0]
    others = [demonstrations(targets, history, 3, select="random", seed=seed)[0] for seed in range(4)]
    assert len({tuple(rows) for rows in others}) > 1


def test_the_most_recent_comes_last():
    history = [paper("a", "old"), paper("a", "new"), paper("b", "newest"), paper("a", "newer")]
    (shown,) = demonstrations([paper("a", "t")], history, 2, select="recent")
    assert [row.group for row in shown] == ["new", "newer"]


def slow_bm25(query, documents, k1=1.5, b=0.75):
    """Robertson's formula with Lucene's inverse document frequency, one number at a time."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query:
            having = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


@QUICK
@given(COMPLETIONS.filter(len), COMMON["prompt"])
def test_bm25_is_its_formula(history, prompt):
    documents = [words(str(row.prompt)) for row in history]
    expected = slow_bm25(words(prompt), documents) if any(documents) else [0.0] * len(documents)
    place = {id(row): number for number, row in enumerate(history)}
    target = Completion(user="nobody", prompt=prompt, completion="to be written", group="its own")
    (shown,) = demonstrations([target], history, len(history), of_others=True)
    scores = [expected[place[id(row)]] for row in shown]
    # Each is at least as near as all before it, and equally near ones stand in the order of their hashes.
    for (one, row), (other, after) in zip(
        zip(scores, shown, strict=True), list(zip(scores, shown, strict=True))[1:], strict=False
    ):
        assert one <= other + 1e-5
        if row.prompt == after.prompt:
            assert row_key(row) > row_key(after)


def test_the_nearest_comes_last():
    history = [paper("a", "1", "rain bridge"), paper("a", "2", "count words now"), paper("a", "3", "count words")]
    (shown,) = demonstrations([paper("a", "9", "count words")], history, 2)
    assert [row.group for row in shown] == ["2", "3"]


def test_words_of_scripts_without_spaces():
    assert words("Rain, rain 雨が降るA") == ["rain", "rain", "雨", "が", "降", "る", "a"]
    history = [paper("a", "1", "天気は晴れ"), paper("a", "2", "明日は雨"), paper("a", "3", "x")]
    (shown,) = demonstrations([paper("a", "9", "雨の日")], history, 1)
    assert [row.group for row in shown] == ["2"]


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="count is -1"):
        demonstrations([], [], -1)
    with pytest.raises(InputError, match="one of random, recent, bm25"):
        demonstrations([], [], 1, select="newest")  # type: ignore[arg-type]


def test_a_tie_too_takes_part_in_its_group():
    tie = Preference(user="a", prompt="p", chosen="x", rejected="y", group="g", label=0.5)
    other = Preference(user="b", prompt="p", chosen="x", rejected="y", group="g")
    target = Preference(user="a", prompt="p", chosen="1", rejected="2")
    assert demonstrations([target], [tie, other], 1, of_others=True) == [[]]
    assert demonstrations([target], [other], 1, of_others=True) == [[other]]
