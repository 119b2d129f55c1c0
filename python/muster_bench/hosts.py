"""Hosts that are network namespaces on this machine, joined by a switch. Each host has its own interface `link0`, which can
be cut, slowed, made to lose packets or to reply with a reset. Needs root, `ip` and `tc`; some faults need iptables.

The launcher of that name starts a rank on each host (or `--per-host`), with RANK, WORLD_SIZE, MASTER_ADDR and so on:
    hosts.py --ranks 4 [--per-host 2] [--bandwidth BITS_PER_SECOND] [--latency SECONDS] [--loss SHARE] -- COMMAND...
Ends with the status of the first rank that fails, or with 77 if this machine cannot have such hosts."""
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

SKIP = 77  # exit status of a test that cannot run here
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18   # <sched.h>, <sys/mount.h>


def missing(*programs):
    """Returns the reason why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc") + programs:
        if shutil.which(program) is None:
            return f"there is no program {program}"
    probe = f"muster-probe-{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if added.returncode != 0:
        return f"no network namespace can be made here ({added.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def apart():
    """Gives this process its own mounts. Returns the reason for a failure, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return f"network namespaces need root (mounts of their own: {os.strerror(ctypes.get_errno())})"
    return None


def no_latency():
    """Returns the reason why links cannot have a latency here; None if they can."""
    probe = subprocess.run(["unshare", "--net", "tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this kernel has no netem, by which a link gets latency"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def serve_store(program, host):
    """Starts a muster-store on that host. Returns its process and the argument of --rendezvous for ranks."""
    place = f"{host.address}:29600"
    serving = subprocess.Popen(host.inside(program, "--listen", place), stdout=subprocess.PIPE)
    serving.stdout.readline()
    return serving, f"tcp://{place}"


class Host:
    def __init__(self, network, number):
        self.name, self.switch, self.port = f"{network.name}-{number}", network.switch, f"p{number}"
        self.address = f"10.77.{network.net}.{number + 1}"
        run("ip", "netns", "add", self.name)
        network.spaces.append(self.name)
        run("ip", "link", "add", "link0", "netns", self.name, "type", "veth", "peer", "name", f"p{number}", "netns",
            network.switch)
        self.ip("link", "set", "lo", "up")
        # Large frames: the counted bytes are close to the payload.
        self.ip("link", "set", "link0", "mtu", "9000")
        run("ip", "-n", network.switch, "link", "set", f"p{number}", "mtu", "9000")
        run("ip", "-n", network.switch, "link", "set", f"p{number}", "master", "switch", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "link0")
        self.ip("link", "set", "link0", "up")

    def ip(self, *words):
        run("ip", "-n", self.name, *words)

    def inside(self, *words):
        """Returns a command line that runs `words` on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def sent(self):
        """Returns the number of bytes that the host has sent."""
        return int(run(*self.inside("cat", "/sys/class/net/link0/statistics/tx_bytes")))

    def queue(self, *words):
        run(*self.inside("tc", "qdisc", "replace", "dev", "link0", "root", *words))

    def cut(self):
        """Drops all packets that the host sends, without an error."""
        self.queue("blackhole")

    def limit(self, bits_per_second, burst="256kb"):
        self.queue("tbf", "rate", f"{bits_per_second}bit", "burst", burst, "latency", "50ms")

    def shape(self, bits_per_second=0, seconds=0.0, loss=0.0):
        """Sets the bandwidth, the latency and the share of lost packets on the host's link to the switch, in each
        direction."""
        rate = ["rate", f"{bits_per_second:.0f}bit"] if bits_per_second else []
        # The burst after a pause is small beside a message: a frame of 1,500 bytes, or 0.5 ms.
        burst = max(1600.0, bits_per_second * 500e-6 / 8)
        words = (["netem", "limit", "100000", "delay", f"{seconds * 1e6:.0f}us", *rate] if seconds else
                 ["tbf", *rate, "burst", f"{burst:.0f}", "latency", "50ms"] if rate else None)
        if words:
            self.ip("link", "set", "link0", "mtu", "1500")
            run("ip", "-n", self.switch, "link", "set", self.port, "mtu", "1500")
            self.queue(*words)
            run("ip", "netns", "exec", self.switch, "tc", "qdisc", "replace", "dev", self.port, "root", *words)
        if loss:
            self.lose(loss)

    def reset(self):
        """Replies to every incoming packet of a connection with a reset."""
        run(*self.inside("iptables", "-I", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"))

    def lose(self, share):
        run(*self.inside("iptables", "-I", "INPUT", "-m", "statistic", "--mode", "random", "--probability", str(share),
                         "-j", "DROP"))


class Network:
    """A context manager of hosts, which are removed at its end."""

    def __init__(self, hosts):
        self.count = hosts
        self.name = f"muster-{os.getpid()}"
        self.switch = f"{self.name}-switch"
        self.net = os.getpid() % 250
        self.spaces = []
        self.hosts = []

    def __enter__(self):
        try:
            run("ip", "netns", "add", self.switch)
            self.spaces.append(self.switch)
            run("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "switch", "up")
            for number in range(self.count):
                self.hosts.append(Host(self, number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)


def launch(options):
    """Starts the ranks and waits for them. A failed rank ends the other ranks after a pause in which they can report
    errors."""
    port, last_words = "29500", 10.0
    with Network(-(-options.ranks // options.per_host)) as network:
        for host in network.hosts:
            host.shape(options.bandwidth, options.latency, options.loss)
        ranks = []
        for rank in range(options.ranks):
            host, local = network.hosts[rank // options.per_host], rank % options.per_host
            here = min(options.per_host, options.ranks - (rank - local))
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(here),
                               MASTER_ADDR=network.hosts[0].address, MASTER_PORT=port, MUSTER_JOB=network.name)
            ranks.append(subprocess.Popen(host.inside(*options.command), env=environment))
        failed, until = 0, None
        while None in (codes := [rank.poll() for rank in ranks]) and (until is None or time.monotonic() < until):
            failed = failed or next(filter(None, codes), 0)
            until = until or (time.monotonic() + last_words if failed else None)
            time.sleep(0.02)
        for rank in ranks:
            rank.kill()     # no effect on a rank that has ended
            rank.wait()
        failed = failed or next(filter(None, codes), 0)
    return 128 - failed if failed < 0 else 1 if failed == SKIP else failed


def main():
    import argparse  # imported here: launchers.py needs only this module's path

    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    for name in ("bandwidth", "latency", "loss"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.command = options.command[options.command[:1] == ["--"]:]
    # Names of namespaces are files of /run/netns. In a process's own mount they disappear with it, however it ends.
    if why := apart() or missing(*(["iptables"] if options.loss else [])) or (no_latency() if options.latency else None):
        print(why, flush=True)
        return SKIP
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "none", "/run/netns")
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())
