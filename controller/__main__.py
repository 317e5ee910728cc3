# SPDX-License-Identifier: Apache-2.0
"""``gpudra-controller``: the process of the cluster side. Exit codes: 0 asked to stop, 1 error, 2 usage."""

import asyncio
import sys
from collections.abc import Iterator, Sequence

from gpudra.api.errors import GpudraError
from gpudra.controller import app, options
from gpudra.driver.observability.logging import KEY_ERROR, get_logger

log = get_logger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until told to stop; returns the exit code."""
    try:
        chosen = options.parse(argv)
    except GpudraError as error:
        print(f"gpudra-controller: {error}", file=sys.stderr)
        return 2
    chosen.process.configure_logging("controller")
    try:
        return asyncio.run(app.run(chosen))
    except* GpudraError as group:
        for cause in _leaves(group):
            log.error("controller ends", **{KEY_ERROR: cause})  # noqa: TRY400 - no bug, no traceback
    return 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


if __name__ == "__main__":
    sys.exit(main())
