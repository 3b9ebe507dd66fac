"""The numbers of a run by what they mean: how each measure is called and written, and look-up in the metrics."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

MINUS = "\u2212"


@dataclasses.dataclass(frozen=True)
class Measure:
    """How a measure is named and written.

    Attributes:
      label: its name in tables and on axes.
      percent: it is a share, written in percent.
      better: which end is better, or None where neither is.
      note: what a reader must know to read it.
      digits: decimals, or None for three significant digits.
    """

    label: str
    percent: bool = False
    better: Literal["high", "low"] | None = None
    note: str = ""
    digits: int | None = None

    def text(self, value: float | None) -> str:
        """The number alone, in percent where it is a share; an en dash where there is none."""
        if value is None or not math.isfinite(value):
            return "\u2013"
        if self.percent:
            return signed(f"{100 * value:.{1 if self.digits is None else self.digits}f}")
        if self.digits is not None:
            return signed(f"{value:.{self.digits}f}")
        return signed(f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}")

    def interval(self, low: float | None, high: float | None) -> str:
        """The interval, or an empty string where there is none."""
        if low is None or high is None:
            return ""
        joint = " to " if low < 0 or high < 0 else "\u2013"
        return f"{self.text(low)}{joint}{self.text(high)}"

    @property
    def axis(self) -> str:
        """The label of an axis, with its unit."""
        return f"{self.label} (%)" if self.percent else self.label


# In the order in which tables and figures show them.
MEASURES: Mapping[str, Measure] = {
    "rm_accuracy": Measure("RM accuracy", True, "high", "share of pairs that the reward ranks as the user did"),
    "policy_accuracy": Measure(
        "Policy accuracy", True, "high", "share of pairs that the adapted language model ranks as the user did"
    ),
    "ece": Measure("Calibration error", True, "low", "expected calibration error of the reward's preferences"),
    "rouge1": Measure("ROUGE-1", True, "high", "overlap of words with what the user wrote"),
    "rouge2": Measure("ROUGE-2", True, "high"),
    "rougeL": Measure("ROUGE-L", True, "high"),
    "bleu": Measure("BLEU", False, "high", digits=1),
    "chrf": Measure("chrF", False, "high", digits=1),
    "embedding_similarity": Measure(
        "Embedding similarity", False, "high", "cosine of mean hidden states with the user's text", 3
    ),
    "style_distance": Measure(
        "Style distance", False, "low", "distance of style attributes from the user's own history", 2
    ),
    "true_utility": Measure("True utility", False, "high", "the simulated user's own judgement", 2),
    "length_ratio": Measure("Length ratio", False, None, "length over that of the user's text; 1 is equal", 2),
    "distinct1": Measure("Distinct-1", digits=3),
    "distinct2": Measure("Distinct-2", digits=3),
    "repetition": Measure("Repetition", False, "low", digits=3),
    "changed": Measure("Tokens changed", True, None, "share of tokens that guidance changed"),
    "own_reward": Measure(
        "Own reward (circular)", False, None, "each method judged by its own reward, which is no evidence", 2
    ),
}  # fmt: skip

ACCURACIES = ("rm_accuracy", "policy_accuracy", "ece")


def measure(name: str) -> Measure:
    """The measure of that name; one that a plug-in brought is written as it is."""
    return MEASURES.get(name) or Measure(name)


def points(label: str) -> bool:
    """Whether differences of what a free label names are shares, to be written in percentage points."""
    return any(word in label.lower() for word in ("accuracy", "rouge"))


def signed(text: str) -> str:
    """A number with a true minus sign."""
    return text.replace("-", MINUS)


def p_text(p: float | None) -> str:
    """A p-value to two digits, or '< 0.001'."""
    return "\u2013" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval (None: not known), the weight it was reached with, and what it is a mean over."""

    value: float
    low: float | None = None
    high: float | None = None
    weight: float | None = None
    users: int | None = None
    count: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Estimate":
        """The estimate of a row of metrics whose value is not null."""
        return cls(row["value"], *(row.get(name) for name in ("low", "high", "weight", "users", "count")))


