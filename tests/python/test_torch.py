"""The backend "muster" of torch.distributed: every collective beside Gloo, messages, several groups and threads, training, faults."""
import re
import signal
import socket
import sys
import time
import unittest

from module import ROOT, Case

try:
    import torch
    ABSENT = ""
except ImportError:
    ABSENT = "SKIPPED: this Python has no PyTorch (tests/python/with_torch.py finds one)"

BEGIN = """
import os, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import muster, muster.torch
torch.set_num_threads(1)
def begin(backend="muster", seconds=30, **options):
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **options)
    return dist.get_rank(), dist.get_world_size()
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@unittest.skipIf(ABSENT, ABSENT)
class TorchCase(Case):
    def begin(self, program, ranks=2, **variables):
        return self.start(BEGIN + program, ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), OMP_NUM_THREADS="1", **variables)

    def outputs(self, program, ranks=2, **variables):
        ended = self.end(self.begin(program, ranks, **variables))
        for status, out, err in ended:
            self.assertEqual(status, 0, out + err)
        return [out for _, out, _ in ended]


class BesideGloo(TorchCase):
    PROGRAM = """
rank, size = begin("gloo")
gloo, ours = dist.new_group(backend="gloo"), dist.new_group(backend="muster")
OPS = {"SUM": dist.ReduceOp.SUM, "PRODUCT": dist.ReduceOp.PRODUCT, "MIN": dist.ReduceOp.MIN, "MAX": dist.ReduceOp.MAX}
def tensor(n, kind, seed=0):
    generator = torch.Generator().manual_seed(100 * rank + seed)
    return torch.randint(1, 4, (n,), generator=generator).to(kind)
def both(call):
    results = [call(group) for group in (gloo, ours)]
    for theirs, mine in zip(*results):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
for kind in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16):
    for n in (1, 7, 70001):
        for name, op in OPS.items():
            def allreduce(group):
                x = tensor(n, kind); dist.all_reduce(x, op, group=group); return [x]
            def reduce(group):
                x = tensor(n, kind); dist.reduce(x, size - 1, op, group=group); return [x] if rank == size - 1 else []
            both(allreduce), both(reduce)
        def broadcast(group):
            x = tensor(n, kind); dist.broadcast(x, size - 1, group=group); return [x]
        def all_gather(group):
            out = [torch.empty(n, dtype=kind) for _ in range(size)]; dist.all_gather(out, tensor(n, kind), group=group); return out
        def all_gather_into(group):
            out = torch.empty(n * size, dtype=kind); dist.all_gather_into_tensor(out, tensor(n, kind), group=group); return [out]
        def gather(group):
            out = [torch.empty(n, dtype=kind) for _ in range(size)] if rank == 0 else None
            dist.gather(tensor(n, kind), out, 0, group=group); return out or []
        def scatter(group):
            x = torch.empty(n, dtype=kind)
            dist.scatter(x, [tensor(n, kind, r) for r in range(size)] if rank == 1 else None, 1, group=group); return [x]
        def reduce_scatter(group):
            x = torch.empty(n, dtype=kind); dist.reduce_scatter_tensor(x, tensor(n * size, kind), group=group); return [x]
        def all_to_all(group):
            x = torch.empty(n * size, dtype=kind); dist.all_to_all_single(x, tensor(n * size, kind), group=group); return [x]
        for call in (broadcast, all_gather, all_gather_into, gather, scatter, reduce_scatter, all_to_all):
            both(call)
def uneven(group):
    sends = [rank + r for r in range(size)]
    out = torch.empty(sum(sends)); dist.all_to_all_single(out, tensor(sum(sends), torch.float32), sends, sends, group=group); return [out]
both(uneven)
def sparse(group):
    x = torch.sparse_coo_tensor([[rank, 3]], [1.0 + rank, 2.0], (5,)); dist.all_reduce(x, group=group); return [x.to_dense()]
both(sparse)
def complex_sum(group):
    x = torch.full((3,), 1 + 2j * rank); dist.all_reduce(x, group=group); return [x]
