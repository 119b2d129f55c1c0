"""muster-bench, which is also python3 -m muster_bench."""
import importlib.util
import sys


def main():
    missing = [name for name in ("yaml", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"muster-bench: {' and '.join(missing)} cannot be imported ({sys.executable} does not have it); apt-get install "
              "python3-yaml python3-matplotlib and run it with Debian's python3, or pip install pyyaml matplotlib", file=sys.stderr)
        return 2
    from .cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
