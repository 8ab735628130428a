"""Tests that nothing but the file that was asked for is written, replaced or removed, whatever becomes of folders, names and processes."""

import json
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
nn = torch.nn


def captured(model):
    model.zero_grad()
    model(torch.ones(4, 3)).sum().backward()


def capture(path, steps=2, **options):
    model = nn.Linear(3, 2)
    with gradtool.Capture(model, path, **options) as run:
        for _ in range(steps):
            captured(model)
            run.step()


def steps_of(path):
    with gradtool.open(path) as file:
        return len(file.steps), file.complete


def test_files_beside_are_not_touched(tmp_path):
    for ending in ("new", "merging", "part"):
        (tmp_path / f"run.h5.{ending}").write_text("mine")
    os.symlink("victim", tmp_path / "t.json.part")
    capture(tmp_path / "run.h5")
    capture(tmp_path / "run.h5", steps=3, replace=True)
    gradtool.merge([tmp_path / "run.h5"], tmp_path / "all.h5")
    gradtool.merge([tmp_path / "run.h5"], tmp_path / "all.h5", copy=False, replace=True)
    assert steps_of(tmp_path / "all.h5") == (3, True)
    assert sorted(os.listdir(tmp_path)) == ["all.h5", "run.h5", "run.h5.merging", "run.h5.new", "run.h5.part", "t.json.part"]
    assert {(tmp_path / f"run.h5.{ending}").read_text() for ending in ("new", "merging", "part")} == {"mine"}


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    for name in ("run.h5", "all.h5"):
        os.symlink(tmp_path / "disk" / name, tmp_path / name)
    for steps in (1, 3):
        capture(tmp_path / "run.h5", steps=steps, replace=True)
    for _ in range(2):  # to what is not there yet, and to a file
        gradtool.merge([tmp_path / "run.h5"], tmp_path / "all.h5", replace=True)
    for name in ("run.h5", "all.h5"):
        assert (tmp_path / name).is_symlink() and not (tmp_path / "disk" / name).is_symlink()
        assert steps_of(tmp_path / "disk" / name) == (3, True)
    os.symlink(tmp_path / "disk", tmp_path / "linked")  # a folder
    gradtool.merge([tmp_path / "linked" / "run.h5"], tmp_path / "linked" / "view.h5", copy=False)
    assert steps_of(tmp_path / "disk" / "view.h5") == (3, True)
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "pipe", tmp_path / "to_pipe.h5")
    for out in ("pipe", "to_pipe.h5", "linked"):
        with pytest.raises(gradtool.UsageError, match="not a plain file"):
            gradtool.merge([tmp_path / "run.h5"], tmp_path / out, replace=True)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_changes_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    capture(tmp_path / "other" / "run.h5", steps=1)
    before = (tmp_path / "other" / "run.h5").read_bytes()
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(3, 2)
    with gradtool.Capture(model, "run.h5") as run:
        for _ in range(3):
            captured(model)
            run.step()
        monkeypatch.chdir(tmp_path / "other")
    assert steps_of(tmp_path / "run.h5") == (3, True)
    assert (tmp_path / "other" / "run.h5").read_bytes() == before


@pytest.mark.parametrize("change", ["remove", "replace"])
def test_a_file_that_is_not_there_any_more_is_told(change, tmp_path):
    model = nn.Linear(3, 2)
    run = gradtool.Capture(model, tmp_path / "run.h5")
    captured(model)
    run.step()
    for _ in range(6000):  # another thread writes
        if run.written > 0:
            break
        time.sleep(0.01)
    assert run.written == 1
    os.remove(tmp_path / "run.h5")
    if change == "replace":
        (tmp_path / "run.h5").write_text("mine")
    with pytest.raises(gradtool.Error, match="was removed, renamed or replaced"):
        run.close()
    assert change == "remove" or (tmp_path / "run.h5").read_text() == "mine"


