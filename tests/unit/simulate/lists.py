# SPDX-License-Identifier: Apache-2.0
"""Small node and task lists for the tests of ``gpudra simulate``."""

from pathlib import Path

from gpudra.controller.ctl.simulate.csvfile import read_trace
from gpudra.controller.ctl.simulate.trace import Trace

NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
TASK_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
NODES = ("n0,64000,262144,4,T4", "n1,96000,393216,8,G2", "n2,64000,262144,2,T4")
TASKS = (
    "t0,4000,8192,1,470,,LS,Running,0,1000,0",
    "t1,8000,16384,1,1000,,LS,Running,10,400,10",
    "t2,2000,4096,1,810,,BE,Running,20,90,20",
    "t3,16000,32768,0,0,,LS,Running,30,2000,30",
    "t4,16000,32768,2,1000,T4|G2,LS,Running,40,700,40",
    "t5,4000,8192,1,320,T4,BE,Running,50,500,50",
    "t6,4000,8192,1,230,,BE,Running,60,300,60",
)


def write(folder: Path, name: str, header: str, rows: tuple[str, ...]) -> Path:
    """Writes one list."""
    path = folder / name
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def write_both(folder: Path) -> tuple[Path, Path]:
    """The small cluster and its tasks on disk."""
    return (
        write(folder, "nodes.csv", NODE_HEADER, NODES),
        write(folder, "tasks.csv", TASK_HEADER, TASKS),
    )


def small_trace(folder: Path) -> Trace:
    """The same in memory."""
    return read_trace(*write_both(folder))[0]
