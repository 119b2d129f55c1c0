#!/usr/bin/env python3
"""check.py PROGRAM: shows `muster-info check` faults of a machine, made by limits, namespaces, a bare PATH and a firewall.
Each fault must be found, with the line that mends it, and be found no more after its mending."""
import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])
NAMES = [f"muster-check-{os.getpid()}-{side}" for side in (0, 1)]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "OMPI_", "PMIX_"))}
LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))


def checks(*words, path=None, before=(), **more):
    """Returns the checks by name, of a program that `before` starts."""
    done = subprocess.run([*before, PROGRAM, "check", "--json", *words], env={**CLEAN, "PATH": path or CLEAN["PATH"]}, capture_output=True, text=True, timeout=LIMIT, check=False, **more)
    rows = json.loads(done.stdout)["checks"] if done.returncode in (0, 1) else sys.exit(f"check ends with {done.returncode}: {done.stderr}")
    if done.returncode != any(row["mend"] for row in rows):
        sys.exit(f"check ends with {done.returncode}: {rows}")
    return {row["name"]: row for row in rows}


def require(fault, row, *texts, mended=None):
    """A fault has a line that mends it; `mended` is the row without the fault."""
    if not row["mend"] or any(text not in row["found"] + row["mend"] for text in texts):
        sys.exit(f"{fault} is not found: {row}")
    if mended is not None and mended["mend"]:
        sys.exit(f"{fault} is found where there is none: {mended}")
    print(f"{fault}: {row['found']}: {row['mend']}", flush=True)


def in_shell(script):
    return ["sh", "-c", script + ' && exec "$0" "$@"']


def check_limits(plain):
    low = checks(before=in_shell("ulimit -S -n 64"))
    require("few descriptors", low["open files"], "ulimit -n 1024", mended=checks(before=in_shell("ulimit -S -n 64 && " + low["open files"]["mend"]))["open files"])
    require("few descriptors at most", checks(before=in_shell("ulimit -n 64"))["open files"], "limits.d", mended=plain["open files"])
    require("a limit of memory", checks(before=in_shell("ulimit -v 9000000"))["address space"], "9216000000", "ulimit -v", mended=plain["address space"])


def check_mpi(plain, folder):
    if "MPI" not in plain:
        print("this muster has no MPI")
        return
    tools = os.path.join(folder, "tools")
    os.mkdir(tools)
    for tool in ("sh", "timeout"):
        os.symlink(shutil.which(tool), os.path.join(tools, tool))
    require("no mpirun", checks(path=tools)["MPI"], "no mpirun in PATH", "apt-get install")
    mpirun = os.path.join(tools, "mpirun")
    for fault, version, error, text in (("another MPI", "HYDRA build details:", "", "mpirun is of another MPI"),
                                        ("no slots", "mpirun (Open MPI) 4.1.4", "There are not enough slots available", "oversubscribe"),
                                        ("root", "mpirun (Open MPI) 4.1.4", "mpirun has detected an attempt to run as root.", "OMPI_ALLOW_RUN_AS_ROOT=1"),
                                        ("a broken MPI", "mpirun (Open MPI) 4.1.4", "ORTE has lost communication", "ORTE has lost")):
        with open(mpirun, "w", encoding="ascii") as script:
            script.write(f"#!{tools}/sh\nif [ $1 = --version ]; then echo '{version}'; else echo '{error}'; exit 1; fi\n")
        os.chmod(mpirun, 0o755)
        require(fault, checks(path=tools)["MPI"], text)


