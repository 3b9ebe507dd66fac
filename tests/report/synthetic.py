"""A run folder with plausible numbers, made by hand: 8 reward models, 4 baselines, 20 users."""

import json
import re
from pathlib import Path

import numpy as np

RM = {
    "bt": 0.66,
    "per_user": 0.70,
    "user_embedding": 0.69,
    "lore": 0.71,
    "pref": 0.73,
    "pal": 0.68,
    "gpo": 0.74,
    "drm": 0.64,
}
POLICY = {
    "bt": 0.61,
    "per_user": 0.655,
    "user_embedding": 0.60,
    "lore": 0.67,
    "pref": 0.62,
    "pal": 0.585,
    "gpo": 0.61,
    "drm": 0.63,
}
BASELINES = {"plain": 0.56, "in_context_random_4": 0.60, "in_context_bm25_4": 0.615, "graded_4": 0.60}
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
QUALITY = {"rouge1": 0.24, "rougeL": 0.21, "bleu": 4.2, "chrf": 22.0, "length_ratio": 1.3, "style_distance": 0.8,
           "embedding_similarity": 0.71, "true_utility": 0.1}  # fmt: skip
USERS = [f"user_{number:02}" for number in range(20)]


def _row(measure, method, value, spread=0.03, **more):
    keys = dict.fromkeys(("shots", "form", "length", "weight", "top_k", "average"))
    row = {"measure": measure, "method": method, "group": "unseen", **keys}
    row |= {"value": value, "low": value - spread, "high": value + spread}
    return {**row, "users": 20, "count": 400, "chosen": True, "average": "macro", **more}


def metrics(methods=tuple(RM)):
    random = np.random.default_rng(0)
    rows = []
    for method in methods:
        for group, bonus in (("seen", 0.02), ("unseen", 0.0)):
            rows.append(_row("rm_accuracy", method, RM[method] + bonus, group=group))
            rows.append(_row("ece", method, 0.07, 0.01, group=group))
            for form, shift in (("policy", 0.0), ("score", 0.02), ("sequence", 0.03)):
                for length in ("sum", "mean"):
                    peak = POLICY[method] + shift + bonus + (0.02 if length == "mean" else 0)
                    for weight in WEIGHTS:
                        value = peak - 0.015 * abs(np.log2(weight)) ** 1.4
                        more = {"form": form, "length": length, "weight": weight, "top_k": 10, "group": group}
                        rows.append(_row("policy_accuracy", method, value, chosen=weight == 1.0, **more))
                    if form == "policy":
                        more = {"form": form, "length": length, "weight": 1.0, "top_k": 10, "group": group}
                        rows.append(_row("policy_accuracy", method, peak - 0.2, average="worst_tenth", **more))
        for shots in (0, 2, 4, 8, 16):
            share = 1 - np.exp(-shots / 5)
            rows.append(_row("rm_accuracy", method, 0.58 + (RM[method] - 0.58) * share, shots=shots))
            for length in ("sum", "mean"):
                more = {"form": "policy", "length": length, "weight": 1.0, "top_k": 10, "shots": shots}
                rows.append(
                    _row(
                        "policy_accuracy",
                        method,
                        0.565 + (POLICY[method] + 0.02 * (length == "mean") - 0.565) * share,
                        **more,
                    )
                )
        rows.append(_row("changed", method, 0.31, 0.02))
        rows.append(_row("own_reward", method, 1.4, 0.2))
    for method, value in BASELINES.items():
        for group in ("seen", "unseen"):
            for length in ("sum", "mean"):
                rows.append(_row("policy_accuracy", method, value, form="likelihood", length=length, group=group))
    for method in (*methods, *BASELINES):
        for measure, value in QUALITY.items():
            shown = float(value * random.normal(1.0, 0.06))
            average = "corpus" if measure in ("bleu", "chrf") else "macro"
            rows.append(_row(measure, method, shown, 0.05 * value, average=average))
    return rows


def users(methods=tuple(RM)):
    random = np.random.default_rng(1)
    rows = []
    for method, level in ({m: POLICY[m] for m in methods} | BASELINES).items():
        form = "policy" if method in RM else "likelihood"
        for user in USERS:
            for length in ("sum", "mean"):
                value = float(np.round(np.clip(random.normal(level, 0.12), 0, 1) * 20) / 20)
                keys = {"form": form, "length": length, "weight": 1.0, "top_k": 10, "group": "unseen"}
                rows.append(
                    {"measure": "policy_accuracy", "method": method, **keys, "user": user, "value": value, "count": 20}
                )
    return rows


def pairs(methods=tuple(RM), seed=2, users=tuple(USERS)):
    random = np.random.default_rng(seed)
    rows = []
    for method in methods:
        for user in users:
            for pair in range(10):
                reward, policy = (int(random.random() < level[method]) for level in (RM, POLICY))
                sides = {
                    "reward_chosen": reward,
                    "reward_rejected": 1 - reward,
                    "policy_chosen": policy,
                    "policy_rejected": 1 - policy,
                }
                rows.append({"user": user, "group": "unseen", "pair": f"p{pair}", "method": method, **sides})
    return rows


