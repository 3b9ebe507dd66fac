"""Parameters from and to Hugging Face folders of safetensors files.

Tensors are read slice by slice into the target sharding, so that a host never holds the whole model, and every missing,
surplus or wrongly shaped tensor is collected before anything is loaded and reported once. Nothing is unpickled.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxalign.errors import ModelError
from jaxalign.files import atomic_folder, read_json, write_json
from jaxalign.models.config import DecoderConfig
from jaxalign.models.config_json import to_hugging_face
from jaxalign.models.transformer import Layers, Params, abstract_params, layers_of

log = logging.getLogger(__name__)

# Our parameter within a block, and the tensor's name within `model.layers.N`. A bias or norm that a config does not
# have is not in the parameter tree, and a tensor that the tree does not ask for is surplus.
_BLOCK = {
    "attention_norm.scale": "input_layernorm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "attention.query": "self_attn.q_proj.weight",
    "attention.key": "self_attn.k_proj.weight",
    "attention.value": "self_attn.v_proj.weight",
    "attention.output": "self_attn.o_proj.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
_QKV_BIAS = {f"attention.{name}_bias": f"self_attn.{name[0]}_proj.bias" for name in ("query", "key", "value")}
_OUTPUT_BIAS = {"attention.output_bias": "self_attn.o_proj.bias"}
_MLP_BIAS = {f"mlp.{name}_bias": f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")}
_QK_NORM = {f"attention.{name}_norm.scale": f"self_attn.{name[0]}_norm.weight" for name in ("query", "key")}
BLOCK_TENSORS = {
    "llama": _BLOCK | _QKV_BIAS | _OUTPUT_BIAS | _MLP_BIAS,
    "mistral": _BLOCK,
    "qwen2": _BLOCK | _QKV_BIAS,
    "qwen3": _BLOCK | _QKV_BIAS | _OUTPUT_BIAS | _QK_NORM,
}
OUTER_TENSORS = {"embed": "model.embed_tokens.weight", "norm.scale": "model.norm.weight", "head": "lm_head.weight"}

# Buffers that old exports carry and that are recomputed.
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|masked_bias$|attn\.bias$")


@dataclasses.dataclass(frozen=True)
class _Target:
    """One parameter: its place in the tree, its shape, and the tensors it comes from (one per layer if scanned)."""

    path: tuple
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    stacked: bool

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape in the file: matrices have heads and head_dim joined into one axis."""
        shape = self.shape[1:] if self.stacked else self.shape
        name = self.path[-1]
        if name in ("query", "key", "value"):
            return (shape[0] * shape[1], shape[2])
        if name in ("query_bias", "key_bias", "value_bias"):
            return (shape[0] * shape[1],)
        return (shape[0], shape[1] * shape[2]) if name == "output" else shape


def _targets(config: DecoderConfig, layers: Layers) -> Iterator[_Target]:
    names = BLOCK_TENSORS[config.family]
    for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(config, layers=layers)):
        path = tuple(key.key for key in keys)
        if path[0] != "blocks":
            yield _Target(path, leaf.shape, (OUTER_TENSORS[".".join(path)],), False)
            continue
        stacked = layers == "scanned"
        name = names[".".join(path[1:] if stacked else path[2:])]
        numbers = range(config.num_layers) if stacked else (path[1],)
        yield _Target(path, leaf.shape, tuple(f"model.layers.{i}.{name}" for i in numbers), stacked)


