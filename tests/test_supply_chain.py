"""Nothing that the package reads can run code: what its modules import and call, and what an archive may write."""

import ast
import zipfile
from pathlib import Path

import numpy as np
import pytest

import jaxalign
from jaxalign.cli.steering import _vector
from jaxalign.errors import InputError

PACKAGE = Path(jaxalign.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# They run code that the data names, or hand it to a shell.
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch", "yaml", "tarfile"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "extractall", "unpack_archive"}


def calls(tree):
    """Name and node of each call; of `a.b(c)` the name is b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def faults(text: str) -> list[str]:
    """What a module's text does that none may."""
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        found += [f"imports {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
    for name, node in calls(tree):
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        called = ast.unparse(node.func)
        if name in FORBIDDEN_CALLS and called not in ("re.compile", "ast.compile") and not _is_jax(called):
            found.append(f"calls {called}")
        if keywords.get("allow_pickle", "False") != "False" or keywords.get("trust_remote_code", "False") != "False":
            found.append(f"lets {called} run code")
        if keywords.get("shell", "False") != "False":
            found.append(f"lets {called} use a shell")
        if called in ("np.load", "numpy.load", "jnp.load") and keywords.get("allow_pickle") != "False":
            found.append("np.load without allow_pickle=False")
    return found


def _is_jax(called: str) -> bool:
    """`lowered.compile()` is XLA's."""
    return called.endswith(".compile")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_unpickles_or_runs_what_it_reads(path):
    # A plugin is a program, run because its user names it or installed it.
    expected = ["calls exec", "calls compile"] if path == PACKAGE / "plugins.py" else []
    assert faults(path.read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from torch import load",
        "import numpy as np\nnp.load(path)",
        "np.load(path, allow_pickle=True)",
        "AutoTokenizer.from_pretrained(x, trust_remote_code=True)",
        "eval(text)",
        "subprocess.run(x, shell=True)",
        "archive.extractall(folder)",
    ],
)
def test_the_check_finds_what_it_looks_for(text):
    assert faults(text)


def test_a_pickled_array_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "ran", "x"))

    np.save(tmp_path / "head.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not a \.npy file"):
        _vector(tmp_path / "head.npy", 1)
    assert not (tmp_path / "ran").exists()


def test_an_archive_writes_inside_its_folder_only(tmp_path):
    """One member of the one archive that is opened is extracted, by its name; a link or a path in it leads nowhere."""
    opened = [path for path in MODULES if "zipfile.ZipFile(" in path.read_text(encoding="utf-8")]
    assert [path.name for path in opened] == ["hub.py"]
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        archive.writestr("../../outside", b"x")
    with zipfile.ZipFile(tmp_path / "wheel.zip") as archive:
        written = Path(archive.extract("../../outside", tmp_path / "a" / "b"))
    assert written.resolve().is_relative_to(tmp_path / "a" / "b")
    assert not (tmp_path / "outside").exists()
