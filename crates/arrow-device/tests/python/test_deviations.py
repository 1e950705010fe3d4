# SPDX-License-Identifier: Apache-2.0
"""Each deviation of a peer that other tests work around. These tests fail when a peer fixes one.

Then remove the test, its entry in `deviations.py`, and the workarounds in other tests.
"""

import ctypes
import os
import subprocess
import sys
import textwrap
import unittest
import warnings
from ctypes import byref

import nanoarrow as na
import pyarrow as pa
from capsules import Exporter, pair_of
from deviations import EMPTY_VIEWS, NANOARROW_CANNOT_EXPORT, NANOARROW_CANNOT_READ, NANOARROW_CRASHES, WRONG
from nanoarrow import device
from peer import CDeviceArray, Pair, TestCase, released
from samples import WITHOUT_PYARROW, samples


def status_of(code):
    """The exit status of an interpreter that runs the code in this folder."""
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
    # A crash leaves no core file.
    code = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + textwrap.dedent(code)
    run = subprocess.run([sys.executable, "-B", "-s", "-c", code], env=environment, capture_output=True, timeout=100)
    return run.returncode


class Interpreter(TestCase):
    def test_code_that_does_no_harm_ends_well(self):
        self.assertEqual(status_of("from samples import samples\nsamples()"), 0)
        self.assertEqual(status_of("1 / 0"), 1)


class Pyarrow(TestCase):
    def test_y1_reserved_is_left_as_it_was(self):
        pair = Pair()
        ctypes.memset(byref(pair.array), 0xAB, ctypes.sizeof(CDeviceArray))
        pa.array([1])._export_to_c_device(*pair.addresses())
        self.assertEqual(bytes(pair.array.reserved), b"\xab" * 24)
        # The rest is set, and the library ignores `reserved`.
        self.assertEqual((pair.array.device_id, pair.array.sync_event), (-1, None))
        back = pair.through("hand_on")
        self.assertEqual(back.to_array().to_pylist(), [1])

    def test_r33_record_batches_with_an_offset_are_refused(self):
        with self.assertRaisesRegex(pa.ArrowInvalid, "non-zero offset, cannot be imported as RecordBatch"):
            Pair.of(pa.array([{"a": 1}, {"a": 2}]).slice(1, 1)).to_batch()

    def test_views_without_elements_at_an_offset_do_not_pass_its_own_validation(self):
        for name in EMPTY_VIEWS:
            pair = Pair.of(samples()[name].slice(3, 0))
            empty = pa.Array._import_from_c_device(*pair.addresses())
            with self.assertRaisesRegex(pa.ArrowInvalid, "isn't large enough for length: 0 and offset: 3"):
                empty.validate(full=True)

    def test_names_of_the_children_of_maps_are_lost_on_import(self):
        ty = pa.map_(pa.field("name", pa.string(), nullable=False), pa.field("number", pa.int32()))
        pair = Pair.of(pa.array([None], ty)).through("array")
        entries = pair.schema.children[0].contents
        # The round trip through the library keeps them; pyarrow itself renames them, even without
        # the library.
        self.assertEqual([entries.children[index].contents.name for index in (0, 1)], [b"name", b"number"])
        self.assertEqual(str(pair.to_array().type), "map<string, int32>")
        self.assertEqual(str(Pair.of(pa.array([None], ty)).to_array().type), "map<string, int32>")

    def test_r47_an_array_of_a_device_that_it_lacks_is_not_released(self):
        for device_type, error in ((2, ImportError), (4, pa.ArrowException), (99, pa.ArrowException)):
            pair = Pair.of(pa.array([1]))
            pair.array.device_type = device_type
            with self.assertRaises(error):
                pair.to_array()
            self.assertFalse(released(pair.array))
            pair.release()

    def test_intervals_of_months_and_days_have_no_class(self):
        for name in WITHOUT_PYARROW:
            with Pair.sample(name) as pair, self.assertRaises(KeyError):
                pair.to_array()

    def test_another_type_cannot_be_asked_for(self):
        with self.assertRaisesRegex(AttributeError, "has no attribute 'cast'"):
            pa.array(Exporter(lambda: Pair.sample("int32")), pa.int64())


class Nanoarrow(TestCase):
    def test_y1_reserved_is_left_as_it_was(self):
        # Memory from the allocator: at least one of many is not zero.
        arrays = [device.c_device_array(pa.array([1])) for _ in range(200)]
        given = [pair_of(array.__arrow_c_device_array__()) for array in arrays]
        self.assertTrue(any(any(pair.array.reserved) for pair in given))
        for pair in given:
            pair.release()

    def test_copies_of_views_write_past_their_memory(self):
        for name in NANOARROW_CANNOT_EXPORT:
            code = f"""
                from nanoarrow import device
                from samples import samples
                array = samples()[{name!r}]
                for _ in range(100):
                    device.c_device_array(array).__arrow_c_device_array__()
            """
            self.assertLess(status_of(code), 0, name)

    def test_views_with_variadic_buffers_crash_the_reader(self):
        for name in NANOARROW_CRASHES:
            code = f"""
                import nanoarrow
                from samples import samples
                for _ in range(100):
                    nanoarrow.Array(samples()[{name!r}]).to_pylist()
            """
            self.assertLess(status_of(code), 0, name)

    def test_samples_that_cannot_be_read(self):
        for name, expected in NANOARROW_CANNOT_READ.items():
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # pyarrow's own array: the library is not involved.
                array = samples()[name]
                if expected is WRONG:
                    self.assertNotEqual(na.Array(array).to_pylist(), array.to_pylist())
                else:
                    with self.assertRaisesRegex((KeyError, ValueError), expected):
                        na.Array(array).to_pylist()

    def test_the_offset_of_float16_is_ignored(self):
        part = samples()["float16"].slice(2, 2)
        self.assertEqual(part.to_pylist(), [3.0, -4.0])
        self.assertEqual(na.Array(part).to_pylist()[0], 1.0)

    def test_r99_unknown_keywords_are_refused_even_if_none(self):
        array = device.c_device_array(pa.array([1]))
        with self.assertRaises(TypeError):
            array.__arrow_c_device_array__(later=None)


class Both(TestCase):
    def test_neither_has_device_streams(self):
        for named in (pa.RecordBatch, pa.RecordBatchReader, pa.Table, pa.ChunkedArray, na.Array, na.ArrayStream, device):
            self.assertEqual([name for name in dir(named) if "device" in name and "stream" in name], [], named)


if __name__ == "__main__":
    unittest.main()
