import random
import subprocess
import sys

import pytest
from metrics_by_hand import MEASURES, TEXTS

from jaxalign.errors import InputError
from jaxalign.metrics.quality import CORPUS_MEASURES, TEXT_MEASURES, corpus_quality, text_quality
from jaxalign.metrics.text_overlap import corpus_overlap, overlap

SCRIPTS = {
    "chinese": "我今天去了北京。天气很好。",
    "thai": "วันนี้อากาศดีมาก ฉันไปตลาด",
    "arabic": "ذهبت اليوم إلى السوق",
    "cyrillic": "Сегодня хорошая погода",
    "hindi": "आज मौसम अच्छा है",
    "emoji": "😀 🎉👍🏽",
    "mixed": "I like 北京 and пиво 🍺",
}


@pytest.mark.parametrize("row", TEXTS, ids=[f"{row[0]} {row[1]!r}" for row in TEXTS])
def test_by_hand(row):
    _, prediction, reference, *expected = row
    found = text_quality(prediction, reference)
    assert tuple(found) == TEXT_MEASURES
    for name, value in zip(MEASURES, expected, strict=True):
        assert found[name] == (None if value is None else pytest.approx(value)), name


def test_corpus_counts_are_summed_over_the_texts_that_have_a_reference():
    predictions, references = [row[1] for row in TEXTS], [row[2] for row in TEXTS]
    found = corpus_quality([*predictions, "left out"], [*references, None])
    # Words in common: 3, 3, 0, 2, 1, 0 of 16; bigrams 2 + 1 of 11; trigrams 1 of 6; no 4-gram of 3, smoothed to
    # 1/(2*3). 16 words written for 16.
    assert found["bleu"] == pytest.approx(100 * (9 / 16 * 3 / 11 * 1 / 6 * 1 / 6) ** 0.25)
    assert corpus_overlap(["a"], [""]) == {"bleu": None, "chrf": None}
    assert tuple(found) == CORPUS_MEASURES
    with pytest.raises(InputError, match="2 predictions cannot be compared with 1 references"):
        corpus_overlap(["a", "b"], ["a"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_identical_text_is_perfect_in_any_script_and_half_of_it_is_between(script):
    text = SCRIPTS[script]
    assert overlap(text, text) == {"rouge1": 1, "rouge2": 1, "rougeL": 1, "bleu": 100, "chrf": 100}
    half = overlap(text[: len(text) // 2], text)
    assert 0.3 < half["rouge1"] < 0.9
    assert 0 < half["chrf"] < 90
    assert overlap("zzz", text)["rouge1"] == 0


def test_composed_and_decomposed_text_is_the_same():
    assert overlap("caf\u00e9 noir", "cafe\u0301 noir")["rouge2"] == 1


def test_odd_text_has_a_value():
    assert overlap("\ud800 a b", "\ud800 a b")["rouge1"] == 1
    assert overlap("!!!", "...")["rouge1"] is None
    assert overlap("a", " \n ") == overlap("a", None) == dict.fromkeys(("rouge1", "rouge2", "rougeL", "bleu", "chrf"))


def test_plain_english_is_scored_as_the_libraries_do():
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import sentence_bleu, sentence_chrf

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    draw = random.Random(0)
    pieces = ["The", "cat", "isn't", "snake_case", "3.14", "don't!", "so-called", "\n", "(end)", "a", "a"]
    for _ in range(50):
        prediction, reference = (" ".join(draw.choices(pieces, k=draw.randint(4, 12))) for _ in range(2))
        found = overlap(prediction, reference)
        for name, score in scorer.score(reference, prediction).items():
            assert found[name] == pytest.approx(score.fmeasure)
        assert found["bleu"] == pytest.approx(sentence_bleu(prediction, [reference]).score)
        assert found["chrf"] == pytest.approx(sentence_chrf(prediction, [reference]).score)


def test_importing_the_measures_imports_no_scoring_library():
    code = (
        "import sys, jaxalign.metrics.selection, jaxalign.metrics.text_overlap\n"
        "assert not {'rouge_score', 'sacrebleu', 'nltk', 'scipy', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
