"""Fits every cached-feature reward model on the UKP arguments: accuracy, n-shot curves, time, a PyTorch comparison.

    python -m benchmarks.fit --data ../shared/data/ukp_convarg --features ukp_features.npz --out results/fit.json

Users with at least 50 strict votes; argument pairs are divided by a hash, 70 / 10 / 20 % for training, validation and
test, so that no pair of arguments is on two sides. `--features` holds `features_last` or `features_mean` `[808,
width]`, `ids` `[808]` and, where known, `prompts` `[808, width]`: hidden states of the frozen LM for every argument.
"""

import argparse
import collections
import csv
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign import rewards
from jaxalign.data.blocks import PairBlocks
from jaxalign.files import write_json
from jaxalign.metrics.accuracy import count, macro, micro, per_user, worst_tenth
from jaxalign.rewards.pairs import statistics, to_device
from jaxalign.rewards.scoring import evaluate, pair_rewards

TIMED = ("bt", "per_user", "lore", "pref", "pal", "vpl", "mrm", "drm")
"""The methods whose total time is the benchmark."""
SHOTS = (0, 1, 2, 5, 10, 20, 50)
FIELDS = ("chosen", "rejected", "mask", "label", "margin")


def fraction(*parts: Any) -> float:
    """A number in [0, 1) that depends on its arguments only."""
    return int(hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:8], 16) / 2**32


def load(folder: Path, features: Path, pooling: str, seed: int) -> dict[str, PairBlocks]:
    """Blocks of the same users for "train", "validation" and "test"; a user's pairs are in a random order."""
    arrays = np.load(features)
    row = {int(identity): place for place, identity in enumerate(arrays["ids"])}
    with (folder / "votes.csv").open(newline="") as file:
        votes = [vote for vote in csv.DictReader(file) if vote["vote"] in ("1", "2")]
    strict = collections.Counter(vote["user"] for vote in votes)
    users = tuple(sorted(user for user in strict if strict[user] >= 50))
    parts: dict[str, dict[str, list]] = {part: {user: [] for user in users} for part in ("train", "validation", "test")}
    for vote in votes:
        if vote["user"] in users:
            first, second = int(vote["argument_1"]), int(vote["argument_2"])
            at = fraction(seed, min(first, second), max(first, second))
            part = "test" if at < 0.2 else "validation" if at < 0.3 else "train"
            pair = (row[first], row[second]) if vote["vote"] == "1" else (row[second], row[first])
            parts[part][vote["user"]].append((fraction(seed, vote["user"], first, second), *pair))

    def blocks(own: dict[str, list]) -> PairBlocks:
        shape = (len(users), max(map(len, own.values())))
        chosen, rejected, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
        for number, user in enumerate(users):
            for place, (_, better, worse) in enumerate(sorted(own[user])):
                chosen[number, place], rejected[number, place], mask[number, place] = better, worse, True
        return PairBlocks(
            features=arrays[f"features_{pooling}"],
            prompts=arrays.get("prompts"),
            chosen=chosen,
            rejected=rejected,
            mask=mask,
            label=np.ones(shape, np.float32),
            margin=np.zeros(shape, np.float32),
            users=users,
        )

    return {part: blocks(own) for part, own in parts.items()}


def some(blocks: PairBlocks, rows: list[int], shots: int | None = None) -> PairBlocks:
    """Some users, with their first `shots` pairs (all where None)."""
    picked = {field: getattr(blocks, field)[rows] for field in FIELDS}
    if shots is not None:
        picked["mask"] = picked["mask"] & (np.arange(picked["mask"].shape[1])[None, :] < shots)
    return dataclasses.replace(blocks, **picked, users=tuple(blocks.users[row] for row in rows))


