"""muster-pool, which is also python3 -m muster_pool."""
import argparse
import asyncio
import os
import re
import sys

from muster_bench.entry import start

ABOUT = """Runs the services of KServe's InferenceService on this machine: HAProxy in front, and as many replicas as they need.

SIGHUP reads the files again, SIGTERM ends it after the received requests are answered. If it is killed, replicas and HAProxy
continue, and the same command takes them over.

exit status: 0 drained; 2 the files or the command line cannot be used; 3 another muster-pool has the folder of --state; 4 no
room or no right to write. docs/serving.md describes the files."""


def parser():
    root = argparse.ArgumentParser(prog="muster-pool", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("files", nargs="+", metavar="FILE", help="YAML with one InferenceService or several")
    root.add_argument("--listen", default="127.0.0.1:8080", metavar="ADDRESS", help="where requests come [%(default)s]")
    root.add_argument("--metrics", default="127.0.0.1:8404", metavar="ADDRESS", help="where Prometheus asks for /metrics [%(default)s]")
    root.add_argument("--cores", type=float, default=len(os.sched_getaffinity(0)), metavar="N", help="that the replicas share [those there are]")
    root.add_argument("--state", metavar="DIR", help="logs, sockets and what runs [FILE without its ending, and .pool]")
    root.add_argument("--retry-up-to", default="256K", metavar="SIZE", help="the largest request that is sent to another replica [%(default)s]")
    return root


def run():
    from muster_bench.errors import Refusal
    from muster_bench.text import bytes_of

    from .pool import Pool  # it needs what start() looks for
    chosen = parser().parse_args()
    chosen.retry_up_to = bytes_of(chosen.retry_up_to, "--retry-up-to")
    if not 1 << 14 <= chosen.retry_up_to <= 1 << 28:
        raise Refusal(f"--retry-up-to cannot be {chosen.retry_up_to} (it is 16K to 256M: HAProxy has as much memory for each request); change it")
    if not 0 < chosen.cores < 1e6:
        raise Refusal(f"--cores cannot be {chosen.cores:g} (replicas need some); give 1 or more")
    chosen.state = chosen.state or re.sub(r"\.ya?ml$", "", chosen.files[0]) + ".pool"

    async def serve():
        return await Pool(chosen).run()
    return asyncio.run(serve())


def main():
    return start("muster-pool", ("yaml",), run)


if __name__ == "__main__":
    sys.exit(main())
