"""`jaxalign bench`: the benchmarks of the folder `benchmarks`, each with its own flags."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence

from jaxalign.errors import InputError

BENCHMARKS = {
    "decode": "tokens per second, plain and under every kind of guidance",
    "score": "rewards and policy scores of given texts, for many users and methods",
    "fit": "reward models on the UKP arguments: accuracy and time",
    "fit-growth": "time to fit over the number of users, on simulated preferences",
    "plan": "compile time and memory from sizes alone, for this machine or a TPU",
    "profile": "where the time of a decode step goes",
    "markdown": "the table of a decode run for a document",
    "compare": "a run against the stored ratios of this kind of machine",
}


def main(arguments: Sequence[str]) -> int:
    """Runs one benchmark and returns its exit status."""
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        width = max(map(len, BENCHMARKS))
        lines = [f"  {name:<{width}}  {text}" for name, text in BENCHMARKS.items()]
        print(
            "\n".join(["usage: jaxalign bench BENCHMARK [ARGUMENTS]", "", *lines, "", "BENCHMARK --help lists flags."])
        )
        return 0 if rest else 2
    name = rest[0]
    if name not in BENCHMARKS:
        raise InputError(f"there is no benchmark '{name}'; known are {', '.join(BENCHMARKS)}")
    if importlib.util.find_spec("benchmarks") is None:
        raise InputError("the package 'benchmarks' is not installed beside jaxalign: run from a checkout")
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    if name == "fit":  # reads the process's own arguments
        sys.argv = ["jaxalign bench fit", *rest[1:]]
        module.main()
        return 0
    return module.main(rest[1:])
