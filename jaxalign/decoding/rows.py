"""What each row of a batch asks for: settings and state codes, as arrays, so that one program serves any mixture."""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.errors import InputError


class StopReason(enum.IntEnum):
    """Why a row stopped."""

    RUNNING = 0
    END_TOKEN = 1  # it produced one of the model's end tokens, which is its last token
    LENGTH = 2  # it has as many tokens as were asked for
    CACHE_FULL = 3  # the context of the model, or the cache, has no room for another token
    NON_FINITE = 4  # a logit or a reward was NaN or infinite; no token was taken from it

    @property
    def label(self) -> str:
        """The word used in files and on the command line."""
        return self.name.lower()


class Rows(NamedTuple):
    """Per-row settings of a batch.

    Attributes:
      user: `[batch]` int32, index into the users of the guidance's parameters.
      key: `[batch]` random keys; a row's draws depend on its own key and nothing else.
      max_new_tokens: `[batch]` int32.
      top_k: `[batch]` int32. With a candidate guidance, the number of candidates (at least 1); in plain sampling, how
        many of the most probable tokens may be drawn, 0 for all.
      top_p: `[batch]` float32, nucleus of plain sampling; 1 for all.
      temperature: `[batch]` float32; 0 is greedy.
    """

    user: jax.Array
    key: jax.Array
    max_new_tokens: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    temperature: jax.Array


def request_keys(seed: "int | np.ndarray", request: np.ndarray) -> jax.Array:
    """One key per row, from the seed and the request's own number: `[batch]` keys."""
    seeds = jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), request.shape)
    return jax.vmap(lambda s, r: jax.random.fold_in(jax.random.key(s), r))(seeds, jnp.asarray(request, jnp.uint32))


def per_row(name: str, value: Any, dtype: Any, batch: int) -> np.ndarray:
    """`[batch]` values of a setting given as a number or as one number per row.

    Raises:
      InputError: another number of values, or one that `dtype` cannot hold; the message names the field.
    """
    try:
        return np.broadcast_to(np.asarray(value, dtype), (batch,))
    except (ValueError, OverflowError, TypeError):
        raise InputError(f"{name} = {value}: a number, or one for each of the {batch} rows, is needed") from None


def make_rows(
    batch: int,
    *,
    max_new_tokens: "int | np.ndarray",
    user: "int | np.ndarray" = 0,
    top_k: "int | np.ndarray" = 0,
    top_p: "float | np.ndarray" = 1.0,
    temperature: "float | np.ndarray" = 0.0,
    seed: "int | np.ndarray" = 0,
    request: np.ndarray | None = None,
) -> Rows:
    """Builds `Rows`, broadcasting numbers over the batch.

    Raises:
      InputError: a value is out of range or not finite; the message names the field and the row.
    """

    def check(name, value, dtype, good, rule):
        array = per_row(name, value, dtype, batch)
        bad = np.flatnonzero(~good(array))
        if bad.size:
            raise InputError(f"{name} = {array[bad[0]]} in row {bad[0]}: {rule}")
        return jnp.asarray(array)

    return Rows(
        user=check("user", user, np.int32, lambda x: x >= 0, "an index of a user is needed"),
        key=request_keys(seed, np.arange(batch) if request is None else np.asarray(request)),
        max_new_tokens=check("max_new_tokens", max_new_tokens, np.int32, lambda x: x >= 1, "at least 1 is needed"),
        top_k=check("top_k", top_k, np.int32, lambda x: x >= 0, "0 (all) or more is needed"),
        top_p=check("top_p", top_p, np.float32, lambda x: (x > 0) & (x <= 1), "a number in (0, 1] is needed"),
        temperature=check(
            "temperature", temperature, np.float32, lambda x: np.isfinite(x) & (x >= 0), "0 (greedy) or more is needed"
        ),
    )
