# SPDX-License-Identifier: Apache-2.0
"""Arrays and batches between pyarrow and the library, by `_export_to_c_device` and its inverse."""

import random
import unittest

import pyarrow as pa
from deviations import EMPTY_VIEWS
from peer import CPU, Pair, PeerError, TestCase, sample_names
from random_data import random_array
from samples import WITHOUT_PYARROW, long_samples, samples

# Offsets and lengths around the bytes and 64-bit words of a validity bitmap, for thirty elements.
SLICES = [(0, 30), (1, 28), (3, 1), (7, 9), (8, 8), (9, 20), (13, 17), (29, 1), (30, 0), (11, 0)]


def functions(array):
    """The library's functions to test; pyarrow must accept its own array for `hand_on`."""
    refused = str(array.type) in EMPTY_VIEWS and len(array) == 0
    return ["array", "copy"] if refused else ["array", "copy", "hand_on"]


def nodes(array):
    """An array's C struct and all its descendants."""
    below = [array.children[index] for index in range(array.n_children)] + ([array.dictionary] if array.dictionary else [])
    return [array] + [node for child in below for node in nodes(child.contents)]


class Types(TestCase):
    def test_every_type_of_pyarrow_has_a_sample(self):
        types = {name[5:]: getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
        for name in ("INTERVAL_MONTHS", "INTERVAL_DAY_TIME"):
            del types[name]  # Named in pyarrow, but it cannot make them.
        seen = {array.type.id for array in samples().values()}
        self.assertEqual([name for name, type_id in types.items() if type_id not in seen], [])

    def test_both_sides_have_the_same_samples(self):
        self.assertEqual(sorted(sample_names()), sorted([*samples(), *WITHOUT_PYARROW]))


class Arrays(TestCase):
    def test_the_library_reads_every_slice_of_every_type_as_pyarrow_wrote_it(self):
        for name, array in samples().items():
            for offset in range(7):
                for length in range(7 - offset):
                    with self.subTest(name, offset=offset, length=length):
                        Pair.of(array.slice(offset, length)).expect(name, offset, length)

    def test_pyarrow_reads_every_slice_of_every_type_as_the_library_wrote_it(self):
        for name, array in samples().items():
            for offset in range(7):
                for length in range(7 - offset):
                    with self.subTest(name, offset=offset, length=length):
                        got = Pair.sample(name, offset, length).to_array()
                        self.assert_same(got, array.slice(offset, length))

    def test_a_wrong_value_is_detected(self):
        # Shows that the two tests above can fail.
        with self.assertRaisesRegex(PeerError, "expected Int32"):
            Pair.of(samples()["int32"].slice(1, 3)).expect("int32", 2, 3)

    def test_every_type_comes_back(self):
        for name, array in long_samples().items():
            for offset, length in SLICES:
                part = array.slice(offset, length)
                for function in functions(part):
                    with self.subTest(name, offset=offset, length=length, function=function):
                        self.assert_same(Pair.of(part).through(function).to_array(), part)

    def test_every_type_comes_back_empty_and_all_null(self):
        for name, array in samples().items():
            # Nulls of a union are those of its members.
            lengths = [] if pa.types.is_union(array.type) else [0, 1, 9, 70]
            for part in [array.slice(0, 0), *(pa.nulls(length, array.type) for length in lengths)]:
                for function in functions(part):
                    with self.subTest(name, length=len(part), function=function):
                        self.assert_same(Pair.of(part).through(function).to_array(), part)

    def test_random_nested_arrays_come_back(self):
        for seed in range(300):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                array = random_array(rng, rng.choice([1, 9, 40]))
                offset = rng.randrange(len(array))
                part = array.slice(offset, rng.randrange(len(array) - offset + 1))
                self.assert_same(Pair.of(part).through("array").to_array(), part)
                self.assert_same(Pair.of(part).through("copy").to_array(), part)

    def test_an_array_is_unchanged_after_ten_round_trips(self):
        for name, array in samples().items():
            with self.subTest(name):
                got = array.slice(1, 4)
                for _ in range(10):
                    got = Pair.of(got).through("array").to_array()
                self.assert_same(got, array.slice(1, 4))

    def test_values_are_not_copied(self):
        array = pa.array(range(1000))
        there_and_back = Pair.of(array).through("array").to_array()
        self.assertEqual(there_and_back.buffers()[1].address, array.buffers()[1].address)

    def test_misaligned_buffers_are_read(self):
        bits, buffer = pa.py_buffer(b"\xff\x05"), pa.py_buffer(b"x" + b"".join(n.to_bytes(8, "little") for n in (7, 8, 9)))
        odd = pa.Array.from_buffers(pa.int64(), 3, [bits.slice(1), buffer.slice(1)])
        self.assertEqual(Pair.of(odd).through("array").to_array().to_pylist(), [7, None, 9])


class Fields(TestCase):
    """Properties of a field beside its layout."""

    TYPES = [
        pa.list_(pa.field("element", pa.int32(), nullable=False, metadata={"k": "v"})),
        pa.large_list(pa.field("x y", pa.string())),
        pa.list_(pa.field("", pa.int8()), 3),
        pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False, metadata={"k": ""})),
        pa.map_(pa.string(), pa.int32(), keys_sorted=True),
        pa.struct([pa.field("a", pa.int8(), metadata={"ü": "€", "": "empty key"}), pa.field("a", pa.int16())]),
        pa.timestamp("us", "America/Argentina/Buenos_Aires"),
        pa.decimal128(38, 38),
        pa.binary(0),
        pa.binary(1000),
    ]

    def test_names_metadata_and_nullability_of_children_come_back(self):
        for ty in self.TYPES:
            with self.subTest(str(ty)):
                array = pa.array([None, None, None], ty)
                self.assert_same(Pair.of(array).through("array").to_array(), array)

    def test_extension_types_come_back_in_batches(self):
        storage = {"uuid": pa.array([b"0123456789abcdef", None], pa.binary(16)), "json": pa.array(["{}", None])}
        columns = {
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), storage["uuid"]),
            "json": pa.ExtensionArray.from_storage(pa.json_(), storage["json"]),
            "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())),
            "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "type", "vendor"), pa.array([1, None], pa.int32())),
            "tensor": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), [2, 2]), pa.array([[1, 2, 3, 4], None], pa.list_(pa.int8(), 4))
            ),
        }
        batch = pa.record_batch(columns)
        self.assert_same_batch(Pair.of(batch).through("batch").to_batch(), batch)
        for name, array in columns.items():
            with self.subTest(name):
                self.assert_same(Pair.of(array).through("array").to_array(), array)


