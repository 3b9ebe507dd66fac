"""The published protocols for TL;DR and PRISM.

The rules are theirs; the draw is ours, from hashes instead of a shuffle of rows.
"""

from collections import defaultdict
from collections.abc import Sequence

from jaxalign.data.schema import Preference
from jaxalign.data.splits import FewShot, PersonalSplit, few_shot, group_of, limit_per_user, pick
from jaxalign.errors import DataError

TLDR_SHOTS = (1, 2, 5, 10, 20, 50)


def tldr_protocol(
    rows: Sequence[Preference],
    *,
    unseen_users: float = 0.5,
    validation_users: float = 0.0,
    seen_limit: int = 150,
    unseen_limit: int = 50,
    sizes: Sequence[int] = TLDR_SHOTS,
    seed: int = 0,
) -> PersonalSplit[Preference]:
    """TL;DR as in the LoRe paper's code: workers of both official splits, half of them seen and half unseen.

    A worker's official training comparisons are for fitting (up to `seen_limit`) or adaptation (up to `unseen_limit`),
    the official validation comparisons for the test. Training comparisons of a post that is in anyone's test are left
    out: the official splits keep posts apart, so none should be. There, ties counted as wrong; ours count one half.

    Args:
      rows: from `jaxalign.data.sources.tldr`, with splits "train" and "validation".
      validation_users: share of the users set apart for choosing hyperparameters; the published code chose on test.

    Raises:
      DataError: no worker is in both splits.
    """
    parts: dict[str | None, list[Preference]] = defaultdict(list)
    for row in rows:
        parts[row.split].append(row)
    common = {row.user for row in parts["train"]} & {row.user for row in parts["validation"]}
    if not common:
        raise DataError("No worker has rows of split 'train' and of split 'validation'. Use the official splits.")
    return _assemble(
        [row for row in parts["train"] if row.user in common],
        [row for row in parts["validation"] if row.user in common],
        _users(common, unseen_users, validation_users, seed),
        {"seen": seen_limit, "validation": unseen_limit, "unseen": unseen_limit},
        sizes,
        seed,
    )


def prism_protocol(
    rows: Sequence[Preference],
    *,
    unseen_users: float = 0.2,
    validation_users: float = 0.0,
    more_than: int = 5,
    sizes: Sequence[int] = TLDR_SHOTS,
    seed: int = 123,
) -> PersonalSplit[Preference]:
    """PRISM as in the LoRe paper's code: 80 % of the users seen; users with more than 5 dialogues; dialogues halved.

    Args:
      rows: from `jaxalign.data.sources.prism`; the group is the dialogue.
      validation_users: share of the users set apart for choosing hyperparameters; the published code chose on test.
      more_than: users with this many dialogues or fewer are left out.

    Raises:
      DataError: no user has more dialogues than that.
    """
    dialogues: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        dialogues[row.user].add(group_of(row))
    users = {user for user, own in dialogues.items() if len(own) > more_than}
    if not users:
        raise DataError(f"No user has more than {more_than} dialogues. Give a lower 'more_than'.")
    half: dict[str, str] = {}
    for user in sorted(users):
        # A dialogue has one person; were it shared, its first user in this order would decide for all.
        own = pick(dialogues[user], {"test": 0.5}, "train", seed=seed, purpose=f"dialogue {user}")
        half = own | half
    return _assemble(
        [row for row in rows if row.user in users and half[group_of(row)] == "train"],
        [row for row in rows if row.user in users and half[group_of(row)] == "test"],
        _users(users, unseen_users, validation_users, seed),
        {},
        sizes,
        seed,
    )


def _users(users: set[str], unseen: float, validation: float, seed: int) -> dict[str, str]:
    return pick(users, {"unseen": unseen, "validation": validation}, "seen", seed=seed, purpose="user")


def _assemble(
    train: list[Preference],
    test: list[Preference],
    part: dict[str, str],
    limits: dict[str, int],
    sizes: Sequence[int],
    seed: int,
) -> PersonalSplit[Preference]:
    """Training and test rows by kind of user. Validation users are tested on their own test rows, in no one else's."""
    tested = {group_of(row) for row in test}
    chosen_on = {group_of(row) for row in test if part[row.user] == "validation"}

    def fit(kind: str) -> list[Preference]:
        own = [row for row in train if part[row.user] == kind and group_of(row) not in tested]
        return limit_per_user(own, limits[kind], seed=seed) if kind in limits else own

    def shots(kind: str) -> FewShot[Preference]:
        pool = fit(kind)
        query = [row for row in test if part[row.user] == kind]
        if kind != "validation":
            query = [row for row in query if group_of(row) not in chosen_on]
        return FewShot(few_shot(pool, sizes, seed=seed), pool, query)

    seen = shots("seen")
    return PersonalSplit(seen.pool, [], seen.query, shots("validation"), shots("unseen"))
