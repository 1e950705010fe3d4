# SPDX-License-Identifier: Apache-2.0
"""Releases: their number, threads and order."""

import gc
import random
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from capsules import Exporter
from peer import Counted, Pair, PeerError, TestCase, library
from samples import long_samples, samples
from streams import Consumer, Producer


def batch():
    return pa.record_batch(long_samples())


class Releases(TestCase):
    def test_arrays_of_pyarrow_are_released_once_after_their_last_use(self):
        for function in ("array", "batch", "hand_on"):
            with self.subTest(function):
                counted = Counted()
                back = counted(Pair.of(batch())).through(function).to_batch()
                column = back.column(3)
                del back
                # A column of pyarrow keeps its batch.
                self.assertEqual(counted.releases, [])
                del column
                self.assertEqual(counted.releases, [None])

    def test_copied_arrays_are_released_at_once(self):
        counted = Counted()
        plain = pa.record_batch({name: samples()[name] for name in ("int32", "string", "list<string>", "struct", "bool")})
        pair = counted(Pair.of(plain)).through("copy")
        self.assertEqual(counted.releases, [None])
        pair.to_batch()

    def test_refused_arrays_are_released_at_once(self):
        counted = Counted()
        with self.assertRaises(PeerError):
            counted(Pair.of(pa.array([{"a": 1}, None]))).through("batch")
        self.assertEqual(counted.releases, [None])

    def test_our_arrays_that_pyarrow_refuses_are_released(self):
        counted = Counted()
        with self.assertRaises(KeyError):
            counted(Pair.sample("interval_months")).to_array()
        with self.assertRaises(pa.ArrowInvalid):
            counted(Pair.sample("int32")).to_batch()
        self.assertEqual(counted.releases, [None, None])

    def test_our_arrays_are_released_once_after_their_last_use_in_pyarrow(self):
        for name in samples():
            counted = Counted()
            array = counted(Pair.sample(name)).to_array()
            part = array.slice(2, 2)
            del array
            self.assertEqual(len(part), 2)
            del part
            self.assertEqual(counted.releases, [None], name)

    def test_an_unused_struct_is_released(self):
        for name in samples():
            Pair.sample(name).release()
            pair = Pair.sample(name).through("array")
            pair.release()
            # A second release does nothing.
            pair.release()

    def test_memory_of_pyarrow_lives_as_long_as_ours_needs_it(self):
        before = pa.total_allocated_bytes()
        array = pa.array(range(100_000))
        size = pa.total_allocated_bytes() - before
        pair = Pair.of(array).through("array")
        del array
        gc.collect()
        self.assertGreaterEqual(pa.total_allocated_bytes() - before, size)
        back = pair.to_array()
        self.assertEqual(back[99_999].as_py(), 99_999)
        del back
        self.assertEqual(pa.total_allocated_bytes(), before)

    def test_memory_of_ours_lives_as_long_as_pyarrow_needs_it(self):
        before = library.peer_allocated_bytes()
        array = Pair.of(pa.array(range(100_000))).through("copy").to_array()
        child = pa.StructArray.from_arrays([array], names=["a"]).slice(99_000).field(0)
        del array
        self.assertGreater(library.peer_allocated_bytes() - before, 800_000)
        self.assertEqual(child[-1].as_py(), 99_999)
        del child
        self.assertEqual(library.peer_allocated_bytes(), before)


class Threads(TestCase):
    def test_r30_ours_are_released_on_any_thread(self):
        counted = Counted()
        arrays = [counted(Pair.sample(name), name).to_array() for name in samples()]
        random.Random(1).shuffle(arrays)
        threads = []
        while arrays:
            # Moved into the thread: this one keeps no reference.
            thread = threading.Thread(target=list.clear, args=([arrays.pop()],))
            thread.start()
            threads.append(thread)
        [thread.join() for thread in threads]
        del thread
        threads.clear()
        self.assertEqual(sorted(counted.releases), sorted(samples()))

    def test_r30_theirs_are_released_on_any_thread(self):
        counted = Counted()
        pairs = [counted(Pair.of(array), name).through("array") for name, array in samples().items()]
        random.Random(2).shuffle(pairs)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(Pair.release, pairs))
        self.assertEqual(sorted(counted.releases), sorted(samples()))
        # An array without buffers is released as soon as it is read.
        here = [name for name, thread in zip(counted.releases, counted.threads) if thread == threading.get_ident()]
        self.assertEqual(here, ["null"])

    def test_many_threads_round_trip_at_once(self):
        whole = batch()

        def work(seed):
            rng = random.Random(seed)
            for _ in range(10):
                part = whole.slice(rng.randrange(30), rng.randrange(1, 30))
                got = Pair.of(part).through(rng.choice(["batch", "copy"])).to_batch()
                assert got.equals(part), seed

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(12)))


class Streams(TestCase):
    def test_chunks_are_released_in_odd_order_after_their_stream(self):
        counted = Counted()
        with Consumer.of_samples(9) as stream:
            chunks = [counted(stream.next_pair(), index).to_batch() for index in range(9)]
        order = [4, 0, 8, 2, 7, 1, 3, 6, 5]
        for index in order:
            chunks[index] = None
            gc.collect()
        self.assertEqual(counted.releases, order)

    def test_chunks_are_released_on_other_threads(self):
        with Consumer.through(Producer(batch().schema, [batch()] * 8)) as stream:
            chunks = list(stream)
        with ThreadPoolExecutor(3) as pool:
            # Each thread frees what it alone holds.
            list(pool.map(lambda index: chunks.__setitem__(index, None), [5, 1, 7, 0, 2, 6, 3, 4]))

    def test_arrays_in_cycles_are_released_by_the_garbage_collector(self):
        counted = Counted()
        gc.disable()
        try:
            for index in range(5):
                holder = {"batch": counted(Pair.of(batch()).through("batch"), index).to_batch()}
                holder["self"] = holder
            del holder
            self.assertEqual(counted.releases, [])
            gc.collect()
        finally:
            gc.enable()
        self.assertEqual(sorted(counted.releases), list(range(5)))

    def test_capsules_and_chunks_survive_collections_in_between(self):
        gc.collect()
        expected = batch()
        back = pa.record_batch(Exporter(lambda: Pair.of(batch()).through("batch")))
        for _ in range(5):
            gc.collect()
        self.assert_same_batch(back, expected)


if __name__ == "__main__":
    unittest.main()
