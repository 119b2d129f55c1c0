"""python3 -m muster_bench is muster-bench."""
import sys

from .cli import main

sys.exit(main())
