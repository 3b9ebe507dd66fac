"""One path from one device to a mesh: the same numbers whatever the mesh, for any number of users."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.decoding import Greedy, RewardHead, loop
from jaxalign.decoding.rows import make_rows
from jaxalign.errors import InputError
from jaxalign.evaluation.sharding import balance, layout, make_mesh, parse_mesh, replicate, shard_users
from jaxalign.models import DecoderConfig, random
from jaxalign.models.sharding import param_shardings

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=304,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=64,
    tie_embeddings=True,
)
LM = random(CONFIG, seed=3)
USERS, LENGTH, NEW = 8, 6, 6
PROGRAM = loop.Program(config=CONFIG, context=64, max_tokens=NEW, max_top_k=5, end_ids=(1,), pad_id=0)


@pytest.fixture(autouse=True, scope="module")
def _hurry():
    with jax.numpy_dtype_promotion("strict"):
        old = jax.config.read("jax_disable_most_optimizations")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", old)


def mesh_of(users, model=1):
    return make_mesh({"users": users, "model": model}, jax.devices()[: users * model])


def decode(params, head, rows, tokens, lengths):
    """Guided tokens of a block of rows."""
    real = jnp.ones(len(tokens), bool)
    state = loop.start(PROGRAM, params, head, Greedy(), rows, tokens, lengths, real)
    state = loop.decode(PROGRAM, params, head, Greedy(), rows, state)
    return {"tokens": state.tokens, "chosen": state.chosen}


def correct(head, gap):
    """Pairs that each user's head ranks rightly: `[users, pairs, width]` -> `[users]` counts."""
    return jnp.sum(jnp.einsum("upw,uw->up", gap, head, precision="highest") > 0, axis=-1)


@functools.cache
def inputs():
    rng = np.random.default_rng(0)
    head = RewardHead.linear(rng.standard_normal((USERS, 32)).astype(np.float32), weight=2.0)
    limits = rng.integers(1, NEW + 1, USERS)
    rows = make_rows(USERS, max_new_tokens=limits, user=np.arange(USERS), top_k=5)
    tokens = rng.integers(2, CONFIG.vocab_size, (USERS, LENGTH)).astype(np.int32)
    gap = rng.standard_normal((USERS, 20, 32)).astype(np.float32)
    return head, rows, tokens, rng.integers(1, LENGTH + 1, USERS).astype(np.int32), gap


def everything(mesh, params, users=USERS, costs=None):
    """Guided tokens and accuracies of the first users."""
    head, rows, tokens, lengths, gap = jax.tree.map(lambda x: x, inputs())
    rows, tokens, lengths = jax.tree.map(lambda x: x[:users], (rows, tokens, lengths))
    decoded = shard_users(decode, mesh, in_axes=(None, None, 0, 0, 0))
    judged = shard_users(correct, mesh, in_axes=(0, 0))
    head = replicate(head, mesh)
    out = decoded(params, head, rows, tokens, lengths, costs=costs)
    counts = judged(np.asarray(head.users["vector"])[:users], gap[:users], costs=costs)
    return jax.tree.map(np.asarray, (out["tokens"], out["chosen"], counts))


@functools.cache
def expected():
    return everything(None, LM.params)


@pytest.mark.parametrize(("users", "model"), [(2, 1), (4, 1), (8, 1), (4, 2)])
def test_every_mesh_gives_the_tokens_and_accuracies_of_one_device(users, model):
    mesh = mesh_of(users, model)
    params = jax.tree.map(jax.device_put, LM.params, param_shardings(CONFIG, mesh))
    got = everything(mesh, params)
    for ours, one in zip(got, expected(), strict=True):
        np.testing.assert_array_equal(ours, one)
    # The check can fail: rows differ, and stop at different steps.
    assert len({row.tobytes() for row in got[0]}) == USERS
    assert len(set(got[1].tolist())) > 2


@pytest.mark.parametrize("costs", [None, [5, 1, 1, 9, 1, 1, 2]])
def test_seven_users_on_eight_devices(costs):
    mesh = mesh_of(8)
    got = everything(mesh, replicate(LM.params, mesh), users=7, costs=costs)
    for ours, one in zip(got, expected(), strict=True):
        np.testing.assert_array_equal(ours, one[:7])


@pytest.mark.parametrize("users", [1, 3, 1000])
def test_any_number_of_users(users):
    rng = np.random.default_rng(users)
    head = rng.standard_normal((users, 4)).astype(np.float32)
    gap = rng.standard_normal((users, 9, 4)).astype(np.float32)
    alone = np.sum(np.sum(gap * head[:, None], axis=-1) > 0, axis=-1)
    for size in (1, 8):
        got = shard_users(correct, mesh_of(size), in_axes=(0, 0))(head, gap, costs=rng.random(users))
        np.testing.assert_array_equal(got, alone)


