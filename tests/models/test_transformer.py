"""The transformer: equal to the torch models and to plain loops, and to itself by every path."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tiny

from jaxalign.models import DecoderConfig, bind, init_params, load_params
from jaxalign.models import attention as attention_module
from jaxalign.models.cache import select
from jaxalign.models.config import RELEASED
from jaxalign.models.transformer import (
    abstract_params,
    layers_of,
    param_axes,
    prefill,
    project,
    rope_frequencies,
    step,
)

FAMILIES = list(tiny.CONFIGS)
GOLDEN = Path(__file__).parent / "golden"
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=3e-5)


@pytest.fixture(scope="module")
def params_of(tmp_path_factory):
    """A function from a tiny model's name to its parameters, read from a Hugging Face folder."""
    folders = functools.cache(lambda name: tiny.save(tmp_path_factory.mktemp(name), tiny.CONFIGS[name]))

    @functools.cache
    def load(name, layers="unrolled", dtype="float32"):
        return load_params(folders(name), tiny.CONFIGS[name], layers=layers, dtype=dtype)

    return load


@functools.partial(jax.jit, static_argnums=0)
def logits_at(config, params, ids, positions):
    """`[length, vocab]` logits of one sequence at any positions."""
    model, index = bind(config, params), jnp.arange(ids.shape[0], dtype=jnp.int32)
    hidden, _ = model(ids[None], positions[None], None, jnp.zeros(1, jnp.int32), index[None])
    return model.logits(hidden)[0]


@functools.partial(jax.jit, static_argnums=0)
def encode(config, params, tokens, lengths):
    """Logits `[batch, length, vocab]` and the cache of left-padded prompts."""
    model = bind(config, params)
    hidden, cache = prefill(model, tokens, lengths)
    return model.logits(hidden), cache


@functools.partial(jax.jit, static_argnums=0)
def advance(config, params, tokens, cache):
    """Logits `[batch, k, vocab]` and keys and values of k siblings."""
    model = bind(config, params)
    hidden, new = step(model, tokens, cache)
    return model.logits(hidden), new


# Against others.


@pytest.mark.parametrize("place", tiny.POSITIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_the_torch_models(name, place, params_of):
    golden = np.load(GOLDEN / f"{name}.npz")
    ours = logits_at(tiny.CONFIGS[name], params_of(name), golden["ids"], tiny.POSITIONS[place])
    # Far away, one unit in the last place of torch's float32 frequencies is 9000 of them in an angle.
    close(ours, golden[f"logits_{place}"], atol=5e-5 if place == "near" else 1e-3)


@pytest.mark.parametrize("place", tiny.POSITIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_plain_loops(name, place, params_of):
    config, positions = tiny.CONFIGS[name], tiny.POSITIONS[place]
    ids = tiny.tokens(config, 1, 20, seed=1)[0]
    expected = reference.forward(config, tiny.tensors(config), ids, positions)
    close(logits_at(config, params_of(name), ids, positions), expected, atol=1e-4)


def test_rope_scaling_counts_at_a_distance(params_of):
    scaled = tiny.CONFIGS["llama3"]
    plain = dataclasses.replace(scaled, rope_scaling=None)
    ids = tiny.tokens(scaled, 1, 20)[0]

    def difference(place):
        both = (logits_at(config, params_of("llama3"), ids, tiny.POSITIONS[place]) for config in (scaled, plain))
        return float(np.abs(np.subtract(*both)).max())

    assert difference("near") > 1e-4
    assert difference("far") > 0.3


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "smollm2-135m", "qwen2.5-7b"])
def test_rotary_frequencies_of_released_sizes(name):
    config = DecoderConfig.named(name)
    np.testing.assert_allclose(rope_frequencies(config), reference.frequencies(config), rtol=1e-6)


# Against itself. Every path is compared with the text alone, unpadded, encoded at once: the logits of a prefix are the
# first logits of the text, and those of a candidate are those of the text with the candidate in its place.

COMBINATIONS = [(name, "unrolled") for name in ("llama_biases", "smollm2", "qwen3")]
COMBINATIONS += [(name, "scanned") for name in ("llama_biases", "smollm2")]
ROWS = np.arange(4)


