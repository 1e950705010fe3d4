# SPDX-License-Identifier: Apache-2.0
"""Memory of loads into device memory: memory.py LIBRARY DEVICE WAY.

The way is `query` for CREATE TABLE AS, or `ingest` for a producer of batches. The memory of a CPU
device is the process's own. A statement that collected its rows would hold them twice, as a host
table and as a resident one.
"""

import ctypes
import json
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import dbapi

ROWS = 6000000
# Four columns of BIGINT on the host. The device keeps them in 14 bytes.
ROW_BYTES = 32
QUERY = "SELECT value AS a, value * 3 AS b, value % 1000 AS c, value + 7 AS d FROM generate_series(1, {})"
SCHEMA = pa.schema([(name, pa.int64()) for name in "abcd"])
# Rows of a producer's batch.
BATCH_ROWS = 50000
# Memory that nothing reuses returns to the system after 5 to 10 seconds.
SETTLE_SECONDS = 15


def status(key):
    """Bytes of this process, as Linux counts them; None elsewhere."""
    try:
        with open("/proc/self/status") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key + ":"))
    except FileNotFoundError:
        return None


def batches(rows):
    """A producer's batches. Each is made when it is asked for."""
    for first in range(1, rows + 1, BATCH_ROWS):
        a = pa.array(range(first, first + BATCH_ROWS), pa.int64())
        yield pa.record_batch([a, pc.multiply(a, 3), pc.bit_wise_and(a, 1023), pc.add(a, 7)], schema=SCHEMA)


def create(cursor, way, table, rows):
    if way == "query":
        cursor.execute(f"CREATE TABLE device.{table} AS " + QUERY.format(rows))
    else:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(rows))
        assert cursor.adbc_ingest(table, reader, mode="create", db_schema_name="device") == rows


def count(cursor, table, rows):
    cursor.execute(f"SELECT count(*), max(d) FROM device.{table}")
    assert cursor.fetchall() == [(rows, rows + 7)]


def settles(before, limit, when):
    """Waits until the process has grown by less than the limit, in bytes a row."""
    end = time.monotonic() + SETTLE_SECONDS
    while (growth := (status("VmRSS") - before) / ROWS) >= limit and time.monotonic() < end:
        time.sleep(0.2)
    print(f"{growth:.1f} bytes a row {when}")
    assert growth < limit, f"{growth:.1f} bytes a row {when}, the limit is {limit:.1f}"


def main(library, device, way):
    # pyarrow's own pool would keep what the driver has freed.
    pa.set_memory_pool(pa.system_memory_pool())
    # Each partition has a few batches on their way.
    options = {"device.selector": device, "device.cost": "always", "device.fallback": "error", "datafusion.execution.target_partitions": "2"}
    connection = dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init", db_kwargs=options, autocommit=True)
    with connection, connection.cursor() as cursor:
        # Compiles the kernels.
        create(cursor, way, "small", 300000)
        count(cursor, "small", 300000)
        cursor.execute("DROP TABLE device.small")
        if status("VmHWM") is None:
            return
        # Memory that the compiler has freed would hide the growth.
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        create(cursor, way, "t", ROWS)
        growth = (status("VmHWM") - before) / ROWS
        print(f"{growth:.1f} bytes a row at the peak")
        assert growth < 1.1 * ROW_BYTES, f"{growth:.1f} bytes a row at the peak, of rows with {ROW_BYTES}"
        # A GPU's memory stays free for the next query, and the emulator's is the process's own.
        report = json.loads(connection.adbc_connection.get_option("devicefusion.report"))
        settled = report["device"]["driver"] != "cuda"
        # It was 2.6 times the rows where the heap kept what a load had freed.
        if settled:
            settles(before, 1.0 * ROW_BYTES, "after the load")
        count(cursor, "t", ROWS)
        cursor.execute("DROP TABLE device.t")
        if settled:
            settles(before, 0.3 * ROW_BYTES, "after DROP TABLE")


main(*sys.argv[1:])
