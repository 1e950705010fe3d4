# SPDX-License-Identifier: Apache-2.0
"""SQL on the device over a pyarrow record batch, with a pyarrow table as the result."""

import pyarrow as pa
from peers import query

batch = pa.record_batch({"city": ["Bern", "Oslo", None, "Oslo"], "people": [134_000, 700_000, 7, 9_000]})

rows = query("SELECT city, sum(people) AS people FROM t WHERE people > 10 GROUP BY city", batch)
table = pa.Table.from_batches([pa.record_batch(one) for one in rows])

print(table.sort_by("city").to_pylist())
assert table.sort_by("city").to_pydict() == {"city": ["Bern", "Oslo"], "people": [134_000, 709_000]}

# A result that stays on the device is the next query's table. No row leaves the device.
(large,) = query("SELECT city, people * 2 AS twice FROM t WHERE people > 10", batch, on_device=True)
rows = query("SELECT max(twice) AS most FROM t WHERE city = 'Oslo'", large)

most = pa.record_batch(rows[0]).to_pylist()
print(most)
assert most == [{"most": 1_400_000}]
