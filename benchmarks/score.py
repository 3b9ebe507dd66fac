"""Scoring throughput: rewards of whole texts, and policy scores of every token for many users and methods at once.

    python -m benchmarks.score                                   # SmolLM2-135M: rewards, then policy scores
    python -m benchmarks.score --users 1,10,134 --methods 1,10   # what more users and methods cost; one pass serves all
    python -m benchmarks.score --peers                           # a torch loop over pairs, as reward-model libraries do

`reward` reads each text once and puts every head on its last hidden state. `policy` also encodes the k candidates of
every response token and normalises each user's policy over them: what policy accuracy needs.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import ceilings, cost, flags, harness, kinds, machine, table
from benchmarks.harness import Arm, compile_ahead, program_bytes
from jaxalign.decoding import RewardHead
from jaxalign.decoding.forced import ForcedProgram, Judged, forced, piece_size
from jaxalign.decoding.rows import make_rows
from jaxalign.errors import InputError
from jaxalign.models import LanguageModel, bind
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params, prefill


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is swept.

    Attributes:
      kind: `reward` or `policy`.
      batch: texts in one pass.
      prompt: tokens of every prompt.
      response: the longest response; lengths are spread evenly from half of it, and padding does not count.
      top_k: candidates of `policy`.
      users: users whose rewards are wanted for every text.
      methods: reward models, each with parameters for every user.
      dtype: of the weights.
    """

    kind: str
    batch: int = 8
    prompt: int = 128
    response: int = 64
    top_k: int = 10
    users: int = 1
    methods: int = 1
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts padded on the left: `tokens` `[batch, length]`, `lengths` and `responses` `[batch]`, all int32."""

    tokens: np.ndarray
    lengths: np.ndarray
    responses: np.ndarray


def texts(case: Case, vocab_size: int, seed: int = 0) -> Texts:
    """Random texts of the case's lengths."""
    responses = np.linspace(max(1, case.response // 2), case.response, case.batch).round().astype(np.int32)
    lengths = (case.prompt + responses).astype(np.int32)
    tokens = np.zeros((case.batch, case.prompt + case.response), np.int32)
    for row, length in enumerate(lengths):
        tokens[row, -length:] = np.random.default_rng([seed, row]).integers(0, vocab_size, length)
    return Texts(tokens, lengths, responses)


@partial(jax.jit, static_argnames="config")
def reward_pass(config: DecoderConfig, params: Params, heads: jax.Array, tokens, lengths) -> jax.Array:
    """Rewards of whole texts, one pass over them: heads `[methods, users, width]` -> `[batch, methods, users]`."""
    hidden, _ = prefill(bind(config, params), tokens, lengths)
    return jnp.einsum("bd,mud->bmu", hidden[:, -1], heads, precision="highest")


def policy_judge(arguments: Any, guidances: tuple, carries: tuple, judged: Judged) -> tuple[jax.Array, ...]:
    """log pi_u of the response's own token for every user of every method: `[batch, positions, users]` each."""
    del arguments, carries
    hidden = judged.step.candidate_hidden
    scores = []
    for guidance in guidances:
        function = partial(guidance.function, guidance.shared)
        by_user = jax.vmap(lambda user, function=function: function(user, hidden, None))(guidance.users)
        total = jnp.where(judged.duplicate[None], -jnp.inf, judged.base[None] + guidance.weight * by_user)
        scores.append(jnp.moveaxis(total[..., -1] - jax.nn.logsumexp(total, axis=-1), 0, -1))
    return tuple(scores)


class Prepared:
    """A case, compiled; `run` does it once."""

    def __init__(self, case: Case, lm: LanguageModel):
        self.case = case
        self.texts = texts(case, lm.config.vocab_size)
        width = lm.config.hidden_size
        heads = np.stack([kinds.vectors(width, case.users, seed + 1) for seed in range(case.methods)])
        data = [jnp.asarray(x) for x in (self.texts.tokens, self.texts.lengths, self.texts.responses)]
        if case.kind == "reward":
            self.arguments: tuple[Any, ...] = (lm.params, jnp.asarray(heads), *data[:2])
            self.compiled = compile_ahead(reward_pass, lm.config, *self.arguments)
        else:
            program = ForcedProgram(
                config=lm.config,
                max_top_k=case.top_k,
                reads_hidden=True,
                width=case.response,
                piece=piece_size(lm.config, case.batch, case.response, case.top_k),
            )
            guidances = tuple(RewardHead.linear(head, weight=0.5) for head in heads)
            rows = make_rows(case.batch, max_new_tokens=1, top_k=case.top_k)
            self.arguments = (lm.params, guidances, None, rows, *data)
            self.compiled = compile_ahead(forced, program, policy_judge, True, *self.arguments)
        self.output: Any = None

    def run(self) -> Mapping[str, float]:
        """Scores the batch; seconds as `total`."""
        begin = time.perf_counter()
        self.output = jax.block_until_ready(self.compiled.program(*self.arguments))
        return {"total": time.perf_counter() - begin}


def metrics(
    prepared: Prepared, config: DecoderConfig, runs: list[dict], base: list[dict], top: ceilings.Ceilings
) -> dict[str, Any]:
    """The numbers of a case; `of_first` is its speed over that of the group's first (fewest users and methods)."""
    case, seconds = prepared.case, harness.part(runs)
    own = prepared.texts
    candidates = int(own.responses.sum()) * (case.top_k + 1) if case.kind == "policy" else 0
    logits = int(own.responses.sum()) * config.vocab_size * config.hidden_size if case.kind == "policy" else 0
    flops = 2 * (cost.body_weights(config) * (int(own.lengths.sum()) + candidates) + logits)
    return {
        "texts_per_second": seconds.map(lambda s: case.batch / s),
        "tokens_per_second": seconds.map(lambda s: float(own.lengths.sum()) / s),
        "milliseconds": seconds.map(lambda s: 1e3 * s),
        "of_first": harness.speed_ratio(runs, base),
        "flop_utilisation": flops / seconds.median / top.flops_per_second[case.dtype],
        "memory_bytes": program_bytes(prepared.compiled.program),
        "compile_seconds": prepared.compiled.seconds,
    }


_COLUMNS = (
    ("kind", 16),
    ("batch", 5),
    ("prompt", 6),
    ("response", 8),
    ("k", 3),
    ("users", 5),
    ("methods", 7),
    ("dtype", 8),
    ("texts/s [quartiles]", 22),
    ("tokens/s", 8),
    ("of first [quartiles]", 20),
    ("MFU %", 5),
    ("memory MB", 9),
    ("compile s", 9),
)


def row(record: Mapping[str, Any]) -> str:
    """One line of the table, of a record after `as_json`."""
    case, numbers = record["case"], record["metrics"]
    settings = [case[name] for name in ("batch", "prompt", "response", "top_k", "users", "methods", "dtype")]
    cells = [
        record.get("peer", case["kind"]),
        *map(str, settings),
        table.spread(numbers["texts_per_second"], 2),
        f"{numbers['tokens_per_second']['median']:.0f}",
        table.spread(numbers["of_first"], 2),
    ]
    if "peer" in record:
        return table.cells([*cells, "", "", ""], _COLUMNS) + f"  largest difference {record['difference']:.1e}"
    memory = numbers["memory_bytes"]
    cells += [f"{100 * numbers['flop_utilisation']:.0f}", "" if memory is None else f"{memory / 1e6:.0f}"]
    return table.cells([*cells, f"{numbers['compile_seconds']:.1f}"], _COLUMNS)


def compare(
    cases: Sequence[Case], lm: LanguageModel, top: ceilings.Ceilings, options: argparse.Namespace, peer: Any = None
) -> list[dict[str, Any]]:
    """Cases that differ in users and methods alone, in interleaved rounds; the peer scores what the first one does."""
    ours = [Prepared(case, lm) for case in cases]
    arms = [Arm(str(number), prepared.run) for number, prepared in enumerate(ours)]
    other = None if peer is None or cases[0].kind != "reward" else peer.pairs(ours[0].texts)
    rounds = harness.interleave([*arms, *([] if other is None else [other.arm])], options.repeats, options.seconds)
    records: list[dict[str, Any]] = [
        {"case": case, "metrics": metrics(prepared, lm.config, rounds[str(number)], rounds["0"], top)}
        for number, (case, prepared) in enumerate(zip(cases, ours, strict=True))
    ]
    if other is not None:
        seconds = harness.part(rounds[other.arm.name])
        numbers = {
            "texts_per_second": seconds.map(lambda s: cases[0].batch / s),
            "tokens_per_second": seconds.map(lambda s: float(ours[0].texts.lengths.sum()) / s),
            "of_first": harness.speed_ratio(rounds[other.arm.name], rounds["0"]),
        }
        difference = float(np.abs(np.asarray(ours[0].output)[:, 0, 0] - other.output()).max())
        records.append({"case": cases[0], "peer": other.arm.name, "metrics": numbers, "difference": difference})
    return records


def parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench score", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_model(parser)
    group = parser.add_argument_group("sweep (lists with commas)")
    group.add_argument("--kind", type=flags.listed(str), default=["reward", "policy"], help="default: reward,policy")
    group.add_argument("--batch", type=flags.listed(), default=[8], help="texts in a pass (default: 8)")
    group.add_argument("--prompt", type=flags.listed(), default=[128], help="prompt tokens (default: 128)")
    group.add_argument("--response", type=flags.listed(), default=[64], help="longest response (default: 64)")
    group.add_argument("--top-k", type=flags.listed(), default=[10], help="candidates (default: 10)")
    group.add_argument("--users", type=flags.listed(), default=[1], help="default: 1")
    group.add_argument("--methods", type=flags.listed(), default=[1], help="default: 1")
    parser.add_argument("--peers", action="store_true", help="also a torch loop over pairs (extra 'peers')")
    flags.add_timing(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sweep; returns 0."""
    options = parser().parse_args(arguments)
    if unknown := set(options.kind) - {"reward", "policy"}:
        raise InputError(f"--kind {sorted(unknown)[0]}: use reward or policy")
    for name in ("batch", "prompt", "response", "top_k", "users", "methods"):
        if not getattr(options, name) or min(getattr(options, name)) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(options, name)}: numbers of at least 1 are needed")
    flags.check_timing(options)
    origin = machine.origin("score", arguments)
    top = ceilings.measure(tuple(options.dtype))
    print(table.ceilings_line(origin, top), flush=True)
    print(table.cells((title for title, _ in _COLUMNS), _COLUMNS), flush=True)
    records = []
    for dtype in options.dtype:
        lm = flags.load_model(options.model, random=options.random, dtype=dtype, layers=options.layers)
        peer = None
        if options.peers:
            from benchmarks.peers import score_torch

            peer = score_torch.Peer(lm)
        for kind, batch, prompt, response, top_k in itertools.product(
            options.kind, options.batch, options.prompt, options.response, options.top_k
        ):
            settings = {"kind": kind, "batch": batch, "prompt": prompt, "response": response, "top_k": top_k}
            cases = [
                Case(**settings, users=users, methods=methods, dtype=dtype)
                for methods, users in itertools.product(options.methods, options.users)
            ]
            for record in compare(cases, lm, top, options, peer):
                line = {**origin, "model": options.model, "random": options.random, "ceilings": top, **record}
                records.append(table.as_json(line))
                print(row(records[-1]), flush=True)
                if options.out is not None:
                    table.append(options.out / "results.jsonl", records[-1])
    axes = ("batch", "prompt", "response", "top_k", "users", "methods")
    for line in table.growth_lines(records, axes, dict.fromkeys(axes, "milliseconds")):
        print(line)
    return 0


if __name__ == "__main__":
    flags.script("score", main)