def test_a_fork_leaves_the_file_to_its_parent(tmp_path):
    """Also one that ends in order, and so closes what is open."""
    script = f"""
import os, sys, torch, gradtool
model = torch.nn.Linear(3, 2)
def step(run):
    model.zero_grad(); model(torch.ones(4, 3)).sum().backward(); run.step()
def fork():
    if os.fork() == 0: sys.exit()
    assert os.wait()[1] == 0
with gradtool.Capture(model, {str(tmp_path / "run.h5")!r}) as run:
    fork()
    step(run); step(run)
    fork()
    step(run)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    assert steps_of(tmp_path / "run.h5") == (3, True)


def test_a_fork_while_a_step_is_written_can_end(tmp_path):
    """The thread that writes is not in the new process, which closes the file as well."""
    script = f"""
import os, sys, threading, torch, h5py, gradtool
run = gradtool.Capture(torch.nn.Linear(3, 2), {str(tmp_path / "run.h5")!r})
writes, forks = threading.Event(), threading.Event()
def write():
    with h5py._objects.phil:
        writes.set()
        forks.wait(0.5)  # nobody sets it: a fork has to wait
thread = threading.Thread(target=write)
thread.start(); writes.wait()
if os.fork() == 0: sys.exit()
assert os.wait()[1] == 0
thread.join()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_fork_that_stays_holds_no_lock(tmp_path):
    """A loader's workers may outlive the capture."""
    model = nn.Linear(3, 2)
    run = gradtool.Capture(model, tmp_path / "run.h5")
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(tell)
        os.read(told, 1)  # until the parent has closed its end
        os._exit(0)
    captured(model)
    run.step()
    run.close()
    capture(tmp_path / "run.h5", steps=3, replace=True)
    os.close(tell)
    os.wait()
    assert steps_of(tmp_path / "run.h5") == (3, True)


def test_a_file_that_is_being_written_is_not_replaced(tmp_path, capture_file, gradtool_program):
    model = nn.Linear(3, 2)
    with gradtool.Capture(model, tmp_path / "run.h5") as run:
        captured(model)
        run.step()
        with pytest.raises(gradtool.UsageError, match="is being written by another capture"):
            capture(tmp_path / "run.h5", replace=True)
        with pytest.raises(gradtool.UsageError, match="is being written by another capture"):
            gradtool.merge([capture_file], tmp_path / "run.h5", replace=True)
        refused = subprocess.run([gradtool_program, "merge", capture_file, "--copy", "--force", "-o", tmp_path / "run.h5"], capture_output=True, text=True)
        assert refused.returncode == 2 and "is being written" in refused.stderr, refused.stderr
        captured(model)
        run.step()
    assert steps_of(tmp_path / "run.h5") == (2, True)
    capture(tmp_path / "run.h5", steps=1, replace=True)


@pytest.mark.parametrize("options, sentence", [
    ({"seed": 2**63}, "seed is 9223372036854775808; valid"), ({"batch_size": 2**63}, "batch_size is"), ({"name": 5}, "name is 5; valid is a text"),
    ({"dataset": [1]}, r"dataset is \[1\]"), ({"every": None}, "every is None"), ({"every": np.array([1, 2])}, "every is array"), ({"iterations": 5}, "iterations is 5"),
    ({"iterations": "abc"}, "iterations is 'abc'"), ({"iterations": [-1]}, "iterations is"), ({"optimizer": 5}, "optimizer is of the type int"),
    ({"path": ""}, "the path is ''"), ({"path": "a\0b"}, "the path is"), ({"path": 5}, "the path is 5")])