def test_equal_to_pmap():
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((16, 5)).astype(np.float32), rng.standard_normal((5, 5)).astype(np.float32)

    def f(w, rows):
        return jnp.tanh(jnp.matmul(rows, w, precision="highest"))

    old = jax.pmap(f, in_axes=(None, 0))(weights, x.reshape(8, 2, 5)).reshape(16, 5)
    new = shard_users(f, mesh_of(8), in_axes=(None, 0))(weights, x)
    np.testing.assert_array_equal(new, old)
    assert len(new.addressable_shards) == 8
    assert new.addressable_shards[0].data.shape == (2, 5)


def test_draws_belong_to_rows():
    keys = jax.random.split(jax.random.key(0), 7)

    def draw(key):
        return jax.vmap(lambda k: jax.random.normal(k, (3,)))(key)

    one = shard_users(draw, None, in_axes=(0,))(keys)
    np.testing.assert_array_equal(shard_users(draw, mesh_of(4), in_axes=(0,))(keys, costs=np.arange(7)), one)


def test_static_and_donated_arguments():
    def f(power, buffer, x):
        return buffer + x**power

    mesh = mesh_of(2)
    rows = jax.device_put(jnp.ones((4, 2)), jax.sharding.NamedSharding(mesh, jax.P("users")))
    mapped = shard_users(f, mesh, in_axes=(None, 0, 0), static_argnums=(0,), donate_argnums=(1,))
    np.testing.assert_array_equal(mapped(3, rows, np.full((4, 2), 2, np.float32)), 9)
    assert rows.is_deleted()


def test_one_program_for_many_calls():
    traces = []

    def f(x):
        traces.append(x.shape)
        return x + 1

    mapped = shard_users(f, mesh_of(4), in_axes=(0,))
    for rows in (5, 8, 6, 7):
        assert mapped(np.zeros((rows, 2), np.float32)).shape == (rows, 2)
    assert traces == [(2, 2)]


def test_loops_of_blocks_do_not_wait_for_each_other():
    """No exchange over `users`, whatever the loop's condition: that is what manual sharding buys."""
    mesh = mesh_of(8)
    head, rows, tokens, lengths, _ = inputs()
    mapped = shard_users(decode, mesh, in_axes=(None, None, 0, 0, 0))
    text = jax.jit(mapped).lower(replicate(LM.params, mesh), replicate(head, mesh), rows, tokens, lengths)
    compiled = text.compile().as_text()
    assert "while(" in compiled
    assert not any(name in compiled for name in ("all-reduce", "all-gather", "collective-permute", "all-to-all"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((0, 2)), np.zeros((0, 2))), "lengths are 0"),
        ((np.zeros((2, 2)), np.zeros((3, 2))), "lengths are 2, 3"),
        ((np.zeros((2, 2)), np.float32(1)), "None"),
    ],
)
def test_rows_that_do_not_fit(arguments, message):
    with pytest.raises(InputError, match=message):
        shard_users(lambda a, b: a, mesh_of(2), in_axes=(0, 0))(*arguments)


def test_a_mesh_that_does_not_fit():
    with pytest.raises(InputError, match=r"needs 16 devices and there are 8.*users=4,model=2"):
        make_mesh("users=8,model=2")
    for wrong in ("users", "users=0", "user=4", "users=2,users=4", "users=-1", ""):
        with pytest.raises(InputError, match="users=4,model=2"):
            parse_mesh(wrong)
    assert parse_mesh("model=2, users=3") == {"users": 3, "model": 2}
    assert make_mesh().shape == {"users": 8, "model": 1}


def test_idle_devices_are_said(caplog):
    assert make_mesh("users=3").size == 3
    assert "5 devices idle" in caplog.text


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=40), parts=st.integers(1, 9), equal=st.booleans())
def test_balance(costs, parts, equal):
    capacity = -(-len(costs) // parts) if equal else None
    members = balance(costs, parts, capacity)
    assert sorted(np.concatenate(members).tolist()) == list(range(len(costs)))
    sums = [sum(costs[i] for i in m) for m in members]
    if equal:
        assert max(map(len, members)) <= capacity
        source, place = layout(len(costs), parts, costs)
        assert len(source) == parts * capacity
        assert source[place].tolist() == list(range(len(costs)))
    else:
        least = max(sum(costs) / parts, max(costs))
        # The last item put into the dearest part found it no dearer than the mean.
        assert max(sums) <= sum(costs) / parts + max(costs) * (1 - 1 / parts) + 1e-9
        assert max(sums) >= least - 1e-9
    assert [m.tolist() for m in balance(costs, parts, capacity)] == [m.tolist() for m in members]


def test_balance_by_cost_and_not_by_count():
    assert [m.tolist() for m in balance([50, 1, 1, 1], 2)] == [[0], [1, 2, 3]]
    assert [m.tolist() for m in balance([0, 0, 0, 0], 2)] == [[0, 2], [1, 3]]
    for wrong in ([-1.0], [float("nan")]):
        with pytest.raises(InputError, match="non-negative"):
            balance(wrong, 2)
    with pytest.raises(InputError, match="5 items do not fit into 2 parts of at most 2"):
        balance([1] * 5, 2, 2)
