# SPDX-License-Identifier: Apache-2.0
"""``python -m gpudra.controller.ctl.simulate``: the same command without the other sub-commands."""

import argparse
import sys

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.simulate.cli import add_arguments, run


def main() -> int:
    """Parses, runs, and turns our own errors into one line and exit code 1."""
    parser = argparse.ArgumentParser(prog="gpudra simulate", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except GpudraError as error:
        print(f"gpudra simulate: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
