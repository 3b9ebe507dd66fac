"""`jaxalign score`: rewards of preference pairs, or log-probabilities and rewards of given responses; JSON lines."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxalign.cli import flags
from jaxalign.cli.prompt_file import read_lines
from jaxalign.cli.runtime import check_output, output, progress
from jaxalign.cli.steering import Steering, guidance_of, load_model
from jaxalign.errors import InputError

_PER_TOKEN = ("token_log_prob", "token_policy_log_prob", "token_reward")
# What says how a policy is guided, and says nothing of a pair's rewards.
_OF_POLICIES = ("reward_head", "user", "guidance", "weight", "clip", "on_long_prompt", "top_k", "records")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Steering):
    """Judges pairs by a reward model, or responses under the language model and the guided policy; one JSON line each.

    With FILE and --rewards, a line per row of FILE: user, label, reward_chosen, reward_rejected, margin, agrees
    (whether the reward ranks as the label; null for ties), tokens_chosen, tokens_rejected, at_prior. The accuracy goes
    to standard error.

    With --responses, a line per response: log_prob and num_tokens; with a reward also policy_log_prob, score, sequence
    and reward. Sums over tokens, in nats.
    """

    file: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FILE")] = None
    """Preferences whose pairs are judged: .jsonl, .jsonl.gz or .parquet."""

    prior: bool = False
    """With FILE: users whom the reward model does not know get the method's prior, instead of being refused."""

    responses: Path | None = None
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
    if (options.file is None) == (options.responses is None):
        raise InputError("give either FILE, whose pairs a reward model of --rewards judges, or --responses FILE.jsonl")
    check_output(options.out, options.overwrite)
    return _responses(options) if options.file is None else _pairs(options, options.file)


def _pairs(options: Options, path: Path) -> int:
    """Judges the rows of a file of preferences."""
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    if given := [name for name in _OF_POLICIES if getattr(options, name) != defaults[name]]:
        raise InputError(f"--{given[0].replace('_', '-')} goes with --responses, and not with a file of pairs")
    if options.rewards is None:
        raise InputError("give --rewards, the folder of the reward model that judges the pairs")
    rows, places = _rows(path)
    from jaxalign import plugins
    from jaxalign.files import cache_dir
    from jaxalign.rewards import export
    from jaxalign.rewards.pair_scores import check_users, score_pairs, summarise
    from jaxalign.rewards.tuning import export as tuned

    plugins.load(options.plugins)
    model = tuned.load(options.rewards) if tuned.is_tuned(options.rewards) else export.load(options.rewards)
    if not options.prior:
        check_users(model, rows, places)  # before the language model is loaded
    lm = load_model(options)
    scores = []
    with output(options.out) as file, progress("scoring", len(rows)) as advance:
        for score in score_pairs(
            model,
            lm,
            rows,
            prior=options.prior,
            pooling=export.pooling_of(options.rewards),
            batch_size=options.batch_size,
            cache=cache_dir() / "features",
            places=places,
            progress=advance,
        ):
            line = {"user": score.user, "label": score.label}
            line |= {"reward_chosen": score.reward_chosen, "reward_rejected": score.reward_rejected}
            line |= {"margin": score.margin, "agrees": score.agrees}
            line |= {"tokens_chosen": score.tokens_chosen, "tokens_rejected": score.tokens_rejected}
            print(json.dumps({**line, "at_prior": score.at_prior}, ensure_ascii=False), file=file, flush=True)
            scores.append(score)
    print(_told(summarise(scores)), file=sys.stderr)
    return 0


def _rows(path: Path) -> tuple[list[Any], list[str]]:
    """The rows of a file, and what errors call each: its line."""
    from jaxalign.data.reader import parsed
    from jaxalign.data.row_error import RowError
    from jaxalign.data.schema import read_preference
    from jaxalign.errors import DataError

    rows, places = [], []
    for line, row in parsed(path, read_preference):
        if isinstance(row, RowError):
            raise row
        rows.append(row)
        places.append(f"{path.name}, line {line}")
    if not rows:
        raise DataError(f"{path} holds no valid row.")
    return rows, places


def _told(summary: Any) -> str:
    """A summary as one line."""

    def some(count: int, what: str) -> str:
        return f"{count:,} {what}{'s' * (count != 1)}"

    parts = ["accuracy: none, since no row has a preferred side"]
    if summary.micro is not None:
        users, pairs = some(summary.users, "user"), some(summary.pairs, "pair")
        parts = [
            f"accuracy: {100 * summary.macro:.1f} % (mean over {users}), {100 * summary.micro:.1f} % (over {pairs})"
        ]
    parts += [f"{some(summary.ties, 'tie')} of the reward, counted one half"] if summary.ties else []
    parts += [f"{some(summary.undecided, 'tie')} of the label, left out"] if summary.undecided else []
    parts += [f"{some(summary.at_prior, 'user')} at the prior"] if summary.at_prior else []
    return "; ".join(parts)


def _responses(options: Options) -> int:
    """Judges the responses of a file."""
    if options.prior:
        raise InputError("--prior goes with FILE, a file of pairs")
    assert options.responses is not None
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
