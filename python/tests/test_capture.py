"""Captures in one process: what is in the file equals what autograd computed, and costs nothing on other steps."""

import json
import subprocess
import sys
import time
import types
import warnings

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
nn = torch.nn


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10), nn.LayerNorm(10))


def batches(count, size=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator))
            for _ in range(count)]


def train(model, data, capture, optimizer, expected=None):
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if expected is not None and capture.capturing:
            expected.append([p.grad.clone() for p in model.parameters()])
        capture.step(loss)
        optimizer.step()


def test_gradients_weights_and_columns_are_those_of_the_training(tmp_path, gradtool_program):
    model, expected = small_model(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = []
    with gradtool.Capture(model, tmp_path / "run.h5", every=3, first=1, last=8, optimizer=optimizer, weight=True, name="small",
                          dataset="noise", seed=0, batch_size=8) as capture:
        for inputs, targets in batches(12):
            if capture.capturing:
                weights.append([p.detach().clone() for p in model.parameters()])
            train(model, [(inputs, targets)], capture, optimizer, expected)
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["iteration"].tolist() == [1, 4, 7] and run.complete and run.workers == 1
        assert run.attributes["optimizer"] == "sgd:learning_rate=0.1,momentum=0,weight_decay=0"
        assert run.steps["learning_rate"].tolist() == [0.1] * 3 and np.isfinite(run.steps["loss"]).all()
        assert (run.steps["compute_seconds"] > 0).all()
        assert [(t.kind, t.layout) for t in run] == [("conv", "OIHW"), ("bias", ""), ("linear", "OI"), ("bias", ""),
                                                     ("norm", ""), ("bias", "")]
        for step in range(3):
            for tensor, gradient, weight in zip(run, expected[step], weights[step]):
                np.testing.assert_array_equal(tensor.gradient[step, 0], gradient.numpy())
                np.testing.assert_array_equal(tensor.weight[step], weight.numpy())
    assert subprocess.run([gradtool_program, "validate", "--strict", tmp_path / "run.h5"]).returncode == 0


def test_iterations_of_several_phases_go_into_one_file(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradtool.Capture(model, tmp_path / "run.h5", iterations=[1, 2, 6, 7]) as capture:
        train(model, batches(9), capture, optimizer)
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["iteration"].tolist() == [1, 2, 6, 7]
    with pytest.raises(gradtool.Error, match="iterations goes without every"):
        gradtool.Capture(model, tmp_path / "other.h5", iterations=[1], every=2)


def test_windows_are_those_of_the_program(tmp_path, gradtool_program):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradtool.Capture(model, tmp_path / "run.h5", iterations=gradtool.windows(300)) as capture:
        for captured in range(300):
            assert capture.iteration == captured
            if capture.capturing:
                train(model, batches(1), capture, optimizer)
            else:
                capture.step()
    info = json.loads(gradtool.run("info", tmp_path / "run.h5", "--json", "-"))
    assert [(window["first_iteration"], window["last_iteration"]) for window in info["windows"]] == [(15, 22), (153, 160), (292, 299)]
    assert gradtool.windows(11, steps=2, count=4, first=0) == [0, 1, 3, 4, 6, 7, 9, 10]
    assert gradtool.windows(np.int64(40), steps=2, count=2, first=1) == [1, 2, 38, 39]


@pytest.mark.parametrize(("arguments", "words"), [
    ({"total_steps": 10, "steps": 2, "count": 4, "first": 0}, "need 11 with the gaps between them, and from iteration 0 to the end at 10"),
    ({"total_steps": 300, "steps": 1}, "valid is steps >= 2"), ({"total_steps": 300, "count": 1}, "count >= 2"),
    ({"total_steps": 300, "first": -1}, "first >= 0"), ({"total_steps": 300.5}, "total_steps is 300.5; valid is a whole number"),
    ({"total_steps": 300, "first": 300}, "there are 0"),
])
def test_windows_that_are_none(arguments, words):
    with pytest.raises(gradtool.UsageError, match=words):
        gradtool.windows(**arguments)


def test_bfloat16_stays_bfloat16(tmp_path, gradtool_program):
    model = small_model().to(torch.bfloat16)
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        for tensor, p in zip(run, model.parameters()):
            assert tensor.gradient.bits.dtype == np.uint16
            np.testing.assert_array_equal(tensor.gradient[0, 0], p.grad.float().numpy())
    assert subprocess.run([gradtool_program, "validate", tmp_path / "run.h5"]).returncode == 0


def test_micro_batches_give_second_moments_and_workers(tmp_path):
    data = batches(4)
    single = []
    for inputs, targets in data:
        model = small_model()
        (nn.functional.cross_entropy(model(inputs), targets) / 4).backward()
        single.append([p.grad.clone() for p in model.parameters()])
    for workers in (False, True):
        model = small_model()
        options = {"micro_batches_as_workers": True} if workers else {"second_moment": "micro_batches"}
        with gradtool.Capture(model, tmp_path / f"{workers}.h5", micro_batches=4, **options) as capture:
            for number, (inputs, targets) in enumerate(data):
                (nn.functional.cross_entropy(model(inputs), targets) / 4).backward()
                if number < 3:
                    capture.micro_batch()
            capture.step()
        with gradtool.open(tmp_path / f"{workers}.h5") as run:
            assert run.workers == (4 if workers else 1)
            for i, tensor in enumerate(run):
                if workers:
                    for worker in range(4):
                        np.testing.assert_allclose(tensor.gradient[0, worker], 4 * single[worker][i], rtol=1e-4, atol=1e-6)
                else:
                    np.testing.assert_allclose(tensor.gradient[0, 0], sum(part[i] for part in single), rtol=1e-4, atol=1e-6)
                    np.testing.assert_allclose(tensor.second_moment[0, 0], sum(part[i] ** 2 for part in single),
                                               rtol=1e-3, atol=1e-9)


def test_adams_second_moment_is_unbiased(tmp_path):
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, betas=(0.9, 0.99))
    squares = [torch.zeros_like(p) for p in model.parameters()]
    with gradtool.Capture(model, tmp_path / "run.h5", optimizer=optimizer, second_moment="adam") as capture:
        for number, batch in enumerate(batches(3)):
            train(model, [batch], capture, optimizer)
            if number < 2:
                squares = [0.99 * s + 0.01 * p.grad ** 2 for s, p in zip(squares, model.parameters())]
    with gradtool.open(tmp_path / "run.h5") as run:
        for tensor, square in zip(run, squares):
            assert not tensor.second_moment[0].any()
            np.testing.assert_allclose(tensor.second_moment[2, 0], square / (1 - 0.99 ** 2), rtol=1e-4, atol=1e-12)


def gradient_scaler():
    """PyTorch's own scaler where it works on the CPU (2.3 and later); else one that behaves alike."""
    try:
        return torch.amp.GradScaler("cpu", init_scale=1024.0)
    except (AttributeError, TypeError):
        ready = types.SimpleNamespace(name="READY")
        unscaled = types.SimpleNamespace(name="UNSCALED")

        class Scaler:
            def __init__(self):
                self._per_optimizer_states = {}

            def is_enabled(self):
                return True

            def get_scale(self):
                return 1024.0

            def scale(self, loss):
                return loss * 1024.0

            def unscale_(self, optimizer):
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        p.grad /= 1024.0
                self._per_optimizer_states[id(optimizer)] = {"stage": unscaled}

            def step(self, optimizer):
                self._per_optimizer_states[id(optimizer)] = {"stage": ready}

            def update(self):
                pass
        scaler = Scaler()
        import collections
        scaler._per_optimizer_states = collections.defaultdict(lambda: {"stage": ready})
        return scaler


@pytest.mark.parametrize("unscale_first", [False, True])
def test_scaled_gradients_are_stored_unscaled_and_overflow_is_marked(unscale_first, tmp_path, gradtool_program):
    model, plain = small_model(), small_model()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), gradient_scaler()
    data = batches(2)
    with gradtool.Capture(model, tmp_path / "run.h5", optimizer=optimizer, scaler=scaler) as capture:
        for step, (inputs, targets) in enumerate(data):
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(inputs), targets)).backward()
            if step == 1:
                next(model.parameters()).grad[0] = float("inf")
            if unscale_first:
                scaler.unscale_(optimizer)
            capture.step()
            scaler.step(optimizer)
            scaler.update()
    nn.functional.cross_entropy(plain(data[0][0]), data[0][1]).backward()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["overflow"].tolist() == [[0], [1]]
        for tensor, p in zip(run, plain.parameters()):
            np.testing.assert_allclose(tensor.gradient[0, 0], p.grad.numpy(), rtol=1e-5, atol=1e-7)
    assert subprocess.run([gradtool_program, "validate", tmp_path / "run.h5"]).returncode == 0


