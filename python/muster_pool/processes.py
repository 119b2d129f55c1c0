"""Processes that outlive the pool, and sockets that outlive HAProxy."""
import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import struct

from muster_bench.errors import Refusal

FIRST_PASSED = 100              # the first descriptor that is passed to HAProxy
ATTACH_REUSEPORT_CBPF = 51      # <asm/socket.h>
RETURN, LOAD_BYTE, JUMP_IF_SET = 0x06, 0x30, 0x45
FLAGS_OF_TCP, SYN = 13, 0x02    # offset of the flags in the TCP header; the flag of the first packet
LISTENS = "0A"                  # a state in /proc/net/tcp


class Process:
    """A process that this or an earlier pool started, identified by its number and its start time."""

    def __init__(self, pid, began=None):
        self.pid = pid
        self._fd = os.pidfd_open(pid)   # ProcessLookupError: there is no such process
        self.began = int(_status(pid)[19])
        if began is not None and began != self.began:
            os.close(self._fd)
            raise ProcessLookupError(pid)

    @classmethod
    def start(cls, words, environment, log, passed=()):
        """Starts a process. Raises OSError if the program does not exist. `passed` are descriptors, from FIRST_PASSED
        on."""
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                   (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, FIRST_PASSED + number) for number, fd in enumerate(passed)]
        return cls(os.posix_spawnp(words[0], words, environment, file_actions=actions, setsid=True, setsigmask=[],
                                   setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]))

    def is_alive(self):
        if not select.select([self._fd], [], [], 0)[0]:
            return True
        with contextlib.suppress(ChildProcessError):   # another pool's child
            os.waitpid(self.pid, os.WNOHANG)
        return False

    def is_stopped(self):
        with contextlib.suppress(ProcessLookupError):
            return _status(self.pid)[0] == "T"
        return False

    def send(self, number):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def on_end(self, loop, call):
        def ended():
            loop.remove_reader(self._fd)
            call()
        loop.add_reader(self._fd, ended)

    def close(self, loop):
        loop.remove_reader(self._fd)
        os.close(self._fd)

    def saved(self):
        return [self.pid, self.began]


def _status(pid):
    """Returns the fields of /proc/PID/stat from the third on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        raise ProcessLookupError(pid) from None


def listening(option, address, is_again):
    """Returns a socket for HAProxy. If sockets of earlier pools still listen on the address, the new socket is bound
    beside them and receives all new connections, so that the old sockets can be closed when their processes have
    accepted their connections."""
    try:
        host, _, port = address.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:   # the system would use the number modulo 65536
            raise ValueError(f"'{port}' is no port")
        family, kind, protocol, _, at = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        beside = _listeners(family, *at[:2]) if is_again else 0
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if beside:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(at)
        # not before: a socket of another program there is an error
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(4096)
        if beside:
            _attach(listener, ATTACH_REUSEPORT_CBPF, (RETURN, 0, 0, beside))
        return listener
    except (OSError, ValueError) as error:
        raise Refusal(f"{option} cannot be '{address}' ({getattr(error, 'strerror', None) or error}); give a free HOST:PORT of this machine") from error


def _listeners(family, host, port):
    """Returns the number of sockets that listen on an address; several processes may share a socket."""
    packed = socket.inet_pton(family, host.partition("%")[0])
    address = "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"
    with open("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp", encoding="ascii") as file:
        return sum(line.split()[1::2][:2] == [address, LISTENS] for line in file)


def accept_no_more(listener):
    """Stops new connections: they wait for the next socket on the address, or fail. Half-open connections continue."""
    _attach(listener, 26, (LOAD_BYTE, 0, 0, FLAGS_OF_TCP), (JUMP_IF_SET, 0, 1, SYN), (RETURN, 0, 0, 0), (RETURN, 0, 0, 0xffffffff))


def _attach(listener, option, *program):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("@HP", len(program), ctypes.addressof(code)))
