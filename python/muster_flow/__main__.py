"""muster-flow, which is also python3 -m muster_flow."""
import sys

from muster_bench.entry import start


def run():
    from .cli import parser  # it needs what start() looks for
    chosen = parser().parse_args()
    return chosen.call(chosen)


def main():
    return start("muster-flow", ("yaml",), run)


if __name__ == "__main__":
    sys.exit(main())
