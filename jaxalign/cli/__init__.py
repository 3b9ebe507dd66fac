"""The command line: one small file per command, imported only when it is used.

A command is a module `jaxalign.cli.<name>` with a function `main(arguments) -> int`. Most build their flags from a
dataclass with `jaxalign.cli.flags.parse`, so that a flag, a config field and a Python argument have one name.
`jaxalign --help` is answered from the table below without importing anything else.

Exit statuses: 0 all went well; 1 the command ran, and something it looked at is wrong or some items failed; 2 the
request cannot be carried out (bad flags, bad input); 130 interrupted.
"""

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "run": "run an experiment from its config file",
    "report": "make the report of a run again",
    "compare": "test the difference of two runs on the same users and pairs",
    "generate": "generate text, plain or guided by a reward",
    "score": "log-probabilities and rewards of given responses",
    "fit": "fit a reward model on preference pairs",
    "tune": "fit a reward model and the language model under it (LoRA or full)",
    "adapt": "adapt a fitted reward model to further users",
    "methods": "list the reward models",
    "fetch": "download and convert a language model",
    "bench": "measure speed and memory on this machine",
    "data": "check and prepare preference data",
    "plan": "memory, communication and speed on a TPU slice, from a CPU machine",
    "env": "versions, devices and cache folders, for a bug report",
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: jaxalign [--debug] COMMAND [ARGUMENTS]",
            "",
            "Which personal reward model should you deploy?",
            "",
            "commands:",
            *lines,
            "",
            "jaxalign COMMAND --help describes a command.",
            "--debug (or JAXALIGN_DEBUG=1) shows the traceback of an error.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("JAXALIGN_DEBUG") == "1"
    if rest[:1] == ["--debug"]:
        debug, rest = True, rest[1:]
    if not rest or rest[0] in ("-h", "--help"):
        print(_help())
        return 0 if rest else 2
    if rest[0] == "--version":
        from jaxalign import __version__

        print(f"jaxalign {__version__}")
        return 0
    name = rest[0]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        print(f"jaxalign: there is no command '{name}'.{hint} See 'jaxalign --help'.", file=sys.stderr)
        return 2
    from jaxalign.errors import JaxalignError

    try:
        module = importlib.import_module(f"jaxalign.cli.{name}")
        return module.main(rest[1:])
    except JaxalignError as error:
        if debug:
            raise
        print(f"jaxalign {name}: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A path that is not there, a full disk, a folder that may not be written: the machine's state, no bug of ours.
        if debug:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"jaxalign {name}: {error.strerror or error}{where}. What was finished is on disk; a run continues from "
            "there with the same command.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"jaxalign {name}: interrupted", file=sys.stderr)
        return 130
