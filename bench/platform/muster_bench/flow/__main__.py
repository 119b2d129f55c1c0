"""muster-flow, which is also python3 -m muster_bench.flow."""
import importlib.util
import sys


def main():
    if importlib.util.find_spec("yaml") is None:
        print(f"muster-flow: yaml cannot be imported ({sys.executable} does not have it); apt-get install python3-yaml and run it with Debian's "
              "python3, or pip install pyyaml", file=sys.stderr)
        return 2
    from .cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
