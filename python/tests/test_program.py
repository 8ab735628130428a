"""Tests that bench and analyze return what they write to files on request."""

import json

import pytest

import gradtool

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("gradtool_program")


def test_files_that_are_asked_for_are_written(tmp_path, capture_file):
    rows = gradtool.bench(capture_file, "bf16", timeout=0.05, csv=tmp_path / "bench.csv", json=tmp_path / "bench.json")
    written = pandas.read_csv(tmp_path / "bench.csv")
    pandas.testing.assert_frame_equal(written, rows)
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["codec"] for row in record["rows"]] == list(rows.codec) and set(rows.codec) == {"none", "noop", "bf16"}
    assert [row["run_id"] for row in record["rows"]] == list(rows.run_id)
    for name in ("csv", "json"):
        with pytest.raises(gradtool.UsageError, match=f"{name} is '-'"):
            gradtool.bench(capture_file, "bf16", **{name: "-"})
    tables = gradtool.analyze(capture_file, only="noise", out=tmp_path / "tables")
    assert sorted(p.stem for p in (tmp_path / "tables").iterdir()) == sorted(tables) == ["noise", "noise_steps"]
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "tables" / "noise.csv"), tables["noise"])


def test_no_codec_is_not_every_codec(capture_file):
    for nothing in ({"codec": []}, {"codecs": ()}, {"codec": ""}):
        with pytest.raises(gradtool.UsageError, match="valid is one codec at least"):
            gradtool.bench(capture_file, timeout=0.1, **nothing)


def test_parameters_are_columns_too(capture_file):
    rows = gradtool.bench(capture_file, ["topk:ratio=0.05", "topk:ratio=0.2,ef=off", "powersgd:rank=4", "bf16"], timing="isolated", timeout=0.05)
    chosen = rows.drop_duplicates(["codec", "params"]).set_index("codec")
    assert list(chosen.loc["topk", "params.ratio"]) == [0.05, 0.2] and list(chosen.loc["topk", "params.ef"]) == ["on", "off"]
    assert chosen.loc["powersgd", "params.rank"] == 4 and chosen.loc[["none", "bf16"], "params.ratio"].isna().all()
    mixed = gradtool.bench(capture_file, ["terngrad", "terngrad:clip=off", "fp8"], timing="isolated", timeout=0.05)
    clips = mixed[mixed.codec == "terngrad"].drop_duplicates("params")["params.clip"]
    assert list(clips) == [2.5, "off"] and mixed[mixed.codec == "fp8"]["params.block"].gt(100).all(), "a word of one codec makes no number of another a text"
    assert set(rows.columns[-3:]) <= {name for name in rows if name.startswith("params.")}
