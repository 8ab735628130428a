"""Batches that count differently: captured, merged, shown, and used by bench, beside NumPy."""

import csv
import json
import subprocess
import warnings

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn
TOKENS = [[12, 500, 31], [128, 0, 32], [4, 70, 33]]  # of each rank by step


def capture_tokens(rank, size, path, forgets):
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gradtool.Capture(model, path, merge="no") as capture:
            for step in range(3):
                generator = torch.Generator().manual_seed(10 * step + rank)
                model.zero_grad()
                model(torch.randn(4, 20, generator=generator)).square().mean().backward()
                capture.step(weight=None if rank == forgets else torch.tensor(TOKENS[rank][step]))


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    run_ranks(3, capture_tokens, str(folder / "run.h5"), None)
    gradtool.merge([folder / f"run.rank{rank}.h5" for rank in range(3)], folder / "run.h5")
    return folder


def gradients_of(path):
    with gradtool.open(path) as run:
        return {tensor.name: tensor.gradient[:] for tensor in run}


def reconstructed(program, path, *options):
    mean = path.parent / f"mean.{'.'.join(options)}.h5"
    done = subprocess.run([program, "bench", path, "--granularity", "model", "--timeout", "0.05", *options, "--reconstruction", mean, "--csv",
                           path.parent / "rows.csv"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return gradients_of(mean), (path.parent / "rows.csv").read_text()


def test_weights_are_in_the_file_and_stay_when_it_is_merged(captured, tmp_path, gradtool_program):
    files = [captured / f"run.rank{rank}.h5" for rank in range(3)]
    for name, merge in (("python.h5", lambda out: gradtool.merge(files, out)), ("linked.h5", lambda out: gradtool.merge(files, out, copy=False)),
                        ("program.h5", lambda out: gradtool.run("merge", *files, "-o", out, "--copy")),
                        ("view.h5", lambda out: gradtool.run("merge", *files, "-o", out))):
        merge(captured / name)
        with gradtool.open(captured / name) as run:
            np.testing.assert_array_equal(run.steps["batch_weight"], np.transpose(TOKENS))
        assert subprocess.run([gradtool_program, "validate", "--strict", captured / name]).returncode == 0
        assert "by their batches, of 0 to 500, 270 in a step (mean over steps)" in gradtool.run("info", captured / name)
    record = json.loads(gradtool.run("info", captured / "run.h5", "--json", "-"))
    assert [step["batch_weight"] for step in record["step_list"]] == np.transpose(TOKENS).tolist()


def test_bench_compares_with_the_weighted_mean(captured, gradtool_program):
    own, weights = gradients_of(captured / "run.h5"), np.transpose(TOKENS).astype("f8")
    mean, rows = reconstructed(gradtool_program, captured / "run.h5", "--codec", "none")
    for name, gradients in own.items():
        wanted = np.einsum("sw,sw...->s...", weights, gradients) / weights.sum(axis=1).reshape(-1, *[1] * (gradients.ndim - 2))
        np.testing.assert_allclose(mean[name][:, 0], wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
        assert np.abs(wanted - gradients.mean(axis=1)).max() > 0.01 * np.abs(wanted).max()
    assert "ranks count by their batches (batch_weight)" in rows
    assert next(float(row["nmse"]) for row in csv.DictReader(rows.splitlines()) if row["codec"] == "none") < 1e-12


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd:bits=4", "powersgd:rank=2"])
def test_codecs_get_gradients_that_are_multiplied(captured, tmp_path, gradtool_program, spec):
    """A file whose gradients were multiplied beforehand, without weights, gives the same results."""
    path, weights = tmp_path / "multiplied.h5", np.transpose(TOKENS).astype("f8")
    factors = weights * 3 / weights.sum(axis=1, keepdims=True)
    path.write_bytes((captured / "run.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["steps/batch_weight"]
        for group in file["tensors"].values():
            group["gradient"][:] = (group["gradient"][:].astype("f8") * factors[:, :, None]).astype("f4")
    wanted, _ = reconstructed(gradtool_program, path, "--codec", spec)
    got, _ = reconstructed(gradtool_program, captured / "run.h5", "--codec", spec)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])


def test_fewer_ranks_are_weighted_among_themselves(captured, gradtool_program):
    own, weights = gradients_of(captured / "run.h5"), np.transpose(TOKENS)[:, :2].astype("f8")
    mean, _ = reconstructed(gradtool_program, captured / "run.h5", "--codec", "none", "--ranks", "2")
    for name, gradients in own.items():
        wanted = np.einsum("sw,sw...->s...", weights, gradients[:, :2]) / weights.sum(axis=1).reshape(-1, *[1] * (gradients.ndim - 2))
        np.testing.assert_allclose(mean[name][:, 0], wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def test_weights_that_not_all_ranks_have_are_left_out(tmp_path, gradtool_program):
    run_ranks(3, capture_tokens, str(tmp_path / "run.h5"), 1)
    files = [tmp_path / f"run.rank{rank}.h5" for rank in range(3)]
    with h5py.File(files[1]) as file:
        assert "batch_weight" not in file["steps"]
    with pytest.warns(UserWarning, match="batch_weight is left out because not all files have it"):
        gradtool.merge(files, tmp_path / "python.h5")
    done = subprocess.run([gradtool_program, "merge", *files, "-o", tmp_path / "program.h5", "--copy"], capture_output=True, text=True)
    assert done.returncode == 0 and "batch_weight is left out because not all files have it" in done.stdout + done.stderr
    for name in ("python.h5", "program.h5"):
        with gradtool.open(tmp_path / name) as run:
            assert "batch_weight" not in run.steps


def put(row, column):
    def change(weights):
        weights[row, 0] = column
    return change


@pytest.mark.parametrize("change, sentence", [
    (put(1, -1.0), "has the value -1 at step 1; must be finite and at least 0"), (put(1, np.nan), "has the value nan at step 1"),
    (put(2, np.inf), "has the value inf at step 2")])
def test_weights_that_are_none_are_refused(captured, tmp_path, gradtool_program, change, sentence):
    path = tmp_path / "bad.h5"
    path.write_bytes((captured / "run.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        weights = file["steps/batch_weight"][:]
        change(weights)
        file["steps/batch_weight"][:] = weights
    for command in ("validate", "info", "bench"):
        done = subprocess.run([gradtool_program, command, path], capture_output=True, text=True)
        assert done.returncode == 3 and sentence in done.stderr and "batch_weight" in done.stderr, done.stderr


def test_workers_that_count_nothing_together_are_not_replayed(captured, tmp_path, gradtool_program):
    path = tmp_path / "nothing.h5"
    path.write_bytes((captured / "run.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["steps/batch_weight"][1, :2] = 0
    done = subprocess.run([gradtool_program, "bench", path, "--ranks", "2", "--codec", "none"], capture_output=True, text=True)
    assert done.returncode == 3 and "the 2 workers that are replayed count 0 together in iteration 1; must be finite and above 0" in done.stderr
    reconstructed(gradtool_program, path, "--codec", "none")  # all three count for something


def test_a_step_without_weights_counts_workers_alike(captured, tmp_path, gradtool_program):
    path = tmp_path / "some.h5"
    path.write_bytes((captured / "run.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["steps/batch_weight"][1] = np.nan
    mean, _ = reconstructed(gradtool_program, path, "--codec", "none")
    for name, gradients in gradients_of(path).items():
        np.testing.assert_allclose(mean[name][1, 0], gradients[1].mean(axis=0), rtol=1e-5, atol=1e-8)
    assert "alike in 1 of 3 steps" in gradtool.run("info", path)


def test_micro_batches_that_are_workers_have_a_weight_each(tmp_path):
    model = nn.Linear(3, 2)

    def steps(path, *weights):
        with gradtool.Capture(model, path, micro_batches=2, micro_batches_as_workers=True) as capture:
            for weight in weights:
                for micro_batch in range(2):
                    (model(torch.ones(1, 3) + micro_batch).sum() / 2).backward()
                    if micro_batch == 0:
                        capture.micro_batch()
                capture.step(weight=weight)
                model.zero_grad()
    steps(tmp_path / "run.h5", [3, 5], torch.tensor([1.5, 0.0]))
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["batch_weight"].tolist() == [[3.0, 5.0], [1.5, 0.0]]
    for number, (weights, sentence) in enumerate([
            ([3], "weight is 3; valid is 2 finite numbers of at least 0"), ([[1, -2]], r"weight is \[1, -2\]"), (["many"], "weight is 'many'; valid is a number"),
            ([[1, float("nan")]], "valid is 2 finite"), ([[1, 2], None], r"iteration 1: step\(\) has no weight, unlike before"),
            ([None, [1, 2]], r"iteration 1: step\(\) has a weight, unlike before")]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(gradtool.UsageError, match=sentence):
                steps(tmp_path / f"{number}.h5", *weights)
