# SPDX-License-Identifier: Apache-2.0
"""SQL on the device over a nanoarrow array, with nanoarrow arrays as the result."""

import nanoarrow as na
from nanoarrow import device
from peers import query

city = na.c_array(["Bern", "Oslo", None, "Oslo"], na.string())
people = na.c_array([134_000, 700_000, 7, 9_000], na.int64())
columns = na.struct({"city": na.string(), "people": na.int64()})
batch = device.c_device_array(na.c_array_from_buffers(columns, 4, [None], children=[city, people]))

rows = query("SELECT city, sum(people) AS people FROM t WHERE people > 10 GROUP BY city", batch)
cities = [row for one in rows for row in na.Array(device.c_device_array(one)).to_pylist()]

cities.sort(key=lambda row: row["city"])
print(cities)
assert cities == [{"city": "Bern", "people": 134_000}, {"city": "Oslo", "people": 709_000}]