def plain(config, params, texts):
    """`[batch, 20, vocab]` logits of texts `[batch, 20]`, one by one."""
    return np.stack([logits_at(config, params, text, tiny.POSITIONS["near"]) for text in texts])


def left_padded(texts, lengths):
    """The first `lengths` tokens of each text in the last places, after padding of all sorts of ids."""
    tokens = np.random.default_rng(7).integers(0, 61, texts.shape).astype(np.int32)
    for row, length in enumerate(lengths):
        tokens[row, texts.shape[1] - length :] = texts[row, :length]
    return tokens


@pytest.mark.parametrize(("name", "layers"), COMBINATIONS)
def test_batched_with_any_left_padding_equals_alone(name, layers, params_of):
    config, params = tiny.CONFIGS[name], params_of(name, layers)
    assert layers_of(params) == layers
    texts, lengths = tiny.tokens(config, 4, 20), np.array([20, 1, 7, 13], np.int32)
    together, cache = encode(config, params, left_padded(texts, lengths), lengths)
    assert cache.scanned == (layers == "scanned")
    assert (cache.slots, int(cache.slot)) == (20, 20)
    expected = plain(config, params_of(name), texts)
    for row, length in enumerate(lengths):
        close(together[row, -length:], expected[row, :length])


@pytest.mark.parametrize(("name", "layers"), COMBINATIONS)
def test_stepping_with_siblings_equals_the_whole_text(name, layers, params_of):
    """The text's next token is one of three candidates, in another place in each row; it wins and is written."""
    config, params, unrolled = tiny.CONFIGS[name], params_of(name, layers), params_of(name)
    texts, lengths = tiny.tokens(config, 4, 20), np.array([16, 1, 7, 13], np.int32)
    expected = plain(config, unrolled, texts)
    _, cache = encode(config, params, left_padded(texts, lengths), lengths)
    cache = cache.extend(24)
    for turn in range(4):
        candidates, winner = tiny.tokens(config, 4, 3, seed=turn + 1), (ROWS + turn) % 3
        candidates[ROWS, winner] = texts[ROWS, lengths + turn]
        logits, new = advance(config, params, candidates, cache)
        close(np.asarray(logits)[ROWS, winner], expected[ROWS, lengths + turn])
        for k in range(3 if turn == 1 else 0):
            changed = texts.copy()
            changed[ROWS, lengths + turn] = candidates[:, k]
            close(logits[:, k], plain(config, unrolled, changed)[ROWS, lengths + turn])
        cache = cache.write(select(new, jnp.asarray(winner, jnp.int32)))
    assert int(cache.slot) == 24


@pytest.mark.parametrize(("name", "layers"), [("llama3", "unrolled"), ("smollm2", "scanned")])
def test_teacher_forced_candidates_equal_the_changed_text(name, layers, params_of):
    """Two candidates at each of the last four positions of known texts, in one pass over their own cache."""
    config, params = tiny.CONFIGS[name], params_of(name, layers)
    texts, lengths = tiny.tokens(config, 4, 20), np.array([20, 5, 7, 13], np.int32)
    candidates = tiny.tokens(config, 4, 8, seed=1).reshape(4, 4, 2)

    @jax.jit
    def forced(params, tokens):
        model = bind(config, params)
        _, cache = prefill(model, tokens, lengths)
        slots = jnp.broadcast_to(jnp.repeat(jnp.arange(16, 20, dtype=jnp.int32), 2)[None], (4, 8))
        hidden, _ = model(candidates.reshape(4, 8), slots - cache.start[:, None], cache, cache.start, slots)
        return model.logits(hidden).reshape(4, 4, 2, -1)

    logits = forced(params, left_padded(texts, lengths))
    for t in range(4):
        for k in range(2):
            changed = texts.copy()
            changed[ROWS, lengths - 4 + t] = candidates[:, t, k]
            close(logits[:, t, k], plain(config, params_of(name), changed)[ROWS, lengths - 4 + t])


