"""Waiting for the output of processes."""
import time


def wait_for(ranks, holds, until):
    """Reads the ranks' output until `holds()` returns true. Returns False at the time `until` (time.monotonic)."""
    while not holds():
        for rank in ranks:
            rank.listen()
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
