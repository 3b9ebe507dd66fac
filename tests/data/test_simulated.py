"""Simulated users: attributes by hand, known utilities, choices that follow the Bradley-Terry rule."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data.attributes import NAMES, Standardiser, attribute_table, attributes
from jaxalign.data.simulated import SimulatedUsers, load_prompts
from jaxalign.data.splits import by_group
from jaxalign.errors import InputError

TEXTS = [
    "I think so. Do you?",
    "1. First\n2. Second\n3. Third",
    "No!",
    "Perhaps we might, because rain is likely, wait until 2027.",
    'He said "hello", and then, slowly, everyone understood why the committee had been so extraordinarily patient.',
    "Yes.\n\nVery clearly yes.\n\nPlease do.",
]
RESPONSES = {f"prompt {n}": [TEXTS[n % 6], TEXTS[(n + 1) % 6] + f" {n}", TEXTS[(n + 2) % 6]] for n in range(20)}


def named(text):
    return dict(zip(NAMES, attributes(text).tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I think so. Do you?", {"length": np.log(6), "questions": 0.5, "first_person": 20, "second_person": 20}),
        ("one two one two", {"lexical_variety": 1.0, "word_length": 3.0, "sentence_length": np.log(5)}),
        ("- a\n- b\n\n* c", {"list_items": np.log(4), "paragraphs": np.log(2)}),
        ("12,4", {"digits": 75.0, "commas": 25.0}),
        ("it\u2019s maybe very polite, please!", {"hedges": 20, "boosters": 20, "politeness": 20, "exclamations": 1.0}),
        ("because \u4f60\u597d\uff1f", {"reasons": 50.0, "questions": 1.0}),
        ('"x"', {"quotes": 200 / 3}),
        ("", {"length": 0.0, "word_length": 0.0, "lexical_variety": 0.0, "questions": 0.0}),
    ],
)
def test_attributes_by_hand(text, expected):
    found = named(text)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_finite_attributes(text):
    assert np.isfinite(attributes(text)).all()


def test_standardiser():
    table = attribute_table(TEXTS)
    scaled = Standardiser.of(table)(table)
    varies = table.std(axis=0) > 1e-6
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0)[varies], 1, rtol=1e-4)
    assert np.abs(Standardiser.of(table)(attribute_table(["9" * 1000]))).max() == 5.0


def users(**more):
    return SimulatedUsers.create(30, TEXTS, **{"seed": 1, **more})


def test_utility_is_the_weighted_sum():
    people = users()
    table = people.standardiser(attribute_table(TEXTS))
    expected = [[float(np.dot(w, row)) for row in table] for w in people.weights]
    np.testing.assert_allclose(people.utility(TEXTS), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(people.reward(people.names[3], TEXTS), people.utility(TEXTS)[3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(people.weights, axis=1), 1, rtol=1e-5)


def test_the_same_seed_gives_the_same_users_and_choices():
    rows = [users().preferences(RESPONSES, 10, seed=2) for _ in range(2)]
    assert rows[0] == rows[1]
    reordered = {prompt: texts[::-1] for prompt, texts in reversed(RESPONSES.items())}
    assert users().preferences(reordered, 10, seed=2) == rows[0]
    assert users().preferences(RESPONSES, 10, seed=3) != rows[0]
    assert not np.array_equal(users(seed=2).weights, users().weights)


def test_without_temperature_the_better_text_always_wins():
    people = users(temperature=0.0)
    # The last prompt's responses are equal in every attribute: a tie, which counts one half.
    rows = people.preferences({**RESPONSES, "tie": ["the cat sat", "the sat cat"]}, 10**6)
    gaps = [float(np.subtract(*people.reward(row.user, [row.chosen, row.rejected]))) for row in rows]
    ties = sum(gap == 0 for gap in gaps)
    assert min(gaps) == 0
    assert 0 < ties < len(rows) / 20
    assert people.oracle_accuracy(rows) == pytest.approx(1 - ties / len(rows) / 2)
    assert people.best_accuracy(rows) == pytest.approx(1 - ties / len(rows) / 2)


def test_tastes_are_about_what_varies_in_most_texts():
    texts = [f"{'word ' * n}end." for n in range(1, 20)] + ["Please, why?"]
    about = np.abs(SimulatedUsers.create(40, texts).weights).sum(axis=0) > 0
    assert about[NAMES.index("length")]
    assert not about[NAMES.index("politeness")]
    assert not about[NAMES.index("questions")]


def test_choices_follow_bradley_terry():
    people = users(temperature=1.0)
    rows = people.preferences(RESPONSES, 60)
    count = Counter(row.user for row in rows)
    assert set(count.values()) == {60}
    # Every pair of texts once a user at most; prompts are the groups.
    assert len({(row.user, row.prompt, frozenset((row.chosen, row.rejected))) for row in rows}) == len(rows)
    assert all(row.group == row.prompt for row in rows)
    best, own = people.best_accuracy(rows), people.oracle_accuracy(rows)
    assert 0.55 < best < 0.95
    assert abs(own - best) < 4 * 0.5 / np.sqrt(len(rows))
    assert abs(people.best_accuracy(rows) - np.mean(list(slow_chances(people, rows)))) < 1e-5


def slow_chances(people, rows):
    for row in rows:
        a, b = people.reward(row.user, [row.chosen, row.rejected])
        yield 1 / (1 + np.exp(-abs(float(a - b)) / people.temperature))


def test_clusters():
    people = users(clusters=3, spread=0.0, shared=0.0)
    for cluster in set(people.clusters.tolist()):
        own = people.weights[people.clusters == cluster]
        np.testing.assert_allclose(own, own[:1].repeat(len(own), 0), atol=1e-6)
    assert len({tuple(row) for row in people.weights.round(5).tolist()}) == len(set(people.clusters.tolist()))


def test_save_and_load(tmp_path):
    people = users(clusters=2)
    people.save(tmp_path / "users.json")
    again = SimulatedUsers.load(tmp_path / "users.json")
    assert again.names == people.names
    np.testing.assert_array_equal(again.utility(TEXTS), people.utility(TEXTS))
    np.testing.assert_array_equal(again.clusters, people.clusters)


def test_errors():
    with pytest.raises(InputError, match="temperature -1"):
        users(temperature=-1)
    with pytest.raises(InputError, match="do not differ"):
        SimulatedUsers.create(3, ["same", "same"])
    with pytest.raises(InputError, match="do not differ"):
        SimulatedUsers.create(3, [])
    with pytest.raises(InputError, match="two different responses"):
        users().preferences({"p": ["a", "a", " "]}, 5)
    with pytest.raises(InputError, match="no simulated user 'x'"):
        users().reward("x", TEXTS)
    with pytest.raises(InputError, match="no rows"):
        users().best_accuracy([])


def test_a_split_by_group_tests_on_other_prompts():
    split = by_group(users().preferences(RESPONSES, 20))
    assert not {row.prompt for row in split.train} & {row.prompt for row in split.test}


def test_prompts():
    prompts = load_prompts()
    assert len(set(prompts)) == len(prompts) >= 150
    assert all(prompt.strip() == prompt for prompt in prompts)
    assert load_prompts(5) == prompts[:5]
    for count in (0, len(prompts) + 1):
        with pytest.raises(InputError, match="ship with"):
            load_prompts(count)
