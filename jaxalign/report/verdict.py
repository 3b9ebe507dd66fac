"""What the run says, in plain words: which method to deploy, and what RM accuracy would have cost."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxalign.report import numbers, tables
from jaxalign.report.numbers import Numbers, p_text

Part = str | tuple[str, str]
"""A piece of a sentence: text, or (tone, name of a method)."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The top of the report.

    Attributes:
      headline: what to deploy.
      sentences: what RM accuracy would have picked, and what that costs.
      why: the reason that the selection analysis gives, or an empty string.
    """

    headline: tuple[Part, ...]
    sentences: tuple[tuple[Part, ...], ...]
    why: str = ""

    def text(self) -> str:
        """All of it as plain text, a sentence a line."""
        parts = (self.headline, *self.sentences)
        return "\n".join("".join(p if isinstance(p, str) else p[1] for p in sentence) for sentence in parts)


def headline_regret(selection: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The regret of picking by RM accuracy: on policy accuracy where it was measured, else on the first target."""
    rows = [row for row in selection.get("regret") or [] if row["criterion"] == "rm_accuracy"]
    for target in ("policy_accuracy", "policy_accuracy policy sum", "policy_accuracy policy mean"):
        for row in rows:
            if row["target"] == target:
                return row
    return rows[0] if rows else None


def amount(label: str, value: float | None) -> str:
    """A difference in what `label` names: '6.0 points' for shares, else the number."""
    if value is None:
        return "\u2013"
    if numbers.points(label):
        return f"{numbers.signed(f'{100 * value:.1f}')} points"
    return numbers.signed(f"{value:.3g}")


def judge(selection: Mapping[str, Any], found: Numbers, others: Sequence[Mapping[str, Any]] = ()) -> Verdict:
    """The verdict of a selection analysis; without one it says what is missing.

    Args:
      selection: the analysis that the recommendation rests on; empty where there is none.
      found: all numbers.
      others: analyses of other groups of users, each of which gets a sentence.
    """
    deploy = (selection.get("deploy") or {}).get("method")
    rm = (selection.get("rm_pick") or {}).get("method")
    if deploy is None:
        return Verdict(("No recommendation.",), (_without(found),))
    criterion = tables.label_text(selection["deploy"].get("criterion") or "")
    headline: tuple[Part, ...] = ("Deploy ", ("policy", deploy), ".")
    sentences: list[tuple[Part, ...]] = []
    if criterion:
        sentences.append((f"It is first by {criterion}, the criterion that was fixed beforehand.",))
    if rm is None:
        sentences.append(("RM accuracy was not measured, so what it would have picked cannot be said.",))
        return Verdict(headline, tuple(sentences), selection["deploy"].get("why") or "")
    regret = headline_regret(selection)
    if rm == deploy:
        sentences.append(("RM accuracy would have picked it too",
                          ": there was one method only." if len(found.methods) == 1 else "."))  # fmt: skip
    else:
        sentences.append(("RM accuracy would have picked ", ("rm", rm), "."))
    if regret is not None and regret.get("regret") is not None:
        sentences.append(_cost(regret, deploy, found.group))
    sentences += [_other(other, deploy) for other in others if (other.get("deploy") or {}).get("method")]
    return Verdict(headline, tuple(sentences), selection["deploy"].get("why") or "")


def _other(selection: Mapping[str, Any], deploy: str) -> tuple[Part, ...]:
    group, own = selection.get("group") or "other", selection["deploy"]["method"]
    rm, regret = (selection.get("rm_pick") or {}).get("method"), headline_regret(selection)
    same = own == deploy
    parts: list[Part] = [
        f"For {group} users " + ("it is first as well" if same else ""),
        *([] if same else [("ink", own), " is first"]),
    ]
    if rm is not None:
        parts += ["; RM accuracy would pick ", *(["it too"] if rm == own else [("ink", rm)])]
    parts.append(". ")
    if regret is not None and regret.get("regret") is not None:
        parts += _cost(regret, own, group)
    return tuple(parts)


