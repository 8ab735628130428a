"""Reading gradient files, against h5py alone."""

import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

import gradtool
from gradtool._writer import GradientWriter, StepRecord, TensorSpec


def test_every_way_to_index_gives_what_the_file_holds(capture_file):
    with gradtool.open(capture_file) as run, h5py.File(capture_file) as raw:
        assert run.workers == raw.attrs["workers"] and run.complete
        np.testing.assert_array_equal(run.steps["iteration"], raw["steps/iteration"])
        for number, tensor in enumerate(run):
            bits = raw[f"tensors/{number:04d}/gradient"]
            whole = bits[()].reshape(bits.shape[:2] + tensor.shape)
            values = tensor.gradient
            assert values.shape == whole.shape and len(values) == len(whole) and values.dtype == whole.dtype
            for index in (0, -1, (0, 1), (slice(1, 3),), (slice(None), 1), (1, slice(None)), (..., 0), (0, ..., 0),
                          (0, 0) + (0,) * len(tensor.shape), (slice(None, None, 2), slice(0, 4, 3)), ()):
                np.testing.assert_array_equal(values[index], whole[index], err_msg=f"{tensor.name}[{index}]")
            np.testing.assert_array_equal(np.asarray(values), whole)


def test_bfloat16_becomes_float32_exactly(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.randn(2, 3, 5).to(torch.bfloat16)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=3)
        file["steps/iteration"] = np.arange(2)
        group = file.create_group("tensors/0000")
        group.attrs.update(name="w", shape=np.array([5]), kind="other")
        group["gradient"] = values.view(torch.int16).numpy().view("u2")
        group["gradient"].attrs["dtype"] = "bfloat16"
    with gradtool.open(tmp_path / "b.h5") as run:
        np.testing.assert_array_equal(run["w"].gradient[:], values.float().numpy())
        np.testing.assert_array_equal(run["w"].gradient[1, 2], values[1, 2].float().numpy())


def test_a_step_that_is_being_written_does_not_count(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=0, workers=1)
        file["steps/iteration"] = np.arange(2)
        group = file.create_group("tensors/0000")
        group.attrs.update(name="w", shape=np.array([4]), kind="other")
        group["gradient"] = np.zeros((3, 1, 4), "f4")
    with gradtool.open(tmp_path / "b.h5") as run:
        assert len(run.steps) == 2 and run["w"].gradient.shape == (2, 1, 4) and not run.complete
        assert run["w"].gradient[:].shape == (2, 1, 4)
        with pytest.raises(IndexError):
            run["w"].gradient[2]


