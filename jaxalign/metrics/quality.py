"""The measures of generated text that need no model, under the names that a run folder has.

text_quality(prediction, reference)            -> {name: float | None} of one text, names `TEXT_MEASURES`
corpus_quality(predictions, references)        -> {name: float | None} of all texts together, `CORPUS_MEASURES`
LOWER_IS_BETTER                                -> measures of which less is better; of all others, more
"""

from collections.abc import Sequence

from jaxalign.metrics import text_overlap
from jaxalign.metrics.diversity import distinct, length_ratio, repetition

TEXT_MEASURES = (*text_overlap.MEASURES, "length_ratio", "distinct1", "distinct2", "repetition")
CORPUS_MEASURES = ("bleu", "chrf", "distinct1", "distinct2")
LOWER_IS_BETTER = frozenset({"ece", "style_distance", "repetition"})


def text_quality(prediction: str, reference: str | None) -> dict[str, float | None]:
    """All of `TEXT_MEASURES` for one text; None where a measure has nothing to compare or to count."""
    return {
        **text_overlap.overlap(prediction, reference),
        "length_ratio": length_ratio(prediction, reference),
        "distinct1": distinct([prediction], 1),
        "distinct2": distinct([prediction], 2),
        "repetition": repetition(prediction),
    }


def corpus_quality(predictions: Sequence[str], references: Sequence[str | None]) -> dict[str, float | None]:
    """All of `CORPUS_MEASURES` from counts over all texts, which is not the mean over texts.

    Args:
      predictions: `[texts]`.
      references: `[texts]`; None where there is none.

    Raises:
      InputError: when the lengths differ.
    """
    return {
        **text_overlap.corpus_overlap(predictions, references),
        "distinct1": distinct(predictions, 1),
        "distinct2": distinct(predictions, 2),
    }
