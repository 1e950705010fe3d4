#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cancels queries over a resident table: the time of the next query, and the memory that is back.

    benches/cancel.py [ROWS]

It needs the Python package devicefusion. Without ROWS the table has 60 million, in some 1 GB.
"""

import _thread
import sys
import threading
import time

import devicefusion

SETTINGS = {"device.cost": "always", "device.adaptive_start": "never"}
QUERIES = {
    "group by": "SELECT h, count(*) AS n, sum(v) AS s FROM device.l GROUP BY h ORDER BY n DESC LIMIT 5",
    "order by": "SELECT h, v FROM device.l ORDER BY h, v",
    "join": "SELECT count(*) AS n FROM device.l a JOIN device.l b ON a.h = b.k",
    "window": "SELECT sum(r) AS s FROM (SELECT row_number() OVER (PARTITION BY v ORDER BY h) AS r FROM device.l)",
    "distinct": "SELECT count(DISTINCT h) AS n FROM device.l",
}
NEXT = "SELECT count(*) AS n FROM device.l WHERE k < 1000"
# The pool's free memory returns to the system after 5 to 10 seconds.
SETTLED = 12


def resident():
    """The resident memory of this process in MiB."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def seconds(ctx, sql):
    begin = time.perf_counter()
    ctx.sql(sql).collect()
    return time.perf_counter() - begin


def cancelled(ctx, sql, after):
    """Seconds from the interrupt of a query to its exception. None without one."""
    timer = threading.Timer(after, _thread.interrupt_main)
    timer.start()
    begin = time.perf_counter()
    try:
        ctx.sql(sql).collect()
    except KeyboardInterrupt:
        return time.perf_counter() - begin - after
    finally:
        timer.cancel()
    return None


def main(rows):
    ctx = devicefusion.SessionContext(SETTINGS)
    columns = f"value AS k, value * 7919 % {rows} AS h, value % 1000 AS v"
    ctx.sql(f"CREATE TABLE device.l AS SELECT {columns} FROM generate_series(1, {rows})")
    seconds(ctx, NEXT)
    time.sleep(SETTLED)
    print(f"{rows} rows, {resident()} MiB; the next query alone {seconds(ctx, NEXT) * 1e3:.0f} ms")
    for name, sql in QUERIES.items():
        for after in (0.5, 1.5, 3.0):
            back = cancelled(ctx, sql, after)
            if back is None:
                print(f"{name:9} ends before {after} s")
                continue
            at_once, waited = resident(), seconds(ctx, NEXT)
            time.sleep(SETTLED)
            print(
                f"{name:9} after {after} s: exception in {back * 1e3:.0f} ms, next query {waited * 1e3:.0f} ms,"
                f" {at_once} MiB at once, {resident()} MiB later",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000_000)
