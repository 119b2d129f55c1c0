"""Collectives from Python over every transport and launcher, and their errors."""
import os
import subprocess
import sys
import unittest

import numpy

from module import ABSENT, LIMIT, Case

if not ABSENT:
    import muster

# Every collective against its oracle, which a rank computes from all ranks' inputs.
ORACLE = """
import sys
import numpy as np
import muster

context = muster.context(sys.argv)
world = context.world
rank, size = world.rank, world.size

def values(r, n, kind):
    return ((np.arange(n) * 7 + 3 * r) % 11).astype(kind)

for kind in ("float32", "float64", "int64", "int32", "uint8", "float16"):
    for n in (1, 5, 1024, 70000):
        all_values = [values(r, n, kind) for r in range(size)]
        total = np.sum(np.stack(all_values).astype("float64"), axis=0)
        data = values(rank, n, kind)
        assert world.allreduce(data) is data
        np.testing.assert_array_equal(data, total.astype(kind))
        data = values(rank, n, kind)
        work = world.allreduce_async(data, "max")
        while not work.test():
            pass
        np.testing.assert_array_equal(work.result, np.max(np.stack(all_values), axis=0))
        out = np.empty(n * size, kind)
        world.allgather(values(rank, n, kind), out)
        np.testing.assert_array_equal(out, np.concatenate(all_values))
        data = values(rank, n, kind)
        world.broadcast(data, size - 1)
        np.testing.assert_array_equal(data, all_values[size - 1])
        out = np.empty(n * size if rank == 0 else 0, kind)
        world.gather(values(rank, n, kind), out if rank == 0 else None, 0)
        if rank == 0:
            np.testing.assert_array_equal(out, np.concatenate(all_values))
        out = np.empty(n, kind)
        world.scatter(out, np.concatenate(all_values) if rank == size - 1 else None, size - 1)
        np.testing.assert_array_equal(out, all_values[rank])
        block = np.empty(n, kind)
        world.reduce_scatter(np.tile(values(rank, n, kind), size), block)
        np.testing.assert_array_equal(block, total.astype(kind))
        out = np.empty(n * size, kind)
        world.all_to_all(np.repeat(values(rank, size, kind), n), out)
        np.testing.assert_array_equal(out, np.concatenate([np.repeat(values(r, size, kind)[rank], n) for r in range(size)]))
        data = values(rank, n, kind)
        world.reduce(data, 0, "sum")
        np.testing.assert_array_equal(data, total.astype(kind) if rank == 0 else all_values[rank])
world.barrier()
half = world.split(rank % 2)
ones = np.ones(3)
half.allreduce(ones)
assert ones[0] == half.size, (ones, half.size)
sys.stdout.write(f"done {rank} {size} {world.transport}\\n")  # one write: launchers mix the ranks' lines
"""


class EveryCollective(Case):
    def run_oracle(self, ranks, transport):
        for rank, out in enumerate(self.run_ranks(ORACLE, ranks, MUSTER_TRANSPORT=transport)):
            self.assertEqual(out, f"done {rank} {ranks} {transport}\n")

    def test_over_shared_memory(self):
        self.run_oracle(2, "shm")
        self.run_oracle(3, "shm")

    def test_over_tcp(self):
        if "tcp" not in muster.info()["transports"]:
            self.skipTest("SKIPPED: muster was built without tcp")
        self.run_oracle(2, "tcp")

    def test_alone(self):
        done = subprocess.run([sys.executable, self.write("alone.py", ORACLE)], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stdout), (0, "done 0 1 self\n"), done.stderr)

    def test_of_threads_in_one_process(self):
        context = muster.context(ranks=3)
        sums = []
        def body(world):
            data = numpy.full(4, world.rank + 1.0)
            world.allreduce(data)
            sums.append(data[0])
        context.run(body)
        self.assertEqual(sums, [6.0] * 3)
        def failing(world):
            if world.rank == 1:
                raise KeyError("of rank 1")
            world.barrier()
        with self.assertRaisesRegex(KeyError, "of rank 1"):
            context.run(failing)
        with self.assertRaisesRegex(muster.configuration_error, "outside of context.run"):
            context.world
        context.close()


