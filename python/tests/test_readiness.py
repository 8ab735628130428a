"""When gradients are ready: by a clock that the test moves, so that every share is known beforehand."""

import copy
import pickle
import subprocess

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
nn = torch.nn
_readiness = __import__("gradtool._readiness", fromlist=["_readiness"])


class Clock:
    """Stands still unless it is moved."""

    def __init__(self):
        self.now = 100.0

    def mark(self):
        return self.now

    @staticmethod
    def seconds(begin, end):
        return end - begin


class Work(torch.autograd.Function):
    """Takes `forward` seconds on the clock in the forward pass, and `backward` in the backward pass."""

    @staticmethod
    def forward(ctx, x, clock, forward, backward):
        ctx.clock, ctx.backward_seconds = clock, backward
        clock.now += forward
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.backward_seconds
        return grad, None, None, None


class Timed(nn.Module):
    """Three layers of which each takes 1 s forward; backward the last takes 1 s, the middle one 2 s and the first 5 s. The bias of the
    first layer is used behind the last layer, too."""

    def __init__(self, clock):
        super().__init__()
        torch.manual_seed(0)
        self.clock = clock
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=i == 0) for i in range(3))

    def forward(self, x):
        for layer, backward in zip(self.layers, (5.0, 2.0, 1.0)):
            # The parameters' gradients come behind the work of the layer, as its matrix products take the time.
            x = Work.apply(layer(x), self.clock, 1.0, backward)
        return x + self.layers[0].bias


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_readiness, "clock_of", lambda parameters: clock)
    return clock


# Names are layers.0.weight, layers.0.bias, layers.1.weight, layers.2.weight: ready after 8, 8, 3 and 1 of 8 s. The bias is ready with
# its last use, not with its first, in which nothing has passed yet.
SHARES = [1.0, 1.0, 3 / 8, 1 / 8]


def test_shares_are_those_of_the_clock(tmp_path, clock, gradtool_program):
    model = Timed(clock)
    with gradtool.Capture(model, tmp_path / "run.h5", every=2) as capture:
        for _ in range(5):
            model(torch.randn(2, 4)).sum().backward()
            capture.step()
            model.zero_grad()
            clock.now += 1000.0  # optimizer, loading of data
    with gradtool.open(tmp_path / "run.h5") as run:
        assert [tensor.name for tensor in run] == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.2.weight"]
        np.testing.assert_allclose(run.readiness["ready"], [SHARES], rtol=1e-6)
        np.testing.assert_allclose(run.readiness["backward_share"], [8 / 11])
    assert subprocess.run([gradtool_program, "validate", "--strict", tmp_path / "run.h5"]).returncode == 0


@pytest.mark.parametrize("workers", [False, True])
def test_of_micro_batches_the_last_one_counts_or_each_is_a_worker(tmp_path, clock, workers):
    model = Timed(clock)
    with gradtool.Capture(model, tmp_path / "run.h5", micro_batches=3, micro_batches_as_workers=workers) as capture:
        for micro_batch in range(3):
            model(torch.randn(2, 4)).sum().backward()
            if micro_batch < 2:
                capture.micro_batch()
        capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        np.testing.assert_allclose(run.readiness["ready"], [SHARES] * (3 if workers else 1), rtol=1e-6)
        # 33 s in all, of which the last 8 are the pass.
        np.testing.assert_allclose(run.readiness["backward_share"], [8 / 11] * 3 if workers else [8 / 33])


def test_an_unused_parameter_is_not_known_and_others_are(tmp_path, clock):
    model = Timed(clock)
    model.spare = nn.Parameter(torch.zeros(2))
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        model(torch.randn(2, 4)).sum().backward()
        capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        ready = dict(zip(run.tensors, run.readiness["ready"][0]))
    assert np.isnan(ready.pop("spare"))
    np.testing.assert_allclose(list(ready.values()), SHARES, rtol=1e-6)


def test_what_the_capture_does_itself_is_taken_out():
    clock = Clock()
    readiness = _readiness.Readiness([nn.Parameter(torch.zeros(1)) for _ in range(2)], clock)
    readiness.forward_begins(watch=False)
    clock.now += 4
    readiness.forward_ended()
    for tensor in (1, 0):
        clock.now += 6
        readiness.note(tensor, began := clock.mark())
        clock.now += 100  # the bucket is copied
        readiness.pause(began)
    readiness.end(0)
    ready, share = readiness.medians(1)
    assert ready.tolist() == [[1.0, 0.5]] and share.tolist() == [12 / 16]


def test_a_pseudo_gradient_has_none_and_merging_keeps_what_is_known(tmp_path, clock, gradtool_program):
    model = Timed(clock)
    with gradtool.Capture(model, tmp_path / "delta.h5", quantity="pseudo_gradient") as capture:
        with torch.no_grad():
            model.layers[0].weight += 1
        capture.step()
    with gradtool.open(tmp_path / "delta.h5") as run:
        assert run.readiness is None
    for rank in range(2):
        with gradtool.Capture(model, tmp_path / f"r{rank}.h5") as capture:
            model(torch.randn(2, 4)).sum().backward()
            capture.step()
    with h5py.File(tmp_path / "r1.h5", "r+") as file:  # as an older file has it
        del file["readiness"]
    gradtool.merge([tmp_path / "r0.h5", tmp_path / "r1.h5"], tmp_path / "python.h5")
    merge = [gradtool_program, "merge", tmp_path / "r0.h5", tmp_path / "r1.h5", "-o"]
    subprocess.run([*merge, tmp_path / "view.h5"], check=True)
    subprocess.run([*merge, tmp_path / "copy.h5", "--copy"], check=True)
    for name in ("python", "view", "copy"):
        with gradtool.open(tmp_path / f"{name}.h5") as run:
            np.testing.assert_allclose(run.readiness["ready"], [SHARES, [np.nan] * 4], rtol=1e-6)
            np.testing.assert_allclose(run.readiness["backward_share"], [8 / 11, np.nan])
        assert subprocess.run([gradtool_program, "validate", "--strict", tmp_path / f"{name}.h5"]).returncode == 0


