"""How fast, and in how much memory, `jaxalign data check` reads a file of a million rows.

Claim: under 60 s and under 1 GB on 2 cores. Command: `python -m benchmarks.data_check`. The file is synthetic: 5,000
users, prompts of about 100 and responses of about 300 characters, some duplicates, ties and contradictions.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path

from jaxalign.data.check import check_file
from jaxalign.files import write_json


def write_synthetic(path: Path, rows: int, seed: int = 0) -> None:
    """Writes `rows` preferences whose texts are random words, all different but for planted repetitions."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    with path.open("w", encoding="utf-8") as file:
        last = ""
        for row in range(rows):
            if row % 1000 == 999:
                file.write(last)  # a duplicate
                continue
            item = {
                "user": f"user{draw.randrange(5000)}",
                "prompt": " ".join(draw.choices(words, k=15)),
                "chosen": " ".join(draw.choices(words, k=45)),
                "rejected": " ".join(draw.choices(words, k=45)),
                "group": f"g{row // 5}",
                "label": 0.5 if row % 20 == 0 else 1.0,
            }
            last = json.dumps(item) + "\n"
            file.write(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write_synthetic(path, options.rows)
        size = path.stat().st_size
        start, start_cpu = time.perf_counter(), time.process_time()
        report = check_file(path)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "rows": report.rows,
        "file_mb": round(size / 1e6, 1),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),  # what remains of it on a machine that does other things too
        "rows_per_second": round(report.rows / seconds),
        "peak_memory_mb": round(peak / 1e6, 1),
        "duplicates_found": sum(f.count for f in report.findings),
    }
    print(" | ".join(result))
    print(" | ".join(map(str, result.values())))
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
