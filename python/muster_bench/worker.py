"""Runs a rank's command: python3 -I -S worker.py FOLDER LIMIT COMMAND... Forwards the command's output and stores up to
LIMIT bytes in FOLDER/<rank>.log. Writes the resources of the command and its descendants to FOLDER/<rank>.jsonl as
lines of JSON, every second and later less often: the time, processors, bytes of memory, and the bytes that its host
(its network namespace) has received and sent. Ends with the status of the command."""
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
import owner  # noqa: E402  (beside this file)

# the first variable that the launcher has set
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
# minimum seconds between two samples; and the minimum as a part of the elapsed time, so that files stay small
EVERY, PART = 1.0, 1 / 600
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def main():
    folder, limit, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    rank = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), "0")
    prctl = ctypes.CDLL(None).prctl
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   preexec_fn=lambda: prctl(owner.PR_SET_PDEATHSIG, signal.SIGKILL))
    except OSError as error:
        print(f"'{words[0]}' could not be started ({error.strerror})", flush=True)
        return 127
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{rank}.log", "ab", buffering=0) as log, open(f"{folder}/{rank}.jsonl", "ab", buffering=0) as samples:
        watch(process, log, limit, samples)
    code = process.wait()
    if code < 0:  # a signal ended it: this process ends by the same signal, without a core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def watch(process, log, limit, samples):
    """Watches the command until it has ended and its output is forwarded. Output that cannot be written is lost, and
    the command continues."""
    begin = before = then = time.monotonic()
    seconds, output = 0.0, [process.stdout]
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select(output, [], [], 0 if ended else max(0.0, min(then - time.monotonic(), EVERY)))
        if ready:
            piece = os.read(process.stdout.fileno(), 1 << 16)
            output = output if piece else []
            with contextlib.suppress(OSError):
                log.write(piece[:limit])
            limit -= len(piece[:limit])
            with contextlib.suppress(OSError):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        elif ended:
            return
        elif not output:
            time.sleep(owner.LOOK)   # the command has closed its output and continues
        if (now := time.monotonic()) >= then and not ended:
            used, memory = usage()
            received, sent = network()
            cpu = (used - seconds) / (now - before) if now - before >= EVERY / 2 else 0.0
            with contextlib.suppress(OSError):
                if memory:   # 0: the command is just ending
                    samples.write(json.dumps({"at": round(time.time(), 3), "cpu": round(max(0.0, cpu), 3), "memory": memory, "received": received,
                                              "sent": sent}).encode() + b"\n")
            seconds, before, then = used, now, now + max(EVERY, (now - begin) * PART)


def usage():
    """Returns seconds of processors, also of descendants that have ended, and resident bytes."""
    ticks = pages = 0
    for process in owner.descendants():
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            pages += int(fields[21])
    return ticks / TICKS, pages * PAGE


def network():
    with open("/proc/net/dev", encoding="ascii") as file:
        numbers = [line.partition(":")[2].split() for line in file.readlines()[2:]]
    return sum(int(line[0]) for line in numbers), sum(int(line[8]) for line in numbers)


if __name__ == "__main__":
    sys.exit(main())
