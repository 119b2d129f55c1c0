#!/usr/bin/python3
"""Measures how well a cold reader of remote records uses a link: nginx and the reader share a loopback device of their own,
whose rate is limited by tc.

    bench/far_link.py [--build build/release] [--mbit 200] [--mib 128] [--rounds 3]

Prints bytes of records over seconds for `muster-data verify` with an empty cache, and for curl with the same files in
sequence, as parts of the link's rate: the goal is 0.9. Needs root (a network namespace), nginx, curl and iproute2.
"""
import argparse
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        sys.exit(subprocess.run(["unshare", "-n", sys.executable, *sys.argv, "--inside"], check=False).returncode)
    run("ip", "link", "set", "lo", "up")
    run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{options.mbit}mbit", "burst", "256kb", "limit", "4mb")
    program = options.build / "src/programs/muster-data"
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        raw = folder / "raw.bin"
        with raw.open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        run(program, "convert", f"raw:{raw}?shape=65536", folder / "set", "--files", 4)
        raw.unlink()
        files = sorted((folder / "set").glob("*.muster"))
        size = sum(file.stat().st_size for file in files)
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(f"""user root; worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
            events {{ worker_connections 256; }}
            http {{ access_log off; {temporary} server {{ listen 127.0.0.1:8080; root {folder}; }} }}""")
        server = subprocess.Popen(["nginx", "-c", folder / "nginx.conf", "-e", folder / "errors"])
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", 8080)).close()
                    break
                except OSError:
                    time.sleep(0.05)

            def muster():
                run(program, "verify", f"http://127.0.0.1:8080/set?cache={folder}/cache")
                shutil.rmtree(folder / "cache")

            def curl():
                for file in files:
                    run("curl", "-sf", "-o", folder / "copy", f"http://127.0.0.1:8080/set/{file.name}")

            ways = {"muster-data verify, cold": muster, "curl, a file after another": curl}
            parts = {name: [] for name in ways}
            for _ in range(options.rounds):
                for name, way in ways.items():
                    began = time.monotonic()
                    way()
                    parts[name].append(size * 8 / 1e6 / (time.monotonic() - began) / options.mbit)
            for name, all_of in parts.items():
                print(f"{name}: {statistics.median(all_of):.2f} of a link of {options.mbit} Mbit/s")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
