# SPDX-License-Identifier: Apache-2.0
"""Errors and gaps of the peers that other tests work around: pyarrow 26.0.1, nanoarrow 0.9.0.

`test_deviations.py` fails when one of them is fixed. Then remove its entry and the workarounds.
"""

# pyarrow exports an empty array of views at an offset with too small a buffer: its own import and
# validation refuse it.
EMPTY_VIEWS = ["string_view", "binary_view"]

# nanoarrow: the exported copies of view arrays write past their allocations.
NANOARROW_CANNOT_EXPORT = ["binary_view", "string_view", "string_view, all inline", "string_view, several buffers"]

# nanoarrow: results of `to_pylist` for these samples, an error or wrong values.
WRONG = None
NO_ITERATOR = "Can't resolve iterator"
NANOARROW_CANNOT_READ = {
    # Negative numbers are read as large positive ones.
    "decimal128(15, -2)": WRONG,
    "decimal128(38, 10)": WRONG,
    "decimal256(76, 5)": WRONG,
    # Structs without fields are not recognised as structs.
    "struct<>": WRONG,
    # Only offsets without gaps are accepted.
    "dense_union": "are not sequential",
    "decimal32(7, 2)": NO_ITERATOR,
    "decimal64(18, 3)": NO_ITERATOR,
    "large_list_view<string>": NO_ITERATOR,
    "list_view<string>": NO_ITERATOR,
    "map<string, int32>": NO_ITERATOR,
    "run_end_encoded<int16>": NO_ITERATOR,
    "run_end_encoded<int32>": NO_ITERATOR,
    "run_end_encoded<int64>": NO_ITERATOR,
}
# nanoarrow reads them through the same copies: a crash.
NANOARROW_CRASHES = ["binary_view", "string_view", "string_view, several buffers"]

# Not deviations: values beyond the range of `datetime`, so `to_pylist` is an error on either side.
BEYOND_DATETIME = [
    "duration[ns]",
    "time64[ns]",
    "timestamp[ns, Europe/Zurich]",
    "timestamp[ns]",
    "timestamp[s, UTC]",
    "timestamp[s]",
]
