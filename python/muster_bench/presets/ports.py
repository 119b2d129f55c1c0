"""Ports for servers that are started by number."""
import socket

_held = []


def free_port():
    """One of this host. It stays bound until this process ends, and nothing listens at it: the system gives it to nothing else,
    also while its server is down, and a server that sets SO_REUSEADDR can listen at it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]
