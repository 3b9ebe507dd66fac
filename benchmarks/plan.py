"""Compile time and memory of the decode programs, from sizes alone: no weights are allocated, nothing is run.

    python -m benchmarks.plan --model llama-3.2-1b                           # for the devices of this machine
    python -m benchmarks.plan --model qwen2.5-0.5b --topology v5e:2x2        # one chip of a TPU (extra 'tpu')
    python -m benchmarks.plan --layers unrolled,scanned                      # what unrolling the layers costs

What a compiler says about bytes and memory is exact; how fast a machine is, only a run can say.
"""

import argparse
import itertools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import flags, kinds, machine, table
from benchmarks.harness import compile_ahead, program_bytes
from jaxalign.decoding import Greedy, RewardHead, loop
from jaxalign.decoding.rows import make_rows
from jaxalign.errors import InputError
from jaxalign.models import DecoderConfig
from jaxalign.models.config import RELEASED
from jaxalign.models.transformer import abstract_params


def device_of(topology: str | None) -> Any:
    """A chip of the TPU topology such as `v5e:2x2`, described without having one; the first local device for None.

    Raises:
      InputError: libtpu is not installed, or does not know the topology.
    """
    if topology is None:
        return jax.devices()[0]
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    except Exception as error:
        # libtpu reports an unknown name and its own absence by whatever error lies closest.
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"--topology {topology}: {reason}; it needs pip install 'jaxalign[tpu]'") from error


def compile_case(config: DecoderConfig, kind: str, options: argparse.Namespace, dtype: str, layers: str, batch: int):
    """Compiles `start` and `decode` for abstract arguments on one device; gives a record."""
    device = device_of(options.topology)
    sharding = jax.sharding.SingleDeviceSharding(device)

    def on_device(tree):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    guidance = None
    if kind == "head":
        guidance = on_device(jax.eval_shape(lambda: RewardHead.linear(jnp.zeros((1, config.hidden_size)), weight=0.5)))
    params = on_device(abstract_params(config, jnp.dtype(dtype), layers))  # pyright: ignore[reportArgumentType]
    program = loop.Program(
        config=config,
        context=config.max_position,
        max_tokens=options.new_tokens,
        max_top_k=options.top_k if guidance is not None else 0,
        end_ids=(),
        pad_id=0,
    )
    rows = on_device(make_rows(batch, max_new_tokens=options.new_tokens, top_k=options.top_k))
    shapes = {
        "tokens": ((batch, options.prompt), jnp.int32),
        "lengths": ((batch,), jnp.int32),
        "real": ((batch,), bool),
    }
    data = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in shapes.values()]
    start = compile_ahead(loop.start, program, params, guidance, Greedy(), rows, *data)
    state = on_device(jax.eval_shape(loop.start, program, params, guidance, Greedy(), rows, *data))
    decode = compile_ahead(loop.decode, program, params, guidance, Greedy(), rows, state)
    case = {"kind": kind, "batch": batch, "prompt": options.prompt, "new_tokens": options.new_tokens}
    return {
        "case": {**case, "top_k": options.top_k, "dtype": dtype, "layers": layers, "device": device.device_kind},
        "metrics": {
            "trace_seconds": start.trace_seconds + decode.trace_seconds,
            "compile_seconds": start.compile_seconds + decode.compile_seconds,
            "start_bytes": program_bytes(start.program),
            "decode_bytes": program_bytes(decode.program),
        },
    }


_COLUMNS = (
    ("guidance", 8),
    ("batch", 5),
    ("layers", 8),
    ("dtype", 8),
    ("trace s", 7),
    ("compile s", 9),
    ("first token MB", 14),
    ("decode MB", 9),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles the sweep; returns 0."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help=f"one of tiny, {', '.join(sorted(RELEASED))}")
    parser.add_argument("--topology", help="a TPU, such as v5e:2x2; default: this machine's device")
    parser.add_argument("--kind", type=flags.listed(str), default=["none", "head"], help="none, head or both")
    parser.add_argument("--batch", type=flags.listed(), default=[8], help="default: 8")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--dtype", type=flags.listed(str), default=["bfloat16"], help="default: bfloat16")
    parser.add_argument("--layers", type=flags.listed(str), default=["unrolled"], help="unrolled, scanned or both")
    flags.add_timing(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.kind) - {"none", "head"}:
        raise InputError(f"--kind {sorted(unknown)[0]}: use none or head ({kinds.KINDS['head']})")
    if unknown := set(options.layers) - {"unrolled", "scanned"}:
        raise InputError(f"--layers {sorted(unknown)[0]}: use unrolled or scanned")
    flags.check_timing(options)
    config = flags.TINY if options.model == "tiny" else DecoderConfig.named(options.model)
    origin = machine.origin("plan", arguments)
    print(f"{options.model} on {device_of(options.topology).device_kind}")
    print(table.cells((title for title, _ in _COLUMNS), _COLUMNS), flush=True)
    for dtype, layers, batch, kind in itertools.product(options.dtype, options.layers, options.batch, options.kind):
        record = table.as_json({**origin, **compile_case(config, kind, options, dtype, layers, batch)})
        numbers = record["metrics"]
        sizes = [
            "" if size is None else f"{size / 1e6:.0f}" for size in (numbers["start_bytes"], numbers["decode_bytes"])
        ]
        times = [f"{numbers['trace_seconds']:.1f}", f"{numbers['compile_seconds']:.1f}"]
        print(table.cells([kind, str(batch), layers, dtype, *times, *sizes], _COLUMNS), flush=True)
        if options.out is not None:
            table.append(options.out / "results.jsonl", record)
    return 0


if __name__ == "__main__":
    flags.script("plan", main)
