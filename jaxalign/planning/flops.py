"""Operations of the matrix products of a traced program, loops of known length multiplied.

XLA's `cost_analysis` counts the body of every loop once: a model whose layers are scanned looks as if it had one.
"""

import math
from typing import Any


def product_flops(jaxpr: Any) -> float:
    """Multiplications and additions of all matrix products; the body of a `while` loop counts once.

    Inside a `shard_map` shapes are those of one block of rows, so the sum is that of one block; mesh axes that are
    automatic there are not divided out.

    Args:
      jaxpr: a jaxpr, for instance `jax.jit(f).trace(*arguments).jaxpr`.
    """
    total = 0.0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[i] for i in contracted)
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * inner
            continue
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    total += times * product_flops(inner)
    return total
