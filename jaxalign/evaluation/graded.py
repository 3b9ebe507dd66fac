"""Reward-conditioned prompting: demonstrations that carry the user's grade, and a request for the top grade.

The idea of training on data whose prompts state the reward (arXiv 2410.08067), without the training: what a reward
model knows of a user reaches the language model as grades of texts that it reads.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from jaxalign.data.prompts import Prompt
from jaxalign.data.schema import Completion, Preference, responses_of
from jaxalign.errors import InputError

TOP = 10

Reward = Callable[[str, Prompt, str], float]
"""The reward that a user's reward model gives to a response: user, prompt, response."""


def instruction(grade: int) -> str:
    """What a request says of the grade that its response has, or should have."""
    return f"Write a response that I would grade {grade} out of {TOP}."


def grades_of_label(row: Preference) -> list[tuple[str, int]]:
    """Both texts with grades from 1 to 10: 1 + 9 p, where p is the probability that the text is the preferred one."""
    grade = round(1 + (TOP - 1) * row.label)
    return [(row.chosen, grade), (row.rejected, TOP + 1 - grade)]


class GradesOfReward:
    """Grades from 1 to 10 by the share of the user's texts in the history that have at most this reward.

    A text that no other one beats has grade 10; texts of equal reward have equal grades. So grades are not affected by
    the scale of the rewards.
    """

    def __init__(self, history: Sequence[Preference | Completion], reward: Reward):
        self._reward = reward
        self._rows: dict[str, list[Preference | Completion]] = {}
        for row in history:
            self._rows.setdefault(row.user, []).append(row)
        self._sorted: dict[str, list[float]] = {}

    def __call__(self, row: Preference | Completion) -> list[tuple[str, int]]:
        """The texts of a row of the history with their grades.

        Raises:
          InputError: a reward of this user is not finite.
        """
        if row.user not in self._sorted:
            self._sorted[row.user] = sorted(
                self._of(own, text) for own in self._rows[row.user] for text in responses_of(own)
            )
        known = self._sorted[row.user]
        return [(text, -(-TOP * bisect_right(known, self._of(row, text)) // len(known))) for text in responses_of(row)]

    def _of(self, row: Preference | Completion, text: str) -> float:
        value = float(self._reward(row.user, row.prompt, text))
        if not math.isfinite(value):
            raise InputError(f"user {row.user!r}: the reward of a text of the history is {value}, so it has no grade")
        return value
