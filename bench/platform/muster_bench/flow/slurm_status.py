"""Tells Snakemake of a job of Slurm: python3 -I -S slurm_status.py JOB prints running, success or failed. A job that was preempted and waits
for its turn again runs on: Snakemake's own --slurm takes it for failed."""
import subprocess
import sys


def state(words):
    """The first word that a command prints, without what stands behind the state (CANCELLED by 0)."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.split()[0].rstrip("+") if done.returncode == 0 and done.stdout.split() else ""


def status(job):
    waits_or_runs = state(["squeue", "--noheader", "--jobs", job, "--states", "all", "--format", "%T"])
    ended = waits_or_runs or state(["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job, "--format", "state"])
    if ended == "COMPLETED":
        return "success"
    failed = ended in ("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
    return "failed" if failed else "running"   # and where Slurm does not answer: it is asked again


if __name__ == "__main__":
    print(status(sys.argv[1]))
