"""What `generate` and `score` share: the model, and the guidance that the flags describe."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxalign.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steering:
    """The language model, and the reward that guides it."""

    model: str
    """smollm2-135m-instruct, a hub id, or a Hugging Face folder."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters in memory."""

    layers: Literal["unrolled", "scanned"] = "unrolled"
    """unrolled decodes fastest; scanned compiles deep models quickly."""

    reward_head: Path | None = None
    """A .npy file with a vector [width] on the model's final hidden state, used as a reward."""

    rewards: Path | None = None
    """A folder with a fitted reward model; see --user."""

    user: str | None = None
    """Whose reward of --rewards guides."""

    weight: float = 1.0
    """w: how much a unit of reward counts against a nat of log-probability."""

    clip: float | None = None
    """Rewards are clipped to plus or minus this bound before they are weighted."""

    batch_size: int = 8
    """Rows that are computed together."""

    on_long_prompt: Literal["error", "truncate_left"] = "error"
    """What to do with a prompt that leaves no room."""


def load_model(options: Steering) -> Any:
    """The language model, with compiled programs kept on disk between runs."""
    from jaxalign import models
    from jaxalign.cli.runtime import use_compilation_cache

    use_compilation_cache()
    return models.load(options.model, dtype=options.dtype, layers=options.layers)


def guidance_of(options: Steering, lm: Any) -> Any:
    """The guidance that the flags ask for, or None.

    Raises:
      InputError: flags that contradict each other, a file that is not a vector of the model's width, an unknown user.
    """
    if options.reward_head is not None and options.rewards is not None:
        raise InputError("give --reward-head or --rewards, not both")
    if (options.rewards is None) != (options.user is None):
        raise InputError("--rewards and --user go together: a folder, and whose reward of it guides")
    if options.reward_head is not None:
        from jaxalign.decoding.guidance import RewardHead

        guidance = RewardHead.linear(_vector(options.reward_head, lm.config.hidden_size), weight=options.weight)
    elif options.rewards is not None:
        guidance = _fitted(options.rewards, str(options.user), options.weight, lm)
    else:
        return None
    return guidance if options.clip is None else dataclasses.replace(guidance, clip=options.clip)


def _fitted(folder: Path, user: str, weight: float, lm: Any) -> Any:
    """The guidance by a fitted reward model of one user."""
    import jax

    from jaxalign.cli.fit import pooling_of
    from jaxalign.decoding.guidance import RewardHead
    from jaxalign.rewards import export
    from jaxalign.rewards.tuning import export as tuned

    if tuned.is_tuned(folder):
        return tuned.load(folder).only(user).guidance(lm, weight=weight)
    model = export.load(folder, lm.fingerprint)
    row = model.index(user)
    users = jax.tree.map(lambda leaf: np.asarray(leaf)[row : row + 1], model.user_params)
    # A model that another program wrote has no note of how its texts were pooled: the last token, as most are.
    pooling = pooling_of(folder) or "last"
    return RewardHead(function=model.reward, shared=model.shared, users=users, weight=weight, pooling=pooling)


def _vector(path: Path, width: int) -> np.ndarray:
    try:
        vector = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--reward-head {path}: not a .npy file ({error})") from None
    if vector.shape != (width,) or vector.dtype.kind != "f":
        raise InputError(
            f"--reward-head {path}: {vector.dtype} {list(vector.shape)}; a float vector [{width}] is needed, the width "
            "of the model's hidden state"
        )
    if not np.isfinite(vector).all():
        raise InputError(f"--reward-head {path}: entry {int(np.argmin(np.isfinite(vector)))} is not finite")
    return vector.astype(np.float32)
