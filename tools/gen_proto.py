# SPDX-License-Identifier: Apache-2.0
"""Writes the protobuf modules of kubelet_plugin/proto from its .proto files.

    .venv/bin/python tools/gen_proto.py [--check]

Only the messages are generated: the services are four methods and are bound by hand in
grpc_server.py, which also keeps the generated code free of grpcio's version check. ``--check``
writes nothing and ends with 1 if a file differs (used by CI).
"""

import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parent.parent / "kubelet_plugin" / "proto"
# protoc derives the import path of a module from the virtual path of its .proto file.
VIRTUAL = "gpudra/kubelet_plugin/proto"


def generate(target: Path) -> dict[str, bytes]:
    """Runs protoc; file name to content."""
    sources = sorted(path.name for path in FOLDER.glob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={VIRTUAL}={FOLDER}",
        f"--proto_path={well_known}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *(f"{VIRTUAL}/{name}" for name in sources),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its message is above")
    return {path.name: path.read_bytes() for path in (target / VIRTUAL).iterdir()}


def main() -> int:
    """Generates or compares."""
    with tempfile.TemporaryDirectory() as folder:
        files = generate(Path(folder))
    stale = [
        name
        for name, content in sorted(files.items())
        if not (FOLDER / name).exists() or (FOLDER / name).read_bytes() != content
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"kubelet_plugin/proto/{name} is not what its .proto gives")
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_bytes(files[name])
        print(f"wrote kubelet_plugin/proto/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
