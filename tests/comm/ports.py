"""Ports for stores that tests start by number."""
import pathlib
import random
import socket

DRAW = random.Random()  # of its own: a test's seed says nothing of which ports are free


def free_port():
    """One that nobody listens at and that the system gives to nobody who asks for any: while a store is down that a rank
    carried, a test beside this one would else come by its port."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = DRAW.randrange(max(1024, low - 16384), low)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:  # taken
            pass