class EveryLauncher(Case):
    def test_mpirun(self):
        mpirun = self.program("mpirun")
        out = self.launch([mpirun, "-n", 2, "--oversubscribe", "--bind-to", "none"], ORACLE, OMPI_ALLOW_RUN_AS_ROOT="1",
                          OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.assertEqual(sorted(out.splitlines()), ["done 0 2 shm", "done 1 2 shm"])

    def test_muster_launch(self):
        out = self.launch([self.program("muster-launch"), "-n", 2, "--elastic", "off"], ORACLE)
        self.assertIn("done 0 2", out)
        self.assertIn("done 1 2", out)

    def test_srun(self):
        srun = self.program("srun")
        if subprocess.run([srun, "-n", "1", "true"], capture_output=True, timeout=60).returncode != 0:
            self.skipTest("SKIPPED: no Slurm runs here (tools/slurm-local.sh starts one)")
        out = self.launch([srun, "-n", 2, "--overcommit"], ORACLE)
        self.assertIn("done 0 2", out)

    def test_spawn_without_a_launcher(self):
        from spawned import sum_of_ranks
        self.assertEqual(muster.spawn(sum_of_ranks, 3, 10.0), [33.0] * 3)

    def test_spawn_raises_the_first_exception(self):
        from spawned import failing_rank
        with self.assertRaisesRegex(ZeroDivisionError, "rank 1"):
            muster.spawn(failing_rank, 2)


class BadInput(Case):
    def test_arrays_that_cannot_be_used(self):
        with muster.context() as context:
            world = context.world
            for data, text in ((numpy.zeros((4, 4))[:, ::2], "not contiguous"), ([1, 2], "is a list"),
                               (numpy.zeros(2, "datetime64[s]"), ""), (b"bytes", "may only be read"),
                               (numpy.frombuffer(b"12345678", "float32"), "may only be read")):
                with self.subTest(text), self.assertRaisesRegex(muster.configuration_error, text) as raised:
                    world.allreduce(data)
                self.assertNotIn("\n", str(raised.exception))
            for call, text in ((lambda: world.allreduce(numpy.zeros(1), "summ"), "did you mean sum"),
                               (lambda: world.broadcast(numpy.zeros(1), 1), "root"),
                               (lambda: world.allgather(numpy.zeros(2), numpy.zeros(3)), "2 elements"),
                               (lambda: world.allgather(numpy.zeros(2), numpy.zeros(2, "float32")), "same type"),
                               (lambda: world.allreduce(numpy.zeros(1), algorithm="rung"), "algorithm"),
                               (lambda: world.allreduce(numpy.zeros(1, complex), "max"), "complex")):
                with self.subTest(text), self.assertRaisesRegex(muster.configuration_error, text):
                    call()
            data = numpy.array([1 + 2j, 3j])
            numpy.testing.assert_array_equal(world.allreduce(data), [1 + 2j, 3j])   # the group goes on
        with self.assertRaisesRegex(muster.configuration_error, "closed"):
            world.barrier()

    def test_settings_that_are_none(self):
        with self.assertRaisesRegex(muster.configuration_error, "--trnsport"):
            muster.context(trnsport="shm")
        with self.assertRaisesRegex(muster.configuration_error, "timeout"):
            muster.context(timeout="soon")
        words = ["program", "--timeout", "7", "mine"]
        muster.context(words).close()
        self.assertEqual(words, ["program", "mine"])

    def test_ranks_that_disagree_get_a_mismatch(self):
        program = """
import numpy as np, muster
world = muster.context().world
try:
    world.allreduce(np.zeros(3 if world.rank == 0 else 4, "float32"))
except muster.mismatch_error as failure:
    print(failure)
"""
        for out in self.run_ranks(program):
            self.assertRegex(out, "3.*4|4.*3")
            self.assertEqual(out.count("\n"), 1)

    def test_a_missing_rank_is_named(self):
        program = """
import time, numpy as np, muster
context = muster.context(timeout=1)
world = context.world
if world.rank == 1:
    time.sleep(3)
else:
    try:
        world.allreduce(np.zeros(3))
    except muster.timeout_error as failure:
        print(failure.operation, failure.sequence, failure.missing)
"""
        self.assertEqual(self.run_ranks(program)[0], "allreduce 0 [1]\n")


class Information(Case):
    def test_info(self):
        for words in (["info"], ["info", "--json"], ["settings"]):
            done = subprocess.run([sys.executable, "-m", "muster", *words], capture_output=True, text=True, timeout=100)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("transport", done.stdout)
        done = subprocess.run([sys.executable, "-m", "muster", "inform"], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 2)
        done = subprocess.run([sys.executable, "-m", "muster", "info"], capture_output=True, text=True, timeout=100,
                              env=os.environ | {"RANK": "5", "WORLD_SIZE": "2"})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
