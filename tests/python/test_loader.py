"""The loader from Python: batches as arrays, their lifetimes, positions, and functions in Python."""
import gc
import subprocess
import sys
import threading
import unittest

import numpy

from module import ABSENT, Case, data

if not ABSENT:
    import muster


class Batches(Case):
    def loader(self, *steps, batch=32, **options):
        made = muster.open(self.csv()) | muster.shuffle(1) | muster.batch(batch, **options)
        for step in steps:
            made = made | step
        return made

    def test_an_epoch_has_each_sample_once_and_its_values(self):
        seen = []
        for batch in self.loader(muster.prefetch(4)):
            x = batch.samples.astype(numpy.float64) / 500 - 1
            numpy.testing.assert_allclose(batch.values[:, 0], x, atol=1e-5)
            numpy.testing.assert_allclose(batch.labels, 2 * x - 1, atol=1e-5)
            self.assertEqual(batch.global_size, len(batch))
            seen.extend(batch.samples.tolist())
        self.assertEqual(sorted(seen), list(range(1000)))

    def test_the_ranks_parts_are_disjoint_and_complete(self):
        loaders = [self.loader() for _ in range(3)]
        for rank, loader in enumerate(loaders):
            loader.rank, loader.world = rank, 3
        for parts in zip(*loaders):
            ids = numpy.concatenate([part.samples for part in parts])
            self.assertEqual(len(set(ids.tolist())), parts[0].global_size)

    def test_arrays_outlive_the_step_the_loader_and_the_batch(self):
        kept = []
        loader = self.loader(muster.prefetch(4))
        for batch in loader:
            kept.append((batch.values, batch.values.copy(), batch.samples, batch.samples.copy()))
        del batch
        for epoch in range(2):   # the loader uses its memory again and again
            for _ in loader:
                pass
        del loader, _
        gc.collect()
        for values, copy, samples, ids in kept:
            numpy.testing.assert_array_equal(values, copy)
            numpy.testing.assert_array_equal(samples, ids)

    def test_a_batch_is_an_array_without_a_copy(self):
        batch = next(self.loader())
        self.assertTrue(numpy.shares_memory(numpy.asarray(batch), batch.values))
        self.assertTrue(numpy.shares_memory(numpy.from_dlpack(batch), batch.values))
        self.assertEqual(numpy.asarray(batch, dtype="float64").dtype, numpy.float64)

    def test_a_state_continues_where_it_was_taken(self):
        first, second = self.loader(muster.prefetch(2)), self.loader()
        for _ in range(7):
            next(first)
        state = first.state_dict()
        rest = [batch.samples.copy() for batch in first]
        second.load_state_dict(state)
        for mine, theirs in zip([batch.samples.copy() for batch in second], rest, strict=True):
            numpy.testing.assert_array_equal(mine, theirs)

    def test_a_state_of_another_loader_is_refused(self):
        with self.assertRaisesRegex(muster.configuration_error, "batch"):
            self.loader(batch=16).load_state_dict(self.loader().state_dict())
        with self.assertRaisesRegex(muster.configuration_error, "no 'seed'"):
            self.loader().load_state_dict({"version": 2, "order": 1, "dataset": 1, "size": 1})

    def test_next_repeats_a_batch_until_it_is_committed(self):
        loader = self.loader()
        first = loader.next().samples.copy()
        numpy.testing.assert_array_equal(loader.next().samples, first)
        loader.commit()
        self.assertNotEqual(loader.next().samples.tolist(), first.tolist())

    def test_a_loop_that_ends_early_is_continued(self):
        loader = self.loader()
        seen = []
        for batch in loader:
            seen.extend(batch.samples.tolist())
            break
        for batch in loader:
            seen.extend(batch.samples.tolist())
        self.assertEqual(sorted(seen), list(range(1000)))

    def test_a_pipeline_that_became_another_is_refused(self):
        before = self.loader()
        before | muster.prefetch(1)
        with self.assertRaisesRegex(muster.configuration_error, "part of another"):
            next(before)