both(complex_sum)
for name in ("BAND", "BOR", "BXOR"):
    def bits(group):
        x = tensor(9, torch.int32) * 5; dist.all_reduce(x, getattr(dist.ReduceOp, name), group=group); return [x]
    both(bits)
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank}, group=ours)
assert objects == [{"rank": r} for r in range(size)], objects
x = torch.full((3,), rank + 1.0); dist.all_reduce(x, dist.ReduceOp.AVG, group=ours); assert x[0] == (size + 1) / 2
with dist._coalescing_manager(group=ours):
    parts = [torch.full((k + 1,), 1.0) for k in range(5)]
    for part in parts:
        dist.all_reduce(part, group=ours)
assert all((part == size).all() for part in parts)
dist.barrier(group=ours)
say("same", ours._get_backend(torch.device("cpu")).transport)
dist.destroy_process_group()
"""

    def test_every_collective_over_shared_memory(self):
        for ranks in (2, 3):
            self.assertEqual(self.outputs(self.PROGRAM, ranks), ["same shm\n"] * ranks)

    def test_every_collective_over_tcp(self):
        self.assertEqual(self.outputs(self.PROGRAM, 2, MUSTER_TRANSPORT="tcp"), ["same tcp\n"] * 2)

    def test_training_gives_the_same_losses(self):
        program = """
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
rank, size = begin("gloo")
def losses(backend, sharded):
    group = dist.new_group(backend=backend)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    if sharded:
        from torch.distributed.device_mesh import DeviceMesh
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(5 + rank)
    found = []
    for step in range(20):
        x = torch.randn(8, 16, generator=data)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        found.append(loss.item())
    return found
for sharded in (False, True):
    theirs, mine = losses("gloo", sharded), losses("muster", sharded)
    assert all(abs(a - b) < 1e-5 for a, b in zip(theirs, mine)), (theirs, mine)
    assert mine[-1] < mine[0]
say("same losses")
dist.destroy_process_group()
"""
        self.assertEqual(self.outputs(program), ["same losses\n"] * 2)


class Messages(TorchCase):
    def test_send_and_receive(self):
        program = """
rank, size = begin()
for n in (1, 1000, 1 << 20):
    if rank == 0:
        dist.send(torch.arange(n), 1); dist.send(torch.ones(n), 1, tag=5); dist.send(torch.zeros(n), 1, tag=7)
        x = torch.empty(n); assert dist.recv(x) == 1; assert (x == 3).all()
    else:
        a, b, c = torch.empty(n, dtype=torch.int64), torch.empty(n), torch.empty(n)
        works = [dist.irecv(c, 0, tag=7), dist.irecv(b, 0, tag=5), dist.irecv(a, 0)]
        for work in works: work.wait()
        assert (a == torch.arange(n)).all() and (b == 1).all() and (c == 0).all()
        dist.send(torch.full((n,), 3.0), 0)
# A send that nobody waits for makes progress while this rank is in a collective.
if rank == 0:
    work = dist.isend(torch.ones(1 << 21), 1)
    dist.barrier()
    work.wait()
else:
    x = torch.zeros(1 << 21); dist.recv(x, 0); assert x.sum() == 1 << 21
    dist.barrier()
big = torch.empty(1 << 18)
operations = [dist.P2POp(dist.isend, torch.full((1 << 18,), float(rank)), 1 - rank), dist.P2POp(dist.irecv, big, 1 - rank)]
for work in dist.batch_isend_irecv(operations): work.wait()
assert (big == 1 - rank).all()
say("received")
"""
        self.assertEqual(self.outputs(program), ["received\n"] * 2)

    def test_a_message_of_another_size_or_a_lost_peer_is_an_error(self):
        program = """
rank, size = begin(seconds=5)
if rank == 0:
    dist.isend(torch.ones(3), 1).wait()
    time.sleep(1)
    os._exit(0)
try:
    dist.recv(torch.empty(5), 0)
except muster.mismatch_error as failure:
    say("12 bytes arrived" in str(failure))
try:
    dist.recv(torch.empty(5), 0)
except (muster.peer_failure, muster.timeout_error) as failure:
    say("rank 0" in str(failure))
"""
        self.assertEqual(self.outputs(program)[1], "True\nTrue\n")


class Groups(TorchCase):
    def test_several_groups_and_threads_need_no_common_order(self):
        program = """
