import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.records import (
    ProcessRow,
    RequestRow,
    RunRecords,
    StepRow,
    WaitRow,
    column,
    read_rows,
    write_rows,
)

VALUES = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8")),
    list[int]: st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
}


def rows(row_type):
    return st.lists(
        st.builds(row_type, *[VALUES[t] for t in row_type.__annotations__.values()]), max_size=3
    )


@settings(max_examples=30)
@given(steps=rows(StepRow), waits=rows(WaitRow), requests=rows(RequestRow), done=rows(ProcessRow))
def test_records_read_back_as_they_were_written(tmp_path_factory, steps, waits, requests, done):
    folder = tmp_path_factory.mktemp("records") / "new" / "folder"
    records = RunRecords(steps, waits, requests, done, {"seed": 7, "policy": "Park()"})
    records.write(folder)
    assert RunRecords.read(folder) == records


def test_rows_with_other_columns_are_refused_and_both_are_named(tmp_path):
    path = tmp_path / "waits.parquet"
    write_rows(path, StepRow, [StepRow(*range(9))])
    with pytest.raises(ValueError, match=r"waits\.parquet has the columns step, .*expected proc"):
        read_rows(path, WaitRow)


def test_columns_in_another_order_are_refused(tmp_path):
    path = tmp_path / "steps.parquet"
    pq.write_table(pa.table({name: [1] for name in reversed(StepRow._fields)}), path)
    with pytest.raises(ValueError, match="expected step, n_decode"):
        read_rows(path, StepRow)


def test_a_missing_or_damaged_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*steps\.parquet"):
        read_rows(tmp_path / "steps.parquet", StepRow)
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"cannot read .*steps\.parquet"):
        read_rows(tmp_path / "steps.parquet", StepRow)


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no records"):
        RunRecords.read(tmp_path / "nothing")


def test_the_metadata_is_plain_json(tmp_path):
    RunRecords(meta={"world": "model"}).write(tmp_path)
    assert json.loads((tmp_path / "meta.json").read_text()) == {"world": "model"}


def test_a_column_is_an_array_of_integers():
    drawn = column([StepRow(*range(9)), StepRow(*range(10, 19))], "published_ns")
    assert drawn.tolist() == [4, 14]
    assert drawn.dtype.name == "int64"