def test_options_that_no_file_can_hold_are_refused(options, sentence, tmp_path):
    path = options.pop("path", tmp_path / "run.h5")
    with pytest.raises(gradtool.UsageError, match=sentence):
        gradtool.Capture(nn.Linear(3, 2), path, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what, value", [("loss", "abc"), ("loss", torch.ones(2)), ("epoch", 10**400), ("learning_rate", [1]), ("weight", 10**400)])
def test_a_step_takes_numbers(what, value, tmp_path):
    model = nn.Linear(3, 2)
    with gradtool.Capture(model, tmp_path / "run.h5") as run:
        captured(model)
        with pytest.raises(gradtool.UsageError, match=f"iteration 0: {what} is"):
            run.step(**{what: value})


def test_gradients_are_those_of_the_parameters_that_were_described(tmp_path):
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with pytest.raises(gradtool.UsageError, match="has none of its parameters"):
        gradtool.Capture(model, tmp_path / "run.h5", second_moment="adam", optimizer=torch.optim.Adam(other.parameters()))
    with gradtool.Capture(model, tmp_path / "run.h5") as run:
        model.weight.data, model.bias.data = torch.zeros(1, 1), torch.zeros(1)
        model(torch.ones(4, 1)).sum().backward()
        with pytest.raises(gradtool.UsageError, match="weight has 1 values, and had 6"):
            run.step()


def virtual(file, name):
    data = file[name]
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[...] = h5py.VirtualSource("nope.h5", name, data.shape, data.dtype)
    return lambda: file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("name, make", [
    ("steps/loss", lambda file, name: lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", name))),
    ("tensors/0000/gradient", lambda file, name: lambda: file.__setitem__(name, h5py.SoftLink("/tensors/0001/gradient"))),
    ("tensors/0000", lambda file, name: lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", name))),
    ("steps", lambda file, name: lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", name))),
    ("tensors", lambda file, name: lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", name))),
    ("readiness", lambda file, name: lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", name))),
    ("steps/loss", virtual),
    ("steps/loss", lambda file, name: lambda: file.create_dataset(name, (3, 1), "f4", external=[("raw.bin", 0, 12)])),
    ("tensors/0000/gradient", lambda file, name: lambda: file.create_group(name)),
    ("tensors/0000/gradient", lambda file, name: lambda: file.create_dataset(name, (3,), "f4")),
    ("steps/loss", lambda file, name: lambda: file.create_dataset(name, (3, 1), "S3"))])
def test_values_of_other_files_are_not_read(name, make, tmp_path):
    capture(tmp_path / "other.h5", steps=3)
    capture(tmp_path / "run.h5", steps=3)
    np.full(3, 7, "f4").tofile(tmp_path / "raw.bin")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        put = make(file, name)
        del file[name]
        put()
    with pytest.raises(gradtool.DataError):
        gradtool.open(tmp_path / "run.h5")
    with pytest.raises(gradtool.DataError):
        gradtool.merge([tmp_path / "run.h5"], tmp_path / "all.h5")


def test_what_others_put_into_a_file_is_theirs(tmp_path):
    capture(tmp_path / "run.h5", steps=3)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["steps/mine"] = h5py.SoftLink("/nowhere")
        file.create_group("steps/ours")
        file["notes"] = h5py.ExternalLink("other.h5", "x")
    with gradtool.open(tmp_path / "run.h5") as file:
        assert len(file.steps) == 3 and "mine" not in file.steps


def test_a_full_disk_ends_a_view_with_a_sentence(tmp_path):
    """In a process of its own, which HDF5 must not end."""
    capture(tmp_path / "run.h5")
    script = f"""
import resource, signal, gradtool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    gradtool.merge([{str(tmp_path / "run.h5")!r}], {str(tmp_path / "all.h5")!r}, copy=False)
except gradtool.Error as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "all.h5: could not be merged" in done.stdout, done
    assert os.listdir(tmp_path) == ["run.h5"]


def test_a_record_that_is_no_trial_is_told(tmp_path, core):
    def train(trial):
        raise AssertionError("it is not run")
    for text in ("[" * 100_000, json.dumps({"format": "gradtool.trial", "schema_version": 1, "settings": {}, "model": "m", "runs": [5]})):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(gradtool.DataError, match="is no record of a trial"):
            gradtool.trial(train, ["bf16"], steps=20, out=tmp_path / "t.json")
        assert (tmp_path / "t.json").read_text() == text and os.listdir(tmp_path) == ["t.json"]
    for options, sentence in (({"name": object()}, "name is"), ({"judge": ["a"]}, "judge is"), ({"out": 5}, "the path is 5"), ({"codecs": None}, "codecs is None")):
        with pytest.raises(gradtool.UsageError, match=sentence):
            gradtool.trial(train, **{"codecs": ["bf16"], "steps": 20, **options})
