"""A fitted reward model as a folder that needs no training data: `reward_model.json` and `reward_model.safetensors`."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxalign.errors import DataError, InputError, ModelError
from jaxalign.files import atomic_folder, read_json, write_json
from jaxalign.rewards.adapting import check_backbone
from jaxalign.rewards.protocol import RewardModel, Tree
from jaxalign.rewards.registry import describe, rebuild

FORMAT = 1
"""Version of the folder's layout."""
CONFIG, ARRAYS = "reward_model.json", "reward_model.safetensors"
REPORT = "fit_report.json"
"""Beside a model: which hidden state it reads of a text, and how its fit went."""


def flatten(tree: Tree, prefix: str) -> dict[str, np.ndarray]:
    """Nested dictionaries of arrays as one, with keys joined by "/"."""
    if isinstance(tree, Mapping):
        return {name: leaf for key, value in tree.items() for name, leaf in flatten(value, f"{prefix}/{key}").items()}
    return {prefix: np.asarray(tree, order="C")}  # ascontiguousarray would make a scalar one-dimensional


def unflatten(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Undoes `flatten`."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = jnp.asarray(array)
    return tree


def save(model: RewardModel, folder: Path, *, overwrite: bool = False) -> None:
    """Writes the model; the folder appears whole or not at all.

    Raises:
      InputError: the folder exists, and `overwrite` was not asked for.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists. Give another folder, or ask to overwrite it.")
    if folder.exists() and not (folder / CONFIG).exists():
        raise InputError(f"{folder} exists and is no reward model; it is not overwritten.")
    config = {
        "format": FORMAT,
        "method": describe(model.method),
        "users": list(model.users),
        "backbone": dict(model.backbone),
        "width": model.width,
    }
    # Methods without personal parameters have no arrays to say so.
    arrays = {**flatten(model.shared, "shared"), **flatten(model.user_params, "users")}
    with atomic_folder(folder.with_name(folder.name + ".new")) as temporary:
        save_file(arrays, temporary / ARRAYS)
        write_json(temporary / CONFIG, config)
    if folder.exists():
        shutil.rmtree(folder)
    folder.with_name(folder.name + ".new").rename(folder)


def save_report(folder: Path, pooling: str, **told: Any) -> None:
    """Notes beside a saved model which hidden state it reads (`last` or `mean`), and what else is told."""
    write_json(Path(folder) / REPORT, {"pooling": pooling, **told})


def pooling_of(folder: Path) -> Literal["last", "mean"]:
    """Which hidden state a saved model reads: `last` where nothing is noted, as by a program of somebody else's.

    Raises:
      ModelError: the note is damaged.
    """
    file = Path(folder) / REPORT
    if not file.is_file():
        return "last"
    note = read_json(file, ModelError)
    pooling = note.get("pooling") if isinstance(note, dict) else None
    if pooling not in ("last", "mean"):
        raise ModelError(f"{file}: pooling = {pooling!r}, last or mean is needed. Fit the model again.")
    return pooling


def load(folder: Path, backbone: Mapping[str, str] | None = None) -> RewardModel:
    """Reads a model that `save` wrote.

    Args:
      folder: where it lies.
      backbone: what says which LM will give the hidden states; checked against the one it was fitted for.

    Raises:
      ModelError: the folder is no reward model, is incomplete or of a newer format.
      InputError: the model was fitted for another language model.
    """
    folder = Path(folder)
    for name in (CONFIG, ARRAYS):
        if not os.path.isfile(folder / name):
            raise ModelError(f"{folder} is not a reward model: it has no {name}. Write one with `jaxalign fit`.")
    try:
        config = read_json(folder / CONFIG, DataError)
        if config["format"] != FORMAT:
            raise ModelError(f"{folder} has format {config['format']}, and this jaxalign reads {FORMAT}. Upgrade it.")
        method = rebuild(config["method"])
        users, fitted_for = tuple(config["users"]), dict(config["backbone"])
        tree = unflatten(load_file(folder / ARRAYS))
        model = RewardModel(
            method=method,
            shared=tree["shared"],
            user_params=tree.get("users", {}),
            users=users,
            backbone=fitted_for,
        )
        rows = {leaf.shape[0] for leaf in jax.tree.leaves(model.user_params)}
    except (DataError, AttributeError, IndexError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"{folder} is damaged ({error}). Fit it again.") from error
    if rows - {len(users)}:
        raise ModelError(f"{folder} is damaged ({len(users)} users, but parameters of {rows.pop()}). Fit it again.")
    if backbone is not None:
        check_backbone(model, dict(backbone))
    return model
