"""python -m muster: prints this build and the job that a context would join, and builds the backend of torch.distributed."""
import json
import sys

from . import errors, info, settings_help

USAGE = """usage: python -m muster info [--json]
       python -m muster settings
       python -m muster build-torch

  info       prints the version, the parts of this build, the launcher that was found, and the transport that a
             context would choose
  settings   prints the settings: keywords of muster.context, flags and variables
  build-torch
             compiles the backend "muster" of torch.distributed for the PyTorch of this Python, and prints where it is
"""


def main(words):
    if words[:1] == ["settings"] and len(words) == 1:
        print(settings_help(True))
        return 0
    if words == ["build-torch"]:
        return build_torch()
    if words[:1] != ["info"] or words[1:] not in ([], ["--json"]):
        asks = words in (["--help"], ["-h"])
        print(USAGE, end="", file=sys.stdout if asks else sys.stderr)
        return 0 if asks else 2
    try:
        found = info()
    except errors.error as failure:
        print(f"muster: {failure}", file=sys.stderr)
        return failure.exit_status
    if words[1:]:
        print(json.dumps(found, indent=2))
        return 0
    for name, value in found.items():
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else (
            ", ".join(map(str, value)) if isinstance(value, list) else value)
        print(f"{name:12} {text}")
    return 0


def build_torch():
    try:
        from .building import build
        print(build(verbose=True))
    except ImportError as missing:
        print(f"muster: the backend needs PyTorch ({missing}); install torch", file=sys.stderr)
        return 2
    except errors.error as failure:
        print(f"muster: {failure}", file=sys.stderr)
        return failure.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
