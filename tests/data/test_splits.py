"""No group and no unseen user ever crosses, whatever the input, and the order of rows changes nothing."""

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data.presets import prism_protocol, tldr_protocol
from jaxalign.data.reader import load_completions, load_preferences
from jaxalign.data.schema import Preference
from jaxalign.data.splits import (
    at_least,
    by_group,
    by_user,
    few_shot,
    group_of,
    in_fixed_order,
    limit_per_user,
    personal_split,
    support_query,
)
from jaxalign.errors import DataError, InputError

TEXT = st.text("ab\u00e9", max_size=2)
ROW = st.builds(
    Preference,
    user=st.sampled_from("abcdefgh"),
    prompt=TEXT,
    chosen=TEXT,
    rejected=TEXT,
    group=st.none() | st.sampled_from(["g1", "g2", "g3", "~", "="]),
    label=st.sampled_from([0.5, 1.0]),
    split=st.sampled_from([None, "train", "validation"]),
)
ROWS = st.lists(ROW, max_size=40)
SHARE = st.sampled_from([0.0, 0.1, 0.25, 0.5])
QUICK = settings(max_examples=60)


def groups(rows):
    return {group_of(row) for row in rows}


def users(rows):
    return {row.user for row in rows}


def bag(rows):
    return Counter(rows)


def shuffled(rows):
    return random.Random(0).sample(rows, len(rows))


def parts(split):
    """All lists of rows in a split, by name."""
    found = {}
    for field in dataclasses.fields(split):
        value = getattr(split, field.name)
        if isinstance(value, list):
            found[field.name] = value
        elif isinstance(value, dict):
            found |= {f"{field.name} {n}": rows for n, rows in value.items()}
        else:
            found |= {f"{field.name} {name}": rows for name, rows in parts(value).items()}
    return found


@QUICK
@given(ROWS, SHARE, SHARE, st.integers(0, 5))
def test_by_user(rows, unseen, validation, seed):
    split = by_user(rows, unseen=unseen, validation=validation, seed=seed)
    sides = list(parts(split).values())
    assert sum(map(len, sides)) == len(rows)
    assert sum(len(users(side)) for side in sides) == len(users(rows))
    assert abs(len(users(split.unseen)) - unseen * len(users(rows))) <= 0.5
    again = by_user(shuffled(rows), unseen=unseen, validation=validation, seed=seed)
    assert all(bag(a) == bag(b) for a, b in zip(sides, parts(again).values(), strict=True))


@QUICK
@given(
    st.lists(st.text(st.characters(exclude_categories=[]), max_size=4), max_size=12),
    st.floats() | st.floats(0, 1),
    st.floats() | st.floats(0, 1),
    st.integers(),
)
def test_any_texts_shares_and_seeds_give_a_split_or_a_typed_error(texts, one, other, seed):
    rows = [Preference(user=text, prompt=text, chosen=text, rejected=text[::-1], group=text or None) for text in texts]
    for split in (
        lambda: by_user(rows, unseen=one, validation=other, seed=seed),
        lambda: by_group(rows, test=one, validation=other, seed=seed),
        lambda: support_query(rows, query=one, seed=seed),
        lambda: personal_split(rows, unseen_users=one, validation_groups=other, seed=seed),
        lambda: few_shot(rows, (seed,), seed=seed),
        lambda: limit_per_user(rows, seed, seed=seed),
    ):
        try:
            found = split()
        except InputError:
            continue
        kept = [row for side in parts(found).values() for row in side] if dataclasses.is_dataclass(found) else []
        assert bag(kept).keys() <= bag(rows).keys()


@QUICK
@given(ROWS, SHARE, SHARE, st.integers(0, 5))
def test_by_group(rows, test, validation, seed):
    split = by_group(rows, test=test, validation=validation, seed=seed)
    sides = list(parts(split).values())
    assert sum(map(len, sides)) == len(rows)
    assert sum(len(groups(side)) for side in sides) == len(groups(rows))
    assert abs(len(groups(split.test)) - test * len(groups(rows))) <= 0.5
    again = by_group(shuffled(rows), test=test, validation=validation, seed=seed)
    assert all(bag(a) == bag(b) for a, b in zip(sides, parts(again).values(), strict=True))


