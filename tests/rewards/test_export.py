import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from planted import SMALL, make_blocks, short

from jaxalign import models, rewards
from jaxalign.errors import InputError, ModelError
from jaxalign.rewards.export import load, save
from jaxalign.rewards.losses import BradleyTerry

BACKBONE = {"name": "tiny", "config": "c0ffee", "tokenizer": "beef"}


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_model_gives_the_same_rewards_to_the_bit(fitted, mixed, tmp_path, name):
    model = fitted(name).model
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.method == model.method
    assert loaded.users == model.users
    jax.tree.map(np.testing.assert_array_equal, (model.shared, model.user_params), (loaded.shared, loaded.user_params))
    hidden, prompt = jnp.asarray(mixed.features), jnp.asarray(mixed.prompts[0])
    reward = jax.jit(model.reward)
    np.testing.assert_array_equal(
        reward(model.shared, model.user("u3"), hidden, prompt), reward(loaded.shared, loaded.user("u3"), hidden, prompt)
    )


def test_another_language_model_is_refused(mixed, tmp_path):
    save(rewards.fit(short("bt"), mixed, backbone=BACKBONE).model, tmp_path / "m")
    assert load(tmp_path / "m", BACKBONE).backbone == BACKBONE
    with pytest.raises(InputError, match="tokenizer: fitted for beef, given dead"):
        load(tmp_path / "m", {**BACKBONE, "tokenizer": "dead"})
    with pytest.raises(InputError, match="name: fitted for tiny, given None"):
        load(tmp_path / "m", {})


def test_hyper_parameters_survive_with_loss_and_infinity(mixed, tmp_path):
    loss = BradleyTerry(margin=0.5, smoothing=0.1)
    method = rewards.make("per_user", strength=float("inf"), steps=2, loss=loss)
    save(rewards.fit(method, mixed).model, tmp_path / "m")
    assert load(tmp_path / "m").method == method


ODD_USERS = (
    "a/b",
    "a_b",
    "a:b",
    "../x",
    "x.",
    "X",
    "x",
    "u" * 300,
    "007",
    "7",
    "nan",
    "é",
    "e\u0301",
    "\U0001f600",
    "\u202e",
)


def test_each_user_keeps_a_reward_of_their_own_whatever_the_id(tmp_path):
    taste = np.random.default_rng(0).standard_normal((len(ODD_USERS), 4))
    blocks = dataclasses.replace(make_blocks(taste, pairs=4), users=ODD_USERS)
    model = rewards.fit(short("per_user"), blocks).model
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.users == ODD_USERS
    vectors = {np.asarray(loaded.linear_form(loaded.shared, loaded.user(user))[0]).tobytes() for user in ODD_USERS}
    assert len(vectors) == len(ODD_USERS)
    for user in ODD_USERS:
        jax.tree.map(np.testing.assert_array_equal, loaded.user(user), model.user(user))
    # No id is a name of a file, so none leads anywhere.
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["m", "reward_model.json", "reward_model.safetensors"]


def test_a_language_model_is_no_reward_model_and_the_other_way_round(fitted, tmp_path):
    tiny.save(tmp_path / "lm", tiny.CONFIGS["smollm2"])
    with pytest.raises(ModelError, match=r"is not a reward model: it has no reward_model\.json"):
        load(tmp_path / "lm")
    save(fitted("bt").model, tmp_path / "rm")
    with pytest.raises(ModelError, match=r"there is no config\.json"):
        models.load(str(tmp_path / "rm"))


def test_existing_folders_are_kept_unless_asked(fitted, tmp_path):
    model = fitted("bt").model
    save(model, tmp_path / "m")
    with pytest.raises(InputError, match="exists"):
        save(model, tmp_path / "m")
    save(model, tmp_path / "m", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="is no reward model"):
        save(model, tmp_path / "other", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "other"], "no temporary folder is left"


def test_damaged_folders_are_refused(fitted, tmp_path):
    with pytest.raises(ModelError, match=r"has no reward_model\.json"):
        load(tmp_path)
    folder = tmp_path / "m"
    save(fitted("lore").model, folder)
    arrays = (folder / "reward_model.safetensors").read_bytes()
    (folder / "reward_model.safetensors").write_bytes(arrays[:-10])
    with pytest.raises(ModelError, match="is damaged"):
        load(folder)
    (folder / "reward_model.safetensors").write_bytes(arrays)
    config = json.loads((folder / "reward_model.json").read_text())
    (folder / "reward_model.json").write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(ModelError, match="format 99"):
        load(folder)
    (folder / "reward_model.json").write_text(json.dumps({**config, "users": config["users"][:-1]}))
    with pytest.raises(ModelError, match="8 users, but parameters of 9"):
        load(folder)
    whole = (folder / "reward_model.json").read_text()
    for text in (
        "[]",
        "{}",
        "[" * 100_000,
        "\xff",
        '{"format": 1, "method": 3}',
        whole.replace('"users": [', '"users": 1, "x": ['),
    ):
        (folder / "reward_model.json").write_text(text, encoding="latin-1")
        with pytest.raises(ModelError, match="is damaged"):
            load(folder)
    config["method"]["name"] = "lroe"
    (folder / "reward_model.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="Did you mean 'lore'"):
        load(folder)
