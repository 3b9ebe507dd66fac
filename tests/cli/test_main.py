"""The command line as a user meets it: instant help, wrong names, exit statuses, tracebacks on request."""

import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from jaxalign import __version__, cli
from jaxalign.errors import InputError, PartialFailure


@pytest.fixture
def command(monkeypatch):
    """Puts a function in the place of the command `fetch`."""

    def install(function):
        monkeypatch.setitem(sys.modules, "jaxalign.cli.fetch", types.SimpleNamespace(main=function))

    return install


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "jaxalign", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **options,
    )


def test_help_imports_nothing_heavy():
    """What keeps `jaxalign --help` instant: counted in modules, since a time would depend on the machine."""
    code = (
        "import sys; from jaxalign.cli import main; before = set(sys.modules); main(['--help']); "
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stderr)}
    assert not loaded & {
        "jax",
        "numpy",
        "flax",
        "tyro",
        "rich",
        "transformers",
        "matplotlib",
        "huggingface_hub",
        "scipy",
    }
    for name in cli.COMMANDS:
        assert name in done.stdout


def test_help_and_version_of_the_installed_command():
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: jaxalign")
    assert done.stderr == ""
    assert run("--version").stdout == f"jaxalign {__version__}\n"


def test_every_command_of_the_table_has_help():
    for name in cli.COMMANDS:
        code = f"import sys; from jaxalign.cli import main; sys.exit(main([{name!r}, '--help']))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"jaxalign {name} --help: {done.stderr}"
        assert f"jaxalign {name}" in done.stdout


def test_no_command_is_a_wrong_request(capsys):
    assert cli.main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_an_unknown_command_gets_a_hint(capsys):
    assert cli.main(["fetsch"]) == 2
    assert "no command 'fetsch'. Did you mean 'fetch'?" in capsys.readouterr().err
    assert cli.main(["zzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_a_wrong_flag_names_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["env", "--jsn"])
    assert stopped.value.code == 2
    assert "--jsn" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "status"), [(InputError("line 3: bad"), 2), (PartialFailure("2 of 7 failed"), 1)])
def test_an_error_is_a_line_and_a_status(error, status, command, capsys):
    def fail(arguments):
        raise error

    command(fail)
    assert cli.main(["fetch", "x"]) == status
    assert capsys.readouterr().err == f"jaxalign fetch: {error}\n"


def test_debug_shows_the_traceback(command, monkeypatch):
    def fail(arguments):
        raise InputError("line 3: bad")

    command(fail)
    with pytest.raises(InputError):
        cli.main(["--debug", "fetch", "x"])
    monkeypatch.setenv("JAXALIGN_DEBUG", "1")
    with pytest.raises(InputError):
        cli.main(["fetch", "x"])


def test_a_traceback_is_printed_on_request_only(tmp_path):
    plain, debug = (run(*flags, "report", str(tmp_path / "absent")) for flags in ((), ("--debug",)))
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert "there is no such folder" in plain.stderr
    assert "Traceback" in debug.stderr
    assert "there is no such folder" in debug.stderr


def test_the_statuses_are_documented():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    statuses = ("0 all well", "1 some items failed", "2 the request cannot be carried out", "130 interrupted")
    for told in (*statuses, "jaxalign --debug COMMAND"):
        assert told in readme


def test_a_bug_is_not_hidden(command):
    def fail(arguments):
        raise ZeroDivisionError

    command(fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fetch"])


def test_a_full_disk_is_a_line_that_names_the_file(command, capsys):
    def full(arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/mine/pairs.jsonl")

    command(full)
    assert cli.main(["fetch"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("jaxalign fetch: No space left on device (results/mine/pairs.jsonl).")
    assert "same command" in told
    with pytest.raises(OSError, match="No space"):
        cli.main(["--debug", "fetch"])


def test_interrupted(command, capsys):
    def fail(arguments):
        raise KeyboardInterrupt

    command(fail)
    assert cli.main(["fetch"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_status_of_a_command_is_passed_on(command):
    command(lambda arguments: 1 if arguments == ["a", "--b"] else 0)
    assert cli.main(["fetch", "a", "--b"]) == 1


def test_a_reader_that_goes_away_is_no_error():
    """`jaxalign ... | head -1` ends quietly."""
    code = (
        "import sys, types; from jaxalign import cli\n"
        "def talk(arguments):\n"
        "    for line in range(100000): print(line)\n"
        "    return 0\n"
        "sys.modules['jaxalign.cli.fetch'] = types.SimpleNamespace(main=talk); sys.exit(cli.main(['fetch']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_fetch_prints_only_the_folder(tmp_path, capsys):
    assert cli.main(["fetch", os.fspath(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}\n"
    assert captured.err == ""
    assert cli.main(["fetch", "./nope"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
