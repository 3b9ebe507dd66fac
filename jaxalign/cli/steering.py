"""What `generate` and `score` share: the model, and the guidance that the flags describe."""

import contextlib
import dataclasses
from collections.abc import Sequence
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

    guidance: tuple[str, ...] = ()
    """A guidance of a plugin: its name, then its settings as name=value."""

    weight: float = 1.0
    """w: how much a unit of reward counts against a nat of log-probability; multiplies that of --guidance."""

    clip: float | None = None
    """Rewards are clipped to plus or minus this bound before they are weighted."""

    plugins: tuple[Path, ...] = ()
    """Python files that add guidances, selections or reward models; installed packages that do need no naming."""

    batch_size: int = 8
    """Rows that are computed together."""

    on_long_prompt: Literal["error", "truncate_left"] = "error"
    """What to do with a prompt that leaves no room."""


def load_model(options: Steering) -> Any:
    """The language model, with compiled programs kept on disk between runs.

    Raises:
      InputError: a plugin that fails, or a guidance that there is not; before anything is loaded.
    """
    from jaxalign import models, plugins
    from jaxalign.cli.runtime import prepare_jax

    plugins.load(options.plugins)
    if options.guidance:
        from jaxalign.decoding.registry import GUIDANCES

        GUIDANCES.find(options.guidance[0])
        settings(options.guidance[1:])
    prepare_jax()
    return models.load(options.model, dtype=options.dtype, layers=options.layers)


def guidance_of(options: Steering, lm: Any) -> Any:
    """The guidance that the flags ask for, or None.

    Raises:
      InputError: flags that contradict each other, a file that is not a vector of the model's width, an unknown user.
    """
    given = {"--reward-head": options.reward_head, "--rewards": options.rewards, "--guidance": options.guidance or None}
    given = [flag for flag, value in given.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"give {' or '.join(given)}, not both")
    if (options.rewards is None) != (options.user is None):
        raise InputError("--rewards and --user go together: a folder, and whose reward of it guides")
    if options.reward_head is not None:
        from jaxalign.decoding.guidance import RewardHead

        guidance = RewardHead.linear(_vector(options.reward_head, lm.config.hidden_size), weight=options.weight)
    elif options.rewards is not None:
        guidance = _fitted(options.rewards, str(options.user), options.weight, lm)
    elif options.guidance:
        from jaxalign.decoding.registry import make_guidance

        guidance = make_guidance(options.guidance[0], lm, **settings(options.guidance[1:]))
        guidance = dataclasses.replace(guidance, weight=options.weight * guidance.weight)
    else:
        return None
    return guidance if options.clip is None else dataclasses.replace(guidance, clip=options.clip)


def settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Settings of a plugin's guidance or selection from "name=value": numbers, true and false, or else text.

    Raises:
      InputError: one is not name=value.
    """
    from jaxalign.cli.fit import split_assignment

    def value(text: str) -> Any:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
        return text

    return {name: value(text) for name, text in map(split_assignment, assignments)}


def _fitted(folder: Path, user: str, weight: float, lm: Any) -> Any:
    """The guidance by a fitted reward model of one user."""
    import jax

    from jaxalign.decoding.guidance import RewardHead
    from jaxalign.rewards import export
    from jaxalign.rewards.tuning import export as tuned

    if tuned.is_tuned(folder):
        return tuned.load(folder).only(user).guidance(lm, weight=weight)
    model = export.load(folder, lm.fingerprint)
    row = model.index(user)
    users = jax.tree.map(lambda leaf: np.asarray(leaf)[row : row + 1], model.user_params)
    pooling = export.pooling_of(folder)
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
