#!/usr/bin/env python3
"""Jobs on hosts whose loopback, or whose table of names, is not as usual. Each host is a network namespace.

usage: odd_hosts.py --launcher PATH --worker PATH --program PATH   (test_elastic_worker, test_trouble)
Ends with 77 and the reason if there can be no such hosts.
"""
import argparse
import os
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--worker", required=True)
parser.add_argument("--program", required=True)
options = parser.parse_args()
LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "MASTER_", "LAUNCHED_", "OMPI_", "PMIX_"))}
HOST = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]


def on_host(script, *words):
    return subprocess.run([*HOST, script, *words], env=CLEAN, capture_output=True, text=True, timeout=LIMIT, check=False)


possible = on_host("ip link set lo up && mount -t tmpfs none /mnt")
if possible.returncode != 0:
    print(f"SKIPPED: no network namespaces ({possible.stderr.strip()})")
    sys.exit(77)


def require(what, ran, status, *says, errors=0):
    lines = [line for line in ran.stderr.splitlines() if "error" in line]
    if ran.returncode != status or len(lines) != errors or not all(text in ran.stderr + ran.stdout for text in says):
        sys.exit(f"{what}: ends with {ran.returncode}\n{ran.stderr}\n{ran.stdout}")
    print(what, flush=True)


V6 = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
ELASTIC = [options.launcher, "-n", "2", options.worker, "--samples", "500", "--epochs", "2", "--values", "1000"]
BY_HAND = """export WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500
RANK=1 "$0" "$@" & RANK=0 "$0" "$@" && wait $!"""
FIXED = [options.launcher, "-n", "2", "--elastic", "off", options.program, "nothing"]

require("muster-launch, no loopback of IPv4", on_host(V6 + '"$0" "$@"', *ELASTIC), 0, "done ")
require("muster-launch --elastic off, no loopback of IPv4", on_host(V6 + '"$0" "$@" --transport tcp', *FIXED), 0)
BOTH = "mount -t tmpfs none /mnt && printf '127.0.0.1 localhost\\n::1 localhost\\n' > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts && "
require("localhost, no loopback of IPv4", on_host(V6 + BOTH + BY_HAND, options.program, "nothing", "--transport", "tcp"), 0)
require("muster-launch, no loopback", on_host('"$0" "$@"', *ELASTIC), 2, "no network interface is up", "ip link set lo up", errors=1)
require("muster-launch --elastic off, no loopback", on_host('"$0" "$@"', *FIXED), 0)

# Rank 1 starts before the name of rank 0 is known, as the pod of rank 0 may still be starting.
LATER = """ip link set lo up && mount -t tmpfs none /mnt && cp /etc/hosts /mnt && mount --bind /mnt/hosts /etc/hosts || exit 99
export WORLD_SIZE=2 MASTER_ADDR=train-0.train.namespace.svc MASTER_PORT=29500
RANK=1 "$0" "$@" & sleep 3; kill -0 $! || exit 98
echo 127.0.0.1 $MASTER_ADDR >> /etc/hosts; RANK=0 "$0" "$@" && wait $!"""
NEVER = LATER.replace("echo 127", ": echo 127").replace("sleep 3", "sleep 0")
require("the name of rank 0 is known later", on_host(LATER, options.program, "nothing", "--transport", "tcp"), 0)
never = on_host(NEVER, options.program, "nothing", "--transport", "tcp", "--timeout", "2")
require("the name of rank 0 is never known", never, 2, "host 'train-0.train.namespace.svc' cannot be found (", errors=2)
