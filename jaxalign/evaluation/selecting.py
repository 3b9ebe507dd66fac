"""Which reward model to deploy, and how far RM accuracy would have misled: tables of the run to `selection.json`."""

from collections.abc import Sequence
from typing import Any

from jaxalign.evaluation.accuracies import PLAIN, POLICY, RM
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.table import Table
from jaxalign.metrics.selection import Setting, analyse

# Measures of text that may stand for quality, the most telling first: the truth where it is known, then agreement with
# what the user wrote.
_TEXT_MEASURES = ("true_utility", "rouge1")
_MORE_TARGETS = ("rougeL", "chrf", "embedding_similarity", "style_distance")
# A tenth of the deviation of utilities over responses.
_UTILITY_MARGIN = 0.1


def select(
    table: Table, experiment: Experiment, group: str, in_context: Sequence[str], parameters: float
) -> dict[str, Any] | None:
    """The analysis for one group of users, or None where no reward model has a number there.

    Args:
      table: all numbers of the run.
      experiment: whose reward models are the candidates; the reference is a control and none of them.
      group: `seen` or `unseen`.
      in_context: the baselines without a reward model.
      parameters: number of parameters of the language model.
    """
    candidates = [name for name in experiment.methods if name != "reference"]
    methods = [PLAIN, *in_context, *candidates]
    users = sorted({user for (_, _, of), own in table.values.items() if of in (group, "validation") for user in own})

    def known(label: str, among: Sequence[str]) -> bool:
        place = "validation" if label.startswith("validation ") else group
        return any((label, name, place) in table.values for name in among)

    if not candidates or not known(RM, candidates) or not known(POLICY, candidates):
        return None
    forms = sorted({label for label, _, _ in table.values if label.startswith(f"{POLICY} ")})
    texts = [name for name in _TEXT_MEASURES if known(name, candidates)]
    more = (*_MORE_TARGETS, *experiment.measures)
    targets = [POLICY, *forms, *texts, *(name for name in more if known(name, candidates))]
    text_measure = texts[0] if texts else None
    criteria = [RM, f"validation {RM}", f"validation {POLICY}"]
    if text_measure is not None:
        criteria.append(f"validation {text_measure}")
    criteria = [label for label in criteria if known(label, candidates)]
    labels = dict.fromkeys([RM, *targets, *criteria])
    tables = {
        label: table.table(label, methods, "validation" if label.startswith("validation ") else group, users)
        for label in labels
    }
    margins = {name: _UTILITY_MARGIN if name == "true_utility" else experiment.margin for name in texts}
    setting = Setting(
        candidates=candidates,
        targets=targets,
        headline=POLICY,
        criteria=criteria,
        deploy_by=f"validation {POLICY}",
        text_measure=text_measure,
        margins=margins,
        headline_margin=experiment.margin,
        in_context=[name for name in in_context if known(text_measure or POLICY, [name])],
        parameters=parameters,
    )
    return analyse(tables, methods, setting, group=group, seed=experiment.seed)
