"""Tells Snakemake of a job of Slurm: python3 -I -S slurm_status.py JOB prints running, success or failed. A job that was preempted and waits
for its turn again runs on: Snakemake's own --slurm takes it for failed."""
import subprocess
import sys


UNKNOWN = "UNKNOWN"   # to Slurm, which answers


def state(words):
    """The first word that a command prints, without what stands behind the state (CANCELLED by 0); nothing where Slurm does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.stdout.split():
        return done.stdout.split()[0].rstrip("+")
    return UNKNOWN if done.returncode == 0 or "Invalid job id" in done.stderr else ""


def status(job):
    found = state(["squeue", "--noheader", "--jobs", job, "--states", "all", "--format", "%T"])
    if found == UNKNOWN:   # it has ended long ago, or never was
        found = state(["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job, "--format", "state"]) or UNKNOWN
    if found == "COMPLETED":
        return "success"
    failed = found in (UNKNOWN, "BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
    return "failed" if failed else "running"   # and where Slurm does not answer: it is asked again


if __name__ == "__main__":
    print(status(sys.argv[1]))
