# SPDX-License-Identifier: Apache-2.0
"""``gpudra-kubelet-plugin``: flags, logging, exit codes (0 ended as asked, 1 error, 2 usage)."""

import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

# A node's own devices have some hundred texts between them; claims come and go.
_TEXTS = 2048


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the node agent."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--version" in arguments:
        print(f"gpudra-kubelet-plugin {version('gpudra')}")
        return 0
    _spare_memory()
    from gpudra.api.codec import keep_texts  # noqa: PLC0415 - --version is instant
    from gpudra.api.errors import GpudraError, InputError  # noqa: PLC0415
    from gpudra.kubelet_plugin.options import parse  # noqa: PLC0415

    try:
        options = parse(arguments, os.environ)
    except InputError as error:
        print(f"gpudra-kubelet-plugin: {error}", file=sys.stderr)
        return 2
    from gpudra.driver.observability import logging  # noqa: PLC0415
    from gpudra.kubelet_plugin.app import serve  # noqa: PLC0415
    from gpudra.kubelet_plugin.workers import worker_threads  # noqa: PLC0415

    logging.configure(
        level=options.log_level,
        log_format=logging.LogFormat(options.log_format),
        component="kubelet-plugin",
        node=options.node_name,
    )
    log = logging.get_logger(__name__)
    keep_texts(_TEXTS)
    try:
        with asyncio.Runner() as runner:
            runner.get_loop().set_default_executor(worker_threads())
            runner.run(serve(options, version=version("gpudra")))
    except GpudraError as error:
        log.error("cannot run", error=str(error))  # noqa: TRY400 - the message says it all
        return 1
    return 0


def _spare_memory() -> None:
    """Keeps structlog from importing rich, if that is installed: 4 MB for tracebacks in colour."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
