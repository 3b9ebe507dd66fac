"""Splits that cannot leak: by user and by group, from hashes of ids, whatever the order of the rows.

A group (a pair that several people judged, a paper, a conversation) is on one side only. A row without a group is in
the group of its own pair: the same two responses to the same prompt, in either order and by anyone, stay together.
Users and groups are put in the order of a hash of seed and id, and the first ones are taken; so a split depends on the
set of ids and the seed, and on nothing else.
"""

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from jaxalign.data.prompts import identity
from jaxalign.data.schema import Completion, Preference, responses_of
from jaxalign.errors import InputError

Row = TypeVar("Row", Preference, Completion)

SHOTS = (1, 2, 5, 10, 20, 50)


def digest(seed: int, *parts: str) -> bytes:
    """16 bytes that depend on the seed and on where each part ends; the order of all splits."""
    state = hashlib.blake2b(digest_size=16, key=str(seed).encode()[:64])
    for part in parts:
        # Lone surrogates cannot reach here from files; rows made by hand may hold them.
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def group_of(row: Preference | Completion) -> str:
    """The row's group, or one that equal pairs (in either order), or equal completions, have in common.

    The first character keeps stated and derived groups apart.
    """
    if row.group is not None:
        return "=" + row.group
    texts = sorted(responses_of(row))
    return "~" + digest(0, identity(row.prompt), *texts).hex()


def row_key(row: Preference | Completion, seed: int = 0) -> bytes:
    """A hash of all that the row says: its place in every order that does not depend on the file's."""
    numbers = [repr(row.label), repr(row.margin)] if isinstance(row, Preference) else []
    # Rows that differ in one of these alone would otherwise keep the order of the file.
    stated = [row.split, row.kind] if isinstance(row, Preference) else [row.split]
    optional = ["~" if value is None else "=" + value for value in stated]
    return digest(seed, row.user, identity(row.prompt), *responses_of(row), group_of(row), *numbers, *optional)


def in_fixed_order(rows: Iterable[Row], seed: int = 0) -> list[Row]:
    """The rows in an order that depends on what they say only."""
    return sorted(rows, key=lambda row: row_key(row, seed))


def pick(ids: Iterable[str], fractions: Mapping[str, float], rest: str, *, seed: int, purpose: str) -> dict[str, str]:
    """Puts each id in one part: shares of `fractions`, rounded to whole ids, and `rest` for those that remain.

    Args:
      ids: any iterable; repetitions and order make no difference.
      fractions: share of all ids per part, each at least 0 and together at most 1.
      purpose: makes the order differ from that of other splits with the same seed.

    Raises:
      InputError: the fractions are not such shares.
    """
    total = sum(fractions.values())
    if any(not 0.0 <= share <= 1.0 for share in fractions.values()) or total > 1.0 + 1e-9:
        raise InputError(f"The fractions {dict(fractions)} are not shares: each from 0 to 1, together at most 1.")
    order = sorted(set(ids), key=lambda name: (digest(seed, purpose, name), name))
    part = dict.fromkeys(order, rest)
    done, start = 0.0, 0
    for name, share in fractions.items():
        done += share
        # Rounding the running sum: the parts add up, and none is off by more than one.
        stop = min(len(order), int(done * len(order) + 0.5))
        part.update(dict.fromkeys(order[start:stop], name))
        start = stop
    return part


@dataclasses.dataclass(frozen=True)
class UserSplit(Generic[Row]):
    """Rows of users that training sees, of those that hyperparameters are chosen on, and of those kept for the test."""

    seen: list[Row]
    validation: list[Row]
    unseen: list[Row]


def by_user(rows: Sequence[Row], *, unseen: float = 0.2, validation: float = 0.0, seed: int = 0) -> UserSplit[Row]:
    """Every user on one side: `unseen` and `validation` are shares of the users. Rows keep their order."""
    part = pick(
        (row.user for row in rows), {"unseen": unseen, "validation": validation}, "seen", seed=seed, purpose="user"
    )
    return UserSplit(*([row for row in rows if part[row.user] == name] for name in ("seen", "validation", "unseen")))


@dataclasses.dataclass(frozen=True)
class GroupSplit(Generic[Row]):
    """Rows whose groups are for training, for choosing hyperparameters, and for the test."""

    train: list[Row]
    validation: list[Row]
    test: list[Row]


def by_group(rows: Sequence[Row], *, test: float = 0.2, validation: float = 0.0, seed: int = 0) -> GroupSplit[Row]:
    """Every group on one side: `test` and `validation` are shares of the groups. Rows keep their order."""
    groups = [group_of(row) for row in rows]
    part = pick(groups, {"test": test, "validation": validation}, "train", seed=seed, purpose="group")
    parts: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for row, group in zip(rows, groups, strict=True):
        parts[part[group]].append(row)
    return GroupSplit(**parts)


