# SPDX-License-Identifier: Apache-2.0
"""Hands the driver Arrow data that is wrong: malformed.py LIBRARY DEVICE.

Each array goes in as a host table, as a table in device memory, and as parameters. Each time the
driver refuses it, and answers the next query.
"""

import struct
import sys

import pyarrow as pa
from adbc_driver_manager import dbapi

# Kinds of wrong arrays. One that pyarrow refuses would test nothing, so it fails.
KINDS = 33


def view(length, prefix=b"", index=0, offset=0):
    return struct.pack("<i4sii", length, prefix, index, offset)


def views(*raw, heap=b"a string of more than twelve bytes"):
    return pa.Array.from_buffers(pa.string_view(), len(raw), [None, pa.py_buffer(b"".join(raw)), pa.py_buffer(heap)])


# Memory of offsets, with what is written there once pyarrow has checked the batch.
late = []


def with_offsets(data_type, offsets, data, children=()):
    """An array of strings or lists, with zeros for its offsets so far."""
    large = data_type in (pa.large_string(), pa.large_binary()) or pa.types.is_large_list(data_type)
    packed = struct.pack("<%d%s" % (len(offsets), "q" if large else "i"), *offsets)
    memory = bytearray(len(packed))
    late.append((memory, packed))
    return pa.Array.from_buffers(data_type, len(offsets) - 1, [None, pa.py_buffer(memory), *data], children=list(children))


def strings(offsets, data, data_type=pa.string()):
    return with_offsets(data_type, offsets, [pa.py_buffer(data)])


def lists(offsets, values, data_type=pa.list_):
    return with_offsets(data_type(values.type), offsets, [], [values])


def malformed():
    """Names, and batches of one column."""
    long = b"a string of more than twelve bytes"
    numbers, letters = pa.array([1, 2, 3]), pa.array(["a", "b"])
    beyond, below = pa.array([0, 100000], pa.int32()), pa.array([0, -1], pa.int32())
    makers = {
        "the index of a view": lambda: views(view(20, long[:4], index=7)),
        "a negative index of a view": lambda: views(view(20, long[:4], index=-1)),
        "the offset of a view": lambda: views(view(20, long[:4], offset=1 << 20)),
        "the length of a view": lambda: views(view(1 << 30, long[:4])),
        "a negative length of a view": lambda: views(view(-5)),
        "the prefix of a view": lambda: views(view(20, b"zzzz")),
        "text within a view": lambda: views(struct.pack("<i12s", 3, b"\xff\xfe\xfd")),
        "offsets that go back": lambda: strings([0, 5, 2, 6], b"abcdef"),
        "a negative offset": lambda: strings([-4, 2, 4], b"abcdef"),
        "a negative offset within": lambda: strings([0, -4, 4], b"abcdef"),
        "offsets of large strings that go back": lambda: strings([0, 5, 2, 6], b"abcdef", pa.large_string()),
        "a last offset below 0": lambda: strings([0, 2, -3], b"abcdef"),
        "text": lambda: strings([0, 3], b"\xff\xfe\xfd"),
        "an offset within a character": lambda: strings([0, 1, 2], "ü".encode()),
        "an inner offset beyond the text": lambda: strings([0, 1000, 6], b"abcdef"),
        "an inner offset of large strings beyond the text": lambda: strings([0, 1000, 6], b"abcdef", pa.large_string()),
        "an inner offset of large strings that no memory has": lambda: strings([0, 1 << 62, 6], b"abcdef", pa.large_string()),
        "an inner offset beyond the bytes": lambda: strings([0, 1000, 6], b"abcdef", pa.binary()),
        "an inner offset of large binary beyond the bytes": lambda: strings([0, 1000, 6], b"abcdef", pa.large_binary()),
        "an inner offset within a list": lambda: lists([0, 1, 2], strings([0, 1000, 6], b"abcdef")),
        "an inner offset within a dictionary": lambda: pa.DictionaryArray.from_arrays(
            pa.array([0, 1]), strings([0, 1000, 6], b"abcdef"), safe=False
        ),
        "offsets of a list beyond its child": lambda: lists([0, 2, 1000], numbers),
        "an inner offset of a list beyond its child": lambda: lists([0, 1000, 3], numbers),
        "offsets of a large list beyond its child": lambda: lists([0, 2, 1000], numbers, pa.large_list),
        "an inner offset of a large list beyond its child": lambda: lists([0, 1000, 3], numbers, pa.large_list),
        "an inner offset of a list beyond its strings": lambda: lists([0, 1000, 2], letters),
        "offsets of a list that go back": lambda: lists([0, 3, 1], numbers),
        "a negative offset of a list": lambda: lists([-1, 3], numbers),
        "a dictionary code": lambda: pa.DictionaryArray.from_arrays(beyond, letters, safe=False),
        "a negative dictionary code": lambda: pa.DictionaryArray.from_arrays(below, letters, safe=False),
        "offsets within a list": lambda: lists([0, 1, 2], strings([0, 5, 2], b"abcdef")),
        "offsets within a struct": lambda: pa.StructArray.from_arrays([strings([0, 5, 2], b"abcdef")], ["s"]),
        "text of a dictionary": lambda: pa.DictionaryArray.from_arrays(pa.array([0]), strings([0, 2], b"\xff\xfe"), safe=False),
    }
    made, refused = [], []
    for name, maker in makers.items():
        try:
            batch = pa.RecordBatch.from_arrays([maker()], ["x"])
        except Exception as error:
            late.clear()
            refused.append(f"{name}: {error!r}")
            continue
        while late:
            memory, packed = late.pop()
            memory[:] = packed
        made.append((name, batch))
    assert len(made) == KINDS, f"pyarrow {pa.__version__} makes {len(made)} of {KINDS} kinds of wrong arrays, and refuses {refused}"
    return made


def fails(name, run):
    try:
        run()
    except dbapi.Error as error:
        # Tables on the device have no structs.
        assert "cannot be used" in str(error) or "Struct" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} is accepted")


def main(library, device):
    options = {"device.selector": device, "device.cost": "always"}
    number = 0
    with dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init", db_kwargs=options, autocommit=True) as connection:
        for name, batch in malformed():
            for schema in (None, "device"):
                for rows in (batch, pa.RecordBatchReader.from_batches(batch.schema, [batch])):
                    with connection.cursor() as cursor:
                        fails(name, lambda: cursor.adbc_ingest("bad", rows, mode="create", db_schema_name=schema))
                        number += 1
            with connection.cursor() as cursor:
                fails(name, lambda: cursor.executemany("SELECT $1", batch))
                number += 1
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM generate_series(1, 5)")
                assert cursor.fetchone() == (5,), name
    assert number == 5 * KINDS, number
    print(f"{number} refused")


main(*sys.argv[1:])
