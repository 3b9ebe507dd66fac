"""The selection analysis: from per-user tables to what `selection.json` holds.

    analyse(tables, methods, setting, group=...)  -> dict that `json.dumps(..., allow_nan=False)` takes

`tables` maps the label of a measure to an array `[methods, users]`: the value of every method for every user, NaN
where a user has no data or a method does not have the measure. All tables share the methods and the users axis;
measures of other users (validation) use other columns of it. `Setting` says which rows and which labels play which
part. Measures of which less is better (`jaxalign.metrics.quality.LOWER_IS_BETTER`) are turned before ranks and
regret are computed and turned back for display.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxalign.errors import InputError
from jaxalign.metrics import claims
from jaxalign.metrics.bootstrap import RESAMPLES, Difference, in_canonical_order, paired_difference
from jaxalign.metrics.equivalence import equivalence
from jaxalign.metrics.measures import lower_is_better
from jaxalign.metrics.quality import LOWER_IS_BETTER
from jaxalign.metrics.rank_correlation import RankCorrelation, rank_correlation
from jaxalign.metrics.regret import Regret, highest, selection_regret


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Which rows and labels play which part, and the margins; fixed before looking at the data.

    Attributes:
      candidates: rows to choose among, the personal reward models; no control rows, which would change tau.
      targets: labels of the deployment measures that RM accuracy is compared with.
      headline: the label among the targets that regret and the claims about accuracy refer to.
      criteria: labels that a choice could be made by (RM accuracy, validation policy accuracy, validation ROUGE).
      deploy_by: the label among the criteria that makes the recommendation; not a target, or it chooses on test data.
      text_measure: label of the measure of text that the claims about generation refer to (ROUGE-1); None without
        generation.
      margins: for the labels of text measures, the difference that counts as none; equivalence is tested for these.
      headline_margin: the same for the headline.
      rm: label of RM accuracy.
      plain: row of the LM alone.
      in_context: rows of in-context learning without a reward model.
      smallest_gap: equivalence is tested between candidates whose RM accuracies differ by at least this.
      widest_pairs: at most so many pairs, those with the widest gap.
      parameters: number of parameters of the LM, for claims about size.
    """

    candidates: Sequence[str]
    targets: Sequence[str]
    headline: str
    criteria: Sequence[str]
    deploy_by: str
    text_measure: str | None = None
    margins: Mapping[str, float] = dataclasses.field(default_factory=dict)
    headline_margin: float = 0.02
    rm: str = "rm_accuracy"
    plain: str = "plain"
    in_context: Sequence[str] = ()
    smallest_gap: float = 0.05
    widest_pairs: int = 5
    parameters: float | None = None


def _sign(label: str) -> float:
    return -1.0 if (LOWER_IS_BETTER | lower_is_better()).intersection(label.split()) else 1.0


@dataclasses.dataclass(frozen=True)
class _Analysis:
    tables: Mapping[str, np.ndarray]
    methods: Sequence[str]
    setting: Setting
    resamples: int
    seed: int

    def rows(self, label: str, methods: Sequence[str]) -> np.ndarray:
        """`[methods, users]` of the named methods, turned so that more is better."""
        return _sign(label) * self.tables[label][[self.methods.index(method) for method in methods]]

    def best(self, label: str, methods: Sequence[str]) -> str | None:
        """The named method with the highest mean."""
        known = [method for method in methods if not np.isnan(self.rows(label, [method])).all()]
        return known[int(highest(np.nanmean(self.rows(label, known), axis=1)))] if known else None

    def correlation(self, label: str) -> RankCorrelation:
        of = self.setting.candidates
        return rank_correlation(
            self.rows(self.setting.rm, of), self.rows(label, of), resamples=self.resamples, seed=self.seed
        )

    def regret(self, criterion: str, target: str) -> Regret | None:
        of = self.setting.candidates
        return selection_regret(
            self.rows(criterion, of), self.rows(target, of), of, resamples=self.resamples, seed=self.seed
        )

    def difference(self, label: str, one: str, two: str) -> Difference:
        first, second = self.rows(label, [one, two])
        return paired_difference(first, second, resamples=self.resamples, seed=self.seed)

    def decouplings(self, label: str) -> list[claims.Decoupling]:
        """Pairs of candidates from the widest gap in RM accuracy down, the more accurate one first."""
        pairs = []
        for one, two in itertools.permutations(self.setting.candidates, 2):
            gap = _mean(self.rows(self.setting.rm, [one])) - _mean(self.rows(self.setting.rm, [two]))
            known = all(not np.isnan(self.rows(label, [method])).all() for method in (one, two))
            if gap > 0 and known:
                pairs.append((gap, one, two))
        pairs.sort(key=lambda pair: -pair[0])
        found = []
        for gap, one, two in pairs[: self.setting.widest_pairs]:
            first, second = self.tables[label][[self.methods.index(one), self.methods.index(two)]]
            test = equivalence(first, second, self.setting.margins[label])
            found.append(claims.Decoupling(one, two, gap, label, test))
        return found