def assert_no_leak(split):
    fitted = groups(split.train) | groups(split.validation.pool) | groups(split.unseen.pool)
    chosen_on = groups(split.seen_validation) | groups(split.validation.query)
    tested = groups(split.seen_test) | groups(split.unseen.query)
    assert not fitted & chosen_on
    assert not fitted & tested
    assert not chosen_on & tested
    seen = users(split.train) | users(split.seen_validation) | users(split.seen_test)
    held = users(split.validation.pool) | users(split.validation.query)
    unseen = users(split.unseen.pool) | users(split.unseen.query)
    assert not seen & held
    assert not seen & unseen
    assert not held & unseen
    for shots in (split.validation, split.unseen):
        for rows in shots.support.values():
            assert not bag(rows) - bag(shots.pool)


@QUICK
@given(ROWS, SHARE, SHARE, SHARE, SHARE, st.integers(0, 5))
def test_personal_split_never_leaks(rows, a, b, c, d, seed):
    shares = {"unseen_users": a, "validation_users": b, "test_groups": c, "validation_groups": d}
    split = personal_split(rows, **shares, sizes=(1, 2, 5), seed=seed)
    assert_no_leak(split)
    again = parts(personal_split(shuffled(rows), **shares, sizes=(1, 2, 5), seed=seed))
    assert all(bag(side) == bag(again[name]) for name, side in parts(split).items())


@QUICK
@given(ROWS, SHARE, st.integers(0, 5))
def test_presets_never_leak(rows, validation, seed):
    for protocol, more in ((tldr_protocol, {}), (prism_protocol, {"more_than": 1})):
        try:
            split = protocol(rows, validation_users=validation, sizes=(1, 2), seed=seed, **more)
        except DataError:
            continue
        assert_no_leak(split)
        again = parts(protocol(shuffled(rows), validation_users=validation, sizes=(1, 2), seed=seed, **more))
        assert all(bag(side) == bag(again[name]) for name, side in parts(split).items())


@QUICK
@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_limits_are_nested(rows, limit, seed):
    kept = limit_per_user(rows, limit, seed=seed)
    assert Counter(row.user for row in kept) == {
        user: min(count, limit) for user, count in Counter(row.user for row in rows).items() if limit
    }
    assert not bag(kept) - bag(limit_per_user(rows, limit + 1, seed=seed))
    assert not bag(kept) - bag(rows)


@QUICK
@given(ROWS, st.integers(0, 5))
def test_few_shot_sets_are_nested_and_exact(rows, seed):
    sets = few_shot(rows, (1, 2, 5), seed=seed)
    for n, chosen in sets.items():
        assert all(count == n for count in Counter(row.user for row in chosen).values())
        assert users(chosen) == users(at_least(rows, n))
    largest = users(sets[5])
    for small, large in ((1, 2), (2, 5)):
        assert not bag([row for row in sets[small] if row.user in largest]) - bag(sets[large])


@QUICK
@given(ROWS, SHARE, st.integers(0, 5))
def test_support_and_query(rows, query, seed):
    split = support_query(rows, query=query, sizes=(1, 2), seed=seed)
    assert not groups(split.pool) & groups(split.query)
    assert len(split.pool) + len(split.query) == len(rows)


def test_the_seed_matters_and_known_splits_stay():
    rows = [Preference(user=f"u{n}", prompt="p", chosen=f"a{n}", rejected="b") for n in range(50)]
    tests = {tuple(sorted(row.user for row in by_group(rows, seed=seed).test)) for seed in range(5)}
    assert len(tests) == 5
    # Published results depend on these not moving from one version to the next.
    assert sorted(row.user for row in by_user(rows, unseen=0.1, seed=0).unseen) == ["u14", "u34", "u40", "u42", "u7"]
    assert sorted(row.chosen for row in by_group(rows, test=0.1, seed=0).test) == ["a10", "a17", "a22", "a4", "a46"]