def test_the_program_reads_what_any_h5py_writes_and_merges(tmp_path, gradtool_program):
    """The HDF5 inside h5py may be newer than the program's."""
    files = [tmp_path / f"run.rank{rank}.h5" for rank in range(2)]
    for rank, path in enumerate(files):
        writer = GradientWriter(path, [TensorSpec("w", (3, 5))], 1, {"model": "test", "rank": rank})
        for step in range(2):
            writer.write(StepRecord(step, [np.full((1, 15), 10 * rank + step, "f4")]))
        writer.close()
    for name, copy in (("copied.h5", True), ("linked.h5", False)):
        gradtool.merge(files, tmp_path / name, copy=copy)
        done = subprocess.run([gradtool_program, "validate", tmp_path / name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with gradtool.open(tmp_path / name) as run:
            np.testing.assert_array_equal(run["w"].gradient[:][..., 0, 0], [[0, 10], [1, 11]])


def write_file(path, steps=2, workers=1, columns=(), **attributes):
    writer = GradientWriter(path, [TensorSpec("w", (3, 5))], workers, {"model": "test", **attributes}, columns)
    for step in range(steps):
        writer.write(StepRecord(step, [np.full((workers, 15), 1 + step, "f4")], loss=np.ones(workers, "f4")))
    writer.close()


def test_a_view_whose_files_are_gone_or_changed_is_refused(tmp_path):
    files = [tmp_path / f"run.rank{rank}.h5" for rank in range(2)]
    for rank, path in enumerate(files):
        write_file(path, rank=rank)
    gradtool.merge(files, tmp_path / "run.h5", copy=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.h5").symlink_to(tmp_path / "run.h5")
    for path in (tmp_path / "run.h5", tmp_path / "elsewhere" / "link.h5"):
        with gradtool.open(path) as run:
            assert (run["w"].gradient[:] > 0).all()
    files[1].rename(tmp_path / "away.h5")
    with pytest.raises(gradtool.DataError, match="run.rank1.h5, which is not there"):
        gradtool.open(tmp_path / "run.h5")
    write_file(files[1], steps=1, rank=1)
    with pytest.raises(gradtool.DataError, match="values of .*run.rank1.h5 that it does not have"):
        gradtool.open(tmp_path / "run.h5")
    files[1].write_text("hello")
    with pytest.raises(gradtool.DataError, match="run.rank1.h5: cannot be read"):
        gradtool.open(tmp_path / "run.h5")
    gradtool.merge([files[0]], tmp_path / "one.h5", copy=False)
    (tmp_path / "one.h5").rename(files[1])
    with pytest.raises(gradtool.DataError, match="is a merged view itself"):
        gradtool.open(tmp_path / "run.h5")


def test_a_view_of_a_file_whose_writer_was_killed(tmp_path):
    program = f"""
import os, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_files import GradientWriter, StepRecord, TensorSpec, np
writer = GradientWriter({str(tmp_path / "a.h5")!r}, [TensorSpec("w", (3, 5))], 1, {{}})
for step in range(3):
    writer.write(StepRecord(step, [np.full((1, 15), 1 + step, "f4")]))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    gradtool.merge([tmp_path / "a.h5"], tmp_path / "run.h5", copy=False)
    with gradtool.open(tmp_path / "run.h5") as run:
        assert not run.complete and run.attributes["interrupted"] == 0
        np.testing.assert_array_equal(run["w"].gradient[:, 0, 0, 0], [1, 2, 3])


@pytest.mark.parametrize("killed", [False, True])
def test_a_file_that_was_cut_is_refused_and_never_read_as_zeros(killed, tmp_path):
    end = "os._exit(0)" if killed else "writer.close()"
    program = f"""
import os, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_files import GradientWriter, StepRecord, TensorSpec, np
writer = GradientWriter({str(tmp_path / "whole.h5")!r}, [TensorSpec("w", (30, 50)), TensorSpec("b", (70,))], 2, {{}})
for step in range(4):
    writer.write(StepRecord(step, [np.full((2, 1500), 1 + step, "f4"), np.full((2, 70), 1 + step, "f4")]))
{end}
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    whole = (tmp_path / "whole.h5").read_bytes()
    with gradtool.open(tmp_path / "whole.h5") as run:
        assert all((run[name].gradient[:] > 0).all() for name in run.tensors)
    ends = np.random.default_rng(5).integers(0, len(whole), 40).tolist()
    for end in [len(whole) - 1, len(whole) - 8, len(whole) - 700, *ends]:
        (tmp_path / "cut.h5").write_bytes(whole[:end])
        with pytest.raises(gradtool.DataError, match="cut.h5: "):
            gradtool.open(tmp_path / "cut.h5")
        with pytest.raises(gradtool.DataError, match="cut.h5: "):
            gradtool.merge([tmp_path / "cut.h5"], tmp_path / "merged.h5")
        assert not (tmp_path / "merged.h5").exists()


def test_a_damaged_file_is_refused_with_a_sentence(tmp_path):
    write_file(tmp_path / "whole.h5", steps=2)
    whole = bytearray((tmp_path / "whole.h5").read_bytes())
    said = 0
    for position in np.random.default_rng(7).integers(48, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[position:position + 16] = bytes(16 * [0xA5])
        (tmp_path / "damaged.h5").write_bytes(damaged)
        try:
            gradtool.open(tmp_path / "damaged.h5").close()
        except gradtool.DataError as error:
            said += 1
            assert "damaged.h5: " in str(error)
    assert said > 10


@pytest.mark.parametrize("one, other", [
    ({}, {"quantity": "pseudo_gradient", "inner_steps": 5}), ({"averaged": 1}, {}), ({"micro_batches": 2}, {}),
    ({"ranks": 2}, {"ranks": 3}),
    ({"quantity": "pseudo_gradient", "inner_steps": 5}, {"quantity": "pseudo_gradient", "inner_steps": 6})])
def test_files_that_say_different_things_do_not_merge(one, other, tmp_path):
    write_file(tmp_path / "a.h5", **one)
    write_file(tmp_path / "b.h5", **other)
    with pytest.raises(gradtool.DataError, match="b.h5: has another '"):
        gradtool.merge([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "run.h5")
    assert not (tmp_path / "run.h5").exists()


def test_a_merge_is_that_of_the_program(tmp_path, gradtool_program):
    """Attributes and columns, of files that differ in what may differ; what is left out is told."""
    write_file(tmp_path / "a.h5", steps=3, rank=1, ranks=2, seed=3, columns=("loss", "epoch"), quantity="gradient", averaged=0)
    write_file(tmp_path / "b.h5", steps=2, rank=0, ranks=2, seed=4, columns=("compute_seconds", "overflow", "epoch"))
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    with pytest.warns(UserWarning) as caught:
        gradtool.merge(files, tmp_path / "ours.h5")
    said = " | ".join(str(w.message) for w in caught)
    assert "steps are left out" in said and "iteration 2, which" in said and "b.h5 lacks" in said and "in them: seed" in said and \
        "overflow is left out" in said
    subprocess.run([gradtool_program, "merge", "--copy", *files, "-o", tmp_path / "theirs.h5"], check=True, capture_output=True)
    with gradtool.open(tmp_path / "ours.h5") as ours, gradtool.open(tmp_path / "theirs.h5") as theirs:
        for run in (ours, theirs):
            assert run.attributes["ranks"] == 2 and "rank" not in run.attributes and "seed" not in run.attributes and run.complete
        assert sorted(ours.steps) == sorted(theirs.steps)
        for name in ours.steps:
            np.testing.assert_array_equal(ours.steps[name], theirs.steps[name])
    with pytest.raises(gradtool.UsageError, match="a list of paths"):
        gradtool.merge(tmp_path / "a.h5", tmp_path / "run.h5")
    with pytest.raises(gradtool.UsageError, match="a list of paths"):
        gradtool.merge(str(tmp_path / "a.h5"), tmp_path / "run.h5")
    with pytest.raises(gradtool.UsageError, match="given twice"):
        gradtool.merge([tmp_path / "a.h5"] * 2, tmp_path / "run.h5")


@pytest.mark.parametrize("name, attributes, sentence", [
    ("w\x1b[31m", {}, "a tensor is called"), ("", {}, "a tensor is called"), ("w", {"batch_size": -1}, "batch_size is -1")])
def test_what_a_reader_would_refuse_is_not_written(name, attributes, sentence, tmp_path):
    with pytest.raises(gradtool.UsageError, match=sentence):
        GradientWriter(tmp_path / "run.h5", [TensorSpec(name, (3, 5))], 1, attributes)
    assert not (tmp_path / "run.h5").exists()


def test_what_is_no_gradient_file_is_refused_with_a_sentence(tmp_path, capture_file):
    with pytest.raises(gradtool.DataError, match="no such file"):
        gradtool.open(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(gradtool.DataError, match="cannot be read as HDF5"):
        gradtool.open(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(gradtool.DataError, match="format"):
        gradtool.open(tmp_path / "other.h5")
    with gradtool.open(capture_file) as run, pytest.raises(KeyError, match="conv1.weight"):
        run["nothing"]
