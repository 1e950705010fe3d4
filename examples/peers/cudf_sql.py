# Not run: needs an NVIDIA GPU, and cuDF 25.06 or later.
# SPDX-License-Identifier: Apache-2.0
"""SQL on the GPU over a cuDF data frame. Input and result are used in place."""

import cudf
import pylibcudf
from peers import DEVICE_ARRAY, DeviceArray, lend, pointer_of, query


def batch_of(frame):
    """A data frame's columns as a record batch, without a copy."""
    table, _ = frame.to_pylibcudf()
    # The schema of a pylibcudf table has no column names.
    schema = frame.head(0).to_arrow(preserve_index=False).schema.__arrow_c_schema__()
    _, capsule = table.__arrow_c_device_array__()
    # pylibcudf's release drops Python objects without the interpreter's lock. `lend` takes it.
    return lend(schema, DeviceArray.from_address(pointer_of(capsule, DEVICE_ARRAY)), owner=capsule)


def frame_of(batch):
    """A record batch on the GPU as a data frame, without a copy."""
    names = batch.column_names()
    return cudf.DataFrame.from_pylibcudf(pylibcudf.Table.from_arrow(batch), {"columns": names})


frame = cudf.DataFrame({"city": ["Bern", "Oslo", None, "Oslo"], "people": [134_000, 700_000, 7, 9_000]})

rows = query(
    "SELECT city, sum(people) AS people FROM t WHERE people > 10 GROUP BY city", batch_of(frame), on_device=True
)
cities = cudf.concat([frame_of(one) for one in rows]).sort_values("city")

print(cities)
assert cities["people"].to_arrow().to_pylist() == [134_000, 709_000]
