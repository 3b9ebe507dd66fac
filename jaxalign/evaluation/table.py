"""The numbers of a run in long form: one row per measure, method, group of users and setting, with its interval."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxalign.metrics.accuracy import PairCounts, per_user
from jaxalign.metrics.bootstrap import Interval, bootstrap_mean, bootstrap_ratio, bootstrap_worst_tenth

RESAMPLES = 1000
_SETTING = ("shots", "form", "length", "weight", "top_k")


@dataclasses.dataclass
class Table:
    """Collects numbers.

    Attributes:
      rows: as in `metrics.jsonl`.
      users: as in `users.jsonl`: the value of each user, for rows that are `chosen`.
      values: by (label, method, group), the value of each user, for the selection analysis.
      seed: of the bootstrap.
    """

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    users: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    values: dict[tuple[str, str, str], dict[str, float]] = dataclasses.field(default_factory=dict)
    seed: int = 0

    def accuracy(
        self,
        measure: str,
        method: str,
        group: str,
        users: Sequence[str],
        counts: PairCounts,
        *,
        label: str | None = None,
        chosen: bool = True,
        **setting: Any,
    ) -> None:
        """Adds an accuracy: macro; where it is chosen also micro, the worst tenth of users, and ties.

        Args:
          measure: `rm_accuracy` or `policy_accuracy`.
          method: a reward model or a baseline.
          group: of users.
          users: ids, in the order of `counts`.
          counts: `[users]` each.
          label: under which the selection analysis finds it; None: it does not.
          chosen: whether this is the setting that validation chose.
          **setting: `shots`, `form`, `length`, `weight`, `top_k`, where they apply.
        """
        values = per_user(counts)
        pairs = np.asarray(counts.pairs, np.float64)
        kept = {"users": int((pairs > 0).sum()), "count": int(pairs.sum()), "chosen": chosen}
        self._add(measure, method, group, "macro", self._mean(values), kept, setting)
        if chosen:
            correct = np.asarray(counts.correct, np.float64)
            micro = bootstrap_ratio(correct, pairs, resamples=RESAMPLES, seed=self.seed)
            worst = bootstrap_worst_tenth(values, resamples=RESAMPLES, seed=self.seed)
            self._add(measure, method, group, "micro", micro, kept, setting)
            self._add(measure, method, group, "worst_tenth", worst, kept, setting)
            ties = float(np.asarray(counts.ties, np.float64).sum() / pairs.sum()) if pairs.sum() else None
            self._add(f"{measure}_ties", method, group, "micro", Interval(ties, None, None), kept, setting)
            self._keep(measure, method, group, users, values, pairs, label, setting)

    def mean(
        self,
        measure: str,
        method: str,
        group: str,
        users: Sequence[str],
        values: np.ndarray,
        counts: np.ndarray,
        *,
        label: str | None = None,
        **setting: Any,
    ) -> None:
        """Adds a mean over users of `[users]` values (NaN: the user has none), which stand for `counts` texts each."""
        kept = {"users": int((~np.isnan(values)).sum()), "count": int(counts[~np.isnan(values)].sum()), "chosen": True}
        self._add(measure, method, group, "macro", self._mean(values), kept, setting)
        self._keep(measure, method, group, users, values, counts, label, setting)

    def value(self, measure: str, method: str, group: str, value: float | None, count: int, average: str) -> None:
        """Adds one number without an interval."""
        kept = {"users": 0, "count": count, "chosen": True}
        self._add(measure, method, group, average, Interval(value, None, None), kept, {})

    def table(self, label: str, methods: Sequence[str], group: str, users: Sequence[str]) -> np.ndarray:
        """`[methods, users]` values of a label, NaN where there is none."""
        found = np.full((len(methods), len(users)), np.nan)
        for row, method in enumerate(methods):
            own = self.values.get((label, method, group), {})
            found[row] = [own.get(user, np.nan) for user in users]
        return found

    def _mean(self, values: np.ndarray) -> Interval:
        return bootstrap_mean(values, resamples=RESAMPLES, seed=self.seed)

    def _add(
        self,
        measure: str,
        method: str,
        group: str,
        average: str,
        interval: Interval,
        kept: dict[str, Any],
        setting: dict[str, Any],
    ) -> None:
        row = {"measure": measure, "method": method, "group": group}
        row |= {name: setting.get(name) for name in _SETTING}
        self.rows.append({**row, "average": average, **interval._asdict(), **kept})

    def _keep(
        self,
        measure: str,
        method: str,
        group: str,
        users: Sequence[str],
        values: np.ndarray,
        counts: np.ndarray,
        label: str | None,
        setting: dict[str, Any],
    ) -> None:
        for user, value, number in zip(users, values, counts, strict=True):
            if not np.isnan(value):
                row = {"measure": measure, "method": method, "group": group}
                row |= {name: setting.get(name) for name in _SETTING}
                self.users.append({**row, "user": user, "value": float(value), "count": int(number)})
        if label is not None:
            self.values[label, method, group] = {
                user: float(value) for user, value in zip(users, values, strict=True) if not np.isnan(value)
            }
