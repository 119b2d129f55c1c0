"""Ports for servers that are started by number."""
import socket

_held = []


def free_port():
    """Returns a free port on the host. The port stays bound until this process ends, and nothing listens on it: the
    system assigns it to no other socket, also while its server is down. A server that sets SO_REUSEADDR can listen
    on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]