def test_a_model_takes_no_capture_along(tmp_path, clock):
    model = Timed(clock)
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(torch.ones(1, 4)), model(torch.ones(1, 4)))
        model.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        capture.step()


def test_steps_that_are_not_captured_have_no_hooks(tmp_path, clock):
    model = Timed(clock)
    with gradtool.Capture(model, tmp_path / "run.h5", first=1) as capture:
        for running in (False, True):
            loss = model(torch.randn(2, 4)).sum()
            assert capture.readiness.running is running
            loss.backward()
            capture.step()
            assert not capture.readiness.running


class Mlp(nn.Module):
    """The model of `gradtool capture --model mlp`, for images of CIFAR-10."""

    def __init__(self, widths):
        super().__init__()
        for i, (before, after) in enumerate(zip(widths, widths[1:]), 1):
            self.add_module(f"fc{i}", nn.Linear(before, after))

    def forward(self, x):
        x = x.flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def test_the_program_and_the_package_agree_in_order(tmp_path, gradtool_program):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 1 + 3072), dtype=np.uint8)
    pixels[:, 0] %= 10
    pixels.tofile(tmp_path / "data_batch_1.bin")
    done = subprocess.run([gradtool_program, "capture", "--model", "mlp", "--dataset", "cifar10", "--data-dir", tmp_path, "--batch-size", "16",
                           "--threads", "1", "--steps", "3", "--out", tmp_path / "program.h5"], capture_output=True, text=True)
    if "LibTorch" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    with gradtool.open(tmp_path / "program.h5") as run:
        model = Mlp([3072] + [tensor.shape[0] for tensor in run if tensor.name.endswith("bias")])
    with gradtool.Capture(model, tmp_path / "package.h5") as capture:
        for _ in range(3):
            model(torch.randn(16, 3072)).logsumexp(1).sum().backward()
            capture.step()
            model.zero_grad()
    orders = []
    for name in ("program", "package"):
        with gradtool.open(tmp_path / f"{name}.h5") as run:
            shares = {}
            for tensor, share in zip(run.tensors, run.readiness["ready"][0]):  # a layer's two tensors may be in either order
                shares.setdefault(tensor.split(".")[0], []).append(share)
            orders.append(sorted(shares, key=lambda layer: max(shares[layer])))
            assert all(min(shares[b]) >= max(shares[a]) for a, b in zip(orders[-1], orders[-1][1:])), shares
    assert orders == [["fc3", "fc2", "fc1"]] * 2


class Gpu:
    """A stream of work that runs behind the host: the host's clock advances by what launching takes, the GPU's by what the work takes."""

    def __init__(self):
        self.host = self.done = 0.0

    def launch(self, seconds):
        self.host += 0.001
        self.done = max(self.done, self.host) + seconds

    def events(self):
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                self.at = max(gpu.done, gpu.host)

            def query(self):
                return gpu.host >= self.at

            def elapsed_time(self, end):
                assert self.query() and end.query(), "the GPU is not there yet"
                return 1e3 * (end.at - self.at)

            def synchronize(self):
                gpu.host = max(gpu.host, self.at)
        return Event


class Launched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gpu, seconds):
        ctx.gpu, ctx.seconds = gpu, seconds
        gpu.launch(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.gpu.launch(2 * ctx.seconds)
        return grad, None, None


class OnGpu(nn.Linear):
    def forward(self, x, gpu, seconds):
        return super().forward(Launched.apply(x, gpu, seconds))


def test_a_gpu_is_timed_by_events_on_iterations_that_are_not_captured(tmp_path, monkeypatch):
    gpu, waits = Gpu(), []
    monkeypatch.setattr(torch.cuda, "Event", gpu.events())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(_readiness, "clock_of", lambda parameters: _readiness.CudaClock("cuda:0"))
    model = OnGpu(4, 4)
    with gradtool.Capture(model, tmp_path / "run.h5", iterations=[0, 6, 7, 12]) as capture:
        for step in range(13):
            before = gpu.host
            model(torch.randn(2, 4, requires_grad=True), gpu, 0.1 if step < 7 else 0.2).sum().backward()
            if step not in (0, 6, 7, 12):
                capture.step()
                waits.append(gpu.host - before)
                gpu.launch(5.0)  # the update, of which the next iteration waits for the end
                gpu.host = max(gpu.host, gpu.done)
            else:
                capture.step()
            model.zero_grad()
    assert max(waits) < 0.01, "an iteration that is not captured waited for the GPU"
    with gradtool.open(tmp_path / "run.h5") as run:
        seconds = run.steps["compute_seconds"][:, 0]
    # Before the first is none; 6 and 7 know those of 1 to 5; 12 knows those of 8 to 11. Three parts of work, less the launches hidden behind it.
    assert np.isnan(seconds[0])
    np.testing.assert_allclose(seconds[1:], [0.301, 0.301, 0.601], atol=0.002)
