"""Measurable attributes of a text: what simulated users have tastes about, and what a report can show of a style.

Each is one number that a person can check by hand. Counts are turned into rates or logarithms, so that none of them is
only the length again. Any string has finite attributes, the empty one too.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

# Written as escapes: the typographic apostrophe, the en dash, and the full-width marks of Chinese and Japanese.
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
_SENTENCE = re.compile(r"[^.!?\u3002\uff01\uff1f]+[.!?\u3002\uff01\uff1f]*")
_LIST_ITEM = re.compile(r"^[ \t]*(?:[-*•\u2013]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FIRST_PERSON = _listed("i me my mine myself we us our ours ourselves i'm i've i'd i'll we're we've we'll")
_SECOND_PERSON = _listed("you your yours yourself yourselves you're you've you'll you'd")
_HEDGES = _listed(
    "may might could perhaps maybe possibly probably likely seems seem appears somewhat often sometimes usually "
    "generally typically suggest suggests can"
)
_BOOSTERS = _listed(
    "very really always never certainly definitely absolutely clearly must completely totally extremely best every "
    "all truly undoubtedly"
)
_REASONS = _listed("because since therefore thus hence so consequently why reason reasons due")
_POLITE = _listed("please thank thanks sorry welcome appreciate kindly glad happy")

NAMES = (
    "length",
    "sentence_length",
    "word_length",
    "lexical_variety",
    "digits",
    "first_person",
    "second_person",
    "questions",
    "exclamations",
    "list_items",
    "paragraphs",
    "hedges",
    "boosters",
    "reasons",
    "politeness",
    "commas",
    "quotes",
)


def attributes(text: str) -> np.ndarray:
    """The attributes of one text, `[attributes]` float32 in the order of `NAMES`.

    length: log(1 + words). sentence_length: log(1 + words per sentence). word_length: characters per word.
    lexical_variety: different words over the square root of words (Guiraud). digits, commas, quotes: per 100 letters.
    first_person, second_person, hedges, boosters, reasons, politeness: per 100 words, from short English word lists.
    questions, exclamations: share of sentences. list_items, paragraphs: log(1 + count).
    """
    words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(text)]
    sentences = [sentence for sentence in _SENTENCE.findall(text) if _WORD.search(sentence)]
    word_count, sentence_count = max(len(words), 1), max(len(sentences), 1)
    per_character = 100 / max(len(text), 1)

    def per_100_words(listed: frozenset[str]) -> float:
        return 100 * sum(word in listed for word in words) / word_count

    def share(marks: str) -> float:
        return sum(sentence.rstrip()[-1] in marks for sentence in sentences) / sentence_count

    values = (
        np.log1p(len(words)),
        np.log1p(len(words) / sentence_count),
        sum(map(len, words)) / word_count,
        len(set(words)) / np.sqrt(word_count),
        per_character * sum(character.isdigit() for character in text),
        per_100_words(_FIRST_PERSON),
        per_100_words(_SECOND_PERSON),
        share("?\uff1f"),
        share("!\uff01"),
        np.log1p(len(_LIST_ITEM.findall(text))),
        np.log1p(len(_PARAGRAPH.findall(text.strip()))),
        per_100_words(_HEDGES),
        per_100_words(_BOOSTERS),
        per_100_words(_REASONS),
        per_100_words(_POLITE),
        per_character * text.count(","),
        per_character * sum(text.count(mark) for mark in '"“”«»'),
    )
    return np.array(values, dtype=np.float32)


def attribute_table(texts: Sequence[str]) -> np.ndarray:
    """`[texts, attributes]` float32."""
    return np.stack([attributes(text) for text in texts]) if texts else np.zeros((0, len(NAMES)), np.float32)


@dataclasses.dataclass(frozen=True)
class Standardiser:
    """Brings attributes to mean 0 and deviation 1 over a reference set of texts, and any other text to the same scale.

    Attributes:
      mean: `[attributes]` float32.
      scale: `[attributes]` float32; 1 for an attribute that does not vary.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> "Standardiser":
        """From the attributes `[texts, attributes]` of the reference texts."""
        deviation = table.std(axis=0, dtype=np.float64)
        return cls(
            table.mean(axis=0, dtype=np.float64).astype(np.float32),
            np.where(deviation > 1e-6, deviation, 1.0).astype(np.float32),
        )

    def __call__(self, table: np.ndarray) -> np.ndarray:
        """`[texts, attributes]` to the same, standardised and held within 5 deviations."""
        # One odd text (a page of digits) must not have a utility beyond all others.
        return np.clip((table - self.mean) / self.scale, -5.0, 5.0)
