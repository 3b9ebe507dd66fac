"""Pairs whose truth is known, which of two letters a user likes, and the sizes of a language model to tune on them."""

import numpy as np

from jaxalign.data.schema import Preference
from jaxalign.models.config import DecoderConfig

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=258,
    hidden_size=24,
    intermediate_size=32,
    num_layers=2,
    num_heads=3,
    num_kv_heads=1,
    head_dim=8,
    max_position=64,
    tie_embeddings=True,
)


def planted(likes: dict[str, str], pairs: int, seed: int = 0) -> list[Preference]:
    """For each user, pairs of six-letter texts of which one holds their letter and the other their dislike.

    `likes` maps a user to a liked and a disliked letter, for instance "xq".
    """
    draw = np.random.default_rng(seed)
    rows = []
    for user, (good, bad) in likes.items():
        for number in range(pairs):
            letters = ["".join(draw.choice(list("abcdefg"), 5)) for _ in range(2)]
            place = draw.integers(0, 6, 2)
            texts = [text[:p] + letter + text[p:] for text, p, letter in zip(letters, place, (good, bad), strict=True)]
            rows.append(Preference(user=user, prompt=f"p{number % 3}", chosen=texts[0], rejected=texts[1]))
    return rows
