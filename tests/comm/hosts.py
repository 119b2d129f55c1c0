"""Hosts that are network namespaces of this machine, joined by a switch: each has an interface `link0` of its own, which can
be cut, slowed, made to lose packets or to answer with a reset. Needs root, `ip` and `tc`; some faults need iptables."""
import os
import shutil
import subprocess

SKIP = 77  # what a test ends with when it cannot be run here


def missing(*programs):
    """Why there can be no such hosts here; None when there can be."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc") + programs:
        if shutil.which(program) is None:
            return f"there is no program {program}"
    probe = f"muster-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made here ({made.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def serve_store(program, host):
    """The process of a muster-store on that host, and what ranks give to --rendezvous for it."""
    place = f"{host.address}:29600"
    serving = subprocess.Popen(host.inside(program, "--listen", place), stdout=subprocess.PIPE)
    serving.stdout.readline()
    return serving, f"tcp://{place}"


class Host:
    def __init__(self, network, number):
        self.name = f"{network.name}-{number}"
        self.address = f"10.77.{network.net}.{number + 1}"
        run("ip", "netns", "add", self.name)
        network.spaces.append(self.name)
        run("ip", "link", "add", "link0", "netns", self.name, "type", "veth", "peer", "name", f"p{number}", "netns",
            network.switch)
        self.ip("link", "set", "lo", "up")
        # Large frames: what is counted is close to the payload.
        self.ip("link", "set", "link0", "mtu", "9000")
        run("ip", "-n", network.switch, "link", "set", f"p{number}", "mtu", "9000")
        run("ip", "-n", network.switch, "link", "set", f"p{number}", "master", "switch", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "link0")
        self.ip("link", "set", "link0", "up")

    def ip(self, *words):
        run("ip", "-n", self.name, *words)

    def inside(self, *words):
        """A command line that runs `words` on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def sent(self):
        """Bytes that have left it."""
        return int(run(*self.inside("cat", "/sys/class/net/link0/statistics/tx_bytes")))

    def queue(self, *words):
        run(*self.inside("tc", "qdisc", "replace", "dev", "link0", "root", *words))

    def cut(self):
        """Nothing leaves it any more, and nobody is told."""
        self.queue("blackhole")

    def limit(self, bits_per_second):
        self.queue("tbf", "rate", f"{bits_per_second}bit", "burst", "256kb", "latency", "50ms")

    def reset(self):
        """Whatever comes for a connection is answered with a reset."""
        run(*self.inside("iptables", "-I", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"))

    def lose(self, share):
        run(*self.inside("iptables", "-I", "INPUT", "-m", "statistic", "--mode", "random", "--probability", str(share),
                         "-j", "DROP"))


class Network:
    """A context manager: the hosts are gone at its end."""

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
