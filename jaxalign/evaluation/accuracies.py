"""RM accuracy and policy accuracy of every reward model, and the weight that validation chooses for each of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxalign.data.simulated import SimulatedUsers
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.forms import FORMS, LENGTHS, JudgedPairs, Length, likelihood, scores
from jaxalign.evaluation.judging import Entry, Judgements
from jaxalign.evaluation.models import PARTS, Blocks, reward_counts, shot_counts
from jaxalign.evaluation.table import Table
from jaxalign.metrics.accuracy import PairCounts, count, macro
from jaxalign.metrics.calibration import expected_calibration_error
from jaxalign.rewards.features import TextFeatures
from jaxalign.rewards.protocol import RewardModel
from jaxalign.rewards.scoring import pair_rewards

RM = "rm_accuracy"
POLICY = "policy_accuracy"
PLAIN = "plain"


def label_of(measure: str, group: str) -> str:
    """The name of a measure in the selection analysis; that of validation users is a criterion of its own."""
    return f"validation {measure}" if group == "validation" else measure


def add_rm_accuracy(table: Table, models: Mapping[str, RewardModel], blocks: Blocks) -> None:
    """RM accuracy of all parts, n-shot curves of unseen users, and calibration."""
    for name, model in models.items():
        for group in PARTS:
            pairs = blocks.tests[group]
            if pairs.users:
                table.accuracy(RM, name, group, pairs.users, reward_counts(model, pairs), label=label_of(RM, group))
        for group in ("seen", "unseen"):
            pairs = blocks.tests[group]
            if pairs.mask.any():
                rewards = pair_rewards(model, pairs)
                # In the units of the loss: rewards are divided by the deviation of the margin.
                margin = (rewards.chosen - rewards.rejected) * float(model.shared["margin_deviation"])
                error = expected_calibration_error(margin[pairs.mask], pairs.label[pairs.mask])
                table.value("ece", name, group, error, int(pairs.mask.sum()), "micro")
        for size, (users, counts) in shot_counts(model, blocks).items():
            table.accuracy(RM, name, "unseen", users, counts, shots=size)


def add_controls(
    table: Table, blocks: Blocks, features: TextFeatures, simulated: SimulatedUsers | None, texts: Sequence[str]
) -> None:
    """What no reward model is needed for: the longer text wins; with simulated users, the true taste."""
    for group in PARTS:
        pairs = blocks.tests[group]
        if not pairs.users:
            continue
        length = features.tokens.astype(np.float64)
        longer = count(length[pairs.chosen], length[pairs.rejected], pairs.mask, pairs.label)
        table.accuracy(RM, "longer", group, pairs.users, longer)
        if simulated is not None:
            utility = simulated.utility(texts)
            rows = [simulated.names.index(user) for user in pairs.users]
            one, two = (np.take_along_axis(utility[rows], side, axis=1) for side in (pairs.chosen, pairs.rejected))
            table.accuracy(RM, "oracle", group, pairs.users, count(one, two, pairs.mask, pairs.label))


@dataclasses.dataclass(frozen=True)
class Choice:
    """The weight that validation chose, by form and length."""

    weight: Mapping[tuple[str, str], float]

    def of(self, experiment: Experiment) -> float:
        """In the headline's form and length."""
        return self.weight[experiment.form, experiment.length]


def add_policy_accuracy(
    table: Table, judged: Judgements, blocks: Blocks, methods: Sequence[str], experiment: Experiment
) -> dict[str, Choice]:
    """Policy accuracy in all forms, for all weights and all k; the weight of each method is chosen on validation."""
    places = {entry: number for number, entry in enumerate(judged.entries)}
    pairs = {group: JudgedPairs.of(block, places) for group, block in blocks.tests.items() if block.users}
    for group, part in pairs.items():
        for length in LENGTHS:
            counts = part.counts(likelihood(judged, length))
            table.accuracy(
                POLICY,
                PLAIN,
                group,
                part.users,
                counts,
                label=_label(experiment, experiment.form, length, group),
                form="likelihood",
                length=length,
                chosen=True,
            )
    choices = {}
    for name in methods:
        chosen = {}
        for form in FORMS:
            for length in LENGTHS:
                values = scores(judged, name, form, length)
                counts = {group: part.counts(values) for group, part in pairs.items()}
                tried = [macro(_at(counts["validation"], w, 0)) for w in range(len(judged.weights))]
                # Among equals the smallest weight: it changes the language model least.
                best = max(range(len(tried)), key=lambda w: (tried[w] or 0.0, -judged.weights[w]))
                chosen[form, length] = judged.weights[best]
                for group, part in pairs.items():
                    _add_sweep(table, name, group, part, counts[group], judged, form, length, best, experiment)
        choices[name] = Choice(chosen)
    return choices


