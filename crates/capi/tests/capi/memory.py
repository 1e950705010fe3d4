# SPDX-License-Identifier: Apache-2.0
"""Peak memory of CREATE TABLE AS in device memory: memory.py LIBRARY DEVICE.

The memory of a CPU device is the process's own. A statement that collected its rows would hold them
twice, as a host table and as a resident one.
"""

import ctypes
import sys

from adbc_driver_manager import dbapi

ROWS = 6000000
# Four columns of BIGINT.
ROW_BYTES = 32
QUERY = "SELECT value AS a, value * 3 AS b, value % 1000 AS c, value + 7 AS d FROM generate_series(1, {})"


def status(key):
    """Bytes of this process, as Linux counts them; None elsewhere."""
    try:
        with open("/proc/self/status") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key + ":"))
    except FileNotFoundError:
        return None


def main(library, device):
    # Each partition has a few batches on their way.
    options = {"device.selector": device, "device.cost": "always", "device.fallback": "error", "datafusion.execution.target_partitions": "2"}
    connection = dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init", db_kwargs=options, autocommit=True)
    with connection, connection.cursor() as cursor:
        # Compiles the kernels.
        cursor.execute("CREATE TABLE device.small AS " + QUERY.format(300000))
        cursor.execute("DROP TABLE device.small")
        if status("VmHWM") is None:
            return
        # Memory that the compiler has freed would hide the growth.
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        cursor.execute("CREATE TABLE device.t AS " + QUERY.format(ROWS))
        growth = (status("VmHWM") - before) / ROWS
        cursor.execute("SELECT count(*), max(d) FROM device.t")
        assert cursor.fetchone() == (ROWS, ROWS + 7)
        print(f"{growth:.1f} bytes a row")
        assert growth < 1.9 * ROW_BYTES, f"{growth:.1f} bytes a row at the peak, of rows with {ROW_BYTES}"


main(sys.argv[1], sys.argv[2])
