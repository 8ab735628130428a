"""Tests that bench and analyze return what they write to files on request."""

import pytest

import gradtool

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("gradtool_program")


def test_files_that_are_asked_for_are_written(tmp_path, capture_file):
    rows = gradtool.bench(capture_file, "bf16", timeout=0.05, csv=tmp_path / "bench.csv")
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "bench.csv"), rows)
    with pytest.raises(gradtool.UsageError, match="csv is '-'"):
        gradtool.bench(capture_file, "bf16", csv="-")
    tables = gradtool.analyze(capture_file, only="noise", out=tmp_path / "tables")
    assert sorted(p.stem for p in (tmp_path / "tables").iterdir()) == sorted(tables) == ["noise", "noise_steps"]
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "tables" / "noise.csv"), tables["noise"])