def test_attention_in_pieces_equals_whole(params_of, monkeypatch):
    config, params = tiny.CONFIGS["smollm2"], params_of("smollm2")
    texts, lengths = tiny.tokens(config, 4, 20), np.array([20, 1, 7, 13], np.int32)
    monkeypatch.setattr(attention_module, "_MAX_SCORES", 4 * config.num_heads * 20 * 3)
    pieces, _ = jax.jit(encode.__wrapped__, static_argnums=0)(config, params, left_padded(texts, lengths), lengths)
    expected = plain(config, params, texts)
    for row, length in enumerate(lengths):
        close(pieces[row, -length:], expected[row, :length])


@pytest.mark.parametrize(("name", "layers"), [("llama_biases", "unrolled"), ("smollm2", "scanned")])
def test_bfloat16_is_close_to_float32(name, layers, params_of):
    config, params = tiny.CONFIGS[name], params_of(name, layers, "bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    tokens, lengths = tiny.tokens(config, 4, 20), np.array([20, 12, 8, 1], np.int32)
    (ours, cache), (expected, _) = (encode(config, tree, tokens, lengths) for tree in (params, exact))
    assert ours.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(cache.layers)} == {jnp.dtype(jnp.bfloat16)}
    error = np.concatenate([ours[row, -n:] - expected[row, -n:] for row, n in enumerate(lengths)])
    # Logits have a standard deviation of 1.5, and bfloat16 has 8 bits.
    assert np.sqrt(np.mean(error**2)) < 0.03
    assert np.abs(error).max() < 0.2


def test_a_single_row_and_token_in_bfloat16(params_of):
    """Takes another path through the matrix product on CPUs."""
    config, params = tiny.CONFIGS["llama_biases"], params_of("llama_biases", "unrolled", "bfloat16")
    text = tiny.tokens(config, 1, 20)
    _, cache = encode(config, params, text[:, :19], np.array([19], np.int32))
    alone, _ = advance(config, params, text[:, 19:], cache.extend(20))
    together, _ = encode(config, params, np.tile(text, (4, 1)), np.full(4, 20, np.int32))
    close(alone[0, 0], together[0, -1], atol=0.05)