rank, size = begin()
groups = [dist.new_group() for _ in range(4)]
# Asynchronous calls on two groups, in another order at each rank.
for k in range(50):
    x = [torch.ones(1000 + k), torch.ones(5)]
    order = (0, 1) if rank == 0 else (1, 0)
    works = [dist.all_reduce(x[i], group=groups[i], async_op=True) for i in order]
    dist.barrier(group=groups[2])
    for work in works: work.wait()
    assert (x[0] == size).all() and (x[1] == size).all()
def many(group):
    for k in range(200):
        x = torch.full((17,), float(k)); dist.all_reduce(x, group=group); assert (x == size * k).all()
threads = [threading.Thread(target=many, args=(group,)) for group in groups]
for thread in threads: thread.start()
for thread in threads: thread.join()
works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(100)]   # without a wait, in order
del works
futures = [dist.all_reduce(torch.full((4,), 1.0), async_op=True).get_future() for _ in range(10)]
assert all((future.wait()[0] == size).all() for future in futures)
part = dist.new_group([rank])
x = torch.ones(1); dist.all_reduce(x, group=part); assert x.item() == 1
say("all")
dist.destroy_process_group()
"""
        self.assertEqual(self.outputs(program, 3), ["all\n"] * 3)

    def test_split_group(self):
        program = """
rank, size = begin()
half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
x = torch.tensor([float(rank)]); dist.all_reduce(x, group=half); say(x.item())
dist.destroy_process_group()
"""
        if not hasattr(torch.distributed, "split_group"):
            self.skipTest("SKIPPED: this PyTorch has no split_group")
        self.assertEqual(self.outputs(program, 4), ["2.0\n", "4.0\n", "2.0\n", "4.0\n"])

    def test_reconfigure_changes_the_members(self):
        if not hasattr(torch.distributed, "_reconfigure"):
            self.skipTest("SKIPPED: this PyTorch has no reconfigure (2.14 has)")
        program = """
rank, size = begin(enable_reconfigure=True)
store = dist.distributed_c10d._get_default_store()
store.set(f"handle{rank}", dist._get_reconfigure_handle())
handles = [store.get(f"handle{r}").decode() for r in range(size)]
for uuid, members in enumerate(([0, 1, 2], [2, 0], [1, 2, 0]), 1):
    if rank in members:
        dist._reconfigure(uuid=uuid, handles=[handles[r] for r in members]).wait()
        group = dist.distributed_c10d._get_default_group()
        x = torch.tensor([1.0 + rank]); group.allreduce([x]).wait()
        say(group.rank(), group.size(), x.item())
    store.set(f"done{uuid}.{rank}", "1")
    store.wait([f"done{uuid}.{r}" for r in range(size)])
"""
        self.assertEqual(self.outputs(program, 3), ["0 3 6.0\n1 2 4.0\n2 3 6.0\n", "1 3 6.0\n0 3 6.0\n", "2 3 6.0\n0 2 4.0\n1 3 6.0\n"])


class Faults(TorchCase):
    def test_bad_tensors(self):
        program = """
rank, size = begin()
def refused(call, kind=muster.configuration_error):
    try:
        call()
    except kind as failure:
        say(str(failure).count(chr(10)), failure)
refused(lambda: dist.all_reduce(torch.zeros(4, 4)[:, ::2]))
refused(lambda: dist.all_reduce(torch.zeros(4), dist.ReduceOp.BAND))
refused(lambda: dist.all_reduce(torch.zeros(4, dtype=torch.complex64), dist.ReduceOp.MAX), Exception)
refused(lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2)))
refused(lambda: dist.send(torch.zeros(1), 1 - rank, tag=1 << 20))
x = torch.ones(1); dist.all_reduce(x); say(x.item())
refused(lambda: dist.all_reduce(torch.zeros(3 + rank)), muster.mismatch_error)
"""
        for out in self.outputs(program):
            lines = out.splitlines()
            self.assertEqual(len(lines), 7, out)
            self.assertEqual(lines[5], "2.0")
            self.assertTrue(all(line.startswith("0 ") for line in lines[:5] + lines[6:]), out)

    def test_a_missing_rank_is_named(self):
        program = """
rank, size = begin(seconds=2)
if rank == 1:
    time.sleep(5)
else:
    try:
        dist.all_reduce(torch.ones(1)) if rank == 0 else None
    except muster.timeout_error as failure:
        say(failure.missing)
"""
        self.assertEqual(self.outputs(program)[0], "[1]\n")

    def test_monitored_barrier_names_ranks(self):
        program = """
