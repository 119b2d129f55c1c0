"""muster-bench, which is also python3 -m muster_bench."""
import sys

from .entry import start


def run():
    from .cli import parser  # it needs what start() looks for
    chosen = parser().parse_args()
    return chosen.call(chosen)


def main():
    return start("muster-bench", ("yaml", "matplotlib"), run)


if __name__ == "__main__":
    sys.exit(main())