def longer_wins(folder: Path, test: PairBlocks, ids: np.ndarray) -> dict[str, Any]:
    """Accuracy of preferring the longer argument, in characters: the control that no method should lose to."""
    lines = (folder / "arguments.jsonl").read_text(encoding="utf-8").splitlines()
    size = {entry["id"]: len(entry["text"]) for entry in map(json.loads, lines)}
    length = np.asarray([size[int(identity)] for identity in ids], np.float32)
    counts = count(length[test.chosen], length[test.rejected], test.mask)
    ties = int(counts.ties.sum())
    return {"macro": macro(counts), "micro": micro(counts), "worst_tenth": worst_tenth(counts), "ties": ties}


def seen_users(names: tuple[str, ...], data: dict[str, PairBlocks]) -> dict[str, Any]:
    """Each method fitted on all users' training pairs, chosen on their validation pairs, judged on their test pairs."""
    rows = {}
    for name in names:
        began, busy = time.perf_counter(), time.process_time()
        result = rewards.fit(rewards.make(name), data["train"], data["validation"])
        seconds, core_seconds = time.perf_counter() - began, time.process_time() - busy
        judged = evaluate(result.model, data["test"])
        rows[name] = {
            "seconds": seconds,
            "core_seconds": core_seconds,
            "chosen": dict(result.report.chosen),
            **judged.as_json(),
        }
        print(
            f"{name:15} {seconds:6.1f} s ({core_seconds:5.1f} core s)  macro {judged.macro:.3f}  "
            f"micro {judged.micro:.3f}  worst tenth {judged.worst_tenth:.3f}  ECE {judged.ece:.3f}  "
            f"{dict(result.report.chosen)}",
            flush=True,
        )
    return rows


def groups(users: tuple[str, ...], seed: int) -> dict[str, list[int]]:
    """Rows of the users: a fifth is "unseen", a tenth "judging" (chooses hyper-parameters), the others are "seen"."""
    at = [fraction(seed, "user", user) for user in users]
    return {
        "unseen": [row for row, value in enumerate(at) if value < 0.2],
        "judging": [row for row, value in enumerate(at) if 0.2 <= value < 0.3],
        "seen": [row for row, value in enumerate(at) if value >= 0.3],
    }


def every_shot(blocks: PairBlocks, rows: list[int], *, limit: bool) -> PairBlocks:
    """The users once for each of `SHOTS`, as users of their own: all are adapted in one call.

    With `limit` they keep their first pairs only, as many as the shots say.
    """
    parts = [some(blocks, rows, shots if limit else None) for shots in SHOTS]
    stacked = {field: np.concatenate([getattr(part, field) for part in parts]) for field in FIELDS}
    users = tuple(f"{user} after {shots}" for shots in SHOTS for user in parts[0].users)
    return dataclasses.replace(blocks, **stacked, users=users)


def unseen_users(names: tuple[str, ...], data: dict[str, PairBlocks], seed: int) -> dict[str, Any]:
    """n-shot curves: macro accuracy of unseen users after adaptation to their first pairs."""
    rows = groups(data["train"].users, seed)
    support, test = (every_shot(data[part], rows["unseen"], limit=part == "train") for part in ("train", "test"))
    curves = {}
    for name in names:
        result = rewards.fit(
            rewards.make(name),
            some(data["train"], rows["seen"]),
            some(data["validation"], rows["judging"]),
            support=some(data["train"], rows["judging"], 20),
        )
        rewarded = pair_rewards(rewards.adapt(result.model, support), test)
        accuracies = per_user(count(rewarded.chosen, rewarded.rejected, test.mask)).reshape(len(SHOTS), -1)
        curve = dict(zip(SHOTS, np.nanmean(accuracies, axis=1).tolist(), strict=True))
        curves[name] = {"chosen": dict(result.report.chosen), "macro": curve}
        print(f"{name:15} " + "  ".join(f"{shots}: {value:.3f}" for shots, value in curve.items()), flush=True)
    return {**{part: len(users) for part, users in rows.items()}, "curves": curves}


