import dataclasses

import numpy as np
import pytest

from jaxalign.errors import DataError
from jaxalign.rewards.pairs import check, statistics, to_device


def test_flat_pairs_are_the_real_pairs_in_order(mixed):
    pairs = to_device(mixed, statistics(mixed))
    assert pairs.users == 9
    used = np.unique(np.concatenate([mixed.chosen[mixed.mask], mixed.rejected[mixed.mask]]))
    np.testing.assert_array_equal(used[pairs.chosen_text], mixed.chosen[mixed.mask])
    np.testing.assert_array_equal(used[pairs.rejected_text], mixed.rejected[mixed.mask])
    np.testing.assert_array_equal(pairs.user, np.nonzero(mixed.mask)[0])
    np.testing.assert_array_equal(pairs.slot_user[pairs.chosen], pairs.user)
    slots = set(zip(pairs.slot_user.tolist(), pairs.slot_text.tolist(), strict=True))
    assert len(slots) == len(pairs.slot_user), "a text is scored once a user"


def test_features_in_use_are_standardised_and_constant_ones_ignored(mixed):
    features = mixed.features * 3.0 + 7.0
    features[:, 1] = 0.1
    blocks = dataclasses.replace(mixed, features=features)
    table = np.asarray(to_device(blocks, statistics(blocks)).features)
    np.testing.assert_allclose(table.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(table.std(axis=0), [1, 0, 1, 1, 1, 1], atol=1e-5)


def test_statistics_do_not_see_padding_or_unused_texts(mixed):
    features = np.concatenate([mixed.features, np.full((3, 6), 1e6, np.float32)])
    more = dataclasses.replace(mixed, features=features, prompts=None)
    before, after = statistics(dataclasses.replace(mixed, prompts=None)), statistics(more)
    for name in ("mean", "inverse"):
        np.testing.assert_array_equal(before["features"][name], after["features"][name])
        np.testing.assert_array_equal(after["prompts"][name], 0.0)


def broken(blocks, field, value):
    array = np.array(getattr(blocks, field))
    array[3, 2] = value
    return dataclasses.replace(blocks, **{field: array})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("label", 1.5, "User 'u3', pair 2: label 1.5"),
        ("label", np.nan, "User 'u3', pair 2: label nan"),
        ("margin", np.inf, "User 'u3', pair 2: the margin"),
        ("chosen", 40, "User 'u3', pair 2: 'chosen' is 40, but there are 40 texts"),
        ("rejected", -1, "User 'u3', pair 2: 'rejected' is -1"),
        ("features", np.nan, "Row 3 of features"),
        ("prompts", np.inf, "Row 3 of prompts"),
    ],
)
def test_bad_values_are_refused_by_name(mixed, field, value, words):
    with pytest.raises(DataError, match=words):
        check(broken(mixed, field, value))


def test_bad_values_in_padding_are_nobodys_business(mixed):
    blocks = mixed
    for field, value in (("label", np.nan), ("margin", np.nan), ("chosen", 999)):
        array = np.array(getattr(blocks, field))
        array[~mixed.mask] = value
        blocks = dataclasses.replace(blocks, **{field: array})
    check(blocks)


def test_shapes_and_ids_are_checked(mixed):
    with pytest.raises(DataError, match="8 user ids for 9 rows"):
        check(dataclasses.replace(mixed, users=mixed.users[:8]))
    with pytest.raises(DataError, match="User 'u0' has two rows"):
        check(dataclasses.replace(mixed, users=("u0",) * 9))
    with pytest.raises(DataError, match="'label' has shape"):
        check(dataclasses.replace(mixed, label=mixed.label[:, :3]))
    with pytest.raises(DataError, match="prompts have shape"):
        check(dataclasses.replace(mixed, prompts=mixed.features[:3]))
