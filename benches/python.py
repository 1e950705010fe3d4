#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the Python package: short queries, registration and large results.

    python benches/python.py

It needs an installed wheel. Times are medians of interleaved runs.
"""

import statistics
import time

import numpy
import pyarrow

import devicefusion

RUNS = 300
LARGE = 125_000_000  # rows of 8 bytes
RESULT = 10_000_000


def median(times):
    return statistics.median(times) * 1e6


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def short_queries(ctx):
    """The share of Python in a short query over resident data."""
    ctx.sql("CREATE TABLE device.t AS SELECT value % 100 AS k FROM generate_series(1, 100000)")
    query = "SELECT k, count(*) AS n FROM device.t GROUP BY k"
    works = {
        "plan": lambda: ctx._session.sql(query),
        "plan in Python": lambda: ctx.sql(query),
        "run": ctx._session.sql(query).collect,
        "run in Python": ctx.sql(query).to_arrow_table,
    }
    times = {name: [] for name in works}
    for run in range(RUNS + 20):
        for name, work in works.items():
            seconds = timed(work)
            if run >= 20:
                times[name].append(seconds)
    for name, all_times in times.items():
        print(f"{name:<16} {median(all_times):8.0f} µs")


def registration(ctx):
    table = pyarrow.table({"x": numpy.arange(LARGE)})
    times = [timed(lambda: ctx.from_arrow(table)) for _ in range(9)]
    print(f"from_arrow of {table.nbytes / 1e9:.1f} GB: {median(times) / 1000:.2f} ms")
    table = ctx.from_arrow(table)
    print(f"its count: {timed(lambda: table.count()):.2f} s")


def large_result(ctx):
    ctx.sql(f"CREATE TABLE device.r AS SELECT value AS x FROM generate_series(1, {RESULT})")
    frame = ctx.sql("SELECT x FROM device.r")
    frame.limit(10).to_arrow_table()
    before = resident_bytes()
    table = frame.to_arrow_table()
    grown = resident_bytes() - before
    print(f"to_arrow_table of {RESULT} rows: {table.nbytes} bytes, resident memory + {grown}")


if __name__ == "__main__":
    session = devicefusion.SessionContext({"device.cost": "always", "device.adaptive_start": "never"})
    print(session.device())
    short_queries(session)
    large_result(session)
    registration(session)