def tables(numbers: dict[str, Any]) -> str:
    """The Markdown tables of `docs/rewards.md`."""

    def line(*cells: Any) -> str:
        return "| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"

    lines = [line("method", "macro", "micro", "worst tenth", "ECE", "ties"), line("---", *["---:"] * 5)]
    for name, row in {"longer wins": numbers["longer wins"], **numbers["seen"]}.items():
        ece = row.get("ece", "")
        lines.append(line(name, row["macro"], row["micro"], row["worst_tenth"], ece, row["ties"]))
    if "unseen" in numbers:
        lines += ["", line("method", *SHOTS), line("---", *["---:"] * len(SHOTS))]
        lines.append(line("longer wins", *[numbers["unseen"]["longer wins"]] * len(SHOTS)))
        lines += [line(name, *curve["macro"].values()) for name, curve in numbers["unseen"]["curves"].items()]
    return "\n".join(lines)


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds and core seconds of `work`."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - busy


def against_torch(train: PairBlocks) -> dict[str, Any]:
    """Seconds of `per_user` and `lore` against a PyTorch loop over users, one setting and the same steps each."""
    from benchmarks.peers import fit_torch

    table = np.asarray(to_device(train, statistics(train)).features)
    texts = np.unique(np.concatenate([train.chosen[train.mask], train.rejected[train.mask]]))
    users = [
        tuple(np.searchsorted(texts, side[row][train.mask[row]]) for side in (train.chosen, train.rejected))
        for row in range(len(train.users))
    ]
    results = {}
    for name in ("per_user", "lore"):
        method = rewards.make(name)
        # Core seconds too: they stay comparable on a machine that is shared.
        ours = [clock(lambda method=method: rewards.fit(method, train, eval_every=method.steps)) for _ in range(2)]
        hyper = dataclasses.asdict(method)
        own = ("shared",) if name == "per_user" else ("rank", "ridge")
        settings = {field: hyper[field] for field in ("steps", "strength", *own)}
        loop = functools.partial(getattr(fit_torch, name), table, users, rate=method.learning_rate, **settings)
        theirs = clock(loop)
        results[name] = {"first": ours[0], "again": ours[1], "torch": theirs}
        for place, kind in enumerate(("wall", "core")):
            first, again, torch = (seconds[place] for seconds in (*ours, theirs))
            print(
                f"{name:10} {kind} seconds: ours {first:.1f} with compilation, {again:.1f} again; "
                f"torch loop {torch:.1f}: {torch / first:.1f} and {torch / again:.1f} times",
                flush=True,
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with arguments.jsonl and votes.csv")
    parser.add_argument("--features", type=Path, required=True, help=".npz of hidden states")
    parser.add_argument("--pooling", choices=("last", "mean"), default="last")
    parser.add_argument("--methods", nargs="*", default=list(rewards.names()))
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--unseen", action="store_true", help="n-shot curves of unseen users")
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch (extra 'peers')")
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    options = parser.parse_args()
    data = load(options.data, options.features, options.pooling, options.seed)
    identities = np.load(options.features)["ids"]
    pairs = {part: int(blocks.mask.sum()) for part, blocks in data.items()}
    print(f"{len(data['train'].users)} users, pairs {pairs}, {options.pooling} token features")
    numbers: dict[str, Any] = {"pooling": options.pooling, "seed": options.seed, "pairs": pairs}
    numbers["longer wins"] = longer_wins(options.data, data["test"], identities)
    print("longer wins", numbers["longer wins"])
    numbers["seen"] = seen_users(tuple(options.methods), data)
    timed = [numbers["seen"][name]["seconds"] for name in TIMED if name in numbers["seen"]]
    numbers["total_seconds"] = sum(timed)
    print(f"{len(timed)} of {len(TIMED)} timed methods, grids and compilation included: {sum(timed):.1f} s")
    if options.unseen:
        numbers["unseen"] = unseen_users(tuple(options.methods), data, options.seed)
        strangers = some(data["test"], groups(data["test"].users, options.seed)["unseen"])
        numbers["unseen"]["longer wins"] = longer_wins(options.data, strangers, identities)["macro"]
    if options.torch:
        numbers["torch"] = against_torch(data["train"])
    print(tables(numbers))
    if options.out:
        write_json(options.out, numbers)


if __name__ == "__main__":
    main()
