"""Flags that the benchmarks share, and the model that they name."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from jaxalign.errors import InputError, JaxalignError
from jaxalign.models import DecoderConfig, LanguageModel
from jaxalign.models.config import RELEASED

TINY = DecoderConfig(
    family="llama",
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=512,
    tie_embeddings=True,
)
"""`--model tiny --random`: finishes in seconds, to see that everything works."""


def listed(kind: Callable = int) -> Callable[[str], list]:
    """Parses `1,8,32` into a list."""

    def parse(text: str) -> list:
        return [kind(part) for part in text.split(",") if part]

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def add_model(parser: argparse.ArgumentParser) -> None:
    """`--model`, `--random`, `--dtype`, `--layers`."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="smollm2-135m-instruct", help="name, hub id or folder (default: %(default)s)")
    known = ", ".join(["tiny", *sorted(RELEASED)])
    group.add_argument("--random", action="store_true", help=f"random weights; --model is then one of {known}")
    group.add_argument(
        "--dtype", type=listed(str), default=["float32"], help="float32, bfloat16 or both (default: float32)"
    )
    group.add_argument("--layers", choices=("unrolled", "scanned"), default="unrolled", help="default: %(default)s")


def add_timing(parser: argparse.ArgumentParser, repeats: int = 5, seconds: float = 60.0) -> None:
    """`--repeats`, `--seconds`, `--out`, `--compilation-cache`."""
    group = parser.add_argument_group("timing and output")
    group.add_argument("--repeats", type=int, default=repeats, help="rounds (default: %(default)s)")
    group.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="no further round of a comparison begins after this time, but two are always run (default: %(default)s)",
    )
    group.add_argument("--out", type=Path, help="folder for results.jsonl and the plots; lines are added to it")
    group.add_argument(
        "--compilation-cache", type=Path, help="keep compiled programs here; compile times then mean nothing"
    )


def check_timing(options: argparse.Namespace) -> None:
    """Applies the cache flag and refuses what cannot be measured. Raises InputError."""
    if options.repeats < 1:
        raise InputError(f"--repeats {options.repeats}: at least 1 is needed")
    import jax

    # Off unless asked for: what was compiled by an earlier run would be reported as compiled in no time.
    folder = options.compilation_cache
    jax.config.update("jax_enable_compilation_cache", folder is not None)
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def load_model(name: str, *, random: bool, dtype: str, layers: str) -> LanguageModel:
    """The model that the flags name.

    Raises:
      InputError: a dtype or a name that is not known.
      ModelError, DownloadError: as `jaxalign.models.load`.
    """
    from jaxalign import models

    if dtype not in ("float32", "bfloat16"):
        raise InputError(f"dtype {dtype!r}: use float32 or bfloat16")
    if not random:
        return models.load(name, dtype=dtype, layers=layers)  # pyright: ignore[reportArgumentType]
    config = TINY if name == "tiny" else DecoderConfig.named(name.removesuffix("-instruct"))
    return models.random(config, dtype=dtype, layers=layers)  # pyright: ignore[reportArgumentType]


def script(name: str, main: Callable[[], int]) -> None:
    """Runs a benchmark as `python -m benchmarks.NAME`, with the messages and statuses of the command line."""
    try:
        status = main()
    except JaxalignError as error:
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
        status = error.exit_status
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