def _mean(values: np.ndarray) -> float:
    return math.nan if np.isnan(values).all() else float(np.nanmean(values))


def _check(tables: Mapping[str, np.ndarray], methods: Sequence[str], setting: Setting) -> None:
    for label in filter(None, (setting.headline, setting.text_measure)):
        if _sign(label) < 0:
            raise InputError(
                f"{label} counts as better when less; the headline and the text measure must be the reverse"
            )
    labels = {setting.rm, setting.headline, setting.deploy_by, *setting.targets, *setting.criteria, *setting.margins}
    if setting.text_measure is not None:
        labels.add(setting.text_measure)
        if setting.text_measure not in setting.margins:
            raise InputError(f"margins has no margin for the text measure {setting.text_measure!r}; add one")
    if missing := sorted(labels - set(tables)):
        raise InputError(f"there is no table for {', '.join(missing)}; there are tables for {', '.join(tables)}")
    if missing := sorted(set(setting.candidates) - set(methods)):
        raise InputError(f"candidates {', '.join(missing)} are not among the methods {', '.join(methods)}")
    if len(set(methods)) != len(methods):
        raise InputError("a method is listed twice; every row needs its own name")
    shapes = {label: table.shape for label, table in tables.items()}
    expected = (len(methods), next(iter(shapes.values()))[-1])
    for label, shape in shapes.items():
        if shape != expected:
            raise InputError(f"the table of {label} has the shape {shape}, the first one {expected}: [methods, users]")


