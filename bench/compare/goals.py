"""The goals of the shm and tcp transports, and a comparison of measured times with them."""
import dataclasses
import itertools
import math
import statistics
from typing import Optional

KIB, MIB = 1 << 10, 1 << 20
SMALL, MIDDLE, LARGE = (4, KIB), (64 * KIB, MIB), (16 * MIB, 64 * MIB)
ONE = {size: (size, size) for size in (4, KIB, 64 * KIB, MIB)}
ANY_LARGE = (MIB, 64 * MIB)
BANDS = {SMALL: "4 B to 1 KiB", MIDDLE: "64 KiB to 1 MiB", LARGE: "16 to 64 MiB", ANY_LARGE: "1 MiB and up",
         ONE[4]: "4 B", ONE[KIB]: "1 KiB", ONE[64 * KIB]: "64 KiB", ONE[MIB]: "1 MiB"}
CONTENDERS = {"muster_shm": "private", "muster_shm_registered": "registered"}
SUMS = {"allreduce": "allreduce", "written": "allreduce of what was just written"}  # both have the goals
MPIS = ("openmpi", "mpich", "openmpi5", "mpich5", "impi")

# Speed-up over the best tuned MPI: (ranks, contender) -> a goal for each band.
ALLREDUCE = {
    (2, "muster_shm"): {ONE[4]: 2.0, SMALL: 1.7, ONE[64 * KIB]: 1.2, ONE[MIB]: 1.8, LARGE: 1.8},
    (2, "muster_shm_registered"): {SMALL: 1.7, ONE[64 * KIB]: 4.0, ONE[MIB]: 6.0, LARGE: 3.0},
    (4, "muster_shm"): {SMALL: 2.5, ONE[KIB]: 1.5, ONE[64 * KIB]: 2.2, ONE[MIB]: 1.8, LARGE: 2.3},
    (4, "muster_shm_registered"): {SMALL: 2.5, MIDDLE: 7.0, LARGE: 6.0},
}
# Speed-up over the best over the loopback, each with its best setting for the size: ranks -> a goal for each band.
TCP = {2: {SMALL: 3.0, ONE[64 * KIB]: 2.0, ANY_LARGE: 1.6}, 4: {SMALL: 3.0, ONE[64 * KIB]: 3.0, ANY_LARGE: 1.9}}
BEST_MPI = "the best MPI, tuned"
# share of the speed at which two processes can read and write twice the bytes: 2 ranks, registered
OF_MEMORY_LIMIT = 0.85
OF_SWITCHES = 0.8  # share of the speed at which the same number of processes on the same cores can wait for each other
OF_LOOPBACK = 0.95  # share of the speed at which two processes can exchange the same bytes over a bare connection
OF_BARE_CALL = 0.9  # share of the speed of a call of 4 bytes without deadlines, abort checks and type dispatch
ROOTED = 1.5  # broadcast and reduce, speed-up over Open MPI, at every size


@dataclasses.dataclass
class Line:
    """A line of the table; `ratio` is None if a time is missing."""
    contender: str
    against: str
    band: str
    goal: float
    ratio: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    at_default: Optional[float] = None

    @property
    def verdict(self):
        return "not measured" if self.ratio is None else "met" if self.ratio >= self.goal else "missed"