@pytest.mark.parametrize("outputs", [64, 65, 66])
def test_products_of_few_and_many_rows(outputs):
    """Few rows go through blocks of the matrix on CPUs, where their number divides it."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, 5, 7)).astype(np.float32)
    for rows in (1, 2, 3, 31, 32, 33, 80):
        x = rng.standard_normal((rows, 5, 7)).astype(np.float32)
        exact = np.einsum("rij,oij->ro", x, weight, dtype=np.float64)
        for product in (jax.jit(project, static_argnums=2), project):
            close(product(x[:, None], weight, 2)[:, 0], exact)
        mapped = jax.vmap(lambda y: project(y, weight, 2))(jnp.asarray(x))
        close(mapped, exact)
        slope = jax.grad(lambda w, x=x: jnp.sum(project(x, w, 2) ** 2))(jnp.asarray(weight))
        np.testing.assert_allclose(slope, 2 * np.einsum("ro,rij->oij", exact, x), rtol=1e-4, atol=1e-3)


# Rows without a single token, and gradients.


def _loss(config, params, tokens, lengths):
    """Summed next-token loss of the real tokens of each row."""
    logits, _ = encode.__wrapped__(config, params, tokens, lengths)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]
    real = jnp.arange(tokens.shape[1] - 1)[None] >= (tokens.shape[1] - lengths)[:, None]
    return -jnp.sum(jnp.where(real, picked, 0.0))


loss_and_gradient = jax.jit(jax.value_and_grad(_loss, argnums=1), static_argnums=0)


def test_a_row_of_padding_changes_nothing(params_of):
    config, params = tiny.CONFIGS["llama_biases"], params_of("llama_biases")
    texts, lengths = tiny.tokens(config, 4, 20), np.array([20, 0, 7, 13], np.int32)
    tokens = left_padded(texts, lengths)
    logits, cache = encode(config, params, tokens, lengths)
    stepped, _ = advance(config, params, texts[:, :3], cache.extend(24))
    assert np.isfinite(logits).all()
    assert np.isfinite(stepped).all()
    expected = plain(config, params, texts)
    for row in (0, 2, 3):
        close(logits[row, 20 - lengths[row] :], expected[row, : lengths[row]])
    # A row of one token has no next token to predict: with it in the dummy's place, loss and gradient are the same.
    loss, gradient = loss_and_gradient(config, params, tokens, lengths)
    without = loss_and_gradient(config, params, tokens, np.array([20, 1, 7, 13], np.int32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(loss, without[0], rtol=1e-6)
    jax.tree.map(functools.partial(close, atol=1e-4), gradient, without[1])


def test_a_row_of_padding_in_bfloat16(params_of):
    config, params = tiny.CONFIGS["llama_biases"], params_of("llama_biases", "unrolled", "bfloat16")
    lengths = np.array([20, 0, 7, 13], np.int32)
    loss, gradient = loss_and_gradient(config, params, left_padded(tiny.tokens(config, 4, 20), lengths), lengths)
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf.astype(jnp.float32)).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("name", "layers"), [("llama_biases", "unrolled"), ("qwen3", "scanned")])
def test_gradients_reach_everything_and_are_the_slope(name, layers, params_of):
    config, params = tiny.CONFIGS[name], params_of(name, layers)
    tokens, lengths = tiny.tokens(config, 4, 20), np.array([20, 2, 7, 13], np.int32)
    _, gradient = loss_and_gradient(config, params, tokens, lengths)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-3, path
    norm = float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient))))

    def value(size):
        moved = jax.tree.map(lambda p, g: p + size * g / norm, params, gradient)
        return loss_and_gradient(config, moved, tokens, lengths)[0]

    far, near = value(3e-3), value(-3e-3)
    np.testing.assert_allclose((far - near) / 6e-3, norm, rtol=2e-2)


# Parameter trees.


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("name", FAMILIES)
def test_abstract_trees_are_those_of_real_parameters(name, layers, params_of):
    config = tiny.CONFIGS[name]
    abstract, axes = abstract_params(config, "bfloat16", layers), param_axes(config, layers)
    shape = lambda leaf: (leaf.shape, leaf.dtype)  # noqa: E731
    assert jax.tree.map(shape, params_of(name, layers, "bfloat16")) == jax.tree.map(shape, abstract)
    sizes = {
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "mlp": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "layers": config.num_layers,
    }
    named = jax.tree.map(lambda a: tuple(sizes[axis] for axis in a), axes, is_leaf=lambda a: isinstance(a, tuple))
    assert named == jax.tree.map(lambda leaf: leaf.shape, abstract)
    assert config.num_params == sum(leaf.size for leaf in jax.tree.leaves(abstract))
    assert config.num_params == sum(value.size for value in tiny.tensors(config).values())


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("name", RELEASED)
def test_num_params_of_released_sizes(name, layers):
    config = DecoderConfig.named(name)
    assert config.num_params == sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config, layers=layers)))


def test_random_parameters():
    # Few different shapes: each one's draw is compiled.
    sizes = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 64)
    config = dataclasses.replace(tiny.CONFIGS["qwen3"], num_heads=8, num_kv_heads=8, head_dim=8, **sizes)
    first, again, other = (init_params(config, seed, jnp.bfloat16, "scanned") for seed in (1, 1, 2))
    shape = lambda leaf: (leaf.shape, leaf.dtype)  # noqa: E731
    assert jax.tree.map(shape, first) == jax.tree.map(shape, abstract_params(config, jnp.bfloat16, "scanned"))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["embed"], other["embed"])
    query = first["blocks"]["attention"]["query"]
    assert not np.array_equal(query[0], query[1])
    # Outputs keep the size of inputs.
    assert 0.8 < np.std(query[0].astype(jnp.float32)) * config.hidden_size**0.5 < 1.2
    assert set(np.unique(first["norm"]["scale"])) == {1.0}


def test_bind_keeps_models_apart(params_of):
    """The cached structure of a config must not remember the parameters of the last caller."""
    config, params = tiny.CONFIGS["smollm2"], params_of("smollm2")
    double = jax.tree.map(lambda leaf: leaf * 2, params)
    first, second = bind(config, params), bind(config, double)
    close(first.embed[...] * 2, second.embed[...])