def _label(experiment: Experiment, form: str, length: Length, group: str) -> str:
    """The headline's form has the plain name."""
    if (form, length) == (experiment.form, experiment.length):
        return label_of(POLICY, group)
    return label_of(f"{POLICY} {form} {length}", group)


def _at(counts: PairCounts, weight: int, top_k: int) -> PairCounts:
    return PairCounts(
        correct=counts.correct[:, weight, top_k],
        pairs=counts.pairs[:, weight, top_k],
        ties=counts.ties[:, weight, top_k],
    )


def _add_sweep(
    table: Table,
    method: str,
    group: str,
    part: JudgedPairs,
    counts: PairCounts,
    judged: Judgements,
    form: Any,
    length: Length,
    best: int,
    experiment: Experiment,
) -> None:
    for w, weight in enumerate(judged.weights):
        for k, top_k in enumerate(judged.top_ks):
            if k and form != "policy":
                continue  # the other forms do not know candidates
            table.accuracy(
                POLICY,
                method,
                group,
                part.users,
                _at(counts, w, k),
                label=_label(experiment, form, length, group) if (w, k) == (best, 0) else None,
                chosen=(w, k) == (best, 0),
                form=form,
                length=length,
                weight=weight,
                top_k=top_k if form == "policy" else None,
            )


def pair_rows(
    judged: Judgements, blocks: Blocks, choices: Mapping[str, Choice], experiment: Experiment
) -> list[dict[str, Any]]:
    """Rows of `pairs.jsonl`: every test pair under every method, with the scores at the headline's weight."""
    places = {entry: number for number, entry in enumerate(judged.entries)}
    rows = []
    for name, choice in choices.items():
        weight = choice.of(experiment)
        w = judged.weights.index(weight)
        per_form = {form: scores(judged, name, form, experiment.length)[:, w, 0] for form in FORMS}
        for group in ("seen", "unseen"):
            block = blocks.tests[group]
            for number, (user, place) in enumerate(zip(*np.nonzero(block.mask), strict=True)):
                one, two = (
                    places[Entry(int(side[user, place]), block.users[user])] for side in (block.chosen, block.rejected)
                )
                row = {
                    "user": block.users[user],
                    "group": group,
                    "pair": number,
                    "method": name,
                    "label": float(block.label[user, place]),
                    "text_chosen": judged.entries[one].text,
                    "text_rejected": judged.entries[two].text,
                    "reward_chosen": float(judged.reward[name][one]),
                    "reward_rejected": float(judged.reward[name][two]),
                    "log_prob_chosen": float(judged.log_prob[one]),
                    "log_prob_rejected": float(judged.log_prob[two]),
                    "weight": weight,
                    "length": experiment.length,
                }
                for form, values in per_form.items():
                    row |= {f"{form}_chosen": float(values[one]), f"{form}_rejected": float(values[two])}
                rows.append(row)
    return rows


def add_in_context(table: Table, rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> None:
    """Policy accuracy of in-context learning, from its scored pairs."""
    keys = sorted({(row["method"], row["group"]) for row in rows})
    for method, group in keys:
        own = [row for row in rows if (row["method"], row["group"]) == (method, group)]
        users = sorted({row["user"] for row in own})
        place = {user: number for number, user in enumerate(users)}
        for length in LENGTHS:
            value = {
                side: np.asarray(
                    [r[f"log_prob_{side}"] / (r[f"tokens_{side}"] if length == "mean" else 1) for r in own]
                )
                for side in ("chosen", "rejected")
            }
            part = JudgedPairs(
                users=tuple(users),
                user=np.asarray([place[row["user"]] for row in own]),
                chosen=np.arange(len(own)),
                rejected=np.arange(len(own)) + len(own),
                label=np.asarray([row["label"] for row in own]),
            )
            counts = part.counts(np.concatenate([value["chosen"], value["rejected"]]))
            table.accuracy(
                POLICY,
                method,
                group,
                users,
                counts,
                label=_label(experiment, experiment.form, length, group),
                form="likelihood",
                length=length,
            )