def judge(results, cores):
    """Returns the lines for `results`, {ranks: {(op, contender, bytes): [seconds by round]}}."""
    lines = []
    for op, ((ranks, contender), goals) in itertools.product(SUMS, ALLREDUCE.items()):
        if ranks not in results:
            continue
        # With more ranks than cores Debian's MPICH spins through its time slices: it is no peer. Open MPI yields.
        peers = [mpi for mpi in MPIS if mpi != "mpich" or ranks <= cores]
        times = results[ranks]
        label = f"{SUMS[op]}, {ranks} ranks{f' on {cores} cores' if ranks > cores else ''}, {CONTENDERS[contender]}"
        for band, goal in goals.items():
            sizes = sizes_in(times, op, band)
            if not sizes and op == "written":
                continue
            lines.append(compared(times, op, contender, peers, sizes, Line(label, BEST_MPI, BANDS[band], goal)))
            if ranks > cores and band == SMALL and op == "allreduce":
                line = Line(label, "bare changes of process", BANDS[band], OF_SWITCHES)
                lines.append(fill(line, times, op, contender, ["switch_limit"], sizes))
            if (op, ranks, contender, band) == ("allreduce", 2, "muster_shm_registered", LARGE):
                line = Line(label, "memory limit", BANDS[band], OF_MEMORY_LIMIT)
                lines.append(fill(line, times, op, contender, ["memory_limit"], sizes))
    for op, (ranks, goals) in itertools.product(SUMS, TCP.items()):
        times = results.get(ranks, {})
        peers = sorted({peer for _, peer, _ in times if peer.startswith("gloo") or peer.endswith("_tcp")}
                       - {"gloo_default", "muster_tcp"})
        for band, goal in goals.items() if times else ():
            sizes = sizes_in(times, op, band)
            if not sizes and op == "written":
                continue
            line = Line(f"{SUMS[op]}, {ranks} ranks over tcp", "the best over tcp", BANDS[band], goal)
            fill(line, times, op, "muster_tcp", peers, sizes)
            default = fill(dataclasses.replace(line), times, op, "muster_tcp", ["gloo_default"], sizes)
            line.at_default = default.ratio
            lines.append(line)
            if ranks == 2 and op == "allreduce":
                line = Line(line.contender, "the bare loopback", BANDS[band], OF_LOOPBACK)
                lines.append(fill(line, times, op, "muster_tcp", ["loopback_limit"], sizes))
    for ranks, times in results.items():
        if ranks <= cores:  # it spins
            line = Line(f"allreduce, {ranks} ranks, private", "the bare transport", "4 B", OF_BARE_CALL)
            lines.append(fill(line, times, "allreduce", "muster_shm", ["muster_shm_bare"], [4]))
        for op in ("broadcast", "reduce"):
            for contender, kind in CONTENDERS.items():
                if ranks > cores:
                    line = Line(f"{op}, {ranks} ranks, {kind}", "bare changes of process", BANDS[SMALL], OF_SWITCHES)
                    lines.append(fill(line, times, op, contender, ["switch_limit"], sizes_in(times, op, SMALL)))
                sizes = sizes_in(times, op, (0, math.inf))
                line = Line(f"{op}, {ranks} ranks, {kind}", "openmpi_tuned", "every size", ROOTED)
                each = [compared(times, op, contender, ["openmpi"], [size],
                                 dataclasses.replace(line, band=f"{bytes_text(size)}, the worst")) for size in sizes]
                known = [measured for measured in each if measured.ratio is not None]
                lines.append(min(known, key=lambda measured: measured.ratio, default=line))
    return lines


def bytes_text(size):
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size} B"


def sizes_in(times, op, band):
    return sorted({size for of, _, size in times if of == op and band[0] <= size <= band[1]})


def compared(times, op, contender, peers, sizes, line):
    fill(line, times, op, contender, [f"{peer}_tuned" for peer in peers], sizes)
    line.at_default = fill(dataclasses.replace(line), times, op, contender, peers, sizes).ratio
    return line


def fill(line, times, op, contender, peers, sizes):
    """Fills in a line: for each size the speed-up of `contender` over the fastest of `peers`, and the geometric mean over the sizes.

    A ratio divides two times of the same round, and the ratio of a size is the median over the rounds. If the speed of the machine
    changes meanwhile, medians of the times would compare good rounds with bad rounds. Sizes that no peer completed are left out,
    and the line names them.
    """
    line.ratio = line.low = line.high = None
    ours = [times.get((op, contender, size)) for size in sizes]
    met = {size: {peer: times[op, peer, size] for peer in peers if (op, peer, size) in times} for size in sizes}
    left_out = [size for size in sizes if not met[size]]
    if not all(ours) or len(left_out) == len(sizes):
        return line
    if left_out:
        line.band += f", without {', '.join(map(bytes_text, left_out))}"
    ours = [seconds for seconds, size in zip(ours, sizes) if met[size]]
    theirs = [met[size] for size in sizes if met[size]]
    ratios = [{peer: [slow / fast for slow, fast in zip(rounds, own)] for peer, rounds in of_size.items()}
              for own, of_size in zip(ours, theirs)]
    rounds = min(len(peer) for of_size in ratios for peer in of_size.values())
    if len(peers) > 1:
        fastest = [min(of_size, key=lambda peer, of_size=of_size: statistics.median(of_size[peer])) for of_size in ratios]
        line.against = ", ".join(dict.fromkeys(fastest))

    def mean(figure):
        return statistics.geometric_mean(min(map(figure, of_size.values())) for of_size in ratios)

    line.ratio = mean(statistics.median)
    by_round = [mean(lambda peer, i=i: peer[i]) for i in range(rounds)]
    line.low, line.high = min(by_round), max(by_round)
    return line
