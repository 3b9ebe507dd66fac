"""What packages and files add to jaxalign: reward models, guidances, selections, data sources, measures of texts.

A plugin is code that registers things when it is executed. It is a module that an installed package names in the entry
point group `jaxalign.plugins`, or a file that a config (`plugins=(...)`) or the command line (`--plugins FILE.py`)
names. docs/plugins.md writes one of each kind.

Installed plugins are imported when a name is asked for that jaxalign does not have, or when all names are: they cost
nothing, and cannot break anything, where they are not used.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar

from jaxalign.errors import InputError, JaxalignError
from jaxalign.files import sha256

GROUP = "jaxalign.plugins"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Where something comes from.

    Attributes:
      name: the file as it was named, or the name of the installed package.
      version: SHA-256 of the file; or the package's version, and SHA-256 of the module's file.
    """

    name: str
    version: str


class Registry(Generic[T]):
    """Things of one kind by name: those of jaxalign, and those that were added.

    Attributes:
      kind: what they are called in messages.
      added: what was added, with its plugin (None: code that is no plugin).
    """

    def __init__(
        self, kind: str, built_in: Mapping[str, Callable[[], T]] | None = None, reserved: Collection[str] = ()
    ):
        """`built_in` gives the things of jaxalign when they are asked for; `reserved` names cannot be added either."""
        self.kind = kind
        self.added: dict[str, tuple[T, Plugin | None]] = {}
        self._built_in = built_in or {}
        self._reserved = reserved
        _registries.append(self)

    def add(self, name: str, thing: T) -> None:
        """Makes `thing` known by `name`, for this process.

        Raises:
          InputError: the name is taken by another thing, or is not one word.
        """
        known = self.added.get(name)
        if name in self._built_in or name in self._reserved or (known is not None and known[0] is not thing):
            raise InputError(f"There is a {self.kind} '{name}' already. Give the new one another name.")
        if not name.isidentifier():
            raise InputError(f"'{name}' cannot name a {self.kind}: use letters, digits and underscores.")
        self.added[name] = (thing, _running[-1] if _running else None)

    def names(self) -> tuple[str, ...]:
        """All names: those of jaxalign first, in the order of the documentation."""
        load_installed()
        return tuple(dict.fromkeys([*self._built_in, *self.added]))

    def find(self, name: str) -> T:
        """The thing of that name.

        Raises:
          InputError: there is none; or an installed plugin, which might have it, is broken.
        """
        if name in self._built_in:
            return self._built_in[name]()
        if name not in self.added:
            load_installed()
        if name in self.added:
            return self.added[name][0]
        if name in self._reserved:
            raise InputError(f"'{name}' is a name of jaxalign's own, and no {self.kind} that a plugin adds.")
        names = self.names()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        known = f"Known: {', '.join(names)}." if names else "None is known."
        raise InputError(f"There is no {self.kind} '{name}'.{hint} {known} Name the file of a plugin with `plugins`.")

    def plugin(self, name: str) -> Plugin | None:
        """The plugin that added a name; None for what no plugin added."""
        return self.added[name][1] if name in self.added else None

    def forget(self, plugin: Plugin) -> None:
        """Takes back what a plugin added."""
        self.added = {name: value for name, value in self.added.items() if value[1] != plugin}


_registries: list[Registry] = []
# The plugins whose code runs at the moment, the innermost last.
_running: list[Plugin] = []
_files: dict[Path, Plugin] = {}
_installed: dict[tuple[str, str], Plugin] = {}


def load(files: Sequence[str | Path]) -> list[Plugin]:
    """Executes plugin files, each once; one that has changed since is executed again, in the place of the old one.

    Raises:
      InputError: a file cannot be read or fails; names the file and the line.
    """
    return [_load_file(Path(file)) for file in files]


def load_installed() -> None:
    """Imports the plugins of all installed packages, each once.

    Raises:
      InputError: one fails; names the entry point, its package, the file and the line.
    """
    for point in entry_points(group=GROUP):
        key = (point.name, point.value)
        if key not in _installed:
            _installed[key] = Plugin("", "")  # a plugin may ask for names while it is imported
            try:
                _installed[key] = _load_point(point)
            except BaseException:
                del _installed[key]
                raise


def _load_file(path: Path) -> Plugin:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"plugins: {path} cannot be read ({error.strerror}). Give a Python file.") from error
    plugin = Plugin(str(path), hashlib.sha256(content).hexdigest())
    key = path.resolve()
    if (known := _files.get(key)) is not None:
        if known.version == plugin.version:
            return known
        _forget(_files.pop(key))
    # Compiled here and not by the import system, so that what runs is what was hashed, whatever a cache holds.
    module = types.ModuleType(f"jaxalign_plugin_{plugin.version[:16]}")
    module.__file__ = str(path)
    with _execution(plugin, f"plugin {path}", str(path)):
        sys.modules[module.__name__] = module  # dataclasses look up their module
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    _files[key] = plugin
    return plugin


def _load_point(point: EntryPoint) -> Plugin:
    package, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    where = f"entry point '{point.name}' ({point.value}) of {package} {version}"
    if point.attr:
        raise InputError(f"{where}: it must name a module, whose import registers what it adds, and nothing in it.")
    plugin, file = Plugin(package, version), None
    with contextlib.suppress(Exception):  # a module that cannot be found fails again below, and is told of there
        spec = importlib.util.find_spec(point.module)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            file, plugin = spec.origin, Plugin(package, f"{version}, sha256 {sha256(Path(spec.origin))}")
    with _execution(plugin, where, file):
        importlib.import_module(point.module)
    return plugin


@contextlib.contextmanager
def _execution(plugin: Plugin, where: str, file: str | None) -> Iterator[None]:
    """Runs a plugin's code: all or nothing of it is registered, and what it raises says where."""
    _running.append(plugin)
    try:
        yield
    except (Exception, SystemExit) as error:
        _forget(plugin)
        what = str(error) if isinstance(error, JaxalignError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{where}{_line(error, file)}: {what}") from error
    finally:
        _running.pop()


@contextlib.contextmanager
def blame(what: str, function: Callable) -> Iterator[None]:
    """Runs `function`, which a plugin added as `what`: an error that is none of jaxalign's names it, file and line."""
    try:
        yield
    except JaxalignError:
        raise
    except Exception as error:
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        where = f"{what} of {file}{_line(error, file)}" if file else what
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error


def _line(error: BaseException, file: str | None) -> str:
    """The innermost line of `file` that an error passed, or where a syntax error is."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f", line {error.lineno}" if error.filename == file else f", {error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {frames[-1].lineno}" if frames else ""


def _forget(plugin: Plugin) -> None:
    for registry in _registries:
        registry.forget(plugin)
