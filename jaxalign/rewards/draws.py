"""Random starting values, drawn on the host.

A fit starts with a dozen draws of different shapes. On the device each shape is a program of its own, and compiling
these takes longer than the fit.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def normal(key: Array, shape: tuple[int, ...], name: str = "", *, scale: float = 1.0) -> Array:
    """Draws of N(0, scale^2), float32 `shape`; not for use inside jit.

    Args:
      key: a random key.
      shape: the shape.
      name: tells draws from the same key apart, so that no key needs to be split.
      scale: the standard deviation.
    """
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    generator = np.random.default_rng([*words, zlib.crc32(name.encode())])
    return jnp.asarray(np.float32(scale) * generator.standard_normal(shape, np.float32))