rank, size = begin()
dist.monitored_barrier()
try:
    if rank != 1:
        dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
    else:
        time.sleep(3)
except RuntimeError as failure:
    say(failure)
"""
        outputs = self.outputs(program, 3)
        self.assertIn("Rank 1 failed to pass monitoredBarrier in 1000 ms", outputs[0])
        self.assertIn("Rank 2 successfully reached monitoredBarrier", outputs[2])

    def started(self, program, **variables):
        processes = self.begin("rank, size = begin()\ndist.barrier()\nsay('ready')\n" + program, **variables)
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        return processes

    def test_a_killed_rank_is_an_error_at_once(self):
        processes = self.started("""
if rank == 1: time.sleep(100)
try:
    dist.all_reduce(torch.ones(1))
except muster.peer_failure as failure:
    say(failure.ranks)
""")
        time.sleep(0.5)
        processes[1].send_signal(signal.SIGKILL)
        (status, out, err), _ = self.end(processes)
        self.assertEqual((status, out), (0, "[1]\n"), err)

    def test_an_interrupt_ends_a_wait(self):
        processes = self.started("""
if rank == 1:
    time.sleep(3)
    os._exit(0)
try:
    dist.all_reduce(torch.ones(1))
except (KeyboardInterrupt, muster.error) as failure:
    say(type(failure).__name__)
os._exit(0)
""")
        time.sleep(0.5)
        processes[0].send_signal(signal.SIGINT)
        (status, out, err), _ = self.end(processes)
        self.assertEqual((status, out), (0, "KeyboardInterrupt\n"), err)

    def test_abort_ends_the_waits_of_all(self):
        processes = self.started("""
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
if rank == 0:
    threading.Timer(1, backend.abort).start()
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(2)
        for _ in range(2): dist.all_reduce(torch.ones(1))
except muster.peer_failure as failure:
    say("aborted" in str(failure))
os._exit(0)
""")
        for status, out, err in self.end(processes):
            self.assertEqual((status, out), (0, "True\n"), err)

    def test_the_interpreter_ends_with_work_outstanding(self):
        processes = self.started("""
if rank == 0:
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
else:
    time.sleep(2)
""")
        (status, _, err), (status_of_1, _, err_of_1) = self.end(processes)
        self.assertEqual((status, status_of_1), (0, 0), err + err_of_1)
        self.assertIn("outstanding when the interpreter ended", err)

    def test_workers_of_data_loaders_and_forks(self):
        processes = self.started("""
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(100.0)), batch_size=10, num_workers=2)
for (x,) in loader:
    total = x.sum(); dist.all_reduce(total)
child = os.fork()
if child == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except muster.configuration_error as failure:
        os._exit(0 if "belongs to the parent" in str(failure) else 1)
    os._exit(2)
status = os.waitpid(child, 0)[1]
x = torch.ones(1); dist.all_reduce(x)
say(status, x.item())
dist.destroy_process_group()
""")
        for status, out, err in self.end(processes):
            self.assertEqual((status, out), (0, "0 2.0\n"), err)


class Manual(TorchCase):
    def test_the_first_program(self):
        program = re.search(r"```python\n(.*?)```", (ROOT / "docs/torch.md").read_text(), re.S).group(1)
        ended = self.end(self.start(program, 2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), OMP_NUM_THREADS="1"))
        for rank, (status, out, err) in enumerate(ended):
            self.assertEqual(status, 0, err)
            self.assertLess(float(re.fullmatch(rf"{rank} (\S+)\n", out)[1]), 1e-2)

    def test_the_loader_as_a_data_set(self):
        import muster
        import muster.torch
        loader = muster.open(self.csv()) | muster.batch(100) | muster.prefetch(2)
        dataset = muster.torch.loader_dataset(loader, label_type=torch.float32)
        self.assertEqual(len(dataset), 10)
        for source in (dataset, torch.utils.data.DataLoader(dataset, batch_size=None)):
            values, labels = zip(*source)
            torch.testing.assert_close(torch.cat(labels), 2 * torch.cat(values)[:, 0] - 1, atol=1e-5, rtol=0)
        with self.assertRaisesRegex(Exception, "num_workers=0"):
            next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))


if __name__ == "__main__":
    unittest.main()
