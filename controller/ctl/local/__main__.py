# SPDX-License-Identifier: Apache-2.0
"""``python -m gpudra.controller.ctl.local``: the same as ``gpudra local``."""

import argparse
import sys

from gpudra.controller.ctl.local.cli import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="gpudra local")
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
