#!/usr/bin/python3
"""Measures the users' shares of the cores of a Slurm if all users have waiting jobs: equal users, in equal groups.

    tools/slurm-local.sh up /tmp/slurm && source /tmp/slurm/environment
    tests/platform/slurm_shares.py --groups 4+1 --minutes 17,20 --settle 5,5     # four users; a fifth joins
    tests/platform/slurm_shares.py --groups 3,2,4 --minutes 40 --settle 4        # nine in three groups

Each user is an account. Slurm computes priorities at most once a minute (PriorityCalcPeriod), and until the next calculation the
first user gets all cores that become free: users take turns of a minute. So --minutes minus --settle must be a multiple of the number
of equal users, and with groups a multiple of the cycle in which each user has a turn: 36 for groups of 3, 2 and 4. Jobs take
much less than a minute.
"""
import argparse
import subprocess
import time

FORM = "%Y-%m-%dT%H:%M:%S"
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--groups", default="4+1", help="users of each group; +N: so many join in the next phase [%(default)s]")
parser.add_argument("--minutes", default="17,20", help="of each phase [%(default)s]")
parser.add_argument("--settle", default="5,5", help="of these, before shares are counted [%(default)s]")
parser.add_argument("--job", type=float, default=6, help="seconds of a job [%(default)s]")
options = parser.parse_args()


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def keep_waiting(users, count):
    waiting = run("squeue", "-h", "-t", "PENDING", "-o", "%a").split()
    for user in users:
        for _ in range(count - waiting.count(user)):
            run("sbatch", "-Q", "-o", "/dev/null", "-A", user, "-n1", "--wrap", f"sleep {options.job}")


def seconds_of(begin, end):
    """Seconds of cores that each account had between two times."""
    used = {}
    for line in run("sacct", "-n", "-X", "-P", "-a", "-o", "account,start,end", "-S", time.strftime(FORM, time.localtime(begin - 60))).splitlines():
        account, *times = line.split("|")
        if times[0] in ("Unknown", "None"):
            continue
        first, last = (end if at in ("Unknown", "None") else time.mktime(time.strptime(at, FORM)) for at in times)
        used[account] = used.get(account, 0) + max(0, min(last, end) - max(first, begin))
    return used


groups = [[f"g{k}u{i}" for i in range(sum(map(int, count.split("+"))))] for k, count in enumerate(options.groups.split(","))]
joins = [[users[:int(count.split("+")[0])], users[int(count.split("+")[0]):]] for users, count in zip(groups, options.groups.split(","))]
for k, users in enumerate(groups):
    run("sacctmgr", "-i", "add", "account", f"g{k}", "parent=all", "fairshare=1")
    for user in users:
        run("sacctmgr", "-i", "add", "account", user, f"parent=g{k}", "fairshare=1")
        run("sacctmgr", "-i", "add", "user", "root", f"account={user}", "fairshare=1")
present, cores = [], int(run("sinfo", "-h", "-o", "%C").split("/")[-1])
for phase, (minutes, settle) in enumerate(zip(options.minutes.split(","), options.settle.split(","))):
    present += [user for first, later in joins for user in (later if phase else first)]
    begin = time.time() + 60 * float(settle)
    end = time.time() + 60 * float(minutes)
    while time.time() < end:
        keep_waiting(present, cores)   # fewer would be gone before the minute is
        time.sleep(0.3)
    used = seconds_of(begin, end)
    print(", ".join(f"{user} {100 * used.get(user, 0) / sum(used.values()):.1f} %" for user in present), flush=True)
run("scancel", "-u", "root")
