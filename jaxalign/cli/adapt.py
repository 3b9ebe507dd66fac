"""`jaxalign adapt`: the reward model of users whom it has not seen, from a few of their pairs."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jaxalign.cli import flags
from jaxalign.cli.fit import REPORT, pooling_of, read_features
from jaxalign.errors import InputError, ModelError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Adapts a fitted reward model to the users of a file, all at once, and writes a reward model of these users.

    What users share stays as it was. One JSON line per user goes to standard output: user, pairs, accuracy on them.
    """

    model: str
    """The language model that the reward model was fitted for."""

    rewards: Path
    """Folder of the fitted reward model."""

    data: Path
    """Support pairs of the new users: .jsonl, .jsonl.gz or .parquet."""

    out: Path
    """Folder for the adapted reward model."""

    users: tuple[str, ...] = ()
    """Further users, of whom nothing is known: they get the method's prior."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the language model's parameters."""

    batch_size: int = 8
    """Texts per batch of the language model."""

    overwrite: bool = False
    """Replace a reward model that is in the folder."""


def main(arguments: Sequence[str]) -> int:
    """Adapts, writes, and returns the exit status."""
    options = flags.parse("adapt", Options, arguments)
    if options.out.exists() and not options.overwrite:
        raise InputError(f"{options.out} exists. Give another folder, or --overwrite.")
    from jaxalign.data.reader import load_preferences
    from jaxalign.files import write_json
    from jaxalign.rewards import adapt, export
    from jaxalign.rewards.adapting import check_backbone
    from jaxalign.rewards.features import pair_blocks
    from jaxalign.rewards.scoring import pair_rewards

    model = export.load(options.rewards)
    pooling = _pooling(options.rewards)
    rows = load_preferences(options.data)
    lm, features = read_features(options.model, rows, options.dtype, options.batch_size)
    check_backbone(model, lm.fingerprint)
    blocks = with_users(pair_blocks(rows, features, pooling), options.users)
    adapted = adapt(model, blocks)
    export.save(adapted, options.out, overwrite=options.overwrite)
    write_json(options.out / REPORT, {"pooling": pooling, "adapted_from": str(options.rewards)})
    rewarded = pair_rewards(adapted, blocks)
    for row, user in enumerate(blocks.users):
        real = blocks.mask[row]
        better = (rewarded.chosen[row] > rewarded.rejected[row])[real]
        share = float(better.mean()) if real.any() else None
        print(json.dumps({"user": user, "pairs": int(real.sum()), "accuracy": share}, ensure_ascii=False))
    return 0


def with_users(blocks, users: Sequence[str]):
    """The blocks with rows without pairs for further users; those who are there already stay as they are."""
    import numpy as np

    new = tuple(user for user in dict.fromkeys(users) if user not in blocks.users)
    padded = {
        field: np.pad(getattr(blocks, field), ((0, len(new)), (0, 0)))
        for field in ("chosen", "rejected", "mask", "label", "margin")
    }
    return dataclasses.replace(blocks, **padded, users=blocks.users + new)


def _pooling(folder: Path) -> Any:
    if (pooling := pooling_of(folder)) is None:
        raise ModelError(f"{folder} has no {REPORT}, which says how texts were pooled. Fit it with `jaxalign fit`.")
    return pooling
