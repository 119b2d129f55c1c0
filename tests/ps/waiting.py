"""Waiting for what processes print."""
import time


def wait_for(ranks, holds, until):
    """Reads what the ranks print until `holds()`; false when it is `until` (time.monotonic) first."""
    while not holds():
        for one in ranks:
            one.listen()
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
