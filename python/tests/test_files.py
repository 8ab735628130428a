"""Reading gradient files, against h5py alone."""

import subprocess

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
