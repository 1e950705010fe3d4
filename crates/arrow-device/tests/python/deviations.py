# SPDX-License-Identifier: Apache-2.0
"""What peers get wrong or leave out, so that other tests go round it: pyarrow 26.0.1, nanoarrow 0.9.0.

`test_deviations.py` fails where one of these is not so any more. Then its entry goes, and the tests go the whole way.
"""

# pyarrow: an array of views without elements at an offset is exported with a buffer of views that its own import, and
# then its own validation, take for too small.
EMPTY_VIEWS = ["string_view", "binary_view"]

# nanoarrow: the copies of arrays of views that it exports write past what they allocate.
NANOARROW_CANNOT_EXPORT = ["binary_view", "string_view", "string_view, all inline", "string_view, several buffers"]

# nanoarrow: what `to_pylist` says of these samples: an error, or values that are wrong.
WRONG = None
NO_ITERATOR = "Can't resolve iterator"
NANOARROW_CANNOT_READ = {
    # Negative numbers are read as large positive ones.
    "decimal128(15, -2)": WRONG,
    "decimal128(38, 10)": WRONG,
    "decimal256(76, 5)": WRONG,
    # Structs without fields are taken for no structs.
    "struct<>": WRONG,
    # Only offsets without gaps are taken.
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
# They are read by way of the same copies: a crash.
NANOARROW_CRASHES = ["binary_view", "string_view", "string_view, several buffers"]

# No deviations: values that `datetime` cannot hold, so that `to_pylist` is an error on either side.
BEYOND_DATETIME = [
    "duration[ns]",
    "time64[ns]",
    "timestamp[ns, Europe/Zurich]",
    "timestamp[ns]",
    "timestamp[s, UTC]",
    "timestamp[s]",
]
