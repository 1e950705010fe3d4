# SPDX-License-Identifier: Apache-2.0
"""Arrays between nanoarrow and the library, except for the types in `deviations.py`."""

import unittest
import warnings

import nanoarrow as na
import pyarrow as pa
from capsules import Exporter, name_of, pair_of
from deviations import BEYOND_DATETIME, NANOARROW_CANNOT_EXPORT, NANOARROW_CANNOT_READ, NANOARROW_CRASHES
from nanoarrow import device
from peer import Pair, TestCase
from samples import WITHOUT_PYARROW, long_samples, samples

SLICES = [(0, 6), (1, 4), (3, 1), (2, 0)]


def to_nanoarrow(name, offset=0, length=6):
    return device.c_device_array(Exporter(lambda: Pair.sample(name, offset, length)))


class Ours(TestCase):
    def test_nanoarrow_takes_every_type_on_the_cpu(self):
        for name in [*samples(), *WITHOUT_PYARROW]:
            for offset, length in SLICES:
                got = to_nanoarrow(name, offset, length)
                self.assertEqual((got.device_type, got.device_id), (device.DeviceType.CPU, -1), name)
                self.assertEqual(len(got.array), length)

    def test_every_type_comes_back_from_nanoarrow_in_capsules(self):
        for name in [*samples(), *WITHOUT_PYARROW]:
            if name in NANOARROW_CANNOT_EXPORT:
                continue
            for offset, length in SLICES:
                with self.subTest(name, offset=offset, length=length):
                    given = to_nanoarrow(name, offset, length).__arrow_c_device_array__()
                    self.assertEqual([name_of(one) for one in given], [b"arrow_schema", b"arrow_device_array"])
                    pair_of(given).expect(name, offset, length)

    def test_nanoarrow_reads_the_same_values_as_pyarrow(self):
        for name, array in samples().items():
            if name in [*BEYOND_DATETIME, *NANOARROW_CANNOT_READ, *NANOARROW_CRASHES]:
                continue
            for offset, length in SLICES:
                with self.subTest(name, offset=offset, length=length), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    got = na.Array(to_nanoarrow(name, offset, length)).to_pylist()
                    self.assertEqual(got, array.slice(offset, length).to_pylist())

    def test_nanoarrow_reads_batches(self):
        names = ["int32", "string", "struct", "list<string>", "dictionary<int8>"]
        batch = pa.record_batch({name: samples()[name] for name in names}).slice(1, 4)
        got = device.c_device_array(Exporter(lambda: Pair.of(batch).through("batch")))
        self.assertEqual(na.Array(got).to_pylist(), batch.to_pylist())
        self.assert_same_batch(pa.record_batch(got), batch)

    def test_a_part_that_nanoarrow_moves_out_keeps_the_rest_alive(self):
        part = to_nanoarrow("struct").array.child(1)
        self.assertEqual(na.Array(part).to_pylist()[3], "more than twelve bytes of text")


class Theirs(TestCase):
    """Arrays that nanoarrow builds."""

    MADE = [
        (na.bool_(), [True, None, False]),
        (na.int8(), [1, -128, 127]),
        (na.uint64(), [0, None, 2**64 - 1]),
        (na.float64(), [0.5, float("inf"), None]),
        (na.string(), ["a", None, "more than twelve bytes of text", "ü"]),
        (na.large_binary(), [b"", b"\x00\xff", None]),
        (na.fixed_size_binary(2), [b"ab", b"cd"]),
    ]

    def test_arrays_of_nanoarrow_are_read(self):
        for ty, values in self.MADE:
            with self.subTest(str(ty)):
                host = na.c_array(values, ty).__arrow_c_array__()
                on_device = device.c_device_array(na.c_array(values, ty)).__arrow_c_device_array__()
                for given in (host, on_device):
                    self.assertEqual(pair_of(given).through("array").to_array().to_pylist(), values)

    def test_arrays_of_pyarrow_through_nanoarrow_are_read(self):
        for name, array in long_samples().items():
            if name in NANOARROW_CANNOT_EXPORT:
                continue
            for offset, length in ((0, 30), (9, 20), (29, 1), (11, 0)):
                with self.subTest(name, offset=offset, length=length):
                    part = array.slice(offset, length)
                    given = pair_of(device.c_device_array(part).__arrow_c_device_array__())
                    self.assert_same(given.through("array").to_array(), part)

    def test_intervals_that_pyarrow_lacks_are_read(self):
        valid = na.c_buffer([True, False, True, True, True, True], na.bool_())
        months = na.c_buffer([1, 0, 20_000, -4, 5, 0], na.int32())
        low, high = -(1 << 31), (1 << 31) - 1
        day_time = na.c_buffer([1, 2, 0, 0, -4, 5, high, low, 0, 1, 0, 0], na.int32())
        for name, ty, values in (
            ("interval_months", na.interval_months(), months),
            ("interval_day_time", na.interval_day_time(), na.c_buffer(bytes(day_time))),
        ):
            array = na.c_array_from_buffers(ty, 6, [valid, values])
            pair_of(array.__arrow_c_array__()).expect(name)


if __name__ == "__main__":
    unittest.main()
