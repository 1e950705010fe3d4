#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times queries over Parquet files with plain DataFusion, and with device.file_cache off and on.

    benches/file-cache.py BENCH FOLDER [QUERY ...]

BENCH is the release binary devicefusion-bench, FOLDER has the Parquet files. A QUERY is a number of
TPC-H, or the path of a .sql file; without one, all of TPC-H. Each side of a query is a process of
its own with empty kernel caches, ten runs long. The sides of a query follow each other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

SIDES = {
    "plain": ["--plain"],
    "off": ["--set", "device.file_cache=false"],
    "on": ["--set", "device.file_cache=true"],
}
RUNS = {"first": 0, "second": 1, "tenth": 9}
CACHES = ["POCL_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"]


def measured(bench, folder, query, side):
    """The seconds of the ten runs of a side, and their answers."""
    command = [bench, "started", "--query", query, "--folder", folder, "--scale", "1", "--device", "opencl"]
    with tempfile.TemporaryDirectory() as caches:
        environment = os.environ | {name: caches for name in CACHES}
        output = subprocess.run(command + SIDES[side], env=environment, capture_output=True, text=True)
    if output.returncode != 0:
        sys.exit(f"{query}, {side}: {output.stderr}")
    report = json.loads(output.stdout)
    return report["seconds"], report["answers"]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    bench, folder, *queries = sys.argv[1:]
    seconds, differ = {side: [] for side in SIDES}, False
    print("query " + " ".join(f"{run + ' ' + side:>12}" for run in RUNS for side in SIDES), "  ms")
    for query in queries or [str(number) for number in range(1, 23)]:
        answers = []
        for side in SIDES:
            times, answer = measured(bench, folder, query, side)
            seconds[side].append(times)
            answers.append(answer)
        equal = all(answer == answers[0] for answer in answers)
        differ |= not equal
        cells = " ".join(f"{seconds[side][-1][run] * 1000:12.1f}" for run in RUNS.values() for side in SIDES)
        print(f"{os.path.basename(query):5} {cells}   {'equal' if equal else 'DIFFERS'}", flush=True)
    for name, run in RUNS.items():
        plain = [times[run] for times in seconds["plain"]]
        for side in ["off", "on"]:
            own = [times[run] for times in seconds[side]]
            median = statistics.median(a / b for a, b in zip(own, plain))
            print(f"{name} runs, {side}: {sum(own) / sum(plain):.3f} x plain; median of ratios {median:.2f}")
    sys.exit(differ)


if __name__ == "__main__":
    main()