def limit_per_user(rows: Sequence[Row], limit: int, *, seed: int = 0) -> list[Row]:
    """At most `limit` rows of each user, chosen by hash; a larger limit keeps all that a smaller one keeps."""
    if limit < 0:
        raise InputError(f"The limit per user is {limit}; it is at least 0.")
    kept: list[Row] = []
    for _, own in sorted(_by_user(rows).items()):
        kept += in_fixed_order(own, seed)[:limit]
    return kept


def at_least(rows: Sequence[Row], count: int) -> list[Row]:
    """The rows of users who have at least `count` of them."""
    own = _by_user(rows)
    return [row for row in rows if len(own[row.user]) >= count]


def few_shot(rows: Sequence[Row], sizes: Sequence[int] = SHOTS, *, seed: int = 0) -> dict[int, list[Row]]:
    """Support sets of exactly `n` rows a user, for each n of `sizes`, nested: a larger one contains the smaller ones.

    A user with fewer than n rows is not in the set for n: compare sizes over the users of the largest one.
    """
    if any(size < 1 for size in sizes):
        raise InputError(f"The sizes of support sets {tuple(sizes)} are at least 1.")
    ordered = {user: in_fixed_order(own, seed) for user, own in sorted(_by_user(rows).items())}
    return {n: [row for own in ordered.values() if len(own) >= n for row in own[:n]] for n in sizes}


@dataclasses.dataclass(frozen=True)
class FewShot(Generic[Row]):
    """For users that training has not seen: what they may be adapted on, and what they are tested on.

    Attributes:
      support: per number of pairs, the rows to adapt on (see `few_shot`).
      pool: all rows that support sets are drawn from.
      query: the rows to test on, the same for every size of support.
    """

    support: dict[int, list[Row]]
    pool: list[Row]
    query: list[Row]


def support_query(
    rows: Sequence[Row], *, sizes: Sequence[int] = SHOTS, query: float = 0.5, seed: int = 0
) -> FewShot[Row]:
    """Support and query sets of the users in `rows`; no group is in both, not even for different users.

    Args:
      query: share of the groups that are for the query.
    """
    split = by_group(rows, test=query, seed=seed)
    return FewShot(few_shot(split.train, sizes, seed=seed), split.train, split.test)


@dataclasses.dataclass(frozen=True)
class PersonalSplit(Generic[Row]):
    """One split by user and by group at once: what a reward model may see, and what it is judged on.

    No group is in two of train + pools, validation rows, test rows; no user is in two of seen, validation, unseen.

    Attributes:
      train: seen users, training groups: all that shared parameters are fitted on.
      seen_validation: seen users, validation groups.
      seen_test: seen users, test groups.
      validation: users to choose hyperparameters on: support from training groups, query from validation groups.
      unseen: test users: support from training groups, query from test groups.
    """

    train: list[Row]
    seen_validation: list[Row]
    seen_test: list[Row]
    validation: FewShot[Row]
    unseen: FewShot[Row]


def personal_split(
    rows: Sequence[Row],
    *,
    unseen_users: float = 0.2,
    validation_users: float = 0.1,
    test_groups: float = 0.2,
    validation_groups: float = 0.1,
    sizes: Sequence[int] = SHOTS,
    seed: int = 0,
) -> PersonalSplit[Row]:
    """Splits users and groups at once, each by shares.

    Rows on which the two disagree (a seen user's row is always used; an unseen user's row in a validation group is not)
    are left out, which is the price of a split that cannot leak.
    """
    users = by_user(rows, unseen=unseen_users, validation=validation_users, seed=seed)
    # Groups are divided over all rows, so that a group falls on one side for every kind of user.
    groups = [group_of(row) for row in rows]
    shares = {"test": test_groups, "validation": validation_groups}
    part = pick(groups, shares, "train", seed=seed, purpose="group")

    def where(chosen: Sequence[Row], name: str) -> list[Row]:
        return [row for row in chosen if part[group_of(row)] == name]

    def shots(chosen: Sequence[Row], query: str) -> FewShot[Row]:
        pool = where(chosen, "train")
        return FewShot(few_shot(pool, sizes, seed=seed), pool, where(chosen, query))

    return PersonalSplit(
        train=where(users.seen, "train"),
        seen_validation=where(users.seen, "validation"),
        seen_test=where(users.seen, "test"),
        validation=shots(users.validation, "validation"),
        unseen=shots(users.unseen, "test"),
    )


def _by_user(rows: Iterable[Row]) -> dict[str, list[Row]]:
    own: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        own[row.user].append(row)
    return own
