import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.records import (
    CoreRow,
    ProcessRow,
    RequestRow,
    RunRecords,
    SliceRow,
    StepRow,
    WaitRow,
    column,
    read_rows,
    role,
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
@given(
    steps=rows(StepRow),
    waits=rows(WaitRow),
    requests=rows(RequestRow),
    done=rows(ProcessRow),
    slices=rows(SliceRow),
    cores=rows(CoreRow),
)
def test_records_read_back_as_they_were_written(
    tmp_path_factory, steps, waits, requests, done, slices, cores
):
    folder = tmp_path_factory.mktemp("records") / "new" / "folder"
    records = RunRecords(
        steps, waits, requests, done, slices, cores, {"seed": 7, "policy": "Park()"}
    )
    records.write(folder)
    assert RunRecords.read(folder) == records


def test_a_folder_from_before_there_were_cores_reads_as_without(tmp_path):
    cores, slices = [CoreRow(0, 9, 4, 2, 3)], [SliceRow("scheduler", 0, 1, 5)]
    RunRecords(cores=cores, slices=slices).write(tmp_path)
    assert RunRecords.read(tmp_path).cores == cores
    for name in ("cores", "slices"):
        (tmp_path / f"{name}.parquet").unlink()
    old = RunRecords.read(tmp_path)
    assert (old.cores, old.slices) == ([], [])
    (tmp_path / "waits.parquet").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*waits\.parquet"):
        RunRecords.read(tmp_path)


def test_records_written_over_others_leave_none_of_their_rows(tmp_path):
    RunRecords(cores=[CoreRow(0, 9, 4, 2, 3)]).write(tmp_path)
    RunRecords().write(tmp_path)
    assert RunRecords.read(tmp_path) == RunRecords()


def test_a_field_with_a_default_may_lack_its_column(tmp_path):
    path = tmp_path / "waits.parquet"
    row = WaitRow("worker0", 0, 1, 2, True, 3, 4, 5, 6, 7, 8, False, 9, 5)
    write_rows(path, WaitRow, [row])
    table = pq.read_table(path)
    pq.write_table(table.drop_columns("stage_kind"), path)
    assert read_rows(path, WaitRow) == [row._replace(stage_kind=-1)]
    pq.write_table(table.drop_columns("preempted"), path)
    with pytest.raises(ValueError, match=r"expected process, .* preempted, stage_kind"):
        read_rows(path, WaitRow)


def test_a_table_has_a_typed_column_for_each_field():
    records = RunRecords(requests=[RequestRow(0, 5, True, 10, 2, [7, 9])])
    table = records.table("requests")
    assert table.column_names == list(RequestRow._fields)
    assert table.to_pylist() == [records.requests[0]._asdict()]
    assert table.schema.field("token_ns").type == pa.list_(pa.int64())
    assert records.table("waits").num_rows == 0
    with pytest.raises(ValueError, match="no table 'frames'; they have steps, waits"):
        records.table("frames")


def test_the_role_of_a_process_is_its_name_without_its_engine():
    assert role("engine3/worker12") == "worker12"
    assert role("scheduler") == "scheduler"


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


def test_without_pyarrow_rows_are_json_and_either_takes_the_place_of_the_other(
    tmp_path, monkeypatch
):
    row = WaitRow("worker0", 0, 1, 2, True, 3, 4, 5, 6, 7, 8, False, 9, 5)
    request = RequestRow(0, 5, True, np.int64(10), 2, [7, 9])
    plain = RunRecords(waits=[row], requests=[request], cores=[CoreRow(0, 9, 4, 2, 3)])
    plain.write(tmp_path)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        without.setitem(sys.modules, "pyarrow.parquet", None)
        other = RunRecords(waits=[row, row], requests=[request])
        other.write(tmp_path)
        assert not list(tmp_path.glob("*.parquet"))
        assert RunRecords.read(tmp_path) == other
    assert RunRecords.read(tmp_path) == other
    plain.write(tmp_path)
    assert [path.name for path in tmp_path.glob("*.json")] == ["meta.json"]
    assert RunRecords.read(tmp_path) == plain


def test_damaged_json_in_place_of_parquet_is_named(tmp_path):
    (tmp_path / "steps.json").write_text('{"columns": 3}')
    with pytest.raises(ValueError, match=r"cannot read .*steps\.json"):
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


def test_the_folder_of_several_runs_is_told_which_they_are(tmp_path):
    for index in range(5):
        RunRecords(meta={}).write(tmp_path / "records" / f"spin-{index}")
    with pytest.raises(ValueError, match=r"below it are .*records/spin-0, .*spin-2 and 2 more"):
        RunRecords.read(tmp_path)


def test_facts_of_a_run_that_are_cut_off_are_named(tmp_path):
    RunRecords(meta={}).write(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta\.json is not JSON"):
        RunRecords.read(tmp_path)
