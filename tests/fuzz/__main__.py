"""`python -m tests.fuzz TARGET --inputs N`: reads N mutated inputs and counts what became of them.

An input that runs a line of jaxalign for the first time, or has a new outcome, joins those that later ones are made
from. Any error that is not one of jaxalign's own ends the run with status 1, and the input is kept.
"""

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.coverage import NewLines
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

MOST_IN_POOL = 4000


def main() -> int:
    """Runs one target and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("fuzz_failure"), help="where an input that fails is written")
    parser.add_argument("--outcomes", type=int, default=20, help="how many of the outcomes are printed")
    options = parser.parse_args()
    target, rng = TARGETS[options.target], random.Random(options.seed)
    pool, outcomes, lines = list(target.cases), Counter(), NewLines()
    size = 0
    start = time.process_time()
    # In memory, where there is such a folder: writing the inputs would be most of the time.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for number in range(options.inputs):
            content = mutate(rng, pool, target.words)
            size += len(content)
            before = lines.count
            try:
                outcome = target.read(content, Path(folder))
            except Exception:
                options.kept.write_bytes(content)
                traceback.print_exc()
                print(f"input {number} is kept in {options.kept}", file=sys.stderr)
                return 1
            outcomes[outcome] += 1
            if (outcomes[outcome] == 1 or lines.count > before) and len(pool) < MOST_IN_POOL:
                pool.append(content)
    seconds = time.process_time() - start
    print(f"{options.inputs:,} inputs, {size / 1e6:,.0f} MB, {seconds:,.0f} CPU seconds, seed {options.seed}")
    print(f"{len(outcomes):,} outcomes, {len(pool) - len(target.cases):,} inputs joined the {len(target.cases)} first")
    print(f"{lines.count:,} lines of jaxalign ran" if lines.available else "guided by outcomes alone (Python < 3.12)")
    for outcome, count in outcomes.most_common(options.outcomes):
        print(f"{count:>12,}  {outcome[:100]!r}")
    print("no error but jaxalign's own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