class Batches(TestCase):
    def batch(self):
        columns = long_samples()
        fields = [pa.field(name, array.type, metadata={"name": name}) for name, array in columns.items()]
        schema = pa.schema(fields, metadata={"origin": "pyarrow", "pandas": "{}", "ü": "\u20ac"})
        return pa.record_batch(list(columns.values()), schema=schema)

    def test_batches_of_every_type_come_back_with_their_metadata(self):
        batch = self.batch()
        for offset, length in SLICES:
            # As above: some columns are views.
            for function in ["batch", "array", "copy", *(["hand_on"] if length else [])]:
                with self.subTest(offset=offset, length=length, function=function):
                    part = batch.slice(offset, length)
                    self.assert_same_batch(Pair.of(part).through(function).to_batch(), part)

    def test_columns_of_unequal_offsets_come_back(self):
        columns = long_samples()
        parts = [array.slice(index % 23, 7) for index, array in enumerate(columns.values())]
        batch = pa.record_batch(parts, names=list(columns))
        self.assert_same_batch(Pair.of(batch).through("batch").to_batch(), batch)

    def test_batches_without_columns_or_rows_come_back(self):
        rows_only = pa.RecordBatch.from_struct_array(pa.array([{}] * 7, pa.struct([])))
        nothing = pa.record_batch([], schema=pa.schema([]))
        for batch in (rows_only, nothing, self.batch().slice(0, 0)):
            self.assert_same_batch(Pair.of(batch).through("batch").to_batch(), batch)

    def test_non_nullable_columns_stay_so(self):
        schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("a", pa.int32())])
        batch = pa.record_batch([pa.array([1, 2], pa.int32()), pa.array([1, None], pa.int32())], schema=schema)
        self.assert_same_batch(Pair.of(batch).through("batch").to_batch(), batch)

    def test_r31_r33_our_structs_are_record_batches_for_pyarrow(self):
        with Pair.of(self.batch().slice(3, 9)).through("batch") as pair:
            array = pair.array.array
            self.assertEqual((array.length, array.offset, array.null_count, array.buffers[0]), (9, 0, 0, None))
            self.assertTrue(all(array.children[index].contents.length == 9 for index in range(array.n_children)))


