"""Checks the memory orders of the shm transport by a model checker (shm_protocol.cpp), for two and three ranks. The
orders are read in the sources. Then each order is weakened in turn, and the checker must find a fault, except where
SPARE says that the protocol does not need the order.
usage: shm_orders.py SHM_PROTOCOL FOLDER_OF_THE_SOURCES"""
import collections
import pathlib
import re
import subprocess
import sys

program, root = sys.argv[1], pathlib.Path(sys.argv[2]) / "include/muster/comm/transports/shm"
ORDER = r"std::memory_order_(\w+)"
NATIVE, LARGE, MESSAGES, GROUP, TRANSPORT = (f"detail/{name}-inl.hpp" for name in ("native", "native_large", "messages", "shm_group", "shm_transport"))
FENCE = r"std::atomic_thread_fence\(" + ORDER

# name: file, text before the order, number of places
SITES = {
    "contribution.store": (NATIVE, r"own\.sequence\.store\(sequence_word\(sequence_, signature_hash_\), " + ORDER, 2),
    "contribution.load": (NATIVE, r"word = peer_contribution\.sequence\.load\(" + ORDER, 1),
    "finished.store": (NATIVE, r"finished\.store\(sequence_, " + ORDER, 1),
    "finished.load": (NATIVE, r"least, shm_\.slot\(p\)\.finished\.load\(" + ORDER, 1),
    "step.store": (LARGE, r"counter\.store\(step\(number\), " + ORDER, 1),
    "step.load": (LARGE, r"\(shm_\.slot\(next_peer_\)\.\*counter\)\.load\(" + ORDER, 1),
    "staged.load": (LARGE, r"slot\(root\)\.staged\.load\(" + ORDER, 1),
    "folded.load": (LARGE, r"mine\(\)\.folded\.load\(" + ORDER, 1),
    "claimed.swap": (LARGE, r"compare_exchange_strong\(current, step\(1\), " + ORDER, 1),
    "head.store": (MESSAGES, r"ring\.head\.store\(head, " + ORDER, 1),
    "head.load": (MESSAGES, r"head = ring\.head\.load\(std::memory_order_(acquire|seq_cst)", 1),
    "tail.store": (MESSAGES, r"ring\.tail\.store\(tail[^,]*, " + ORDER, 2),
    "tail.load": (MESSAGES, r"room = capacity - \(head - ring\.tail\.load\(" + ORDER, 1),
    "arrivals.or": ("shm_group.hpp", r"arrivals\.fetch_or\(arrival_bit\(rank_\), " + ORDER, 1),
    "arrivals.load": ("shm_group.hpp", r"arrivals\.load\(" + ORDER, 1),
    "arrivals.exchange": ("shm_group.hpp", r"arrivals\.exchange\(0, " + ORDER, 1),
    "written.store": (TRANSPORT, r"mailbox\.written\.store\(written \+ 1, " + ORDER, 1),
    "written.load": (TRANSPORT, r"mailbox\.written\.load\(" + ORDER + r"\) == read", 1),
    "read.store": (TRANSPORT, r"mailbox\.read\.store\(read \+ 1, " + ORDER, 1),
    "read.load": (TRANSPORT, r"unread = written - mailbox\.read\.load\(" + ORDER, 1),
    "control_messages.add": (TRANSPORT, r"control_messages\.fetch_add\(1, " + ORDER, 1),
    "control_messages.load": (TRANSPORT, r"control_messages\.load\(" + ORDER, 1),
    "visible.fence": ("shm_group.hpp", FENCE, 1),
    "asleep.load": ("shm_group.hpp", r"wakeup_word\.load\(" + ORDER, 2),
    "asleep.exchange": (GROUP, r"wakeup_word\.exchange\(0, " + ORDER, 1),
    "asleep.own_load": (GROUP, r"wakeup_word\.load\(" + ORDER, 1),
    "asleep.set": (GROUP, r"wakeup_word\.store\(1, " + ORDER, 1),
    "asleep.clear": (GROUP, r"wakeup_word\.store\(0, " + ORDER, 1),
    "wait.fence": (GROUP, FENCE, 1),
    "writing.set": (LARGE, r"writing_\.store\(1, " + ORDER, 1),
    "writing.fence": (LARGE, FENCE, 1),
    "writing.clear": (LARGE, r"writing_\.store\(0, " + ORDER, 1),
    "writing.load": (NATIVE, r"writing\.load\(" + ORDER, 1),
    "revoked.store": (NATIVE, r"revoked\.store\(1, " + ORDER, 1),
    "revoked.fence": (NATIVE, FENCE, 1),
    "revoked.load": (LARGE, r"slot\(p\)\.revoked\.load\(" + ORDER, 1),
    "leavers.add": (GROUP, r"leavers\.fetch_add\(1, " + ORDER, 1),
    "leavers.load": ("detail/host-inl.hpp", r"leavers->load\(" + ORDER, 1),
}
# A call of the system, not an order: its weaker form is no call. With membarrier the wakers have a fence of the
# compiler alone, which this model does not have.
CALLS = {"wait.membarrier": (GROUP, r"SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED", 1)}
COMPILER = ("shm_group.hpp", r"if \(asymmetric_\)\s+std::atomic_signal_fence\(std::memory_order_seq_cst\)")