def test_pseudo_gradients_are_the_way_of_the_weights(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with gradtool.Capture(model, tmp_path / "run.h5", quantity="pseudo_gradient", inner_steps=5) as capture:
        expected = []
        for outer in range(2):
            capture.start()
            before = [p.detach().clone() for p in model.parameters()]
            for inputs, targets in batches(5, seed=outer):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            expected.append([b - p.detach() for b, p in zip(before, model.parameters())])
            capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert (run.attributes["quantity"], run.attributes["inner_steps"]) == ("pseudo_gradient", 5)
        for step in range(2):
            for tensor, way in zip(run, expected[step]):
                np.testing.assert_array_equal(tensor.gradient[step, 0], way.numpy())


def test_every_step_before_a_kill_can_be_read(tmp_path, gradtool_program):
    """Kills a capture in the middle, several times, at whatever moment that is."""
    script = """
import sys, time, torch, gradtool
model = torch.nn.Linear(400, 300)
capture = gradtool.Capture(model, sys.argv[1])
for step in range(10**6):
    for p in model.parameters():
        p.grad = torch.full_like(p, float(step))
    capture.step()
    print(capture.written, flush=True)
"""
    for attempt in range(3):
        path = tmp_path / f"killed{attempt}.h5"
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        written = 0
        stop = time.monotonic() + 0.5 + 0.17 * attempt
        for line in process.stdout:
            written = int(line)
            if written > 3 and time.monotonic() > stop:
                break
        process.kill()
        process.wait()
        done = subprocess.run([gradtool_program, "validate", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with gradtool.open(path) as run:
            assert len(run.steps) >= written > 3 and not run.complete
            for step in (0, written - 1, len(run.steps) - 1):
                assert (run["weight"].gradient[step] == run.steps["iteration"][step]).all()


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_full_disk_ends_in_a_sentence_and_leaves_the_steps_before(asked_before, tmp_path, gradtool_program):
    """A limit on the size of files stands for the disk; the second time, HDF5 finds it full in the middle of a step."""
    if not asked_before and int(h5py.version.hdf5_version.split(".")[0]) < 2:
        pytest.skip(f"HDF5 {h5py.version.hdf5_version} cannot close a file after a write that failed in the middle of a flush")
    path = tmp_path / "run.h5"
    program = f"""
import os, resource, time, torch, gradtool
if {asked_before}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
model = torch.nn.Linear(40, 30)
try:
    with gradtool.Capture(model, {str(path)!r}) as capture:
        for step in range(100):
            while step == 20 and capture.written < 20:
                time.sleep(0.01)
            if step == 20 and not {asked_before}:
                os.dup2(os.open("/dev/full", os.O_RDWR), capture._file._file.id.get_vfd_handle())
            model(torch.ones(2, 40)).sum().backward()
            capture.step()
except gradtool.Error as error:
    print(error, capture.written, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sentence, written = done.stdout.strip().splitlines()[0], int(done.stdout.split()[-1])
    assert str(path) in sentence and ("bytes for what is to be written" if asked_before else "could not be written") in sentence
    assert path.stat().st_size <= 300000
    with gradtool.open(path) as run:
        assert len(run.steps) == written > 10 and not run.complete and np.isfinite(run["weight"].gradient[:]).all()
    assert subprocess.run([gradtool_program, "validate", path], capture_output=True).returncode == 0


def test_a_disk_without_room_for_a_step_leaves_no_file(tmp_path, monkeypatch):
    model = small_model()
    monkeypatch.setattr("os.statvfs", lambda _: types.SimpleNamespace(f_blocks=10, f_bavail=1, f_frsize=4096))
    with pytest.raises(gradtool.Error, match=r"run.h5: needs \d+ bytes .* only 4096 are free"):
        gradtool.Capture(model, tmp_path / "run.h5")
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_in_the_constructor_leaves_no_file(tmp_path):
    with pytest.raises(gradtool.UsageError, match="seed is"):
        gradtool.Capture(small_model(), tmp_path / "run.h5", seed=2 ** 70)
    assert not list(tmp_path.iterdir())


def test_parameters_without_elements_are_left_out(tmp_path):
    model = small_model()
    model.nothing = nn.Parameter(torch.zeros(0, 4))
    with pytest.warns(UserWarning, match="not captured, because they have no elements: nothing"):
        capture = gradtool.Capture(model, tmp_path / "run.h5")
    with capture:
        model(torch.ones(2, 1, 8, 8)).sum().backward()
        capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert "nothing" not in run.tensors and len(run.tensors) == 6


def test_an_exception_leaves_an_interrupted_file_and_none_without_a_step(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ZeroDivisionError):
        with gradtool.Capture(model, tmp_path / "run.h5") as capture:
            train(model, batches(2), capture, optimizer)
            1 / 0
    with gradtool.open(tmp_path / "run.h5") as run:
        assert not run.complete and run.attributes["interrupted"] == 1 and len(run.steps) == 2
    with pytest.warns(UserWarning, match="empty.h5 was not written.*called 2 times.*first=100"):
        with gradtool.Capture(model, tmp_path / "empty.h5", first=100) as capture:
            train(model, batches(2), capture, optimizer)
    assert not (tmp_path / "empty.h5").exists() and not model._forward_pre_hooks


def test_an_old_file_stays_until_there_is_a_step(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for steps in (1, 0, 2):
        options = {"iterations": range(steps)} if steps else {"first": 100}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with gradtool.Capture(model, tmp_path / "run.h5", replace=True, **options) as capture:
                train(model, batches(2), capture, optimizer)
        with gradtool.open(tmp_path / "run.h5") as run:
            assert len(run.steps) == (steps or 1)
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_only_optimizers_with_adams_second_moment_give_it(tmp_path):
    model = small_model()

    class Lion(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99)})

        def step(self):
            for p in self.param_groups[0]["params"]:
                self.state[p]["exp_avg"] = p.grad.clone()
    with pytest.raises(gradtool.UsageError, match="exp_avg_sq.*SGD does not"):
        gradtool.Capture(model, tmp_path / "run.h5", optimizer=torch.optim.SGD(model.parameters(), 0.1), second_moment="adam")
    optimizer = Lion(model.parameters())
    with pytest.raises(gradtool.UsageError, match="Lion keeps exp_avg"):
        with gradtool.Capture(model, tmp_path / "run.h5", optimizer=optimizer, second_moment="adam") as capture:
            train(model, batches(2), capture, optimizer)


def test_a_round_that_did_not_start_is_refused(tmp_path):
    with gradtool.Capture(small_model(), tmp_path / "run.h5", quantity="pseudo_gradient") as capture:
        capture.step()
        with pytest.raises(gradtool.UsageError, match=r"iteration 1: step\(\) came without start\(\)"):
            capture.step()
        capture.start()
        capture.step()
    assert capture.written == 2


def test_a_validation_is_no_part_of_an_iteration(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("gradtool._capture.time.perf_counter", lambda: now[0])
    model = small_model()
    model.register_forward_hook(lambda *_: now.__setitem__(0, now[0] + 1.0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        with torch.no_grad():
            for inputs, _ in batches(20):
                model(inputs)
        train(model, batches(1), capture, optimizer)
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["compute_seconds"][0, 0] == 1.0


@pytest.mark.parametrize("end, complete", [("", True), ("raise RuntimeError('the training broke')", False)])
def test_a_capture_that_nobody_closes_ends_with_the_program(end, complete, tmp_path):
    program = f"""
import torch, gradtool
model = torch.nn.Linear(3, 1)
capture = gradtool.Capture(model, {str(tmp_path / "run.h5")!r})
for _ in range(5):
    model(torch.ones(2, 3)).sum().backward()
    capture.step()
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode == 0) == complete, done.stderr
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.complete == complete and len(run.steps) == 5


@pytest.mark.parametrize("options, sentence", [
    ({"every": 0}, "every"), ({"every": 2.5}, "every is 2.5"), ({"batch_size": 3.5}, "batch_size is 3.5"),
    ({"iterations": []}, "iterations is empty"), ({"merge": "maybe"}, "merge"), ({"quantity": "loss"}, "quantity"),
    ({"second_moment": "adam"}, "optimizer"), ({"second_moment": "micro_batches"}, "micro_batches"),
    ({"second_moment": "micro_batches", "micro_batches": 2, "micro_batches_as_workers": True}, "each worker has one micro-batch"),
    ({"scaler": object()}, "optimizer"), ({"inner_steps": 5}, "pseudo_gradient"),
    ({"quantity": "pseudo_gradient", "inner_steps": 0}, "inner_steps is 0"), ({"comm_hook": (None, print)}, "Distributed")])
def test_wrong_options_are_refused_and_leave_nothing(options, sentence, tmp_path):
    with pytest.raises(gradtool.UsageError, match=sentence):
        gradtool.Capture(small_model(), tmp_path / "run.h5", **options)
    assert not list(tmp_path.iterdir())


def test_misuse_is_refused_with_a_sentence(tmp_path):
    model = small_model()
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        with pytest.raises(gradtool.UsageError, match="after backward"):
            capture.step()
        with pytest.raises(gradtool.UsageError, match="micro_batches is 1"):
            capture.micro_batch()
        with pytest.raises(gradtool.UsageError, match="exists"):
            gradtool.Capture(model, tmp_path / "run.h5")
    with pytest.raises(gradtool.UsageError, match="had ended"):
        capture.step()
    with pytest.raises(gradtool.UsageError, match="generator; valid is a torch.nn.Module"):
        gradtool.Capture(model.parameters(), tmp_path / "none.h5")
    with pytest.raises(gradtool.UsageError, match="no parameter"):
        gradtool.Capture(nn.ReLU(), tmp_path / "none.h5")
    embedding = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(gradtool.UsageError, match="sparse"):
        with gradtool.Capture(embedding, tmp_path / "sparse.h5") as capture:
            embedding(torch.tensor([1])).sum().backward()
            capture.step()
