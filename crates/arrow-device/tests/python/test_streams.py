# SPDX-License-Identifier: Apache-2.0
"""Device streams between Python and the library, both ways."""

import errno
import threading
import unittest
from ctypes import byref, c_int64

import pyarrow as pa
from capsules import Exporter
from peer import CDeviceStream, CPU, Pair, PeerError, TestCase, call, released
from samples import long_samples, samples
from streams import Consumer, Producer, StreamError


def batches():
    """Batches of every type, sliced at odd offsets, one of them empty."""
    whole = pa.record_batch(long_samples()).replace_schema_metadata({"origin": "pyarrow"})
    return [whole.slice(offset, length) for offset, length in ((0, 30), (3, 1), (7, 9), (5, 0), (13, 17))]


class Ours(TestCase):
    """Streams of the library, read in Python."""

    def test_every_chunk_and_the_schema_arrive(self):
        expected = pa.record_batch(samples())
        with Consumer.of_samples(5) as stream:
            self.assertEqual(stream.stream.device_type, CPU)
            self.assertTrue(stream.schema().equals(expected.schema))
            for index, got in enumerate(stream):
                self.assert_same_batch(got, expected.slice(index % 3, 4))
            self.assertEqual(index, 4)

    def test_chunks_make_a_reader_of_pyarrow(self):
        with Consumer.of_samples(3) as stream:
            reader = pa.RecordBatchReader.from_batches(stream.schema(), iter(stream))
            self.assertEqual(reader.read_all().num_rows, 12)

    def test_chunks_go_to_pyarrow_in_capsules(self):
        with Consumer.of_samples(2) as stream:
            self.assertEqual(pa.record_batch(Exporter(stream.next_pair)).slice(1, 3), pa.record_batch(samples()).slice(1, 3))

    def test_r52_r60_the_end_repeats(self):
        with Consumer.of_samples(1) as stream:
            self.assertEqual(len(list(stream)), 1)
            for _ in range(3):
                self.assertIsNone(stream.next_pair())
            self.assertEqual(len(stream.schema()), len(samples()))

    def test_r51_r61_a_failure_has_an_errno_and_a_message_and_repeats(self):
        with Consumer.of_samples(2, fails=1) as stream:
            self.assertIsNotNone(next(iter(stream)))
            self.assertIsNotNone(next(iter(stream)))
            for _ in range(2):
                with self.assertRaises(StreamError) as raised:
                    stream.next_pair()
                self.assertEqual(raised.exception.args, (errno.EIO, "Compute error: the disk is gone: é"))

    def test_r57_chunks_outlive_their_stream(self):
        with Consumer.of_samples(3) as stream:
            kept, schema = list(stream), stream.schema()
        self.assertTrue(released(stream.stream))
        for index, batch in enumerate(kept):
            self.assert_same_batch(batch, pa.record_batch(samples()).slice(index % 3, 4))
        self.assertEqual(schema, kept[0].schema)

    def test_an_unread_stream_is_freed(self):
        Consumer.of_samples(3).release()
        with Consumer.of_samples(3) as stream:
            next(iter(stream))

    def test_r59_each_call_may_come_from_another_thread(self):
        got = []
        with Consumer.of_samples(4) as stream:
            for _ in range(5):
                thread = threading.Thread(target=lambda: got.append(stream.next_pair()))
                thread.start()
                thread.join()
        self.assertEqual([pair is None for pair in got], [False] * 4 + [True])
        for pair in reversed(got[:4]):
            self.assertEqual(pair.to_batch().num_rows, 4)