def check_namespaces(plain):
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        print("SKIPPED: no namespaces of mounts")
        return
    mounted = ["unshare", "--mount", *in_shell("mount -t tmpfs -o size=1m none /dev/shm")]
    require("a small /dev/shm", checks(before=mounted)["/dev/shm"], "remount,size=1G", mended=plain["/dev/shm"])
    mounted = ["unshare", "--mount", *in_shell("mount -t tmpfs -o ro none /dev/shm")]
    require("a /dev/shm that cannot be written", checks(before=mounted)["/dev/shm"], "mount")
    quotas = {"version 2": "echo 50000 100000 > cpu.max", "version 1": "mkdir cpu && cd cpu && echo 50000 > cpu.cfs_quota_us && echo 100000 > cpu.cfs_period_us"}
    for version, script in quotas.items():
        mounted = ["unshare", "--mount", *in_shell(f"mount -t tmpfs none /sys/fs/cgroup && cd /sys/fs/cgroup && {script}")]
        with open("/proc/self/cgroup", encoding="ascii") as groups:
            if version == "version 2" or ":cpu:/\n" in groups.read():
                require(f"a quota of a cgroup, {version}", checks(before=mounted)["cores"], "the time of 0.5", " > /sys/fs/cgroup")
    if "copies" in plain and platform.machine() == "x86_64":
        refused = checks(preexec_fn=refuse_copies)["copies"]
        require("memory that others may not read", refused, "copied twice", "SYS_PTRACE", mended=plain["copies"])


def refuse_copies():
    """Makes process_vm_readv fail with EPERM in this process, as containers do."""
    load, if_equal, result = 0x20, 0x15, 0x06
    steps = struct.pack("HBBI" * 4, load, 0, 0, 0, if_equal, 0, 1, 310, result, 0, 0, 0x50000 | 1, result, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(steps)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError("no filter of system calls")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def on_host(side, *words):
    return subprocess.Popen(["ip", "netns", "exec", NAMES[side], *words], env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def two_hosts():
    """Runs check on two hosts that try each other; returns the checks of the host that listens and of the other host."""
    listens = on_host(0, PROGRAM, "check", "--json", "--listen", "4711")
    listens.stderr.readline()  # it listens
    reaches = on_host(1, PROGRAM, "check", "--json", "--reach", "10.99.0.1:4711")
    texts = [job.communicate(timeout=LIMIT)[0] for job in (listens, reaches)]
    return [{row["name"]: row for row in json.loads(text)["checks"]} for text in texts]


def check_firewall():
    if os.geteuid() != 0 or not shutil.which("iptables") or subprocess.run(["ip", "netns", "add", NAMES[0]], capture_output=True, check=False).returncode:
        print("SKIPPED: no network namespaces, or no iptables")
        return
    try:
        ip("netns", "add", NAMES[1])
        ip("link", "add", "check0", "netns", NAMES[0], "type", "veth", "peer", "name", "check0", "netns", NAMES[1])
        for side, name in enumerate(NAMES):
            ip("-n", name, "addr", "add", f"10.99.0.{side + 1}/24", "dev", "check0")
            ip("-n", name, "link", "set", "check0", "up")
        listens, reaches = two_hosts()
        if any(row["mend"] for rows in (listens, reaches) for name, row in rows.items() if "peer" in name or "port" in name):
            sys.exit(f"a firewall is found where there is none: {listens}, {reaches}")
        # The host that listens admits its known port alone.
        rule = ["iptables", "-A", "INPUT", "-p", "tcp", "--syn", "!", "--dport", "4711", "-j", "DROP"]
        on_host(0, *rule).communicate()
        reaches = two_hosts()[1]
        require("a firewall before all ports but one", reaches["to any port"], "iptables -I INPUT -p tcp -s 10.99.0.2 -j ACCEPT")
        if reaches["to the peer"]["mend"] or reaches["from the peer"]["mend"]:
            sys.exit(f"the firewall is found in the other direction too: {reaches}")
        on_host(0, *reaches["to any port"]["mend"].split("#")[0].split()).communicate()  # as the line says
        if two_hosts()[1]["to any port"]["mend"]:
            sys.exit("the line did not open the firewall")
        # The other host admits nothing.
        on_host(1, "iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-j", "REJECT").communicate()
        listens, reaches = two_hosts()
        require("a firewall before the other host", reaches["from the peer"], "-s 10.99.0.1 -j ACCEPT")
        require("a firewall before the other host, seen from here", listens["to the peer"], "on 10.99.0.2")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


everything = checks()
with tempfile.TemporaryDirectory(prefix="muster-check-") as place:
    check_limits(everything)
    check_mpi(everything, place)
    check_namespaces(everything)
check_firewall()
