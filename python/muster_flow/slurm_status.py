"""Reports the state of a job of Slurm to Snakemake: python3 -I -S slurm_status.py JOB prints running, success or failed. A preempted job
that waits in the queue again counts as running: Snakemake's own --slurm treats it as failed."""
import subprocess
import sys


UNKNOWN = "UNKNOWN"   # unknown to Slurm, which replies


def state(words):
    """Returns the first word that a command prints, without the text after the state (CANCELLED by 0); an empty text if
    Slurm does not reply."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.stdout.split():
        return done.stdout.split()[0].rstrip("+")
    return UNKNOWN if done.returncode == 0 or "Invalid job id" in done.stderr else ""


def status(job):
    found = state(["squeue", "--noheader", "--jobs", job, "--states", "all", "--format", "%T"])
    if found == UNKNOWN:   # the job ended long ago, or never existed
        found = state(["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job, "--format", "state"]) or UNKNOWN
    if found == "COMPLETED":
        return "success"
    failed = found in (UNKNOWN, "BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
    return "failed" if failed else "running"   # running also if Slurm does not reply: Snakemake asks again


if __name__ == "__main__":
    print(status(sys.argv[1]))
