"""Runs a command and owns all processes that it starts: python3 -I -S owner.py RUNNER HELD COMMAND... HELD has the
limits of the command (holding.py): folders of cgroups, which are removed at the end, cpus=N and data=BYTES; or
nothing. A descendant whose parent is gone becomes a child of owner.py (PR_SET_CHILD_SUBREAPER), in any session and
group. owner.py ends all descendants after the command has ended, on SIGTERM, and at once when the process RUNNER has
died. Ends with the status of the command."""
import ctypes
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36    # <sys/prctl.h>
GRACE = 2.0                                         # seconds from SIGTERM to SIGKILL
# seconds until the process stops waiting for processes that the system cannot end
LAST = 5.0
LOOK = 0.02                                         # between two checks


def main():
    runner, held, words = int(sys.argv[1]), [part for part in sys.argv[2].split(":") if part], sys.argv[3:]
    awaited, stop_signal = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}, None
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # sent when the thread dies that started this process; other threads of RUNNER may live a moment longer
    prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != runner:  # it died before that
        return 1
    enter(held)
    try:
        command = os.posix_spawnp(words[0], words, os.environ, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        print(f"it could not be started ({error.strerror})")
        leave(held)
        return 127
    while (status := ended_children().get(command)) is None and (stop_signal := signal.sigwait(awaited)) == signal.SIGCHLD:
        pass
    end_descendants(runner, stop_signal == signal.SIGHUP)
    leave(held)
    code = 128 + signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:  # a signal ended it: this process ends by the same signal, without a core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    return code


def enter(held):
    for part in held:
        if part.startswith("/"):
            with open(part + "/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        elif part.startswith("cpus="):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(part[5:])])
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (int(part[5:]),) * 2)


def leave(held):
    """Removes the cgroups. Prints a last line if the command has run out of memory."""
    for group in held:
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{group}/{name}", encoding="ascii") as file:
                    if dict(line.split() for line in file).get("oom_kill", "0") != "0":
                        print("it was out of the memory that it is held to", flush=True)
            except OSError:
                pass
        try:
            with open(os.path.dirname(group) + "/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            os.rmdir(group)
        except OSError:
            pass


def ended_children():
    """Returns {process: status} of the children that have ended, with {0: 0} added while others run; empty without a
    child."""
    found = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
        found[0] = 0
    except ChildProcessError:
        pass
    return found


def end_descendants(runner, at_once):
    begin, killing = time.monotonic(), False
    while 0 in ended_children() and time.monotonic() - begin < LAST:
        surely = at_once or os.getppid() != runner or time.monotonic() - begin >= GRACE
        if surely or not killing:
            killing = True
            for process in descendants():
                try:
                    os.kill(process, signal.SIGKILL if surely else signal.SIGTERM)
                except OSError:
                    pass
        time.sleep(LOOK)


def descendants():
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = file.read().rpartition(b")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(os.getpid(), ()))
    for process in found:
        found += children.get(process, ())
    return found


if __name__ == "__main__":
    sys.exit(main())