class Functions(Case):
    def pipeline(self, step):
        return muster.open(self.csv()) | muster.batch(50) | step | muster.prefetch(2, threads=2)

    def test_a_function_maps_every_record(self):
        def twice(record):
            return numpy.concatenate([record, 2 * record])
        loader = self.pipeline(muster.map(twice, shape=(2,), dtype="float64"))
        for batch in loader:
            self.assertEqual(batch.values.dtype, numpy.float64)
            numpy.testing.assert_allclose(batch.values[:, 1], 2 * batch.values[:, 0])

    def test_an_exception_arrives_with_its_traceback_and_the_record(self):
        def failing(record):
            raise ValueError("no such\nnumber")
        with self.assertRaisesRegex(muster.data_error, r"record \d+ made map\(\) fail \(ValueError: no such number\)") as raised:
            for _ in self.pipeline(muster.map(failing)):
                pass
        self.assertIsInstance(raised.exception.__cause__, ValueError)
        self.assertEqual(raised.exception.__cause__.__traceback__.tb_frame.f_code.co_name, "failing")

    def test_a_result_of_another_shape_is_an_error(self):
        with self.assertRaises(muster.data_error) as raised:
            next(self.pipeline(muster.map(lambda record: numpy.zeros(3))))
        self.assertIsInstance(raised.exception.__cause__, ValueError)

    def test_an_augmentation_depends_on_seed_epoch_and_sample_alone(self):
        def noisy(record, seed):
            return record + numpy.float32(seed % 1000)
        def epoch(threads):
            loader = muster.open(self.csv()) | muster.shuffle(3) | muster.batch(64) | muster.augment_by(noisy) | \
                muster.prefetch(3, threads=threads)
            return numpy.concatenate([batch.values.copy() for batch in loader])
        numpy.testing.assert_array_equal(epoch(1), epoch(2))

    def test_other_threads_run_while_a_loader_waits(self):
        counted = []
        stop = threading.Event()
        def count():
            while not stop.is_set():
                counted.append(1)
                stop.wait(0.001)
        thread = threading.Thread(target=count)
        thread.start()
        loader = muster.open(self.csv()) | muster.batch(10) | muster.map(lambda record: (stop.wait(0.002), record)[1]) | \
            muster.prefetch(1)
        for _ in zip(range(10), loader):
            pass
        stop.set()
        thread.join()
        self.assertGreater(len(counted), 5)

    def test_the_interpreter_ends_while_threads_call_its_functions(self):
        path = self.write("ends.py", f"""
import time
import muster
loader = muster.open({self.csv()!r}) | muster.batch(100) | muster.map(lambda x: (time.sleep(0.001), x)[1]) | muster.prefetch(8, threads=3)
next(loader)
print("ends")
""")
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ends\n", ""))


class RealData(Case):
    def test_sparse_records_of_a9a(self):
        loader = muster.open(f"libsvm:{data('a9a')}") | muster.batch(1000)
        batch = next(loader)
        rows = numpy.diff(batch.offsets) // 8
        self.assertEqual(rows.sum(), len(batch.values))
        self.assertEqual(set(batch.labels.tolist()), {-1.0, 1.0})
        self.assertLess(batch.indices.max(), 123)

    def test_digits_of_mnist(self):
        folder = data("mnist")
        images, labels = folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"
        source = muster.open(f"idx:{images},{labels}")
        loader = source | muster.batch(500) | muster.normalise(mean=[0.1307], deviation=[0.3081])
        counts = numpy.zeros(10, int)
        for batch in loader:
            self.assertEqual(batch.values.shape[0], len(batch))
            counts += numpy.bincount(batch.labels.astype(int), minlength=10)
        self.assertEqual(counts.sum(), 10000)


class BadInput(Case):
    def test_each_mistake_is_one_line(self):
        for call, kind, text in (
                (lambda: muster.open("csv:/none/such"), "data_error", "cannot be opened"),
                (lambda: muster.open("cvs:x"), "configuration_error", "cvs"),
                (lambda: muster.open(self.csv()) | muster.batch(0), "configuration_error", "cannot be 0"),
                (lambda: (muster.open(self.csv()) | muster.batch(2)).next(rank=2, world=2), "configuration_error", "no shard 2"),
                (lambda: muster.open(self.csv()) | muster.batch(2) | muster.normalise(), "configuration_error", ""),
                (lambda: muster.augment(layout="whc"), "configuration_error", "layout"),
                (lambda: muster.normalise(mean=[1, 2]), "configuration_error", "one or three")):
            with self.subTest(text), self.assertRaisesRegex(getattr(muster, kind), text) as raised:
                call()
            self.assertNotIn("\n", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
