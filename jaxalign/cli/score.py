"""`jaxalign score`: log-probabilities and rewards of given responses; one JSON line per response."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from jaxalign.cli import flags
from jaxalign.cli.prompt_file import read_lines
from jaxalign.cli.runtime import check_output, output, progress
from jaxalign.cli.steering import Steering, guidance_of, load_model

_PER_TOKEN = ("token_log_prob", "token_policy_log_prob", "token_reward")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Steering):
    """Judges given responses under the model and, with a reward, under the guided policy; sums over tokens, in nats.

    A line has log_prob and num_tokens; with a reward also policy_log_prob, score, sequence and reward.
    """

    responses: Path
    """A JSON-lines file; each line has prompt (text, or chat messages) or prompt_ids, and response or response_ids."""

    top_k: int = 10
    """Candidates per position, joined with the response's own token."""

    records: bool = False
    """Adds per-token lists: token_log_prob, token_policy_log_prob, token_reward."""

    out: Path | None = None
    """Write here instead of to standard output."""

    overwrite: bool = False
    """Replace a file that is there."""


def main(arguments: Sequence[str]) -> int:
    """Writes the lines and returns the exit status."""
    options = flags.parse("score", Options, arguments)
    check_output(options.out, options.overwrite)
    lines = read_lines(options.responses, [("prompt", "prompt_ids"), ("response", "response_ids")])
    lm = load_model(options)
    guidance = guidance_of(options, lm)
    from jaxalign.decoding.score import stream_scores

    waiting: dict[int, str] = {}
    written = 0
    with output(options.out) as file, progress("scoring", len(lines)) as advance:
        for index, result in stream_scores(
            lm,
            [line.get("prompt", line.get("prompt_ids")) for line in lines],  # type: ignore[arg-type]
            [line.get("response", line.get("response_ids")) for line in lines],  # type: ignore[arg-type]
            guidance=guidance,
            top_k=options.top_k,
            on_long_prompt=options.on_long_prompt,
            batch_size=options.batch_size,
        ):
            values = dataclasses.asdict(result)
            dropped = () if options.records else _PER_TOKEN
            kept = {name: value for name, value in values.items() if value is not None and name not in dropped}
            waiting[index] = json.dumps(kept, ensure_ascii=False)
            advance(1)
            while written in waiting:
                print(waiting.pop(written), file=file, flush=True)
                written += 1
    return 0
