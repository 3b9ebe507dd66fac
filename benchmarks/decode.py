"""Decode throughput: tokens per second, plain and under every kind of guidance.

    python -m benchmarks.decode                                      # batch 1, 8, 32, all kinds; under 15 minutes
    python -m benchmarks.decode --batch 1,4,16 --kind none,head      # sweeps: every flag with commas is an axis
    python -m benchmarks.decode --model llama-3.2-1b --random        # random weights of a real shape, no download
    python -m benchmarks.decode --peers --out results/decode         # torch libraries in the same rounds

docs/performance.md explains the columns.
"""

import argparse
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks import ceilings, cost, flags, harness, kinds, machine, table
from benchmarks.cases import Case, Prepared, parse_mesh, prepare
from benchmarks.ceilings import Ceilings
from benchmarks.harness import Arm, Rounds
from jaxalign.errors import InputError
from jaxalign.models import LanguageModel


def parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_model(parser)
    group = parser.add_argument_group("sweep (lists with commas)")
    group.add_argument("--kind", type=flags.listed(str), default=list(kinds.KINDS), help="default: all kinds")
    group.add_argument("--batch", type=flags.listed(), default=[1, 8, 32], help="default: 1,8,32")
    group.add_argument("--prompt", type=flags.listed(), default=[128], help="prompt tokens (default: 128)")
    group.add_argument("--new-tokens", type=flags.listed(), default=[32], help="tokens per row (default: 32)")
    group.add_argument("--top-k", type=flags.listed(), default=[10], help="candidates (default: 10)")
    group.add_argument("--users", type=flags.listed(), default=[1], help="users whose heads are stacked (default: 1)")
    group.add_argument("--mesh", nargs="*", default=[""], help="such as users=4,model=2; several make an axis")
    parser.add_argument("--peers", action="store_true", help="also torch libraries (extra 'peers')")
    parser.add_argument("--peer-rows", type=int, default=1, help="rows given to peers that take one at a time")
    flags.add_timing(parser)
    return parser


def groups(options: argparse.Namespace) -> Iterable[list[Case]]:
    """The sweep, cut into groups that are interleaved: equal settings, different kinds, plain decoding first.

    Plain decoding is in every group, since everything is compared with it. Kinds without candidates are run at the
    first k only.
    """
    order = ["none", *(kind for kind in options.kind if kind != "none")]
    sweep = itertools.product(
        options.dtype, options.mesh, options.batch, options.prompt, options.new_tokens, options.users, options.top_k
    )
    for dtype, mesh, batch, prompt, new_tokens, users, top_k in sweep:
        wide = top_k != options.top_k[0]
        yield [
            Case(
                kind=kind,
                batch=batch,
                prompt=prompt,
                new_tokens=new_tokens,
                top_k=top_k,
                users=users,
                dtype=dtype,
                mesh=mesh,
            )
            for kind in order
            if kind == "none" or not wide or kind in ("head", "separate", "ensemble")
        ]


def check(options: argparse.Namespace) -> None:
    """Refuses, before any work, a sweep that would fail after an hour. Raises InputError."""
    if unknown := set(options.kind) - set(kinds.KINDS):
        raise InputError(f"--kind {sorted(unknown)[0]}: known kinds are {', '.join(kinds.KINDS)}")
    for name in ("batch", "prompt", "new_tokens", "top_k", "users"):
        values = getattr(options, name)
        least = 2 if name == "new_tokens" else 1
        if not values or min(values) < least:
            raise InputError(f"--{name.replace('_', '-')} {values}: numbers of at least {least} are needed")
    for mesh in options.mesh:
        parse_mesh(mesh)


def metrics(
    prepared: Prepared, runs: list[dict[str, float]], base: list[dict[str, float]], top: Ceilings
) -> dict[str, Any]:
    """The numbers of one case, as JSON holds them: spreads for what was repeated."""
    case, config = prepared.case, prepared.lm.config
    itemsize = 2 if case.dtype == "bfloat16" else 4
    tokens, steps = case.batch * case.new_tokens, case.new_tokens - 1
    context = case.prompt + (case.new_tokens + 1) / 2
    rank = kinds.RANK if case.kind == "value" else None
    need = cost.step(case.kind, config, itemsize, case.batch, case.top_k, context, rank)
    seconds_per_step = harness.part(runs, "rest").map(lambda seconds: seconds / steps)
    step = seconds_per_step.median
    return {
        "tokens_per_second": harness.part(runs).map(lambda seconds: tokens / seconds),
        "decode_tokens_per_second": seconds_per_step.map(lambda seconds: case.batch / seconds),
        "milliseconds_per_step": seconds_per_step.map(lambda seconds: 1e3 * seconds),
        "milliseconds_to_first_token": harness.part(runs, "first").map(lambda seconds: 1e3 * seconds),
        "ratio_to_plain": harness.speed_ratio(runs, base),
        "bandwidth_utilisation": need.bytes / step / top.bytes_per_second,
        "flop_utilisation": need.flops / step / top.flops_per_second[case.dtype],
        "least_milliseconds_per_step": 1e3 * need.least_seconds(top, case.dtype),
        "bytes_per_step": need.bytes,
        "flops_per_step": need.flops,
        "memory_bytes": prepared.memory,
        "compile_seconds": prepared.compile_seconds,
    }


