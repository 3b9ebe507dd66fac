"""How varied generated text is, and how long: measures that need no model.

    distinct(texts, n)                   -> share of n-grams that are different (Li et al. 2016, arXiv 1510.03055)
    repetition(text, n=4)                -> share of a text's n-grams that it has already said (Welleck et al. 2020,
                                            arXiv 1908.04319, there seq-rep-4)
    length_ratio(prediction, reference)  -> words of one over words of the other

All are None where there is nothing to count.
"""

from collections.abc import Iterable

from jaxalign.metrics.words import words


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    found = words(text)
    return [tuple(found[start : start + n]) for start in range(len(found) - n + 1)]


def distinct(texts: Iterable[str], n: int) -> float | None:
    """Different n-grams over all n-grams of the texts, between 0 and 1; n-grams do not run across texts.

    It falls as there is more text: compare only equal numbers of texts of about equal length.
    """
    ngrams = [ngram for text in texts for ngram in _ngrams(text, n)]
    return len(set(ngrams)) / len(ngrams) if ngrams else None


def repetition(text: str, n: int = 4) -> float | None:
    """Share of the text's n-grams that occur earlier in it, between 0 and 1; a loop comes close to 1."""
    share = distinct([text], n)
    return None if share is None else 1.0 - share


def length_ratio(prediction: str, reference: str | None) -> float | None:
    """Words of the prediction per word of the reference: 1 is as long, 0 is empty; None without a reference."""
    length = len(words(reference or ""))
    return len(words(prediction)) / length if length else None
