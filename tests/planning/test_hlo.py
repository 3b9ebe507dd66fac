"""Collectives read from a program's text, and products counted in its trace."""

import jax
import jax.numpy as jnp
import pytest

from jaxalign.planning.flops import product_flops
from jaxalign.planning.hlo import Collective, collectives, summary

TEXT = """HloModule m, entry_computation_layout={()->f32[]}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %r = f32[] add(%a, %b)
}

%layer (p: f32[8]) -> f32[8] {
  ROOT %all-reduce.1 = bf16[4,8]{1,0} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add
}

%step (p: f32[8]) -> f32[8] {
  %w = f32[8] while(%p), condition=%c, body=%layer, backend_config={"known_trip_count":{"n":"28"}}
  ROOT %g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
}

%c (p: f32[8]) -> pred[] {
  ROOT %x = pred[] constant(true)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %loop = f32[8] while(%p), condition=%c, body=%step
  %d = f32[16]{0} all-gather-done(%loop)
  %t = f32[3]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}
  %alone = f32[3]{0} all-reduce(%p), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  ROOT %all = f32[] all-reduce(%p), replica_groups={}, to_apply=%add
}
"""


def test_where_and_over_which_axis():
    assert collectives(TEXT, (("users", 4), ("model", 2))) == [
        Collective("all-reduce", "model", 2, 64, True, 28),
        Collective("all-gather", "users", 4, 64, True, 1),
        Collective("collective-permute", "model", 2, 12, False, 1),
        Collective("all-reduce", "users+model", 8, 4, False, 1),
    ]
    assert [number for _, number in summary(collectives(TEXT + "", (("users", 4), ("model", 2))) * 2)] == [2] * 4


def test_products_of_loops_are_multiplied():
    w = jnp.ones((4, 4))

    def f(x):
        x = jax.lax.scan(lambda x, _: (jnp.matmul(x, w), None), x, None, length=5)[0]
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 0, lambda x: jax.jit(jnp.matmul)(x, w), x)

    assert product_flops(jax.jit(f).trace(jnp.ones((3, 4))).jaxpr) == pytest.approx((5 + 1) * 2 * 3 * 4 * 4)