# Orders outside the model, as (file, number of places), with the reason.
OUTSIDE = {
    "a rank loads what it wrote itself": [(MESSAGES, 4), (TRANSPORT, 2), (LARGE, 1)],
    "a hint, which no access to other memory depends on (cores of ranks, waits_for_this_core)": [(NATIVE, 6)],
    "severed: head.store with a value that no byte belongs to": [(MESSAGES, 1)],
    "an ended peer's mailbox: as written.load": [(GROUP, 2)],
    "a registered broadcast after its copy: as revoked.load": [(LARGE, 1)],
    "a flag between threads of one process, before a lock": [("detail/segment-inl.hpp", 3), ("segment.hpp", 1)],
}

# Orders that are stronger than the protocol needs, as the weaker order that is enough, with the reason.
SPARE = {
    "arrivals.or release": "a sender reads nothing by the marks",
    "arrivals.exchange acquire": "the receiver publishes nothing by the marks",
    "asleep.exchange acquire": "no data is passed by the wakeup word",
    "asleep.exchange release": "no data is passed by the wakeup word",
    "asleep.set release": "a fence follows",
    "revoked.store release": "a fence follows",
    "revoked.load acquire": "a fence precedes",
    "leavers.add release": "only leavers.load reads the number",
}


def read(name):
    # comments in the sources name orders too
    return re.sub(r"//[^\n]*", "", (root / name).read_text())


def orders_of_sources():
    """Returns the order of each name, and stops where a source has an order that no table names."""
    orders, places = {}, collections.Counter()
    for name, (file, pattern, count) in SITES.items():
        found = re.findall(pattern, read(file))
        assert len(found) == count and len(set(found)) == 1, f"{file} has {found} for {name}, {count} were expected: change SITES and shm_protocol.cpp"
        orders[name] = found[0]
        places[file] += count
    for name, (file, pattern, count) in CALLS.items():
        assert len(re.findall(pattern, read(file))) == count, f"{file} has no {name}"
        orders[name] = "seq_cst"
    assert re.search(COMPILER[1], read(COMPILER[0])), "make_visible must order the compiler where it has no fence"
    places[COMPILER[0]] += 1
    for entries in OUTSIDE.values():
        places.update(dict(entries))
    for path in sorted([*root.glob("*.hpp"), *root.glob("detail/*.hpp")]):
        file = str(path.relative_to(root))
        there = len(re.findall(r"std::memory_order_", read(file)))
        assert there == places[file], f"{file} has {there} memory orders, and {places[file]} are known: add them to SITES or OUTSIDE"
    return orders


def check(orders):
    done = subprocess.run([program, *(f"{name}={order}" for name, order in orders.items())], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done
    return done.returncode == 0, done.stdout


def weaker(name, order):
    """Returns the next weaker orders."""
    if name.endswith((".fence", ".membarrier")):
        return ["none"]
    halves = {"acq_rel": ["acquire", "release"]}
    if order == "seq_cst":
        return ["acquire"] if name.endswith("load") else ["release"]
    return halves.get(order, [] if order == "relaxed" else ["relaxed"])


orders = orders_of_sources()
correct, report = check(orders)
print(report, end="")
assert correct, "the orders of the sources are too weak"

spare = []
for name, order in orders.items():
    for to in weaker(name, order):
        passed, report = check({**orders, name: to})
        print(f"{name} {order} -> {to}: {'not needed' if passed else report.splitlines()[-2]}")
        if passed:
            spare.append(f"{name} {to}")
print("spare:", spare)
assert set(spare) == set(SPARE), f"the checker passes {sorted(spare)}, and {sorted(SPARE)} are known"
