"""What this machine can do at most, measured in the same run: a copy and a matrix product, both through XLA.

Utilisation against a data sheet says how good machine and software are together; against these two numbers, how much
of what XLA can do here the decoder gets.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Attributes:
    bytes_per_second: read and written by a copy that is larger than every cache.
    flops_per_second: of a large square matrix product, by dtype name.
    devices: how many devices together do this much (each does its own copy and product; one is measured).
    """

    bytes_per_second: float
    flops_per_second: dict[str, float]
    devices: int = 1

    def ridge(self, dtype: str) -> float:
        """Operations per byte above which work is bound by arithmetic: where guidance stops being free."""
        return self.flops_per_second[dtype] / self.bytes_per_second

    def on(self, devices: int) -> "Ceilings":
        """The ceilings of that many such devices together."""
        flops = {name: value * devices for name, value in self.flops_per_second.items()}
        return Ceilings(self.bytes_per_second * devices, flops, devices)


def _best(function, argument, repeats: int) -> float:
    """Seconds of the fastest of several calls: a ceiling is the best that can be had, not the usual.

    Each call takes the last one's result, so that a function may overwrite its argument.
    """
    argument = jax.block_until_ready(function(argument))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        argument = jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(dtypes: tuple[str, ...], *, megabytes: int | None = None, size: int | None = None, repeats: int = 5):
    """Measures one device, in about two seconds.

    Args:
      dtypes: of the matrix products.
      megabytes: size of what is copied; default 256 on a CPU, 2048 elsewhere.
      size: rows and columns of the matrices; default 1024 on a CPU, 8192 elsewhere.
      repeats: runs of each, of which the fastest counts.
    """
    cpu = jax.default_backend() == "cpu"
    megabytes = megabytes or (256 if cpu else 2048)
    size = size or (1024 if cpu else 8192)
    source = jnp.zeros((megabytes * 250, 1000), jnp.float32)
    # Adding a constant, since XLA may alias a mere copy; onto itself, since a CPU takes most of the time of a fresh
    # result to map its pages (7 times slower).
    size_in_bytes = source.nbytes
    copied = 2 * size_in_bytes / _best(jax.jit(lambda x: x + 1, donate_argnums=0), source, repeats)
    flops = {}
    for name in dtypes:
        # Small numbers: the product of the product stays finite.
        matrix = jnp.full((size, size), 1 / size, jnp.dtype(name))
        precision = jax.lax.Precision.HIGHEST if name == "float32" else None

        def product(x, precision=precision):
            # Outputs first, accumulated in float32, as the transformer's own products.
            dims = (((1,), (1,)), ((), ()))
            y = jax.lax.dot_general(x, x, dims, precision=precision, preferred_element_type=jnp.float32)
            return y.astype(x.dtype)

        flops[name] = 2 * size**3 / _best(jax.jit(product), matrix, repeats)
    return Ceilings(copied, flops)