def compare(
    cases: Sequence[Case], lm: LanguageModel, top: Ceilings, options: argparse.Namespace, peers: Any = None
) -> list[dict[str, Any]]:
    """One group: compiles every case, runs them in interleaved rounds, and gives a record for each.

    Args:
      cases: of equal settings but for the kind; the first is plain decoding.
      lm: the language model.
      top: ceilings of one device.
      options: `repeats`, `seconds`, `peer_rows`.
      peers: `peers.decode_torch.Peers`, or None.
    """
    ours = {case.kind: prepare(case, lm) for case in cases}
    arms = [Arm(kind, prepared.run, prepared.warm) for kind, prepared in ours.items()]
    others = [] if peers is None else peers.arms(cases[0], rows=options.peer_rows)
    rounds = harness.interleave([*arms, *(other.arm for other in others)], options.repeats, options.seconds)
    mesh = parse_mesh(cases[0].mesh)
    ceiling = top.on(1 if mesh is None else mesh.size)
    records = []
    for case in cases:
        record = {
            "case": case,
            "ceilings": ceiling,
            "metrics": metrics(ours[case.kind], rounds[case.kind], rounds["none"], ceiling),
        }
        if case.kind == "separate" and "head" in ours:
            record["same_tokens_as"] = {"head": same_rows(ours["separate"].output, ours["head"].output)}
        records.append(record)
    return records + [peer_record(other, rounds, ours, cases[0]) for other in others]


def peer_record(other: Any, rounds: Rounds, ours: dict[str, Prepared], case: Case) -> dict[str, Any]:
    """A peer's numbers: its rate, ours over its own, and whether it gave the tokens that we give."""
    runs = rounds[other.arm.name]
    tokens = other.rows * other.new_tokens
    work = tokens / (case.batch * case.new_tokens)
    numbers: dict[str, Any] = {
        "tokens_per_second": harness.part(runs).map(lambda seconds: tokens / seconds),
        "ratio_to_plain": harness.speed_ratio(runs, rounds["none"], work),
    }
    same = {}
    for kind in other.equals:
        if kind in ours:
            numbers[f"{kind}_over_peer"] = harness.speed_ratio(rounds[kind], runs, 1 / work)
            output = ours[kind].output
            ours_cut = None if output is None else output[: other.rows, : other.new_tokens]
            same[kind] = same_rows(ours_cut, other.output())
    count = {"rows": other.rows, "new_tokens": other.new_tokens}
    return {"case": case, "peer": other.arm.name, **count, "metrics": numbers, "same_tokens_as": same}


def same_rows(ours: np.ndarray | None, theirs: np.ndarray | None) -> float:
    """Share of rows whose tokens are all equal."""
    if ours is None or theirs is None:
        return float("nan")
    return float((ours == theirs).all(axis=1).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sweep; returns 0."""
    options = parser().parse_args(arguments)
    check(options)
    flags.check_timing(options)
    origin = machine.origin("decode", arguments)
    top = ceilings.measure(tuple(options.dtype))
    print(table.ceilings_line(origin, top), flush=True)
    records = []
    for dtype in options.dtype:
        lm = flags.load_model(options.model, random=options.random, dtype=dtype, layers=options.layers)
        peers = None
        if options.peers:
            from benchmarks.peers import decode_torch

            peers = decode_torch.Peers(lm, weight=0.5)
        print(table.decode_header(), flush=True)
        for cases in groups(argparse.Namespace(**{**vars(options), "dtype": [dtype]})):
            for record in compare(cases, lm, top, options, peers):
                line = {**origin, "model": options.model, "random": options.random, "layers": options.layers, **record}
                records.append(table.as_json(line))
                print(table.decode_row(records[-1]), flush=True)
                if options.out is not None:
                    table.append(options.out / "results.jsonl", records[-1])
    for line in table.growth_lines(records, ("new_tokens", "prompt", "batch", "top_k", "users")):
        print(line)
    if options.out is not None:
        from benchmarks import plots

        plots.decode(records, options.out)
    return 0


if __name__ == "__main__":
    flags.script("decode", main)
