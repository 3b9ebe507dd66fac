"""A language model ready for use: config, parameters, tokenizer, and where they came from."""

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxalign.errors import ModelError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.config_json import read_config, to_hugging_face
from jaxalign.models.sharding import ShardingRules, param_shardings
from jaxalign.models.tokenizer import Tokenizer
from jaxalign.models.transformer import Layers, Params, init_params, layers_of, stacked
from jaxalign.models.weights import load_params


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """Config, parameters and tokenizer of a frozen language model.

    Attributes:
      config: sizes.
      params: the parameter tree of `transformer`.
      tokenizer: text to ids and back; None for random weights, which then take ids only.
      name: the name or folder it was loaded by.
    """

    config: DecoderConfig
    params: Params
    tokenizer: Tokenizer | None
    name: str

    @property
    def dtype(self) -> str:
        """Name of the parameters' dtype."""
        return jax.tree.leaves(self.params)[0].dtype.name

    @property
    def pad_id(self) -> int:
        """What fills a batch; never read, and 0 without a tokenizer."""
        return 0 if self.tokenizer is None else self.tokenizer.pad_id

    @functools.cached_property
    def weights_digest(self) -> str:
        """SHA-256 of config and every parameter: what tells apart two models of the same sizes. Reads all of them.

        However the layers lie in memory, and over whichever devices.
        """
        digest = hashlib.sha256(json.dumps(to_hugging_face(self.config), sort_keys=True).encode())
        for name, leaf in _named(self.params):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(_on_host(leaf)).view(np.uint8).data)
        return digest.hexdigest()

    @functools.cached_property
    def reader(self) -> "LanguageModel":
        """The same model with scanned layers, for passes over whole texts.

        Such passes are bound by arithmetic, and there are many shapes of them: scanned layers compile in a fraction of
        the time, and copying a layer's weights costs little beside a batch of texts. Takes as much memory again where
        they are not scanned already.
        """
        if layers_of(self.params) == "scanned":
            return self
        read = dataclasses.replace(self, params=stacked(self.params))
        if "weights_digest" in self.__dict__:
            read.__dict__["weights_digest"] = self.weights_digest  # the same, and reading all weights takes a while
        return read

    @property
    def fingerprint(self) -> dict[str, str]:
        """Name and hashes of config and tokenizer: what a reward model must have been fitted on to be used here."""
        config = json.dumps(to_hugging_face(self.config), sort_keys=True)
        return {
            "name": Path(self.name).name,
            "config": hashlib.sha256(config.encode()).hexdigest(),
            "tokenizer": self.tokenizer.fingerprint if self.tokenizer else "none",
        }


def _named(params: Params) -> Iterator[tuple[str, Any]]:
    """Every parameter, of one layer after the other and then of the rest, with its name."""
    blocks, scanned = params["blocks"], layers_of(params) == "scanned"
    for number in range(len(jax.tree.leaves(blocks)[0]) if scanned else len(blocks)):
        layer = jax.tree.map(operator.itemgetter(number), blocks) if scanned else blocks[number]
        for path, leaf in jax.tree_util.tree_leaves_with_path(layer):
            yield f"{number}{jax.tree_util.keystr(path)}", leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path({k: v for k, v in params.items() if k != "blocks"}):
        yield jax.tree_util.keystr(path), leaf


def _on_host(leaf: Any) -> np.ndarray:
    if getattr(leaf, "is_fully_addressable", True):
        return np.asarray(leaf)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def load(
    name: str,
    *,
    dtype: str = "float32",
    layers: Layers = "unrolled",
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> LanguageModel:
    """Loads a language model by name (fetching it if need be), by hub id, or from a Hugging Face folder.

    Args:
      name: for instance `smollm2-135m-instruct`; see `hub.resolve`.
      dtype: `float32` or `bfloat16`, of the parameters in memory.
      layers: `unrolled` for the fastest decoding, `scanned` to compile deep models quickly.
      mesh: devices to spread the parameters over; default: the first device.
      rules: which logical axes are split over which mesh axes.

    Raises:
      ModelError: the folder lacks a config, weights or a tokenizer, or they do not fit each other.
      DownloadError: the model is neither here nor to be had.
    """
    from jaxalign.models.hub import resolve

    if dtype not in ("float32", "bfloat16"):
        raise ModelError(f"dtype {dtype!r} is not supported; use float32 or bfloat16")
    folder = resolve(name)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.check_vocab(config.vocab_size)
    shardings = None if mesh is None else param_shardings(config, mesh, rules, layers)
    params = load_params(folder, config, dtype=dtype, layers=layers, shardings=shardings)
    return LanguageModel(config=config, params=params, tokenizer=tokenizer, name=name)


def random(
    config: DecoderConfig, *, dtype: Any = "float32", layers: Layers = "unrolled", seed: int = 0
) -> LanguageModel:
    """A model with random weights and no tokenizer: for benchmarks of any shape, and for tests."""
    params = init_params(config, seed=seed, dtype=jax.numpy.dtype(dtype), layers=layers)
    return LanguageModel(config=config, params=params, tokenizer=None, name="random")
