"""The arithmetic of the harness: medians, ratios, rounds, exponents, utilisation."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import cost
from benchmarks.ceilings import Ceilings
from benchmarks.flags import TINY
from benchmarks.harness import Arm, Spread, compile_ahead, growth, interleave, program_bytes, speed_ratio
from jaxalign.models import DecoderConfig


def test_spread_is_median_and_quartiles():
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    with pytest.raises(ValueError, match="no measurements"):
        Spread.of([])


def test_a_rate_swaps_the_quartiles_of_its_time():
    assert Spread(2.0, 1.0, 4.0, 3).map(lambda seconds: 8 / seconds) == Spread(4.0, 2.0, 8.0, 3)


def test_the_ratio_is_of_runs_of_one_round():
    # The machine halves its speed half-way: each round's ratio is still 2, while the medians' ratio would be 3.
    slow = [{"total": 2.0}, {"total": 2.0}, {"total": 4.0}, {"total": 6.0}]
    base = [{"total": 1.0}, {"total": 1.0}, {"total": 2.0}, {"total": 3.0}]
    assert speed_ratio(slow, base) == Spread(0.5, 0.5, 0.5, 4)
    # Given a quarter of the rows in the same time, it has a quarter of the speed.
    assert speed_ratio(base, base, work=0.25).median == 0.25
    with pytest.raises(ValueError, match="zip"):
        speed_ratio(slow, base[:2])


def recorder(name, log):
    def run():
        log.append(name)
        return {"total": 1.0}

    return Arm(name, run, warm=lambda: log.append(f"warm {name}"))


def test_rounds_interleave_and_turn_around():
    log = []
    rounds = interleave([recorder("a", log), recorder("b", log)], repeats=3)
    assert log == ["warm a", "warm b", "a", "b", "b", "a", "a", "b"]
    assert {name: len(runs) for name, runs in rounds.items()} == {"a": 3, "b": 3}


def test_time_ends_the_rounds_but_two_are_run():
    clock = itertools.count(step=10).__next__
    assert len(interleave([recorder("a", [])], repeats=9, seconds=1, clock=clock)["a"]) == 2
    clock = itertools.count(step=10).__next__
    assert len(interleave([recorder("a", [])], repeats=9, seconds=35, clock=clock)["a"]) == 5


def test_arms_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        interleave([recorder("a", []), recorder("a", [])], repeats=1)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_growth_of_exact_powers(exponent):
    sizes = [16, 32, 64, 128]
    fitted = growth(sizes, [3 * size**exponent for size in sizes])
    assert math.isclose(fitted.exponent, exponent, abs_tol=1e-12)
    assert fitted.error < 1e-12
    assert fitted.points == 4


def test_the_error_of_growth_is_that_of_the_slope():
    sizes, costs = [1, 2, 4, 8], [1.0, 2.5, 3.5, 9.0]
    (slope, _), covariance = np.polyfit(np.log(sizes), np.log(costs), 1, cov=True)
    fitted = growth(sizes, costs)
    assert math.isclose(fitted.exponent, slope)
    assert math.isclose(fitted.error, math.sqrt(covariance[0, 0]))


@pytest.mark.parametrize(("sizes", "costs"), [([4, 4], [1.0, 2.0]), ([1, 2], [1.0, 0.0])])
def test_growth_refuses_what_has_no_slope(sizes, costs):
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="different positive sizes"):
        growth(sizes, costs)


def test_a_compiled_program_is_called_without_its_static_arguments():
    function = jax.jit(lambda n, x: x * n, static_argnums=0)
    compiled = compile_ahead(function, 3, jnp.ones(4))
    np.testing.assert_array_equal(compiled.program(jnp.ones(4)), np.full(4, 3.0))
    assert compiled.seconds == compiled.trace_seconds + compiled.compile_seconds > 0
    size = program_bytes(compiled.program)
    assert size is None or size >= 32  # 4 numbers in, 4 out


def test_cost_of_a_step_by_hand():
    # Layers: attention 32*(32+32) + 2*32*16, MLP 3*32*64, norms 64; twice; final norm 32. Output matrix 512*32.
    layers = 2 * (32 * 64 + 32 * 32 + 3 * 32 * 64 + 64) + 32
    assert cost.body_weights(TINY) == layers
    kv = 2 * 2 * 2 * 8 * 100  # keys and values, layers, heads, width, tokens
    plain = cost.step("none", TINY, 4, batch=3, top_k=5, context=100)
    assert plain.bytes == 4 * (layers + 3 * kv + 512 * 32)
    assert plain.flops == 3 * (2 * layers + 4 * 2 * 4 * 8 * 100 + 2 * 512 * 32)
    wide = cost.step("head", TINY, 4, batch=3, top_k=5, context=100)
    assert wide.bytes == plain.bytes  # nothing more is read: the candidates share weights and cache
    body, logits = cost.body(TINY, 4, 3, 1, 100), cost.logits(TINY, 4, 3)
    assert wide.flops == 5 * body.flops + logits.flops
    assert cost.step("separate", TINY, 4, 3, 5, 100) == plain + cost.body(TINY, 4, 3, 5, 100)
    assert cost.step("autoregressive", TINY, 4, 3, 5, 100) == plain + plain


@pytest.mark.parametrize("name", ["smollm2-135m", "llama-3.1-8b"])
def test_body_weights_leave_out_the_tables(name):
    config = DecoderConfig.named(name)
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    assert cost.body_weights(config) + tables == config.num_params


def test_the_least_time_is_the_larger_bound():
    top = Ceilings(100.0, {"float32": 1000.0})
    assert top.ridge("float32") == 10
    assert cost.Cost(200, 500).least_seconds(top, "float32") == 2.0  # bytes
    assert cost.Cost(100, 5000).least_seconds(top, "float32") == 5.0  # operations
    assert cost.Cost(200, 500).least_seconds(top.on(4), "float32") == 0.5
