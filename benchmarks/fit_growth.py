"""How the time to fit a reward model grows with users: one jitted program fits all, so linearly at most is expected.

    python -m benchmarks.fit_growth --users 16,64,256 --methods bt,per_user,lore

Simulated preferences over random features; one setting of the hyper-parameters each. The first call compiles and is
reported by itself. `benchmarks.fit` measures quality and time on real data.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import flags, harness, machine, table
from benchmarks.harness import Arm
from jaxalign import rewards
from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import InputError


def blocks(users: int, pairs: int, width: int, seed: int = 0) -> PairBlocks:
    """`pairs` pairs for each user over random features, chosen by a linear taste of the user's own."""
    draw = np.random.default_rng(seed)
    features = draw.standard_normal((4 * pairs, width)).astype(np.float32)
    taste = draw.standard_normal(width) + draw.standard_normal((users, width))
    first, second = draw.integers(0, len(features), (2, users, pairs))
    better = np.einsum("upw,uw->up", features[first] - features[second], taste) > 0
    ones = np.ones((users, pairs), np.float32)
    return PairBlocks(
        features=features,
        prompts=None,
        chosen=np.where(better, first, second).astype(np.int32),
        rejected=np.where(better, second, first).astype(np.int32),
        mask=np.ones((users, pairs), bool),
        label=ones,
        margin=np.zeros_like(ones),
        users=tuple(f"user{number}" for number in range(users)),
    )


def measure(name: str, users: int, options: argparse.Namespace) -> dict[str, Any]:
    """One method on one number of users: a record with the first call's seconds and those of the others."""
    data = blocks(users, options.pairs, options.width)
    method = rewards.make(name)

    def run() -> Mapping[str, float]:
        begin = time.perf_counter()
        rewards.fit(method, data, eval_every=max(1, method.steps))
        return {"total": time.perf_counter() - begin}

    first = run()["total"]
    runs = harness.interleave([Arm(name, run, warm=lambda: None)], options.repeats, options.seconds)[name]
    return {
        "case": {"kind": name, "users": users, "pairs": options.pairs, "width": options.width},
        "metrics": {"seconds": harness.part(runs), "first_call_seconds": first},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sweep; returns 0."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench fit-growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", type=flags.listed(str), default=["bt", "per_user", "lore"])
    parser.add_argument("--users", type=flags.listed(), default=[16, 64, 256], help="default: 16,64,256")
    parser.add_argument("--pairs", type=int, default=32, help="of each user (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="of the features (default: %(default)s)")
    flags.add_timing(parser, repeats=3)
    options = parser.parse_args(arguments)
    if unknown := set(options.methods) - set(rewards.names()):
        raise InputError(f"--methods {sorted(unknown)[0]}: known methods are {', '.join(rewards.names())}")
    flags.check_timing(options)
    origin = machine.origin("fit_growth", arguments)
    records = []
    for name in options.methods:
        for users in options.users:
            records.append(table.as_json({**origin, **measure(name, users, options)}))
            numbers = records[-1]["metrics"]
            print(
                f"{name:15} {users:6} users  {table.spread(numbers['seconds'], 2)} s, "
                f"with compilation {numbers['first_call_seconds']:.1f} s",
                flush=True,
            )
            if options.out is not None:
                table.append(options.out / "results.jsonl", records[-1])
    for line in table.growth_lines(records, ("users",), {"users": "seconds"}):
        print(line)
    return 0


if __name__ == "__main__":
    flags.script("fit_growth", main)
