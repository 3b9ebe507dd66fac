"""Three users and seven generated texts whose measures are worked out by hand, next to each."""

# fmt: off
# user, prediction, reference, and rouge1, rouge2, rougeL, BLEU, chrF, length ratio
TEXTS = [
    # Identical.
    ("u0", "the cat sat", "the cat sat", 1.0, 1.0, 1.0, 100.0, 100.0, 1.0),
    # 3 of 4 words, 1 of 3 bigrams, a..b..d in order. BLEU: 3/4, 1/3, no trigram of 2 smoothed to 1/(2*2), no 4-gram of
    # 1 smoothed to 1/(4*1). chrF: 3/4, 1/3, 0, 0 over four orders, the same from both sides.
    ("u0", "a b c d", "a b x d", 0.75, 1 / 3, 0.75, 100 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25,
     100 * (3 / 4 + 1 / 3) / 4, 1.0),
    # Nothing was written.
    ("u0", "", "a b", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    # All words and no bigram; one word in order. BLEU has two orders: 1 and 1/(2*1). chrF: 1 and 0.
    ("u1", "b a", "a b", 1.0, 0.0, 0.5, 100 * 0.5**0.5, 50.0, 1.0),
    # Precision 1/5, recall 1: F = 1/3; the reference has no bigram. BLEU: 1/5, then 1/(2*4), 1/(4*3), 1/(8*2).
    # chrF: one order, beta = 2: 5 * 0.2 / (4 * 0.2 + 1).
    ("u1", "a a a a a", "a", 1 / 3, None, 1 / 3, 100 * (1 / 5 * 1 / 8 * 1 / 12 * 1 / 16) ** 0.25, 100 / 1.8, 5.0),
    # Nothing to compare with.
    ("u2", "c", "", None, None, None, None, None, None),
    # Nothing in common.
    ("u2", "x y", "a b c d", 0.0, 0.0, 0.0, 0.0, 0.0, 0.5),
]
# fmt: on
MEASURES = ("rouge1", "rouge2", "rougeL", "bleu", "chrf", "length_ratio")
