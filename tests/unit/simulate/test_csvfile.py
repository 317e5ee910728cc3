# SPDX-License-Identifier: Apache-2.0
"""Reading lists: every fault is named with file, line and column, and lenient counts it."""

import gzip
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.csvfile import read_trace
from gpudra.driver.core.placement.types import Request
from tests.unit.simulate.lists import NODE_HEADER, NODES, TASK_HEADER, TASKS, write, write_both

BAD_TASKS = {
    "t9,-4000,8192,1,470,,,,,,": ("column cpu_milli", "is negative"),
    "t9,4000,-1,1,470,,,,,,": ("column memory_mib", "is negative"),
    "t9,4000,8192,1,1001,,,,,,": ("column gpu_milli", "more than 1000"),
    "t9,4000,8192,1,0,,,,,,": ("column gpu_milli", "asks for nothing"),
    "t9,4000,8192,0,100,,,,,,": ("column gpu_milli", "of no GPU"),
    "t9,4000,8192,x,470,,,,,,": ("column num_gpu", "not a whole number"),
    "t9,4000,8192,1.5,470,,,,,,": ("column num_gpu", "not a whole number"),
    "t9,nan,8192,1,470,,,,,,": ("column cpu_milli", "not a whole number"),
    "t9,1e3,8192,1,470,,,,,,": ("column cpu_milli", "not a whole number"),
    "t9,٣,8192,1,470,,,,,,": ("column cpu_milli", "not a whole number"),
    "t9,99999999999999999999999,8192,1,470,,,,,,": ("column cpu_milli", "more than"),
    "t9,4000,8192,129,1000,,,,,,": ("column num_gpu", "more than 128"),
    "t9,,8192,1,470,,,,,,": ("column cpu_milli", "is empty"),
    ",4000,8192,1,470,,,,,,": ("column name", "is empty"),
    "t9,4000,8192,1,470,H100,,,,,": ("column gpu_spec", "no node has the model 'H100'"),
    "t9,4000,8192,1,470,T4|H100,,,,,": ("column gpu_spec", "no node has the model 'H100'"),
    "t9,4000,8192,1,470,|,,,,,": ("column gpu_spec", "no node has the model"),
    "t9,4000,8192,1,470,,,,50,20,": ("column deletion_time", "before creation_time"),
    "t9,4000,8192,1,470,,,,x,20,": ("column creation_time", "not a whole number"),
    "t9,4000,8192,1": ("column gpu_milli", "4 cells where the header has 11"),
    "t9,4000,8192,1,470,,,,,,,": ("column 12", "12 cells where the header has 11"),
}

BAD_NODES = {
    "n9,64000,262144,0,T4": ("column gpu", "has no GPU"),
    "n9,64000,262144,-1,T4": ("column gpu", "is negative"),
    "n0,64000,262144,2,T4": ("column sn", "listed twice"),
    "n9,64000,262144,2,": ("column model", "is empty"),
    "n9,64000,262144,2,T4|G2": ("column model", "cannot contain"),
    "n9,64000,,2,T4": ("column memory_mib", "is empty"),
    "n9,64000,262144,2000,T4": ("column gpu", "more than 128"),
}


def test_a_good_list_is_read_in_file_order(tmp_path: Path) -> None:
    """Names, amounts, models and times arrive; several cards are whole ones."""
    trace, skipped = read_trace(*write_both(tmp_path))
    assert [node.name for node in trace.nodes] == ["n0", "n1", "n2"]
    assert trace.capacity_milli == 14_000
    assert trace.tasks[4].request == Request(16000, 32768, 2, 1000, 1000, frozenset({"T4", "G2"}))
    assert (trace.tasks[4].created_s, trace.tasks[4].deleted_s) == (40, 700)
    assert skipped.total == 0


@pytest.mark.parametrize("bad", BAD_TASKS)
def test_a_bad_task_row_is_named(tmp_path: Path, bad: str) -> None:
    """Strict reading stops at the row with its file, line and column."""
    column, words = BAD_TASKS[bad]
    nodes = write(tmp_path, "nodes.csv", NODE_HEADER, NODES)
    tasks = write(tmp_path, "tasks.csv", TASK_HEADER, (*TASKS[:2], bad, *TASKS[2:]))
    with pytest.raises(InputError) as caught:
        read_trace(nodes, tasks)
    message = str(caught.value)
    assert f"{tasks}:4: {column}: " in message
    assert words in message
    trace, skipped = read_trace(nodes, tasks, lenient=True)
    assert len(trace.tasks) == len(TASKS)
    assert skipped.total == 1