def test_stated_groups_are_no_derived_ones():
    row = Preference(user="u", prompt="p", chosen="a", rejected="b")
    stated = dataclasses.replace(row, group=group_of(row)[1:])
    assert group_of(row) != group_of(stated)
    swapped = dataclasses.replace(row, user="v", chosen="b", rejected="a")
    assert group_of(row) == group_of(swapped)


@pytest.mark.parametrize("shares", [{"test": -0.1}, {"test": 1.1}, {"test": 0.6, "validation": 0.6}])
def test_shares_are_checked(shares):
    with pytest.raises(InputError, match="not shares"):
        by_group([], **shares)


def tldr_rows():
    """20 workers in both splits (200 and 30 comparisons), 5 in training only."""
    rows = []
    for worker in range(25):
        for split, count in (("train", 200), ("validation", 30 if worker < 20 else 0)):
            for n in range(count):
                texts = {"chosen": f"{worker} {n} good", "rejected": f"{worker} {n} bad"}
                group = f"{split} post {n % 97}"
                rows.append(Preference(user=f"w{worker}", prompt=group, group=group, split=split, **texts))
    return rows


def test_tldr_protocol():
    split = tldr_protocol(tldr_rows())
    assert len(users(split.train)) == len(users(split.unseen.query)) == 10
    assert set(Counter(row.user for row in split.train).values()) == {150}
    assert set(Counter(row.user for row in split.unseen.pool).values()) == {50}
    assert set(Counter(row.user for row in (*split.seen_test, *split.unseen.query)).values()) == {30}
    assert not users(split.train) & {f"w{n}" for n in range(20, 25)}
    with pytest.raises(DataError, match="No worker"):
        tldr_protocol([row for row in tldr_rows() if row.split == "train"])


def test_prism_protocol():
    rows = []
    for user in range(30):
        for dialogue in range(3 + user % 10):
            for turn in range(2):
                texts = {"prompt": f"{turn}", "chosen": f"{user} {dialogue} {turn}", "rejected": "no"}
                rows.append(Preference(user=f"u{user}", group=f"c{user}-{dialogue}", **texts))
    split = prism_protocol(rows)
    kept = {f"u{user}" for user in range(30) if 3 + user % 10 > 5}
    assert users(split.train) | users(split.unseen.pool) == kept
    assert len(users(split.unseen.query)) == round(0.2 * len(kept))
    for user in kept:
        own = [row for row in (*split.train, *split.unseen.pool) if row.user == user]
        other = [row for row in (*split.seen_test, *split.unseen.query) if row.user == user]
        assert abs(len(groups(own)) - len(groups(other))) <= 1
        assert len(own) + len(other) == sum(row.user == user for row in rows)


def test_ukp_counts_and_split(shared):
    folder = shared / "data" / "ukp_convarg"
    assert len((folder / "arguments.jsonl").read_bytes().splitlines()) == 808
    rows = load_preferences(folder)
    assert len(rows) == 66_168
    strict = [row for row in rows if not row.is_tie]
    frequent = at_least(strict, 50)
    assert len(users(frequent)) == 134
    split = by_group(frequent, test=0.2)

    def pairs(rows):
        return {(row.prompt, frozenset((row.chosen, row.rejected))) for row in rows}

    assert not pairs(split.train) & pairs(split.test)
    assert len(groups(split.test)) == round(0.2 * len(groups(frequent)))
    assert_no_leak(personal_split(frequent))


def test_acl_counts(shared):
    rows = load_completions(shared / "data" / "acl_titles")
    assert (len(rows), len(users(rows)), len(groups(rows))) == (5_985, 423, 3_961)
    assert users(at_least(rows, 8)) == users(rows)  # as its README says of all 423


def test_rows_that_differ_only_in_what_the_file_states_have_a_fixed_order():
    same = {"user": "ann", "prompt": "p", "chosen": "a", "rejected": "b"}
    rows = [Preference(**same), Preference(**same, split="train"), Preference(**same, kind="lm_sample")]
    assert in_fixed_order(rows) == in_fixed_order(rows[::-1])
