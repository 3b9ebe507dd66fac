"""Fitted models in folders: what was changed of the language model, or a whole language model."""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxalign.errors import InputError, ModelError
from jaxalign.files import atomic_folder, read_json, write_json
from jaxalign.models.config_json import from_hugging_face, to_hugging_face
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.weights import save_params
from jaxalign.rewards.losses import LOSSES
from jaxalign.rewards.tuning.backbone import BACKBONES
from jaxalign.rewards.tuning.model import TunedModel
from jaxalign.rewards.tuning.registry import make

CONFIG = "tuned.json"
ARRAYS = "tuned.safetensors"
FORMAT = 1
# Paths of parameters hold slashes; keys of the arrays in the file join with this.
_JOIN = "|"


def is_tuned(folder: Path) -> bool:
    """Whether a folder holds a model that `save` wrote."""
    return os.path.isfile(Path(folder) / CONFIG)


def save(model: TunedModel, folder: Path, *, overwrite: bool = False) -> None:
    """Writes the model, without the language model it was fitted on; the folder appears whole or not at all.

    Raises:
      InputError: the folder exists, and `overwrite` was not asked for, or is no such model; or the loss has no name.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists. Give another folder, or ask to overwrite it.")
    if folder.exists() and not is_tuned(folder):
        raise InputError(f"{folder} exists and is no tuned reward model; it is not overwritten.")
    method = model.method
    kinds = {kind: name for name, kind in LOSSES.items()}
    if type(method.loss) not in kinds:
        raise InputError(f"The loss {type(method.loss).__name__} has no name in jaxalign.rewards.losses.LOSSES.")
    hyper = {f.name: getattr(method, f.name) for f in dataclasses.fields(method) if f.name != "loss"}
    names = {kind: name for name, kind in BACKBONES.items()}
    config = {
        "format": FORMAT,
        "method": {"name": method.name, "hyper": hyper},
        "loss": {"name": kinds[type(method.loss)], **dataclasses.asdict(method.loss)},  # type: ignore[call-overload]
        "backbone": {"name": names[type(model.backbone)], **dataclasses.asdict(model.backbone)},  # type: ignore[call-overload]
        "users": list(model.users),
        "fitted_for": dict(model.fitted_for),
        "config": to_hugging_face(model.config),
    }
    arrays = {
        _JOIN.join(str(key.key) for key in path): np.array(leaf, order="C")
        for path, leaf in jax.tree_util.tree_leaves_with_path(dict(model.variables))
    }
    with atomic_folder(folder.with_name(folder.name + ".new")) as temporary:
        save_file(arrays, temporary / ARRAYS)
        write_json(temporary / CONFIG, config)
    if folder.exists():
        shutil.rmtree(folder)
    folder.with_name(folder.name + ".new").rename(folder)


def load(folder: Path) -> TunedModel:
    """Reads a model that `save` wrote.

    Raises:
      ModelError: the folder is no tuned reward model, is incomplete, damaged, or of a newer format.
    """
    folder = Path(folder)
    for name in (CONFIG, ARRAYS):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} is not a tuned reward model: it has no {name}. Write one with `jaxalign tune`.")
    try:
        config = read_json(folder / CONFIG, InputError)
        if config["format"] != FORMAT:
            raise ModelError(f"{folder} has format {config['format']}, and this jaxalign reads {FORMAT}. Upgrade it.")
        loss, backbone = dict(config["loss"]), dict(config["backbone"])
        kind = BACKBONES[backbone.pop("name")]
        method = make(config["method"]["name"], **config["method"]["hyper"], loss=LOSSES[loss.pop("name")](**loss))
        model = TunedModel(
            method=method,
            backbone=kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in backbone.items()}),
            config=from_hugging_face(config["config"], str(folder / CONFIG)),
            variables=_variables(load_file(folder / ARRAYS)),
            users=tuple(config["users"]),
            fitted_for=config["fitted_for"],
        )
        rows = {leaf.shape[0] for leaf in jax.tree.leaves(model.variables["users"])}
    except (AttributeError, IndexError, KeyError, TypeError, InputError, SafetensorError) as error:
        raise ModelError(f"{folder} is damaged ({error}). Fit it again.") from error
    if rows - {len(model.users)}:
        raise ModelError(f"{folder} is damaged: {len(model.users)} users, and parameters of {rows.pop()}.")
    return model


def save_language_model(model: TunedModel, lm: LanguageModel, folder: Path) -> None:
    """Writes the tuned language model as a Hugging Face folder: adapters merged, tokenizer files beside the weights.

    `jaxalign.models.load` reads it, as do other libraries. The head and personal parameters are not in it.

    Raises:
      InputError: another language model than the one the model was fitted on.
      ModelError: the folder exists.
    """
    folder = Path(folder)
    if folder.exists():
        raise ModelError(f"{folder} exists already; choose another folder or remove it")
    params = model.params(lm)
    with atomic_folder(folder) as temporary:
        save_params(temporary / "model", lm.config, params)
        written = json.loads((temporary / "model" / "config.json").read_text(encoding="utf-8"))
        for file in (temporary / "model").iterdir():
            file.rename(temporary / file.name)
        (temporary / "model").rmdir()
        if lm.tokenizer is not None:
            for name in _TOKENIZER_FILES:
                if (source := lm.tokenizer.folder / name).is_file():
                    shutil.copyfile(source, temporary / name)
            # The end tokens belong to the tokenizer's side of the configuration.
            write_json(temporary / "config.json", written | {"eos_token_id": list(lm.tokenizer.end_ids)})


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def _variables(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Undoes the joining of keys; parts without arrays are empty."""
    tree: dict[str, Any] = {"backbone": {}, "head": {}, "users": {}}
    for name, array in arrays.items():
        *path, last = name.split(_JOIN)
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = jnp.asarray(array)
    return tree