class _Files:
    """The tensors of a folder: which file holds each, its shape and dtype; slices on demand."""

    def __init__(self, folder: Path):
        from safetensors import SafetensorError, safe_open

        index = folder / "model.safetensors.index.json"
        self.wrong: list[str] = []
        promised: dict[str, str] = {}
        if index.is_file():
            promised = _index(index)
            paths = [folder / name for name in sorted(set(promised.values()))]
        else:
            paths = sorted(folder.glob("*.safetensors"))
            if not paths:
                raise ModelError(f"{folder}: there is no .safetensors file; other weight formats are not read")
        self.where: dict[str, Any] = {}
        for path in paths:
            if not path.is_file():
                self.wrong.append(f"{path.name}: named in the index, and absent")
                continue
            try:
                handle = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                self.wrong.append(f"{path.name}: damaged or cut short ({error})")
                continue
            for name in handle.keys():  # noqa: SIM118 (not a dictionary)
                if name in self.where:
                    self.wrong.append(f"{name}: in two files")
                self.where[name] = handle
        self.wrong += [
            f"{name}: the index puts it in {file}, which does not hold it"
            for name, file in sorted(promised.items())
            if name not in self.where and (folder / file).is_file()
        ]

    def slice(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        tensor = self.where[name].get_slice(name)
        return tensor[index] if index else tensor[:]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.where[name].get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        return self.where[name].get_slice(name).get_dtype()


def _index(path: Path) -> dict[str, str]:
    """The file of each tensor. Files lie beside the index: a name that leads elsewhere is refused."""
    try:
        found = read_json(path, ModelError)["weight_map"]
        if not all(re.fullmatch(r"[^/\\]+\.safetensors", file) for file in found.values()):
            raise TypeError("a file is no NAME.safetensors beside it")
    except (ModelError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a safetensors index ({error})") from None
    return found


def _check(files: _Files, targets: list[_Target], config: DecoderConfig, folder: Path) -> None:
    """Raises one `ModelError` that lists everything that does not fit."""
    wrong = list(files.wrong)
    wanted = {name: target for target in targets for name in target.tensors}
    for name, target in wanted.items():
        if name not in files.where:
            wrong.append(f"{name}: missing")
        elif (shape := files.shape(name)) != target.tensor_shape:
            wrong.append(f"{name}: shape {list(shape)}, and config.json asks for {list(target.tensor_shape)}")
        elif files.kind(name) not in ("F32", "F16", "BF16"):
            wrong.append(f"{name}: dtype {files.kind(name)}; F32, F16 and BF16 are read")
    surplus = sorted(name for name in files.where if name not in wanted and not _IGNORED.search(name))
    head = OUTER_TENSORS["head"]
    if config.tie_embeddings and head in surplus:
        surplus.remove(head)
        embed = OUTER_TENSORS["embed"]
        alike = embed in files.where and all(of(head) == of(embed) for of in (files.shape, files.kind))
        if alike and _equal(files, head, embed):
            log.warning("%s: %s equals the embedding and is ignored, since the config ties them", folder, head)
        else:
            wrong.append(f"{head}: differs from the embedding, and config.json ties the two (tie_word_embeddings)")
    wrong += [f"{name}: not part of a {config.family} model with this config" for name in surplus]
    if wrong:
        shown = wrong[:20] + ([f"... and {len(wrong) - 20} more"] if len(wrong) > 20 else [])
        raise ModelError(f"{folder}: the weights do not fit the config:\n  " + "\n  ".join(shown))


def _equal(files: _Files, first: str, second: str, rows: int = 4096) -> bool:
    total = files.shape(first)[0]
    pieces = (slice(i, min(i + rows, total)) for i in range(0, total, rows))
    return all(np.array_equal(files.slice(first, (piece,)), files.slice(second, (piece,))) for piece in pieces)


def _read(files: _Files, target: _Target, name: str, index: tuple[slice, ...]) -> np.ndarray:
    """One tensor's part `index` (in our axes), reading only the rows and columns that are needed."""
    shape = target.shape[1:] if target.stacked else target.shape
    bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]

    def joined(outer: int, inner: int) -> slice:
        first, last, _ = bounds[outer]
        return slice(first * shape[inner], last * shape[inner])

    part = target.path[-1]
    if part in ("query", "key", "value", "query_bias", "key_bias", "value_bias"):
        data = files.slice(name, (joined(0, 1), *(slice(*b[:2]) for b in bounds[2:])))
        return data.reshape(-1, *shape[1:2], *data.shape[1:])[:, index[1]]
    if part == "output":
        data = files.slice(name, (slice(*bounds[0][:2]), joined(1, 2)))
        return data.reshape(data.shape[0], -1, shape[2])[:, :, index[2]]
    return files.slice(name, tuple(slice(*b[:2]) for b in bounds))


def load_params(
    folder: Path,
    config: DecoderConfig,
    *,
    dtype: Any = "float32",
    layers: Layers = "unrolled",
    shardings: Params | None = None,
) -> Params:
    """Reads the parameters of a Hugging Face folder.

    Args:
      folder: with one `.safetensors` file, or several and their index.
      config: what the folder's `config.json` says; see `config_json.read_config`.
      dtype: of the parameters in memory; float32, float16 and bfloat16 files are converted.
      layers: unrolled or scanned; see `transformer`.
      shardings: a tree like the parameters, from `sharding.param_shardings`; default: all on the first device.

    Raises:
      ModelError: with the list of everything that is missing, surplus, damaged or of the wrong shape.
    """
    folder = Path(folder)
    files = _Files(folder)
    targets = list(_targets(config, layers))
    _check(files, targets, config, folder)
    single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    places = [single] * len(targets) if shardings is None else jax.tree.leaves(shardings)
    dtype = jax.numpy.dtype(dtype)
    params: Params = {}
    for target, sharding in zip(targets, places, strict=True):

        def fetch(index, target=target):
            if not target.stacked:
                return _read(files, target, target.tensors[0], index).astype(dtype, copy=False)
            return np.stack([_read(files, target, n, index[1:]).astype(dtype) for n in target.tensors[index[0]]])

        array = jax.make_array_from_callback(target.shape, sharding, fetch)
        node = params
        for key in target.path[:-1]:
            node = node.setdefault(key, {})
        node[target.path[-1]] = array
    return params


def save_params(folder: Path, config: DecoderConfig, params: Params, *, max_file_bytes: int = 4 << 30) -> None:
    """Writes `config.json` and safetensors files in the Hugging Face layout, so that `load_params` reads them exactly.

    The folder appears whole or not at all.

    Raises:
      ModelError: `folder` exists already.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    if folder.exists():
        raise ModelError(f"{folder} exists already; choose another folder or remove it")
    leaves = jax.tree.leaves(params)
    dtype = leaves[0].dtype
    # Which tensors go into which file is planned first, so that one file's tensors are in memory at a time.
    shards: list[list[tuple[str, _Target, Any, int]]] = [[]]
    sizes = [0]
    for target, leaf in zip(_targets(config, layers_of(params)), leaves, strict=True):
        for number, name in enumerate(target.tensors):
            size = math.prod(target.tensor_shape) * dtype.itemsize
            if sizes[-1] and sizes[-1] + size > max_file_bytes:
                shards.append([])
                sizes.append(0)
            shards[-1].append((name, target, leaf, number))
            sizes[-1] += size
    with atomic_folder(folder) as temporary:
        weight_map = {}
        for count, shard in enumerate(shards, 1):
            file = "model.safetensors" if len(shards) == 1 else f"model-{count:05}-of-{len(shards):05}.safetensors"
            tensors = {
                name: np.ascontiguousarray(
                    np.asarray(leaf[number] if target.stacked else leaf).reshape(target.tensor_shape)
                )
                for name, target, leaf, number in shard
            }
            save_file(tensors, temporary / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, file)
        if len(shards) > 1:
            index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
            write_json(temporary / "model.safetensors.index.json", index)
        write_json(temporary / "config.json", to_hugging_face(config) | {"dtype": dtype.name})
