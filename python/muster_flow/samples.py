"""Resources of the processes of a step: memory, processor, and the kernel's measurements for every connection (ss reads
TCP_INFO)."""
import os
import re
import subprocess
import time

PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
FIELDS = {"bytes_sent": ("bytes_sent", int), "bytes_received": ("bytes_received", int), "rtt": ("round_trip_ms", float),
          "delivery_rate": ("bytes_per_second", lambda text: int(text) // 8)}


class Sampler:
    """A sampler of the descendants of the current process."""

    def __init__(self, with_network):
        self.peak, self._with_network, self._cpu, self._at = 0, with_network, {}, time.monotonic()

    def sample(self):
        from muster_bench import owner  # imported here: small steps end before their first sample
        memory, cpu, processes = 0, {}, owner.descendants()
        for process in processes:
            try:
                with open(f"/proc/{process}/statm", encoding="ascii") as file:
                    memory += int(file.read().split()[1]) * PAGE
                with open(f"/proc/{process}/stat", "rb") as file:
                    words = file.read().rpartition(b")")[2].split()
                    cpu[process] = (int(words[11]) + int(words[12])) / TICK
            except (OSError, IndexError):
                continue
        now = time.monotonic()
        used = sum(seconds - self._cpu.get(process, 0.0) for process, seconds in cpu.items())
        share, self._cpu, self._at = used / max(now - self._at, 1e-6), cpu, now
        self.peak = max(self.peak, memory)
        return {"memory_bytes": memory, "processors": round(share, 3), "processes": len(cpu),
                **({"peers": self._peers(set(processes))} if self._with_network else {})}

    @staticmethod
    def _peers(processes):
        """Returns measurements by the peer's address: for several connections the sums, and the longest round trip."""
        try:
            text = subprocess.run(["ss", "-tinpHO", "state", "established"], capture_output=True, text=True, timeout=5).stdout
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = {}
        for line in text.splitlines():
            if not processes.intersection(map(int, re.findall(r"pid=(\d+)", line))):
                continue
            peer = found.setdefault(line.split()[3], {})
            for name, (called, kind) in FIELDS.items():
                if match := re.search(rf"\b{name}[: ]([\d.]+)", line):
                    value = kind(match.group(1))
                    peer[called] = max(peer.get(called, 0), value) if called == "round_trip_ms" else peer.get(called, 0) + value
        return found
