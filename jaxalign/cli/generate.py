"""`jaxalign generate`: text, plain or guided by a reward; one JSON line per prompt."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxalign.cli import flags
from jaxalign.cli.prompt_file import read_lines
from jaxalign.cli.runtime import check_output, output, progress
from jaxalign.cli.steering import Steering, guidance_of, load_model, settings
from jaxalign.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Steering):
    """Generates a response to each prompt and prints one JSON line for each, in the order of the prompts.

    A line has tokens (the last is the end token where stop_reason is end_token), text, stop_reason (end_token, length,
    cache_full or non_finite), prompt_tokens, and prompt_cut. Exit status 1 when a prompt stopped with non_finite.
    """

    prompt: str | None = None
    """A prompt, made one user message of the model's chat template."""

    prompts: Path | None = None
    """A JSON-lines file; each line has prompt (text, or chat messages) or ids (taken as they are)."""

    max_new_tokens: int = 128
    """Limit of each response, in tokens."""

    top_k: int | None = None
    """Candidates of guided decoding (default 10), or the most probable tokens that plain sampling may draw (all)."""

    top_p: float = 1.0
    """Nucleus of plain sampling."""

    temperature: float | None = None
    """0 is greedy, and the default without --best-of."""

    selection: tuple[str, ...] = ()
    """A selection of a plugin in the place of greedy and of sampling: its name, then its settings as name=value."""

    seed: int = 0
    """Of the draws; a prompt's draws depend on the seed and its place in the file alone."""

    best_of: int | None = None
    """Samples this many responses from the model itself (temperature 1 by default) and keeps the best by the reward."""

    block: int | None = None
    """With --best-of, compares continuations of this many tokens and goes on from the best one."""

    best_by: Literal["reward", "sequence"] = "reward"
    """With --best-of: the reward alone, or the log-probability plus the weighted reward."""

    ignore_eos: bool = False
    """Run to the limit whatever is produced."""

    records: bool = False
    """Adds per-token lists: log_prob, rank, entropy, reward, changed, skipped."""

    out: Path | None = None
    """Write here instead of to standard output."""

    overwrite: bool = False
    """Replace a file that is there."""


def main(arguments: Sequence[str]) -> int:
    """Writes the lines and returns the exit status."""
    options = flags.parse("generate", Options, arguments)
    check_output(options.out, options.overwrite)
    if (options.prompt is None) == (options.prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE.jsonl")
    if options.prompt is not None:
        prompts = [options.prompt]
    else:
        lines = read_lines(options.prompts, [("prompt", "ids")])  # type: ignore[arg-type]
        prompts = [line.get("prompt", line.get("ids")) for line in lines]
    selection = None
    if options.selection:
        from jaxalign import plugins
        from jaxalign.decoding.registry import make_selection

        plugins.load(options.plugins)
        selection = make_selection(options.selection[0], **settings(options.selection[1:]))
    lm = load_model(options)
    guidance = guidance_of(options, lm)
    from jaxalign.decoding.best_of import BestOf
    from jaxalign.decoding.generate import stream

    if options.best_of is None and options.block is not None:
        raise InputError("--block goes with --best-of")
    best_of = None if options.best_of is None else BestOf(options.best_of, options.block, options.best_by)
    failed = 0
    waiting: dict[int, str] = {}
    written = 0
    with output(options.out) as file, progress("generating", len(prompts)) as advance:
        for index, result in stream(
            lm,
            prompts,  # type: ignore[arg-type]
            guidance=guidance,
            selection=selection,
            max_new_tokens=options.max_new_tokens,
            top_k=options.top_k,
            top_p=options.top_p,
            temperature=float(best_of is not None) if options.temperature is None else options.temperature,
            seed=options.seed,
            ignore_eos=options.ignore_eos,
            on_long_prompt=options.on_long_prompt,
            batch_size=options.batch_size,
            record=options.records,
            best_of=best_of,
        ):
            failed += result.stop_reason == "non_finite"
            values = dataclasses.asdict(result)
            records = values.pop("records") or {}
            waiting[index] = json.dumps(values | records, ensure_ascii=False)
            advance(1)
            # Batches are of similar length; lines are written in the order of the prompts as soon as they can be.
            while written in waiting:
                print(waiting.pop(written), file=file, flush=True)
                written += 1
    if failed:
        import sys

        print(f"jaxalign generate: {failed} of {len(prompts)} prompts met a value that is not finite", file=sys.stderr)
    return 1 if failed else 0