class Structs(TestCase):
    """Fields of the structs beside the data."""

    def test_r14_r19_r22_r36_our_structs_name_the_cpu_and_set_every_field(self):
        for name, array in samples().items():
            with Pair.of(array).through("array") as pair:
                device = pair.array
                self.assertEqual((device.device_type, device.device_id, device.sync_event), (CPU, -1, None), name)
                self.assertEqual(list(device.reserved), [0, 0, 0], name)

    def test_r34_our_null_counts_are_real_in_all_nodes(self):
        for name, array in samples().items():
            with Pair.of(array.slice(1, 4)).through("array") as pair:
                self.assertTrue(all(node.null_count >= 0 for node in nodes(pair.array.array)), name)

    def test_r46_missing_null_counts_are_read_in_all_nodes(self):
        for name, array in samples().items():
            for offset, length in ((0, 6), (1, 4), (2, 0)):
                with self.subTest(name, offset=offset, length=length):
                    pair = Pair.of(array.slice(offset, length))
                    for node in nodes(pair.array.array):
                        node.null_count = -1
                    pair.expect(name, offset, length)

    def test_r45_r47_broken_structs_are_refused_with_a_message_and_released(self):
        numbers, texts = pa.array([1, None, 3]), pa.array(["a", "b"])

        def says(message, data, change, function="array"):
            pair = Pair.of(data)
            change(pair)
            with self.assertRaisesRegex(PeerError, message):
                pair.through(function)

        def set_array(**fields):
            return lambda pair: [setattr(pair.array.array, name, value) for name, value in fields.items()]

        def other_schema(pair):
            with Pair.of(texts) as other:
                other.schema, pair.schema = pair.schema, other.schema

        says("length must not be negative, got -1", numbers, set_array(length=-1))
        says("offset must not be negative, got -1", numbers, set_array(offset=-1))
        says("expected 2 buffers, got 1", numbers, set_array(n_buffers=1))
        says("expected 3 buffers, got 2", numbers, other_schema)
        says("null_count is 2, but the validity has 1 nulls", numbers, set_array(null_count=2))
        says("expected a struct array", numbers, lambda pair: None, "batch")
        says("rows of a record batch must not be null", pa.array([{"a": 1}, None]), lambda pair: None, "batch")
        says("not of the host", numbers, lambda pair: setattr(pair.array, "device_type", 2))
        says("not of the host", numbers, lambda pair: setattr(pair.array, "device_type", 99))
        says("event of CPU to wait on", numbers, lambda pair: setattr(pair.array, "sync_event", 8))
        wrong = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\1\0\0\0"), pa.py_buffer(b"ab")])
        says("", wrong, lambda pair: None)
        says("UTF8|UTF-8", pa.array([b"\xff"]).view(pa.string()), lambda pair: None)


if __name__ == "__main__":
    unittest.main()
