# SPDX-License-Identifier: Apache-2.0
"""Arrays in PyCapsules between pyarrow and the library (R98 to R100)."""

import unittest

import pyarrow as pa
from capsules import Exporter, HostExporter, capsule, look, name_of, pair_of
from peer import CArray, CDeviceArray, CSchema, Counted, Pair, TestCase, released
from samples import samples


class Capsules(TestCase):
    def test_r98_arrays_of_pyarrow_have_the_names_of_the_interface(self):
        device, host = pa.array([1]).__arrow_c_device_array__(), pa.array([1]).__arrow_c_array__()
        self.assertEqual([name_of(one) for one in device], [b"arrow_schema", b"arrow_device_array"])
        self.assertEqual([name_of(one) for one in host], [b"arrow_schema", b"arrow_array"])
        with self.assertRaises(ValueError):
            look(host[1], CDeviceArray)

    def test_every_type_comes_from_pyarrow_in_capsules(self):
        for name, array in samples().items():
            for method in ("__arrow_c_device_array__", "__arrow_c_array__"):
                with self.subTest(name, method=method):
                    pair_of(getattr(array.slice(1, 4), method)()).expect(name, 1, 4)

    def test_every_type_goes_to_pyarrow_in_capsules(self):
        for name, array in samples().items():
            for exporter in (Exporter, HostExporter):
                with self.subTest(name, exporter=exporter.__name__):
                    got = pa.array(exporter(lambda: Pair.sample(name, 1, 4)))
                    got.validate(full=True)
                    self.assert_same(got, array.slice(1, 4))

    def test_batches_go_both_ways_in_capsules(self):
        batch = pa.record_batch(samples()).replace_schema_metadata({"k": "v"}).slice(1, 3)
        for exporter in (Exporter, HostExporter):
            for method in ("__arrow_c_device_array__", "__arrow_c_array__"):
                with self.subTest(exporter=exporter.__name__, method=method):
                    back = exporter(lambda: pair_of(getattr(batch, method)()).through("batch"))
                    self.assert_same_batch(pa.record_batch(back), batch)

    def test_r98_an_unused_capsule_releases(self):
        counted = Counted()
        pair = counted(Pair.sample("string"))
        kept = [capsule(pair.schema), capsule(pair.array)]
        self.assertTrue(released(pair.array) and released(pair.schema))
        self.assertEqual(counted.releases, [])
        kept.clear()
        self.assertEqual(counted.releases, [None])
        # Unused capsules of pyarrow release too, as the end of the test shows.
        pa.array(range(1000)).__arrow_c_device_array__()

    def test_r98_a_capsule_is_used_once(self):
        counted = Counted()
        pair = counted(Pair.sample("string"))
        schema, array = capsule(pair.schema), capsule(pair.array)
        self.assertEqual(pa.Array._import_from_c_device_capsule(schema, array), samples()["string"])
        self.assertTrue(released(look(schema, CSchema)) and released(look(array, CDeviceArray)))
        with self.assertRaisesRegex(pa.ArrowInvalid, "released"):
            pa.Array._import_from_c_device_capsule(schema, array)
        del schema, array
        self.assertEqual(counted.releases, [None])

    def test_r98_a_moved_out_struct_is_not_released_by_its_capsule(self):
        given = pa.array(["a", "b"])
        given_capsules = given.__arrow_c_device_array__()
        pair = pair_of(given_capsules)
        self.assertTrue(released(look(given_capsules[1], CDeviceArray)))
        del given, given_capsules
        self.assertEqual(pair.through("array").to_array().to_pylist(), ["a", "b"])

    def test_r99_unknown_keywords_are_accepted_if_none(self):
        for exporter in (Exporter(lambda: Pair.sample("int32")), pa.array([1])):
            exporter.__arrow_c_device_array__(later=None)
            with self.assertRaises(NotImplementedError):
                exporter.__arrow_c_device_array__(later=1)

    def test_r99_the_consumer_detects_a_type_other_than_requested(self):
        with self.assertRaisesRegex(pa.ArrowInvalid, "non-struct type int32"):
            pa.record_batch(Exporter(lambda: Pair.sample("int32")))

    def test_r100_the_host_method_gives_the_same_memory(self):
        array = pa.array(range(1000))
        host, device = array.__arrow_c_array__()[1], array.__arrow_c_device_array__()[1]
        self.assertEqual(look(host, CArray).buffers[1], look(device, CDeviceArray).array.buffers[1])


if __name__ == "__main__":
    unittest.main()