def _cost(regret: Mapping[str, Any], deploy: str, group: str) -> tuple[Part, ...]:
    target = regret["target"]
    name = tables.label_text(target)
    lost = amount(target, regret["regret"])
    best = regret.get("best")
    interval = ""
    low, high = regret.get("low"), regret.get("high")
    if low is not None and high is not None:
        unit = amount(target, high)
        joint = " to " if "points" in unit else "\u2013"
        interval = f" (95 % interval over users {amount(target, low).removesuffix(' points')}{joint}{unit})"
    if not regret["regret"]:
        return (
            f"Picking by RM accuracy loses nothing in {name} on the {group} users{interval}: it found the best method.",
        )
    parts: list[Part] = ["Picking by RM accuracy loses ", ("bold", lost), f" of {name} on the {group} users{interval} "
                         "against the best method"]  # fmt: skip
    if best is not None and best != deploy:
        parts += [", which turned out to be ", ("ink", best)]
    parts.append(".")
    if low is not None:
        parts.append(
            " The interval reaches down to nothing lost: with other users of this kind the loss could be chance."
            if low <= 0
            else " The interval excludes 0: the loss is not chance."
        )
    return tuple(parts)


def _without(found: Numbers) -> tuple[Part, ...]:
    ranked = [
        (estimate.value, method)
        for method in found.methods
        if (estimate := found.policy(method, found.group, found.length)) is not None
    ]
    text = "This run has no selection analysis (selection.json)"
    if not ranked:
        return (f"{text} and no policy accuracy.",)
    value, method = max(ranked)
    return (
        f"{text}. The highest policy accuracy on {found.group} users is that of ",
        ("ink", method),
        f" ({100 * value:.1f} %), which is a look at the test users and no choice made beforehand.",
    )


def agreement(selection: Mapping[str, Any]) -> str:
    """Kendall's tau-b between RM accuracy and policy accuracy, as a sentence; empty where there is none."""
    rows = selection.get("correlations") or []
    rows = [row for row in rows if row["y"].startswith("policy_accuracy")] or rows
    sentences = []
    for row in rows[:2]:
        label = tables.label_text(row["y"])
        if row.get("tau_b") is None:
            note = row.get("note") or "too few methods, or constant accuracies"
            sentences.append(f"Kendall\u2019s tau-b between RM accuracy and {label} is undefined: {note}.")
            continue
        between = numbers.Measure("", digits=2).interval(row.get("tau_low"), row.get("tau_high"))
        between = f"95 % interval {between}, " if between else ""
        tau = numbers.signed(f"{row['tau_b']:.2f}")
        sentences.append(
            f"Kendall\u2019s tau-b between RM accuracy and {label} is {tau} ({between}p = {p_text(row.get('tau_p'))}) "
            f"over {row.get('n', '?')} methods."
        )
    return " ".join(sentences)


def scoreboard(selection: Mapping[str, Any], found: Numbers) -> tables.Table:
    """The method to deploy, the one that RM accuracy picks, and the plain language model, side by side."""
    roles = {}
    for role, method in (
        ("to deploy", (selection.get("deploy") or {}).get("method")),
        ("RM accuracy picks", (selection.get("rm_pick") or {}).get("method")),
        ("without guidance", next((m for m in ("plain", "reference") if m in found.methods), None)),
    ):
        if method is not None:
            roles.setdefault(method, role)
    group = found.group
    columns = [
        tables.Column("role", ""),
        tables.Column("method", "Method"),
        tables.Column("rm", "RM accuracy (%)", numbers.measure("rm_accuracy")),
        tables.Column("sum", "sum", numbers.measure("policy_accuracy"), "Policy accuracy (%)"),
        tables.Column("mean", "mean", numbers.measure("policy_accuracy"), "Policy accuracy (%)"),
        tables.Column("rouge1", "ROUGE-1 (%)", numbers.measure("rouge1")),
    ]
    rows = [
        {
            "role": role,
            "method": method,
            "rm": found.get("rm_accuracy", method, group),
            "sum": found.policy(method, group, "sum"),
            "mean": found.policy(method, group, "mean"),
            "rouge1": found.get("rouge1", method, group),
        }
        for method, role in roles.items()
    ]
    columns = [c for c in columns if c.key in ("role", "method") or any(row[c.key] is not None for row in rows)]
    return tables.Table("picks", "", columns, rows)
