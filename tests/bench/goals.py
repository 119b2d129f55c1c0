#!/usr/bin/env python3
"""Checks the table of goals on known times."""
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from compare import goals  # noqa: E402

SIZES = [4 << 2 * i for i in range(13)]


def times(**seconds):
    """Returns the same times at every size and for every collective."""
    return {(op, contender, size): rounds for op in ("allreduce", "broadcast", "reduce") for contender, rounds in seconds.items()
            for size in SIZES}


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9)


def line_of(lines, contender, band, against=""):
    found = [line for line in lines if line.contender == contender and line.band == band and against in line.against]
    assert len(found) == 1, f"{len(found)} lines for {contender}, {band}"
    return found[0]


measured = times(muster_shm=[1.0, 2.0, 3.0], muster_shm_registered=[1.0, 1.0, 1.0], openmpi_tuned=[8.0, 4.0, 6.0],
                 mpich_tuned=[3.0, 3.0, 3.0], openmpi=[9.0, 9.0, 9.0], mpich=[7.0, 7.0, 7.0], memory_limit=[0.8] * 3,
                 muster_shm_bare=[0.95, 1.9, 2.85])
lines = goals.judge({2: measured}, cores=2)

private = line_of(lines, "allreduce, 2 ranks, private", "4 B to 1 KiB")
assert close(private.ratio, 1.5), private  # 3 / 2: MPICH is the better peer
assert close(private.low, 1.0) and close(private.high, 3.0), private
assert close(private.at_default, 3.5) and private.verdict == "missed", private
registered = line_of(lines, "allreduce, 2 ranks, registered", "16 to 64 MiB", "mpich")
assert close(registered.ratio, 3.0) and registered.verdict == "met", registered
limit = line_of(lines, "allreduce, 2 ranks, registered", "16 to 64 MiB", "memory limit")
assert close(limit.ratio, 0.8) and limit.verdict == "missed", limit
bare = line_of(lines, "allreduce, 2 ranks, private", "4 B", "bare")
assert close(bare.ratio, 0.95) and bare.verdict == "met", bare

# Broadcast and reduce compare only with Open MPI, and the worst size counts.
measured["reduce", "muster_shm", 65536] = [12.0, 12.0, 12.0]
lines = goals.judge({2: measured}, cores=2)
worst = line_of(lines, "reduce, 2 ranks, private", "64 KiB, the worst")
assert close(worst.ratio, 0.5) and worst.verdict == "missed", worst
assert [line.verdict for line in lines if line.contender == "broadcast, 2 ranks, private"] == ["met"]

# The ratio of a band is the geometric mean over its sizes.
measured["allreduce", "muster_shm_registered", 64 << 20] = [0.25] * 3
mean = line_of(goals.judge({2: measured}, 2), "allreduce, 2 ranks, registered", "16 to 64 MiB", "mpich")
assert close(mean.ratio, 6.0), mean  # the mean of 3 and 12

# A size that no peer completed is left out of the band.
over_tcp = times(muster_tcp=[1.0] * 3, gloo_ring=[2.0] * 3, gloo_ring_busy=[3.0] * 3)
over_tcp["allreduce", "loopback_limit", 65536] = [0.8] * 3
for peer in ("gloo_ring", "gloo_ring_busy"):
    del over_tcp["allreduce", peer, 64 << 20]
without = line_of(goals.judge({2: over_tcp}, 2), "allreduce, 2 ranks over tcp", "1 MiB and up, without 64 MiB", "gloo")
assert close(without.ratio, 2.0) and without.verdict == "met", without
bare = line_of(goals.judge({2: over_tcp}, 2), "allreduce, 2 ranks over tcp", "64 KiB", "loopback")
assert close(bare.ratio, 0.8) and bare.verdict == "missed", bare

# Over tcp an MPI is a peer like Gloo, and the line names the peer that was fastest at some size.
over_tcp.update({("allreduce", "impi_tcp", size): [1.5 if size == 1 << 20 else 9.0] * 3 for size in SIZES[:-1]})
both = line_of(goals.judge({2: over_tcp}, 2), "allreduce, 2 ranks over tcp", "1 MiB and up, without 64 MiB", "impi")
assert both.against == "impi_tcp, gloo_ring" and close(both.ratio, (1.5 * 2 * 2) ** (1 / 3)), both

# The case `written` has the goals of the allreduce; a newer MPI counts.
measured["written", "muster_shm", 65536], measured["written", "openmpi_tuned", 65536] = [2.0] * 3, [6.0] * 3
measured["written", "impi_tuned", 65536] = [3.0] * 3
written = line_of(goals.judge({2: measured}, cores=2), "allreduce of what was just written, 2 ranks, private", "64 KiB")
assert close(written.ratio, 1.5) and written.against == "impi_tuned" and written.verdict == "met", written

# With more ranks than cores MPICH is no peer. A line without measurements is neither met nor missed.
crowded = line_of(goals.judge({4: measured}, cores=2), "allreduce, 4 ranks on 2 cores, private", "64 KiB")
assert close(crowded.ratio, 2.0) and crowded.against == "openmpi_tuned", crowded
several = times(muster_shm=[1.0] * 3, switch_limit=[0.9] * 3)
switches = line_of(goals.judge({4: several}, cores=2), "allreduce, 4 ranks on 2 cores, private", "4 B to 1 KiB", "changes")
assert close(switches.ratio, 0.9) and switches.verdict == "met", switches
assert not [line for line in goals.judge({2: several}, cores=2) if "changes" in line.against]
nobody = goals.judge({2: times(openmpi_tuned=[1.0])}, cores=2)
assert nobody and all(line.verdict == "not measured" for line in nobody)
print(f"{len(lines)} lines")