@pytest.mark.parametrize("bad", BAD_NODES)
def test_a_bad_node_row_is_named(tmp_path: Path, bad: str) -> None:
    """The same for nodes."""
    column, words = BAD_NODES[bad]
    nodes = write(tmp_path, "nodes.csv", NODE_HEADER, (*NODES, bad))
    tasks = write(tmp_path, "tasks.csv", TASK_HEADER, TASKS)
    with pytest.raises(InputError) as caught:
        read_trace(nodes, tasks)
    assert f"{nodes}:5: {column}: " in str(caught.value)
    assert words in str(caught.value)
    assert len(read_trace(nodes, tasks, lenient=True)[0].nodes) == 3


@pytest.mark.parametrize("missing", ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_missing_column_is_an_error_even_when_lenient(
    tmp_path: Path, missing: str, lenient: bool
) -> None:
    """Without a column no row can be used; line 1 is named."""
    nodes, _ = write_both(tmp_path)
    tasks = write(tmp_path, "tasks.csv", TASK_HEADER.replace(missing, "other", 1), TASKS)
    with pytest.raises(InputError, match=rf"tasks.csv:1: column {missing}: missing"):
        read_trace(nodes, tasks, lenient=lenient)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "tasks.csv:1: column name: missing"),
        (b"\n\n", "tasks.csv:1: column name: missing"),
        (TASK_HEADER.encode(), "tasks.csv:2: column 1: the list has no usable rows"),
        (TASK_HEADER.encode() + b"\nt0,\xff\xfe,1,1,1\n", "tasks.csv:2: column 2: not UTF-8"),
        (b"name,name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "column name: named twice"),
        (TASK_HEADER.encode() + b'\nt0,"4000,1\n', "tasks.csv:2: row: "),
        (TASK_HEADER.encode() + b"\nt0,\x004000,1,1,10,,,,,,\n", "tasks.csv:2: "),
    ],
)
def test_files_that_are_no_lists_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    """Empty, header-only, binary and broken files end in one sentence."""
    nodes, tasks = write_both(tmp_path)
    tasks.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(nodes, tasks)
    assert words in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """A missing file, a folder and a broken archive are errors with the file's name."""
    nodes, tasks = write_both(tmp_path)
    packed = gzip.compress(tasks.read_bytes())
    short, torn, fake = (tmp_path / f"{name}.csv.gz" for name in ("short", "torn", "fake"))
    short.write_bytes(packed[:60])
    torn.write_bytes(packed[:40] + b"?" * 20 + packed[60:])
    fake.write_bytes(tasks.read_bytes())
    for path in (tmp_path / "absent.csv", tmp_path, short, torn, fake):
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(nodes, path)


def test_other_forms_of_the_same_list_are_read(tmp_path: Path) -> None:
    """Byte order mark, CRLF, quotes, blanks, other column order, no optional columns, gzip."""
    nodes, _ = write_both(tmp_path)
    plain = tmp_path / "plain.csv"
    plain.write_bytes(
        b"\xef\xbb\xbfgpu_milli,num_gpu,name,memory_mib,cpu_milli\r\n"
        b'470, 1 ,"a, b",8192,4000\r\n\r\n1000,2,c,1,1\r\n'
    )
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        tasks = read_trace(nodes, path)[0].tasks
        assert [t.name for t in tasks] == ["a, b", "c"]
        assert tasks[0].request == Request(4000, 8192, 1, 470, 470)
        assert tasks[0].created_s is None


def test_lenient_counts_by_reason_and_shows_examples(tmp_path: Path) -> None:
    """Eight bad rows of two reasons are counted, at most five shown."""
    nodes, _ = write_both(tmp_path)
    rows = (*TASKS, *["x,-1,1,1,10,,,,,,"] * 6, *["x,1,1,1,2000,,,,,,"] * 2)
    tasks = write(tmp_path, "tasks.csv", TASK_HEADER, rows)
    _, skipped = read_trace(nodes, tasks, lenient=True)
    assert dict(skipped.counts) == {
        "tasks.csv: column cpu_milli": 6,
        "tasks.csv: column gpu_milli": 2,
    }
    assert len(skipped.examples) == 5