class Numbers:
    """Look-up in the rows of metrics.

    Attributes:
      methods: all methods, in order of appearance.
      group: the group that figures and the headline are about.
      groups: the groups that there are, 'seen' before 'unseen'.
      length: the length convention of the headline, 'sum' or 'mean'.
      top_k: the number of candidates that figures and tables are about.
      top_ks: all numbers of candidates that were tried.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        group: str | None = None,
        length: str | None = None,
        top_k: int | None = None,
    ):
        self.length = "mean" if length == "mean" else "sum"
        self._rows = [row for row in rows if row["value"] is not None]
        self.methods = tuple(dict.fromkeys(row["method"] for row in rows))
        there = {row["group"] for row in self._rows} - {"validation"}  # what choices were made by, not a result
        self.groups = tuple(sorted(there, key=lambda name: (name != "seen", name)))
        self.group: str = (
            group
            if group is not None and group in there
            else "unseen"
            if "unseen" in there
            else next(iter(self.groups), "seen")
        )
        self.top_ks = tuple(sorted({row["top_k"] for row in self._rows if row.get("top_k") is not None}))
        self.top_k = top_k if top_k in self.top_ks else next(iter(self.top_ks), None)
        self._by_key: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for row in self._rows:
            self._by_key.setdefault((row["measure"], row["method"], row["group"]), []).append(row)

    def rows(
        self, measure: str, method: str, group: str, form: str | None = None, length: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Rows of a measure in its leading average (macro, else corpus, else micro), of all weights, shots and k."""
        found = [
            row
            for row in self._by_key.get((measure, method, group), ())
            if row.get("form") == form and row.get("length") == length
        ]
        for average in ("macro", "corpus", "micro", None):
            if kept := [row for row in found if row.get("average") == average]:
                return kept
        return []

    def get(
        self, measure: str, method: str, group: str, form: str | None = None, length: str | None = None
    ) -> Estimate | None:
        """The estimate at the chosen weight, the leading k and all shots."""
        rows = self.rows(measure, method, group, form, length)
        rows = [row for row in rows if row.get("chosen", True) is not False and row.get("shots") is None]
        rows = [row for row in rows if row.get("top_k") in (None, self.top_k)]
        return Estimate.of(rows[0]) if rows else None

    def average(self, measure: str, method: str, group: str, average: str, **keys: str | None) -> Estimate | None:
        """The estimate of another average ('micro', 'worst_tenth')."""
        for row in self._by_key.get((measure, method, group), ()):
            same = row.get("average") == average and all(row.get(k) == v for k, v in keys.items())
            leading = row.get("shots") is None and row.get("top_k") in (None, self.top_k)
            if same and leading and row.get("chosen", True) is not False:
                return Estimate.of(row)
        return None

    def form(self, method: str, group: str) -> str:
        """The form of policy accuracy that stands for a method: `policy`, or `likelihood` where no reward guides."""
        guided = any(self.rows("policy_accuracy", method, group, "policy", length) for length in ("sum", "mean"))
        return "policy" if guided else "likelihood"

    def policy(self, method: str, group: str, length: str) -> Estimate | None:
        """The headline policy accuracy."""
        return self.get("policy_accuracy", method, group, self.form(method, group), length)

    def weights(self, method: str, group: str, form: str, length: str) -> list[tuple[float, Estimate]]:
        """Policy accuracy over w, at the leading k and all shots, by rising w."""
        rows = self.rows("policy_accuracy", method, group, form, length)
        rows = [row for row in rows if row.get("shots") is None and row.get("top_k") in (None, self.top_k)]
        return sorted(((row["weight"], Estimate.of(row)) for row in rows if row.get("weight") is not None), key=_first)

    def candidates(self, method: str, group: str, length: str) -> list[tuple[int, Estimate]]:
        """Policy accuracy over k, at the chosen weight and all shots."""
        rows = self.rows("policy_accuracy", method, group, self.form(method, group), length)
        rows = [row for row in rows if row.get("shots") is None and row.get("chosen", True) is not False]
        return sorted(((row["top_k"], Estimate.of(row)) for row in rows if row.get("top_k") is not None), key=_first)

    def shots(
        self, measure: str, method: str, form: str | None = None, length: str | None = None
    ) -> list[tuple[float, Estimate]]:
        """A measure of unseen users over the pairs they were adapted on; infinity stands for all pairs."""
        rows = self.rows(measure, method, "unseen", form, length)
        rows = [row for row in rows if row.get("chosen", True) is not False and row.get("top_k") in (None, self.top_k)]
        if not any(row.get("shots") is not None for row in rows):
            return []
        found = [(math.inf if row.get("shots") is None else row["shots"], Estimate.of(row)) for row in rows]
        return sorted(found, key=_first)

    def quality(self, group: str) -> list[str]:
        """Measures of generated texts that the run has, known ones first in their order."""
        have = {row["measure"] for row in self._rows if row["group"] == group}
        have = {name for name in have if not name.startswith(ACCURACIES)}  # nor shares of ties, `rm_accuracy_ties`
        known = [name for name in MEASURES if name in have]
        return known + sorted(have - set(known))


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def best(values: Iterable[float | None], better: str | None) -> float | None:
    """The best of the values that there are; None where no end is better."""
    known = [value for value in values if value is not None]
    if not known or better is None:
        return None
    return max(known) if better == "high" else min(known)
