# SPDX-License-Identifier: Apache-2.0
"""An image without a builder: ``make image``, or ``python -m tools.image [-o FILE]``.

Writes a docker-archive of this machine's Python, gpudra and what it needs, for nodes like this
machine: ``ctr -n k8s.io images import FILE``, ``docker load -i FILE``, ``kind load image-archive``.
"""

import argparse
import shutil
import sys
from pathlib import Path

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local import ownimage
from gpudra.controller.ctl.local.layout import checkout_dir

FOLDER = checkout_dir() / ".cache" / "image"


def main() -> int:
    """Write the archive and say what it is called; 1 when it cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpudra-image.tar"))
    args = parser.parse_args()
    try:
        with ownimage.held(FOLDER):
            own = ownimage.build(FOLDER)
            shutil.copyfile(own.archive, args.output)
    except (GpudraError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{args.output}: {own.name}, {args.output.stat().st_size >> 20} MiB")
    print(f"helm values: --set image.repository={ownimage.REPOSITORY},image.tag={own.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
