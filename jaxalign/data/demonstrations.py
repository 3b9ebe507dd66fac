"""Which rows of a history to show to a language model in its context, for each text that is to be written or judged.

No row is shown for a target whose group it has, nor one that repeats a text of the target: the answer would stand in
the context word for word. Ties say nothing about the user and are never shown.
"""

import functools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar, get_args

import numpy as np

from jaxalign.data.prompts import prompt_text
from jaxalign.data.schema import Completion, Preference, responses_of
from jaxalign.data.splits import digest, group_of, row_key
from jaxalign.errors import InputError

Row = TypeVar("Row", Preference, Completion)
Select = Literal["random", "recent", "bm25"]

# From a user and some places of the history to a function: from a target's prompt to the places, most relevant first.
_Ranking = Callable[[str, list[int]], Callable[[str], Iterable[int]]]

# Scripts without spaces between words (Thai, Lao, Burmese, Khmer, Chinese, Japanese) are compared by the character.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def demonstrations(
    targets: Sequence[Preference | Completion],
    history: Sequence[Row],
    count: int,
    *,
    select: Select = "bm25",
    of_others: bool = False,
    seed: int = 0,
) -> list[list[Row]]:
    """For each target, up to `count` rows of the history, the most relevant last.

    Args:
      targets: what is asked for; of each, user, prompt, group and texts are used.
      history: rows that may be shown, of any users.
      count: rows for each target; fewer where the history has fewer.
      select: `random`: by hash of user and row, the same order for every target of a user. `recent`: rows that come
        later in `history` are more recent, so it must be in the order of the file (or of its dates): this is the one
        choice that depends on the order of rows. `bm25`: by the words that the prompts share.
      of_others: rows of other users instead of the user's own: the control.
      seed: of `random`, and of the order among equally relevant rows.

    Returns:
      One list for each target, at most one row of each group and no text twice. With `of_others`, no row has a group
      that the target's user takes part in.

    Raises:
      InputError: a negative `count` or an unknown `select`.
    """
    if count < 0:
        raise InputError(f"count is {count}; it is at least 0.")
    if select not in _RANKINGS:
        raise InputError(f"select is {select!r}; it is one of {', '.join(get_args(Select))}.")
    pool = [row for row in history if not (isinstance(row, Preference) and row.is_tie)]
    groups = [group_of(row) for row in pool]
    # Ties too: the user took part in their groups.
    taken: dict[str, set[str]] = defaultdict(set)
    for row in history:
        taken[row.user].add(group_of(row))
    own: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(pool):
        own[row.user].append(place)
    asked: dict[str, list[int]] = defaultdict(list)
    for number, target in enumerate(targets):
        asked[target.user].append(number)
    ranking = _RANKINGS[select](pool, seed)
    shown: list[list[Row]] = [[] for _ in targets]
    for user, numbers in asked.items():
        places = own.get(user, [])
        if of_others:
            shared = taken[user]
            places = [place for place, row in enumerate(pool) if row.user != user and groups[place] not in shared]
        rank = ranking(user, places)
        for number in numbers:
            target = targets[number]
            # One row a group: a co-author's copy adds nothing.
            seen_groups, seen_texts = {group_of(target)}, _texts(target)
            for place in rank(prompt_text(target.prompt)):
                if len(shown[number]) == count:
                    break
                row = pool[place]
                if groups[place] not in seen_groups and not _texts(row) & seen_texts:
                    shown[number].append(row)
                    seen_groups.add(groups[place])
                    seen_texts |= _texts(row)
            shown[number].reverse()
    return shown


def _texts(row: Preference | Completion) -> set[str]:
    return {text.strip() for text in responses_of(row)}


def _random(pool: Sequence[Preference | Completion], seed: int) -> _Ranking:
    keys = [row_key(row, seed).hex() for row in pool]

    def ranking(user: str, places: list[int]):
        order = sorted(places, key=lambda place: digest(seed, "demonstration", user, keys[place]))
        return lambda prompt: order

    return ranking


def _recent(pool: Sequence[Preference | Completion], seed: int) -> _Ranking:
    return lambda user, places: lambda prompt: reversed(places)


def _bm25(pool: Sequence[Preference | Completion], seed: int) -> _Ranking:
    """BM25 of the prompts (Lucene's form, k1 = 1.5, b = 0.75), word frequencies from the whole pool."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import asks for every detail
    prompts = [words(prompt_text(row.prompt)) for row in pool]
    index = bm25s.BM25()
    if any(prompts):
        index.index(prompts, show_progress=False)
    keys = [row_key(row, seed) for row in pool]

    @functools.lru_cache(maxsize=64)  # targets share prompts
    def scores(prompt: str) -> np.ndarray:
        query = words(prompt)
        return index.get_scores(query) if query and any(prompts) else np.zeros(len(pool), np.float32)

    def ranking(user: str, places: list[int]):
        # Sorted by hash first: the sort by score is stable, and so breaks ties by it.
        candidates = np.array(sorted(places, key=keys.__getitem__), np.int64)
        return lambda prompt: candidates[np.argsort(-scores(prompt)[candidates], kind="stable")]

    return ranking


def words(text: str) -> list[str]:
    """The words that BM25 compares, in lower case."""
    return _WORD.findall(text.lower())


_RANKINGS: dict[str, Callable[[Sequence[Preference | Completion], int], _Ranking]] = {
    "random": _random,
    "recent": _recent,
    "bm25": _bm25,
}
