"""`jaxalign plan`: memory, exchanges and speed limits of a run on TPUs, from a machine that has none."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from jaxalign.cli import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compiles the real guided decoder and the scoring pass for TPUs that need not be here (extra `tpu`)."""

    topology: str
    """Chips and their shape: v4:2x2x4, v5e:4x4, v5p:2x2x4, v6e:4x4, ..."""

    model: str
    """A released size, such as qwen2.5-7b or llama-3.1-70b; no weights are needed."""

    batch: int = 64
    """Rows decoded together, over all chips."""

    prompt: int = 512
    """Tokens of each prompt."""

    new_tokens: int = 128
    """Tokens of each response."""

    top_k: int = 10
    """Candidates of guided decoding."""

    mesh: str | None = None
    """For instance users=4,model=4; default: the best of a few."""

    json: bool = False
    """Print JSON."""


def main(arguments: Sequence[str]) -> int:
    """Prints the plan; returns 1 where it does not fit into memory."""
    options = flags.parse("plan", Options, arguments)
    # The compiler is what is wanted of libtpu; a TPU that is here stays free for a run.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxalign.evaluation.sharding import parse_mesh
    from jaxalign.models.config import DecoderConfig
    from jaxalign.planning.chips import Topology
    from jaxalign.planning.plan import best_plan, make_plan
    from jaxalign.planning.programs import Workload

    topology, config = Topology.parse(options.topology), DecoderConfig.named(options.model)
    work = Workload(batch=options.batch, prompt=options.prompt, new_tokens=options.new_tokens, top_k=options.top_k)

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    if options.mesh is None:
        plans = best_plan(topology, config, work, say)
    else:
        plans = [make_plan(topology, config, work, parse_mesh(options.mesh), progress=say)]
    if options.json:
        print(json.dumps([as_json(plan) for plan in plans], indent=2))
    else:
        for number, plan in enumerate(plans):
            show(plan, f"{options.model} on {topology}" + (", best mesh" if not number and len(plans) > 1 else ""))
    return 0 if plans[0].fits else 1


def as_json(plan: Any) -> dict[str, Any]:
    """The plan's fields and what follows from them; a number that the compiler did not give is null."""
    values = dataclasses.asdict(plan)
    for program in values["programs"]:
        for name in ("compiled_flops", "compiled_bytes"):
            program[name] = program[name] if program[name] == program[name] else None
    return values | {
        "fits": plan.fits,
        "tokens_per_second": plan.tokens_per_second,
        "collectives_over_users_in_loop": len(plan.crossing),
        "step_bound": plan.step.bound,
    }


def show(plan: Any, title: str) -> None:
    """Prints one plan as tables."""
    from rich.console import Console
    from rich.table import Table

    from jaxalign.planning.hlo import summary
    from jaxalign.planning.roofline import ASSUMPTIONS

    console, giga = Console(), 2**30
    table = Table(title=f"{title}: mesh users={plan.users},model={plan.model}")
    for column in ("per chip", "memory, GiB", "of it temporary", "product TFLOP", "compiled TFLOP*", "compiled GB*"):
        table.add_column(column, justify="left" if column == "per chip" else "right")
    for one in plan.programs:
        name = f"{one.name}, one step" if one.name == "decode" else one.name
        numbers = (one.bytes / giga, one.temporary / giga, one.flops / 1e12, one.compiled_flops / 1e12)
        table.add_row(name, *(f"{n:.3g}" for n in numbers), f"{one.compiled_bytes / 1e9:.3g}")
    console.print(table)
    console.print(
        f"Memory: {plan.hbm / giga:.0f} GiB per chip, {plan.weights / giga:.2f} of them weights: "
        + ("it fits." if plan.fits else "[bold]it does not fit[/bold].")
        + "\n* XLA's cost analysis, which counts the body of a loop (over layers, too) once.",
        highlight=False,
    )
    exchanges = Table(title="exchanges between chips")
    for column in ("program", "where", "axis", "kind", "number", "each runs", "MB each"):
        exchanges.add_column(column)
    for program in plan.programs:
        for one, number in summary(program.collectives):
            where = "decode loop" if program.name == "decode" and one.in_loop else "once"
            size = f"{one.bytes / 1e6:.3g}"
            exchanges.add_row(program.name, where, one.axis, one.kind, str(number), f"{one.times}x", size)
    console.print(exchanges)
    none = (
        "None of the decode loop goes over `users`."
        if not plan.crossing
        else "SOME OF THE DECODE LOOP GO OVER `users`."
    )
    step = plan.step
    console.print(
        f"{none}\nRoofline: {plan.tokens_per_second:,.0f} guided tokens/s over all chips; a step takes "
        f"{1e3 * step.total:.2f} ms (products {1e3 * step.products:.2f}, memory {1e3 * step.memory:.2f}, links "
        f"{1e3 * step.links:.2f}: bound by {step.bound}), prefill {plan.prefill_seconds:.2f} s, scoring the same texts "
        f"{plan.score_seconds:.2f} s.\n{ASSUMPTIONS}\n",
        highlight=False,
    )
