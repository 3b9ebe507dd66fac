"""From texts that users wrote to preferences: a recipe in the style of Pref-LaMP (whose files are not public).

Chosen is what the user wrote. Rejected is either a sample of the language model for the same prompt, which does not
know the user ("lm_sample"), or a text of another user for the same or the nearest prompt ("other_user"). Some of each
user's texts are kept as targets of generation; the history is the rest, without the targets' groups, whoever's they
are.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxalign.data.nearest import Nearest
from jaxalign.data.prompts import Prompt, prompt_text
from jaxalign.data.sample_cache import SampleCache
from jaxalign.data.schema import Completion, Preference
from jaxalign.data.splits import by_group, group_of, in_fixed_order
from jaxalign.errors import DataError, InputError
from jaxalign.progress import Progress, silent

LM_SAMPLE = "lm_sample"
OTHER_USER = "other_user"
Sample = Callable[[list[Prompt]], list[str]]
"""Samples one response for each prompt from the language model at temperature 1, in batches of its own choice."""


@dataclasses.dataclass(frozen=True)
class PersonalTexts:
    """What is known of the users, and what is to be written for them. No group is in both."""

    history: list[Completion]
    targets: list[Completion]


def history_and_targets(
    rows: Sequence[Completion], *, targets: float = 0.2, validation: float = 0.0, min_history: int = 1, seed: int = 0
) -> dict[str, PersonalTexts]:
    """Divides texts by group: a paper that is a target for one author is in no co-author's history.

    Rows that state splits "support" and "query" (LaMP) keep them: the queries are targets, and the history loses their
    groups.

    Args:
      targets: share of the groups that are test targets.
      validation: share of the groups whose texts are targets for choosing hyperparameters.
      min_history: users with a smaller history have no targets.

    Returns:
      "test" and "validation", with the same history.

    Raises:
      DataError: there is no history, or no test target.
    """
    if any(row.split in ("support", "query") for row in rows):
        queries = [row for row in rows if row.split == "query"]
        parts = by_group(queries, test=1.0 - validation, validation=validation, seed=seed)
        taken = {group_of(row) for row in queries}
        history = [row for row in rows if row.split == "support" and group_of(row) not in taken]
    else:
        parts = by_group(rows, test=targets, validation=validation, seed=seed)
        history = parts.train
    counts: dict[str, int] = defaultdict(int)
    for row in history:
        counts[row.user] += 1
    kept = {
        name: [row for row in chosen if counts[row.user] >= min_history]
        for name, chosen in (("test", parts.test), ("validation", parts.validation))
    }
    if not history or not kept["test"]:
        raise DataError(
            f"{len(history)} texts are left as history and {len(kept['test'])} as targets: both are needed. Give more "
            "texts a user, another share of targets, or a smaller 'min_history'."
        )
    return {name: PersonalTexts(history, chosen) for name, chosen in kept.items()}


def against_lm(
    rows: Sequence[Completion],
    sample: Sample,
    *,
    sampler: str,
    cache: str | Path,
    samples: int = 1,
    chunk: int = 64,
    progress: Progress = silent,
) -> list[Preference]:
    """Pairs of the user's text and the language model's for the same prompt.

    Args:
      rows: own texts, usually the history.
      sample: of the unpersonalised language model; called for prompts that the cache lacks.
      sampler: names what `sample` depends on (model, temperature, length, seed): another name, another set of samples.
      cache: a folder; samples are kept there after every `chunk` prompts, so that a stopped run continues.
      samples: different rejected texts for each own text; users who share a prompt share its samples.

    Returns:
      Pairs of kind "lm_sample", in the order of `rows`. A sample that is empty or the user's own text gives no pair.

    Raises:
      InputError: `sample` gives another number of texts than prompts.
    """
    if samples < 1:
        raise InputError(f"samples is {samples}; it is at least 1.")
    written = SampleCache(cache, sampler).all([row.prompt for row in rows], sample, samples, chunk, progress)
    pairs = []
    for row, texts in zip(rows, written, strict=True):
        different = dict.fromkeys(text for text in texts if text.strip())
        pairs += [_pair(row, text, LM_SAMPLE) for text in different if text.strip() != row.completion.strip()]
    return pairs


def against_others(rows: Sequence[Completion], *, count: int = 1, seed: int = 0) -> list[Preference]:
    """Pairs of the user's text and another user's for the same prompt, or else the nearest one.

    The other text is of a user who shares no group with the row, is not the same text, and stands for the pair's own
    prompt as if it had been written for it. Texts of the user's own groups by others (co-authors) are never used.

    Args:
      count: rejected texts for each own text; fewer where others have written fewer.
      seed: chooses among equally near texts.

    Returns:
      Pairs of kind "other_user", in the order of `rows`.
    """
    pool = in_fixed_order(rows, seed)
    owners: dict[str, set[str]] = defaultdict(set)
    at: dict[str, list[Completion]] = defaultdict(list)
    for row in pool:
        owners[group_of(row)].add(row.user)
        at[prompt_text(row.prompt)].append(row)
    asked: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        asked[prompt_text(row.prompt)].append(place)
    names = sorted(asked)
    found: dict[int, list[str]] = {}
    for prompt, order in zip(names, Nearest(names).order(range(len(names))), strict=True):
        for place in asked[prompt]:
            row = rows[place]
            others = (other for near in order for other in at[names[near]] if row.user not in owners[group_of(other)])
            # The user's own words by chance, or a text found already, is no other text.
            seen, texts = {row.completion.strip()}, []
            while len(texts) < count and (other := next(others, None)) is not None:
                if other.completion.strip() not in seen:
                    seen.add(other.completion.strip())
                    texts.append(other.completion)
            found[place] = texts
    return [_pair(row, text, OTHER_USER) for place, row in enumerate(rows) for text in found[place]]


def _pair(row: Completion, rejected: str, kind: str) -> Preference:
    return Preference(
        user=row.user,
        prompt=row.prompt,
        chosen=row.completion,
        rejected=rejected,
        group=row.group,
        split=row.split,
        kind=kind,
    )
