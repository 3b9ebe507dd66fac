"""Kills `jaxalign run` at random moments, and runs it again until it ends by itself: are the numbers the same?

    python tests/faults/kills.py --kills 200

Each attempt is a process of its own, ended by SIGKILL at a moment drawn uniformly over the time that a whole run takes.
After each kill, everything that was noted as finished must still be there, whole. When an attempt ends before its
kill, the results are compared, byte for byte, with those of an undisturbed run, and a new folder is begun.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "evaluation")]

STAGES = ("texts", "in_context", "judged", "models")


def attempt(command: list[str], log: Path, kill_after: float | None) -> tuple[int | None, float]:
    """Runs the command in a process of its own: its exit status, None where it was killed, and its seconds.

    The process is forked from this one, which has imported the modules and started no device: that is the only part of
    a run that is not repeated.
    """
    began = time.monotonic()
    child = os.fork()
    if not child:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        from jaxalign.cli import main

        status = 1
        try:
            status = main(command)
        finally:
            os._exit(status)
    while kill_after is None or time.monotonic() - began < kill_after:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), time.monotonic() - began
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, time.monotonic() - began


def finished(folder: Path) -> dict[str, str]:
    """The files that are noted as finished, and their checksums; raises where one is not as it was noted."""
    noted: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        noted |= json.loads((folder / "checksums.json").read_text())
    for sidecar in folder.glob("*/[0-9]*.json"):
        part = next(path for path in sidecar.parent.glob(f"{sidecar.stem}.*") if path != sidecar)
        noted[str(part.relative_to(folder))] = json.loads(sidecar.read_text())["sha256"]
    for name, digest in noted.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{folder / name} is noted as finished, and is not as it was noted")
    return noted


def stage(folder: Path) -> str:
    """How far a killed run was, from what is there."""
    if (folder / "metrics.jsonl").exists():
        return "select, report"
    for name in STAGES:
        if (folder / name).exists():
            return name
    return "features" if (folder / "data_digest.json").exists() else "start, data"


def main() -> int:
    """Prints how many kills there were in which stage, and how many runs ended with the same numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import tiny_run

    import jaxalign.cli.run
    import jaxalign.evaluation.pipeline
    import jaxalign.report  # noqa: F401

    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["JAXALIGN_CACHE"] = str(place / "cache")
        tiny_run.save_model(place / "model")
        data = tiny_run.write(place / "pairs.jsonl", tiny_run.rows())
        config = place / "tiny.py"
        values = {**tiny_run.SETTINGS, "model": str(place / "model"), "data": None}
        config.write_text(
            "from pathlib import Path\nfrom jaxalign.evaluation.experiment import Experiment\n"
            f"experiment = Experiment(**{values!r})\n"
        )

        def command(folder: Path) -> list[str]:
            return ["run", str(config), "--data", str(data), "--out", str(folder)]

        def results(folder: Path) -> dict[str, bytes]:
            return {file: (folder / file).read_bytes() for file in tiny_run.RESULTS}

        log = place / "log"
        for warm in ("compiling", "undisturbed"):  # the second time finds compiled programs, as a rerun does
            if warm == "undisturbed":
                _forget_features(place / "cache")
            status, seconds = attempt(command(place / warm), log, None)
            if status:
                raise SystemExit(log.read_text())
        expected = results(place / "undisturbed")
        if results(place / "compiling") != expected:
            raise SystemExit("two undisturbed runs differ")
        print(f"an undisturbed run takes {seconds:.1f} s", flush=True)
        kills: collections.Counter[str] = collections.Counter()
        runs, folder, noted = 0, place / "run-0", {}
        while sum(kills.values()) < given.kills:
            status, _ = attempt(command(folder), log, draw.uniform(0, seconds))
            if status is None:
                kills[stage(folder)] += 1
                now = finished(folder)
                if lost := {file for file in noted if now.get(file) != noted[file]}:
                    raise SystemExit(f"after kill {sum(kills.values())} these results were lost: {sorted(lost)}")
                noted = now
                continue
            if status or results(folder) != expected:
                raise SystemExit(f"{folder}: status {status}, or other numbers\n{log.read_text()[-3000:]}")
            runs, noted = runs + 1, {}
            folder = place / f"run-{runs}"
            _forget_features(place / "cache")
        status, _ = attempt(command(folder), log, None)
        if status or results(folder) != expected:
            raise SystemExit(f"{folder}: status {status}, or other numbers\n{log.read_text()[-3000:]}")
        print(json.dumps({"kills": sum(kills.values()), "runs with the same numbers": runs + 1, "by stage": kills}))
    return 0


def _forget_features(cache: Path) -> None:
    import shutil

    for name in ("features", "samples"):
        shutil.rmtree(cache / name, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
