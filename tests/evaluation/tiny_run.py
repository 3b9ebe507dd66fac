"""A whole run in seconds: a tiny language model with a chat template, preferences for the longer text."""

import dataclasses
import json

import numpy as np
import tiny

from jaxalign.evaluation.experiment import Experiment


def save_model(folder):
    """A folder with a tiny model."""
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320, max_position=512)
    tiny.save(folder, config, tiny.tensors(config))
    tiny.save_tokenizer(folder)
    settings = folder / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    return folder


def rows(users=8, pairs=16):
    words = ["the", "sea", "is", "deep", "and", "wide", "while", "hills", "are", "green", "far", "away", "from", "here"]
    rng = np.random.default_rng(0)
    text = [" ".join(rng.choice(words, size=int(n))) + f" {i}" for i, n in enumerate(rng.integers(2, 6, 30))]
    made = []
    for user in range(users):
        for pair in range(pairs):
            a, b = rng.choice(30, size=2, replace=False)
            a, b = (a, b) if len(text[a]) > len(text[b]) else (b, a)
            made.append({"user": f"u{user}", "prompt": f"Say {pair}.", "chosen": text[a], "rejected": text[b]})
    return made


def write(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


SETTINGS = {
    "min_pairs": 5,
    "test": 0.3,
    "validation": 0.2,
    "response_tokens": 4,
    "batch_size": 8,
    "methods": ("reference", "bt", "per_user"),
    "weights": (0.5, 2.0),
    "shots": (1, 2),
    "writing_users": 2,
    "prompts_per_user": 1,
    "in_context": ("in_context_bm25_2", "graded_random_1"),
    "in_context_pairs": 1,
    "in_context_budget": 160,
}


def settings(place, **changes):
    place.mkdir(exist_ok=True, parents=True)
    data = write(place / "pairs.jsonl", rows())
    return Experiment(**({"data": data, "out": place / "out", **SETTINGS} | changes))


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


RESULTS = ("metrics.jsonl", "users.jsonl", "pairs.jsonl", "generations.jsonl", "selection.json")
