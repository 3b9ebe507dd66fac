"""Overlap of a generated text with what the user wrote: ROUGE-1, ROUGE-2, ROUGE-L, BLEU and chrF.

    overlap(prediction, reference)            -> {"rouge1": float | None, ...} of one text
    corpus_overlap(predictions, references)   -> {"bleu": float | None, "chrf": float | None} of all texts together

ROUGE is the F-measure between 0 and 1, without stemming, of rouge-score over `jaxalign.metrics.words`. BLEU and chrF
are sacrebleu's, between 0 and 100: BLEU with the orders that the text has (so that identical short texts have 100) and
characters of scripts without spaces apart; chrF2 over characters.

None is not zero: a measure is None where the reference has nothing to compare with (no text, or fewer words than the
n-gram has). An empty prediction has 0.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jaxalign.errors import InputError
from jaxalign.metrics.words import spaced, words

MEASURES = ("rouge1", "rouge2", "rougeL", "bleu", "chrf")
_SHORTEST = {"rouge1": 1, "rouge2": 2, "rougeL": 1}


class _Words:
    """rouge-score's tokenizer protocol."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


@functools.lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(_SHORTEST), tokenizer=_Words())


@functools.lru_cache(maxsize=1)
def _sacrebleu() -> tuple[Any, Any]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # force: no warning about texts that look tokenized already, which generated texts may.
    return BLEU(effective_order=True, force=True), CHRF()


def overlap(prediction: str, reference: str | None) -> dict[str, float | None]:
    """The measures `MEASURES` of one text; see the module for their scales and for None."""
    result: dict[str, float | None] = dict.fromkeys(MEASURES)
    if reference is None or not reference.strip():
        return result
    length = len(words(reference))
    for name, score in _rouge().score(reference, prediction).items():
        if length >= _SHORTEST[name]:
            result[name] = float(score.fmeasure)
    bleu, chrf = _sacrebleu()
    result["bleu"] = _bounded(bleu.sentence_score(spaced(prediction), [spaced(reference)]).score)
    result["chrf"] = _bounded(chrf.sentence_score(prediction, [reference]).score)
    return result


def corpus_overlap(predictions: Sequence[str], references: Sequence[str | None]) -> dict[str, float | None]:
    """BLEU and chrF of a corpus, from summed counts; texts without a reference are left out.

    Args:
      predictions: `[texts]`.
      references: `[texts]`; None or an empty text where there is none.

    Raises:
      InputError: when the lengths differ.
    """
    if len(predictions) != len(references):
        raise InputError(f"{len(predictions)} predictions cannot be compared with {len(references)} references")
    kept = [(text, reference) for text, reference in zip(predictions, references, strict=True) if reference]
    kept = [(text, reference) for text, reference in kept if reference.strip()]
    if not kept:
        return {"bleu": None, "chrf": None}
    bleu, chrf = _sacrebleu()
    texts, truths = [text for text, _ in kept], [reference for _, reference in kept]
    return {
        "bleu": _bounded(bleu.corpus_score([*map(spaced, texts)], [[*map(spaced, truths)]]).score),
        "chrf": _bounded(chrf.corpus_score(texts, [truths]).score),
    }


def _bounded(score: float) -> float:
    # A geometric mean of exact 100s comes out as 100.00000000000004.
    return min(max(float(score), 0.0), 100.0)