class Theirs(TestCase):
    """Streams of Python, read by the library and returned as another stream."""

    def test_every_chunk_and_the_schema_come_back(self):
        expected = batches()
        producer = Producer(expected[0].schema, expected)
        with Consumer.through(producer) as stream:
            self.assertTrue(released(producer.stream))
            self.assertTrue(stream.schema().equals(expected[0].schema, check_metadata=True))
            got = list(stream)
        self.assertEqual(len(got), len(expected))
        for one, other in zip(got, expected):
            self.assert_same_batch(one, other)
        self.assertEqual(producer.releases, 1)
        # One schema for all, and no call after the end.
        self.assertEqual(producer.calls, ["get_schema"] + ["get_next"] * 6)

    def test_arrays_are_read_only_on_demand(self):
        producer = Producer(batches()[0].schema, batches())
        with Consumer.through(producer) as stream:
            self.assertEqual(producer.calls, ["get_schema"])
            stream.next_pair().release()
            self.assertEqual(producer.calls, ["get_schema", "get_next"])
            self.assertEqual(producer.releases, 0)
        self.assertEqual(producer.releases, 1)

    def test_a_stream_without_chunks_ends(self):
        with Consumer.through(Producer(batches()[0].schema, [])) as stream:
            self.assertIsNone(stream.next_pair())

    def test_a_table_keeps_its_chunks_through_a_stream(self):
        table = pa.table({"a": pa.chunked_array([[1, 2], [], [3, None, 5]])})
        with Consumer.through(Producer(table.schema, table.to_reader())) as stream:
            got = pa.Table.from_batches(stream, table.schema)
        self.assertEqual(got, table)
        self.assertEqual([len(chunk) for chunk in got["a"].chunks], [2, 0, 3])

    def test_r51_an_error_keeps_its_errno_and_message(self):
        def fails():
            yield batches()[0]
            raise OSError(errno.ENOSPC, "no space for ü")

        with Consumer.through(Producer(batches()[0].schema, fails())) as stream:
            self.assertEqual(stream.next_pair().to_batch().num_rows, 30)
            with self.assertRaises(StreamError) as raised:
                stream.next_pair()
            code, message = raised.exception.args
            self.assertIn("no space for ü", message)
            self.assertIn("get_next failed with 28", message)
            self.assertIn(code, (errno.ENOSPC, errno.EIO))

    def test_a_failed_get_schema_is_an_error_and_the_stream_is_released(self):
        producer = Producer(None, [])
        with self.assertRaisesRegex(PeerError, "get_schema failed with 22: .*_export_to_c"):
            Consumer.through(producer)
        self.assertEqual(producer.releases, 1)

    def test_a_chunk_that_does_not_fit_the_schema_is_an_error(self):
        other = pa.record_batch({"a": pa.array(["x"])})
        with Consumer.through(Producer(pa.schema([("a", pa.int32())]), [other])) as stream:
            with self.assertRaisesRegex(StreamError, "expected 2 buffers, got 3"):
                stream.next_pair()

    def test_a_stream_of_arrays_other_than_batches_is_read(self):
        numbers = [pa.array([1, 2]), pa.array([], pa.int64()), pa.array([3, None, 5])]
        producer = Producer(pa.field("", pa.int64()), numbers)
        arrays, rows = c_int64(), c_int64()
        call("drain", producer.stream, arrays, rows)
        self.assertEqual((arrays.value, rows.value, producer.releases), (3, 5, 1))
        with self.assertRaisesRegex(PeerError, "expected record batches, got Int64"):
            Consumer.through(Producer(pa.field("", pa.int64()), numbers))

    def test_the_library_reads_on_its_own_thread(self):
        threads = []

        def produce():
            for batch in batches():
                threads.append(threading.get_ident())
                yield batch

        arrays, rows = c_int64(), c_int64()
        call("drain", Producer(batches()[0].schema, produce()).stream, arrays, rows)
        self.assertEqual((arrays.value, rows.value), (5, sum(batch.num_rows for batch in batches())))
        self.assertNotIn(threading.get_ident(), threads)


class Chains(TestCase):
    def test_a_stream_through_the_library_three_times_is_the_same(self):
        expected = batches()
        stream = Consumer.through(Producer(expected[0].schema, expected))
        for _ in range(2):
            further = CDeviceStream()
            call("stream", stream.stream, further)
            stream = Consumer(further)
        with stream:
            for one, other in zip(stream, expected, strict=True):
                self.assert_same_batch(one, other)


if __name__ == "__main__":
    unittest.main()