def analyse(
    tables: Mapping[str, np.ndarray],
    methods: Sequence[str],
    setting: Setting,
    *,
    group: str,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Correlations, regret, equivalence, claims and the recommendation for one group of users.

    Args:
      tables: label to `[methods, users]`, NaN where there is no data.
      methods: `[methods]` names of the rows.
      setting: which rows and labels play which part.
      group: the group of users, as it is to be shown.
      resamples: bootstrap resamples of users.
      seed: of resamples and permutations.

    Returns:
      The keys `methods`, `group`, `correlations`, `regret`, `equivalence`, `claims`, `deploy` and `rm_pick`. Only
      strings, numbers, booleans and None: no NaN.

    Raises:
      InputError: when a label or a method is missing or shapes differ.
    """
    tables = {label: np.asarray(table, np.float64) for label, table in tables.items()}
    _check(tables, methods, setting)
    ordered = in_canonical_order(np.concatenate(list(tables.values())))
    tables = dict(zip(tables, np.split(ordered, len(tables)), strict=True))
    run = _Analysis(tables, list(methods), setting, resamples, seed)
    correlations = {label: run.correlation(label) for label in setting.targets}
    pairs = [(by, target) for by in setting.criteria for target in setting.targets if by != target]
    regrets = {pair: run.regret(*pair) for pair in pairs}
    decouplings = {label: run.decouplings(label) for label in setting.margins}
    rm_pick = run.best(setting.rm, setting.candidates)
    rm_regret = run.regret(setting.rm, setting.headline)
    return {
        "methods": list(methods),
        "group": group,
        "correlations": [_correlation_row(setting.rm, label, found) for label, found in correlations.items()],
        "regret": [_regret_row(by, target, found) for (by, target), found in regrets.items() if found is not None],
        "equivalence": [
            {
                "one": pair.one,
                "two": pair.two,
                "rm_gap": pair.rm_gap,
                "measure": pair.measure,
                **dataclasses.asdict(pair.test),
            }
            for found in decouplings.values()
            for pair in found
            if pair.rm_gap >= setting.smallest_gap
        ],
        "claims": [claim._asdict() for claim in _claims(run, decouplings, rm_pick, rm_regret)],
        "deploy": _deploy(run, rm_pick, rm_regret),
        "rm_pick": {"method": rm_pick, "regret": None if rm_regret is None else rm_regret.regret},
    }


def _correlation_row(rm: str, label: str, found: RankCorrelation) -> dict[str, Any]:
    row = {"x": rm, "y": label, **dataclasses.asdict(found)}
    if _sign(label) < 0:
        row["note"] = "; ".join(filter(None, [found.note, f"less {label} counts as better"]))
    return row


def _regret_row(criterion: str, target: str, found: Regret) -> dict[str, Any]:
    row = dataclasses.asdict(found)
    for name in ("value_picked", "value_best"):
        row[name] = _sign(target) * row[name]
    return {"criterion": criterion, "target": target, **row}


def _claims(
    run: _Analysis,
    decouplings: Mapping[str, list[claims.Decoupling]],
    rm_pick: str | None,
    rm_regret: Regret | None,
) -> list[claims.Claim]:
    setting, measure = run.setting, run.setting.text_measure
    found = [
        claims.weak_agreement(run.correlation(setting.headline), setting.headline),
        claims.accuracy_misleads(rm_regret, setting.headline, setting.headline_margin),
    ]
    if measure is None:
        return found
    found.append(claims.decoupled(decouplings[measure]))
    if rm_pick is not None and setting.plain in run.methods:
        gain = run.difference(measure, rm_pick, setting.plain)
        found.append(claims.guidance_fails(gain, rm_pick, setting.plain, measure, setting.margins[measure]))
    guided, in_context = run.best(measure, setting.candidates), run.best(measure, setting.in_context)
    if guided is not None and in_context is not None:
        advantage = run.difference(measure, in_context, guided)
        found.append(claims.in_context_wins(advantage, in_context, guided, measure, setting.parameters))
        found.append(claims.in_context_gain(advantage, in_context, guided, measure, setting.parameters))
    return found


def _deploy(run: _Analysis, rm_pick: str | None, rm_regret: Regret | None) -> dict[str, str | None]:
    """The recommendation, with what speaks for it and what against it."""
    setting = run.setting
    picked = run.best(setting.deploy_by, setting.candidates)
    if picked is None:
        why = f"No candidate has {setting.deploy_by}."
        return {"method": None, "criterion": setting.deploy_by, "why": why}
    value = _sign(setting.deploy_by) * _mean(run.rows(setting.deploy_by, [picked]))
    sentences = [f"{picked} is first in {setting.deploy_by} ({value:.3f})."]
    if rm_pick == picked:
        sentences.append("RM accuracy would have picked it too.")
    elif rm_pick is not None:
        ahead = run.difference(setting.headline, picked, rm_pick)
        sentences.append(f"RM accuracy would have picked {rm_pick}; {_compared(ahead, picked, setting.headline)}")
    if rm_regret is not None and rm_pick != rm_regret.best:
        sentences.append(f"The best in {setting.headline} turned out to be {rm_regret.best}.")
    for label in filter(None, (setting.headline, setting.text_measure)):
        other = run.best(label, [row for row in (setting.plain, *setting.in_context) if row in run.methods])
        if other is not None:
            ahead = run.difference(label, picked, other)
            sentences.append(f"Against {other}, without a reward model, {_compared(ahead, picked, label)}")
    return {"method": picked, "criterion": setting.deploy_by, "why": " ".join(sentences)}


def _compared(ahead: Difference, method: str, label: str) -> str:
    if ahead.value is None:
        return f"no user has {label} of both."
    plain = ahead.low is not None and ahead.high is not None and (ahead.low > 0 or ahead.high < 0)
    verdict = "" if plain else ", which could be chance"
    return f"{method} is {ahead.value:+.3f} {claims.bracket(ahead.low, ahead.high)} in {label}{verdict}."