def generations(methods=tuple(RM)):
    words = re.findall(r"\w+", "The language model writes a short title about how people argue and what they prefer")
    rows = []
    for user in USERS[:4]:
        for number in range(2):
            prompt = f"Write a title for this abstract: we study preference number {number} of people who argue online."
            own = {"user": user, "group": "unseen", "prompt": prompt, "reference": "On arguing: what people prefer"}
            for kind, method in [
                ("plain", "plain"),
                ("in_context", "in_context_bm25_4"),
                *(("guided", m) for m in methods),
            ]:
                guided = kind == "guided"
                pieces = [
                    [" " + word if i else word, guided and (i + len(method)) % 4 == 0] for i, word in enumerate(words)
                ]
                text = "".join(piece for piece, _ in pieces)
                weight = {"weight": 1.0, "top_k": 10} if guided else {"weight": None, "top_k": None}
                more = {
                    "stop_reason": "end",
                    "pieces": pieces if guided else None,
                    "quality": {"rouge1": 0.25, "bleu": None},
                }
                rows.append(
                    {**own, "method": method, "kind": kind, **weight, "text": text, "demonstrations": 4, **more}
                )
    return rows


def selection(methods=tuple(RM)):
    many = len(methods) > 1
    known = (0.214, -0.29, 0.64, 0.55, 0.24, -0.4, 0.7, 0.57) if many else (None,) * 8
    names = ("tau_b", "tau_low", "tau_high", "tau_p", "spearman", "spearman_low", "spearman_high", "spearman_p")
    note = None if many else "one method: no rank correlation"
    correlation = {"x": "rm_accuracy", "n": len(methods), **dict(zip(names, known, strict=True)), "note": note}
    best = max(methods, key=POLICY.__getitem__)
    rm = max(methods, key=RM.__getitem__)
    lost = POLICY[best] - POLICY[rm]
    loss = {"picked": rm, "best": best, "value_picked": POLICY[rm], "value_best": POLICY[best], "regret": lost}
    return {
        "methods": [*methods, *BASELINES],
        "group": "unseen",
        "correlations": [
            {**correlation, "y": label} for label in ("policy_accuracy", "policy_accuracy policy mean", "rouge1")
        ],
        "regret": [
            {"criterion": "rm_accuracy", "target": "policy_accuracy", **loss, "low": 0.0, "high": 0.094},
            {"criterion": "validation policy_accuracy", "target": "policy_accuracy", **loss, "picked": best,
             "value_picked": POLICY[best], "regret": 0.0, "low": 0.0, "high": 0.031},
        ],
        "equivalence": [
            {"one": "gpo", "two": "drm", "rm_gap": 0.1, "measure": "rouge1", "margin": 0.02, "users": 20,
             "difference": 0.004, "low": -0.012, "high": 0.019, "p": 0.03, "equivalent": True},
            {"one": "pref", "two": "bt", "rm_gap": 0.07, "measure": "rouge1", "margin": 0.02, "users": 20,
             "difference": -0.011, "low": -0.033, "high": 0.012, "p": 0.24, "equivalent": False},
        ] if many else [],
        "claims": [
            {"claim": "RM accuracy agrees weakly with it", "met": True, "evidence": "tau-b is 0.21 [-0.29, 0.64]."},
            {"claim": "Guidance fails to improve the text", "met": False, "evidence": "gpo is +0.011 in rouge1."},
            {"claim": "In-context learning wins at 7B", "met": None, "evidence": "This model has 135M parameters."},
        ],
        "deploy": {"method": best, "criterion": "validation policy_accuracy", "why": f"{best} is first."},
        "rm_pick": {"method": rm, "regret": lost if many else 0.0},
    }  # fmt: skip


CONFIG = {"schema": 2, "config": {"name": "synthetic", "model": "smollm2", "top_ks": [10], "weights": list(WEIGHTS)},
          "versions": {"python": "3.11"}, "commit": "0123abc", "data": {"sha256": "ab" * 32}}  # fmt: skip
DATA = {"title": "Argument preferences", "source": "synthetic", "licence": "CC BY 4.0", "texts": 1200,
        "users": {"seen": 60, "validation": 20, "unseen": 20}, "notes": ["Made for tests."],
        "pairs": {"train": 4000, "validation": 500, "seen_test": 800, "unseen_test": 400},
        "response_tokens": {"p10": 18, "p50": 41, "p90": 90}}  # fmt: skip


def write(folder: Path, methods=tuple(RM), **files) -> Path:
    """Writes a run folder; `files` replace contents by stem (`metrics=[...]`), and None leaves a file out."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"metrics": metrics, "users": users, "pairs": pairs, "generations": generations}
    contents = {"config": CONFIG, "data": DATA, "selection": selection(methods)} | {
        n: f(methods) for n, f in lines.items()
    }
    for name, content in (contents | files).items():
        if content is None:
            continue
        if name in lines:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
