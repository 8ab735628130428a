"""Four processes and gloo: captures under DDP and FSDP2, merging, and the hook that compresses."""

import contextlib
import os
import shutil
import subprocess
import time
import warnings

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from fsdp2 import needs_fsdp2  # noqa: E402  pylint: disable=wrong-import-position
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn
RANKS = 4


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 10))


def batch(rank, step, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
    return torch.randn(8, 32, generator=generator), torch.randint(0, 10, (8,), generator=generator)


def loss_of(model, rank, step):
    inputs, targets = batch(rank, step)
    return nn.functional.cross_entropy(model(inputs), targets)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().copy()


def own_gradient(weights, rank, step):
    """Returns one rank's gradient at these weights, computed without anything parallel."""
    model = make_model()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
    loss_of(model, rank, step).backward()
    return flat(p.grad for p in model.parameters())


def capture_ddp(rank, size, path, options, steps):
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = []
    with gradtool.Capture(model, path, optimizer=optimizer, every=2, **options) as capture:
        for step in range(steps):
            weights.append(flat(model.parameters()))
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            loss.backward()
            capture.step(loss)
            optimizer.step()
        exists = capture.written
    return weights, flat(model.parameters())


def check_file(path, weights, steps, gradtool_program):
    with gradtool.open(path) as run:
        assert run.workers == RANKS and run.complete and run.steps["iteration"].tolist() == list(range(0, steps, 2))
        assert "rank" not in run.attributes and run.attributes["created"].endswith("Z")
        assert run.attributes["library"] == "gloo"
        for row, step in enumerate(range(0, steps, 2)):
            for rank in range(RANKS):
                got = np.concatenate([t.gradient[row, rank].reshape(-1) for t in run])
                np.testing.assert_allclose(got, own_gradient(weights[step], rank, step), rtol=1e-5, atol=1e-7)
    done = subprocess.run([gradtool_program, "validate", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("merge", ["copy", "link"])
def test_ddp_shows_each_ranks_own_gradient(merge, tmp_path, gradtool_program):
    results = run_ranks(RANKS, capture_ddp, str(tmp_path / "run.h5"), {"merge": merge}, 6)
    check_file(tmp_path / "run.h5", results[0][0], 6, gradtool_program)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == (["run.h5"] if merge == "copy" else ["run.h5"] + [f"run.rank{r}.h5" for r in range(RANKS)])


def test_the_ranks_files_merge_by_hand(tmp_path, gradtool_program):
    results = run_ranks(RANKS, capture_ddp, str(tmp_path / "run.h5"), {"merge": "no"}, 4)
    files = [tmp_path / f"run.rank{r}.h5" for r in (2, 0, 3, 1)]  # they know their order
    gradtool.merge(files, tmp_path / "copied.h5")
    gradtool.merge(files, tmp_path / "linked.h5", copy=False)
    for name in ("copied.h5", "linked.h5"):
        check_file(tmp_path / name, results[0][0], 4, gradtool_program)
    with pytest.raises(gradtool.UsageError, match="exists"):
        gradtool.merge(files, tmp_path / "copied.h5")
    shutil.copy(files[0], tmp_path / "again.h5")
    with pytest.raises(gradtool.DataError, match="same rank"):
        gradtool.merge([files[0], tmp_path / "again.h5"], tmp_path / "twice.h5")
    with pytest.raises(gradtool.DataError, match="merged file"):
        gradtool.merge([tmp_path / "linked.h5", files[0]], tmp_path / "twice.h5")
    assert not (tmp_path / "twice.h5").exists()


def test_a_capture_does_not_change_the_training(tmp_path):
    with_capture = run_ranks(2, capture_ddp, str(tmp_path / "run.h5"), {}, 4)
    without = run_ranks(2, train_plainly, 4)
    for rank in range(2):
        np.testing.assert_array_equal(with_capture[rank][1], without[rank])


def train_plainly(rank, size, steps, spec=None, options=None):
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
    hook = None
    if spec is not None:
        hook = gradtool.ddp_hook(spec, **(options or {})).register(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return flat(model.parameters()) if hook is None else (flat(model.parameters()), hook.bytes_sent, hook.payload_bytes)


def refuse_if_there(rank, size, path):
    model = nn.parallel.DistributedDataParallel(make_model())
    try:
        gradtool.Capture(model, path)
    except gradtool.Error as error:
        return str(error)
    return None


def test_a_file_in_the_way_of_one_rank_stops_all(tmp_path):
    (tmp_path / "run.rank2.h5").write_text("mine")
    words = run_ranks(3, refuse_if_there, str(tmp_path / "run.h5"))
    assert all(word is not None and "run.rank2.h5 exists" in word for word in words)
    assert [p.name for p in tmp_path.iterdir()] == ["run.rank2.h5"]


def capture_with_a_full_disk_on_one(rank, size, path):
    model = nn.parallel.DistributedDataParallel(make_model())
    capture = gradtool.Capture(model, path)

    def refuse(step):
        raise gradtool.Error("the disk is full")
    for step in range(2):
        if step == rank == 1:
            while capture.written == 0:
                time.sleep(0.01)
            capture._file.write = refuse
        loss_of(model, rank, step).backward()
        capture.step()
    with pytest.raises(gradtool.Error, match="the disk is full" if rank == 1 else "another rank could not write its own: the disk is full"):
        capture.close()


def test_a_rank_that_could_not_write_its_last_step_does_not_leave_the_others_waiting(tmp_path):
    run_ranks(2, capture_with_a_full_disk_on_one, str(tmp_path / "run.h5"))
    for rank in range(2):
        with gradtool.open(tmp_path / f"run.rank{rank}.h5") as run:
            assert len(run.steps) == 2 - rank and run.complete == (rank == 0)


def backward_in_bfloat16(model, rank):
    inputs, targets = batch(rank, 0)
    nn.functional.cross_entropy(model(inputs.bfloat16()).float(), targets).backward()
    return flat(p.grad.float() for p in model.parameters())


def capture_bfloat16(rank, size, path):
    """Captures a model in bfloat16 that gloo averages; returns the averages, and the rank's gradient without anything parallel."""
    model = nn.parallel.DistributedDataParallel(make_model().bfloat16())
    with gradtool.Capture(model, path) as capture:
        averaged = backward_in_bfloat16(model, rank)
        capture.step()
    return averaged, backward_in_bfloat16(make_model().bfloat16(), rank)


@pytest.mark.skipif(torch.__version__ < "2", reason=f"gloo of torch {torch.__version__} averages no bfloat16")
def test_bfloat16_under_ddp_is_captured_as_it_is(tmp_path):
    results = run_ranks(2, capture_bfloat16, str(tmp_path / "run.h5"))
    with gradtool.open(tmp_path / "run.h5") as run:
        for rank, (averaged, own) in enumerate(results):
            got = np.concatenate([np.asarray(t.gradient[0, rank], "f4").reshape(-1) for t in run])
            np.testing.assert_allclose(got, own, rtol=2 ** -7, atol=1e-6)
            np.testing.assert_allclose(averaged, (results[0][1] + results[1][1]) / 2, rtol=2 ** -5, atol=1e-4)


def capture_buckets(rank, size, path):
    torch.manual_seed(0)
    layers = [nn.Linear(600, 600, bias=False) for _ in range(3)]  # of 1.44 MB, each a bucket of its own
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    with gradtool.Capture(model, path) as capture:
        for _ in range(3):
            model(torch.randn(2, 600)).sum().backward()
            capture.step()


def test_buckets_of_ddp_are_ready_from_the_last_to_the_first(tmp_path):
    run_ranks(2, capture_buckets, str(tmp_path / "run.h5"))
    with gradtool.open(tmp_path / "run.h5") as run:
        ready, share = run.readiness["ready"], run.readiness["backward_share"]
    assert ready.shape == (2, 3) and (ready[:, 0] == 1).all() and (np.diff(ready) < 0).all() and (ready >= 0).all(), ready
    assert share.shape == (2,) and (0 < share).all() and (share < 1).all(), share


def accumulate_under_ddp(rank, size, path):
    model = nn.parallel.DistributedDataParallel(make_model())
    with gradtool.Capture(model, path, micro_batches=3, second_moment="micro_batches") as capture:
        for micro in range(3):
            if micro < 2:
                with model.no_sync():
                    (loss_of(model, rank, micro) / 3).backward()
                capture.micro_batch()
            else:
                (loss_of(model, rank, micro) / 3).backward()
        capture.step()


def test_gradient_accumulation_under_ddp(tmp_path):
    run_ranks(2, accumulate_under_ddp, str(tmp_path / "run.h5"))
    weights = flat(make_model().parameters())
    with gradtool.open(tmp_path / "run.h5") as run:
        for rank in range(2):
            parts = [own_gradient(weights, rank, micro) / 3 for micro in range(3)]
            gradient = np.concatenate([t.gradient[0, rank].reshape(-1) for t in run])
            moment = np.concatenate([t.second_moment[0, rank].reshape(-1) for t in run])
            np.testing.assert_allclose(gradient, sum(parts), rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(moment, sum(part ** 2 for part in parts), rtol=1e-3, atol=1e-10)


def accumulate_without_no_sync(rank, size, path):
    model = nn.parallel.DistributedDataParallel(make_model())
    # DDP of torch 1.13 makes a RuntimeError of what its hook raises.
    with pytest.raises((gradtool.UsageError, RuntimeError), match=r"iteration 1: .* reduced twice .*no_sync"):
        with gradtool.Capture(model, path, first=1, merge="no") as capture:
            for step in range(2):
                for micro in range(3):
                    (loss_of(model, rank, micro) / 3).backward()
                assert step == 0, "this one is captured"
                capture.step()


def test_accumulation_that_synchronises_each_time_is_refused(tmp_path):
    run_ranks(2, accumulate_without_no_sync, str(tmp_path / "run.h5"))


def capture_compiled(rank, size, folder):
    """Whether a compiled DDP model is seen through, and whether a warning says that an inner model is not."""
    for name in ("compiled", "inner"):
        model = nn.parallel.DistributedDataParallel(make_model())
        trained = torch.compile(model, backend="eager") if name == "compiled" else model
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with gradtool.Capture(trained if name == "compiled" else model.module, os.path.join(folder, name + ".h5")) as capture:
                for step in range(2):
                    model.zero_grad()
                    loss_of(trained, rank, step).backward()
                    capture.step()
        said = [str(w.message) for w in caught if "averaged before step()" in str(w.message)]
        assert len(said) == (name == "inner"), said


@pytest.mark.skipif(not hasattr(torch, "compile") or not hasattr(torch, "compiler"), reason="this torch cannot compile")
def test_a_compiled_model_is_captured_before_averaging(tmp_path):
    run_ranks(2, capture_compiled, str(tmp_path))
    weights = flat(make_model().parameters())
    with gradtool.open(tmp_path / "compiled.h5") as run:
        for rank in range(2):
            got = np.concatenate([t.gradient[0, rank].reshape(-1) for t in run])
            np.testing.assert_allclose(got, own_gradient(weights, rank, 0), rtol=1e-4, atol=1e-7)


def capture_with_own_hook(rank, size, path):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model = nn.parallel.DistributedDataParallel(make_model())
    with gradtool.Capture(model, path, comm_hook=(None, fp16_compress_hook)) as capture:
        loss_of(model, rank, 0).backward()
        capture.step()
    averaged = flat(p.grad for p in model.parameters())
    model.zero_grad()
    with gradtool.Capture(model, path + ".again.h5") as capture:  # the user's hook stays
        with pytest.raises(gradtool.UsageError, match="captured already, to .*again"):
            gradtool.Capture(model, path + ".third.h5")
        loss_of(model, rank, 0).backward()
        capture.step()
    np.testing.assert_array_equal(flat(p.grad for p in model.parameters()), averaged)
    other = nn.parallel.DistributedDataParallel(make_model())
    other.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(gradtool.UsageError, match="comm_hook"):
        gradtool.Capture(other, path, replace=True)
    return averaged


def test_ones_own_hook_still_runs(tmp_path):
    averaged = run_ranks(2, capture_with_own_hook, str(tmp_path / "run.h5"))
    weights = flat(make_model().parameters())
    mean = (own_gradient(weights, 0, 0) + own_gradient(weights, 1, 0)) / 2
    assert np.any(averaged[0] != mean)  # it was rounded to float16
    np.testing.assert_allclose(averaged[0], mean, rtol=2e-3, atol=1e-5)
    with gradtool.open(tmp_path / "run.h5") as first, gradtool.open(tmp_path / "run.h5.again.h5") as second:
        for tensor in first:
            np.testing.assert_array_equal(second[tensor.name].gradient[:], tensor.gradient[:])
    for path in ("run.h5", "run.h5.again.h5"):
        with h5py.File(tmp_path / path) as file:
            assert file.attrs["reduce_dtype"] == "float16"


def compress_after_a_capture(rank, size, path):
    """Halves what is averaged, after a capture of the same model and during another one."""
    from gradtool._ddp import take_over
    model = nn.parallel.DistributedDataParallel(make_model())
    calls = []

    def halve(state, bucket):
        calls.append(state)
        return torch.distributed.all_reduce(bucket.buffer().div_(2 * size), async_op=True).get_future().then(lambda f: f.value()[0])
    assert not take_over(model, "mine", halve)
    with gradtool.Capture(model, path + ".first.h5") as capture:
        loss_of(model, rank, 0).backward()
        capture.step()
    averaged = flat(p.grad for p in model.parameters())
    assert take_over(model, "mine", halve) and not calls
    for captured in (False, True):
        model.zero_grad()
        with gradtool.Capture(model, path) if captured else contextlib.nullcontext() as capture:
            loss_of(model, rank, 0).backward()
            if captured:
                capture.step()
        np.testing.assert_allclose(flat(p.grad for p in model.parameters()), averaged / 2, rtol=1e-5, atol=1e-8)
    assert set(calls) == {"mine"}


def test_a_captured_model_can_be_compressed_afterwards_and_meanwhile(tmp_path):
    run_ranks(2, compress_after_a_capture, str(tmp_path / "run.h5"))
    weights = flat(make_model().parameters())
    with gradtool.open(tmp_path / "run.h5") as run:
        for rank in range(2):
            got = np.concatenate([t.gradient[0, rank].reshape(-1) for t in run])
            np.testing.assert_allclose(got, own_gradient(weights, rank, 0), rtol=1e-5, atol=1e-7)


# ---- FSDP2 ----


def capture_fsdp(rank, size, path):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (size,))
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = []
    with gradtool.Capture(model, path, optimizer=optimizer, every=2, weight=True) as capture:
        for step in range(4):
            weights.append(flat(p.full_tensor() for p in model.parameters()))
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            capture.step()
            optimizer.step()
    capture.take = None  # what is called after the end would fail
    loss_of(model, rank, 0).backward()
    with pytest.raises(gradtool.UsageError, match="micro_batches' is not for FSDP2"):
        gradtool.Capture(model, path + ".moments.h5", micro_batches=2, second_moment="micro_batches")
    capture = gradtool.Capture(model, path + ".twice.h5")
    loss_of(model, rank, 0).backward()
    with pytest.raises(gradtool.UsageError, match="reduced twice"):
        loss_of(model, rank, 0).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capture.close()
    return weights, None


@needs_fsdp2
def test_fsdp2_shows_each_ranks_own_gradient(tmp_path, gradtool_program):
    results = run_ranks(RANKS, capture_fsdp, str(tmp_path / "run.h5"))
    check_file(tmp_path / "run.h5", results[0][0], 4, gradtool_program)
    with gradtool.open(tmp_path / "run.h5") as run:
        got = np.concatenate([t.weight[1].reshape(-1) for t in run])
        np.testing.assert_array_equal(got, results[0][0][2])


# ---- the hook that compresses ----


@pytest.mark.usefixtures("core")
def test_without_compression_the_hook_trains_as_ddp_does():
    plain = run_ranks(RANKS, train_plainly, 4)
    hooked = run_ranks(RANKS, train_plainly, 4, "none")
    for rank in range(RANKS):
        np.testing.assert_allclose(hooked[rank][0], plain[rank], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("core")
def test_every_rank_ends_with_the_same_weights():
    specs = ["bf16", "topk:ratio=0.1", "qsgd:bits=4", "powersgd:rank=2", "oktopk", "gradiveq", "thc", "signsgd", "iwp"]
    results = run_ranks(RANKS, train_with_each, 5, specs)
    for number, spec in enumerate(specs):
        for rank in range(1, RANKS):
            np.testing.assert_array_equal(results[rank][number][0], results[0][number][0], err_msg=spec)
        assert results[0][number][1] > 0 and results[0][number][2] > 0, spec


def train_with_each(rank, size, steps, specs):
    return [train_plainly(rank, size, steps, spec) for spec in specs]


def reduce_with_each(rank, size, path, ways):
    return [reduce_once(path, rank, *way) for way in ways]


def reduce_once(path, rank, spec, scheme):
    """One bucket that holds the gradients of a capture, averaged step by step through the hook."""
    hook = gradtool.ddp_hook(spec, scheme=scheme, seed=1)
    out, sent = [], []
    with gradtool.open(path) as run:
        parameters = [nn.Parameter(torch.zeros(t.shape)) for t in run]
        before, elements = 0, sum(p.numel() for p in parameters)
        for tensor, p in zip(run, parameters):  # as register() would, from a model
            hook._names[id(p)] = (tensor.name, tensor.kind, tensor.layout, before / elements)
            before += p.numel()
        for step in range(len(run.steps)):
            values = torch.from_numpy(np.concatenate([t.gradient[step, rank].reshape(-1) for t in run]))
            hook._reduce(values, parameters, 0)
            hook.iteration += 1
            out.append(values.numpy().copy())
            sent.append(hook.bytes_sent - sum(sent))
    return out, sent


@pytest.mark.usefixtures("core")
def test_the_hook_averages_what_bench_replays(capture_file, gradtool_program, tmp_path):
    """The hook gives the same values, bit for bit, and the same bytes on the wire as `gradtool bench` with one unit for the model."""
    import csv
    with gradtool.open(capture_file) as run:
        ranks, steps = run.workers, len(run.steps)
    ways = [(spec, "auto") for spec in ("none", "bf16", "topk:ratio=0.05", "qsgd:bits=4", "powersgd:rank=2", "oktopk", "sketch", "qgz:node=2")]
    ways += [("bf16", "alltoall"), ("topk:ratio=0.05", "alltoall")]
    results = run_ranks(ranks, reduce_with_each, str(capture_file), ways)
    for number, (spec, scheme) in enumerate(ways):
        mean_file, rows = tmp_path / f"mean{number}.h5", tmp_path / f"{number}.csv"
        subprocess.run([gradtool_program, "bench", capture_file, "--codec", spec, "--reduce", scheme, "--all-reduce", "auto", "--granularity", "model", "--seed", "1",
                        "--timeout", "0.05", "--reconstruction", mean_file, "--csv", rows], check=True, capture_output=True)
        # Sums of matrix products may be rounded differently by another number of threads.
        tolerance = 1e-5 if spec.startswith("powersgd") else 0.0
        with gradtool.open(mean_file) as mean:
            for step in range(steps):
                wanted = np.concatenate([t.gradient[step, 0].reshape(-1) for t in mean])
                for rank in range(ranks):
                    off = np.abs(results[rank][number][0][step] - wanted).max()
                    assert off <= tolerance * np.abs(wanted).max(), f"{spec}, step {step}, rank {rank}"
        row = next(row for row in csv.DictReader(open(rows)) if row["codec"] == spec.split(":")[0])
        # In each step the rank that sends most counts.
        sent = sum(max(results[rank][number][1][step] for rank in range(ranks)) for step in range(steps)) / steps
        assert float(row["wire_bytes_per_rank"]) == pytest.approx(sent, rel=1e-6), spec


class GivenGradient(nn.Module):
    """A parameter whose gradient is what the model is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(48, 32))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def power_sgd_of_torch(rank, size, steps, spec):
    """Trains once with PyTorch's PowerSGD and once with ours; both see a gradient that has the rank that they keep."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    torch.manual_seed(3)
    left, right = torch.randn(size, 48, 2), torch.randn(size, 2, 32)
    averaged, sent = [], []
    for ours in (False, True):
        model = nn.parallel.DistributedDataParallel(GivenGradient())
        if ours:
            hook = gradtool.ddp_hook(spec).register(model)
        else:
            state = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            model.register_comm_hook(state, powersgd.powerSGD_hook)
        for step in range(steps):
            model.zero_grad()
            gradient = (left[0] @ right[0]) * (1 + 0.1 * rank) + (left[1] @ right[1]) * rank
            model(gradient).backward()
            averaged.append(model.module.weight.grad.numpy().copy())
        sent.append(hook.payload_bytes if ours else 4 * state.total_numel_after_compression / max(1, steps - 2))
    return averaged, sent


@pytest.mark.usefixtures("core")
def test_powersgd_agrees_with_pytorchs():
    """Both hooks give the average when PowerSGD is exact, because the averaged gradient has rank 4; and both send as much."""
    steps = 6
    results = run_ranks(2, power_sgd_of_torch, steps, "powersgd:rank=4")
    averaged, sent = results[0]
    scale = np.abs(averaged[0]).max()
    np.testing.assert_allclose(averaged[0], results[1][0][0], rtol=1e-6)  # they are averages
    for theirs, ours in zip(averaged[:steps], averaged[steps:]):
        assert np.abs(theirs - ours).max() <= 1e-5 * scale
    assert sent[1] == 4 * 4 * (48 + 32) == sent[0]


def overflow_in_the_middle(rank, size, specs):
    """Returns the averages of two hooks in the last step: one of them has seen a step before it in which rank 1 overflowed."""
    results = []
    for spec in specs:
        parameters = [nn.Parameter(torch.zeros(40, 30))]
        last = []
        for overflows in (False, True):
            hook = gradtool.ddp_hook(spec)
            generator = torch.Generator().manual_seed(rank)
            for step in range(4):
                values = torch.randn(1200, generator=generator)
                if step == 2:
                    values[7] = float("nan") if rank == 1 else 0.0
                    if overflows:
                        hook._reduce(values, parameters, 0)
                        assert not torch.isfinite(values).all(), f"{spec}: the scaler of rank {rank} would not see the overflow"
                else:
                    hook._reduce(values, parameters, 0)
                hook.iteration += 1
            last.append((values.numpy().copy(), hook.bytes_sent))
        results.append(last)
    return results


@pytest.mark.usefixtures("core")
def test_a_step_that_overflows_leaves_what_the_hook_keeps_as_it_is():
    specs = ["topk:ratio=0.05,ef=on", "powersgd:rank=2", "efsignsgd", "thc"]
    for rank, results in enumerate(run_ranks(2, overflow_in_the_middle, specs)):
        for spec, ((wanted, sent), (got, sent_too)) in zip(specs, results):
            np.testing.assert_array_equal(got, wanted, err_msg=f"{spec}, rank {rank}")
            assert np.isfinite(got).all() and sent == sent_too


class Scale:
    """The methods of a GradScaler that the hook calls; some versions of torch have it for GPUs alone."""

    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale

    def is_enabled(self):
        return True


def scaled_and_not(rank, size, specs):
    """Returns the averages of a hook over steps, and those of one that sees the same gradients with a scale that changes."""
    results = []
    for spec in specs:
        parameters = [nn.Parameter(torch.zeros(40, 30))]
        averaged = []
        for scales in ([1.0] * 4, [65536.0, 65536.0, 32768.0, 2.0]):
            scaler = Scale(1.0)
            hook = gradtool.ddp_hook(spec, scaler=scaler)
            generator = torch.Generator().manual_seed(rank)
            steps = []
            for scaler.scale in scales:
                values = torch.randn(1200, generator=generator) * scaler.scale
                hook._reduce(values, parameters, 0)
                hook.iteration += 1
                steps.append(values.numpy() / scaler.scale)
            averaged.append(steps)
        results.append(averaged)
    return results


@pytest.mark.usefixtures("core")
def test_a_scale_that_changes_changes_nothing_that_the_hook_keeps():
    specs = ["topk:ratio=0.05,ef=on", "powersgd:rank=2", "efsignsgd", "strom:tau=0.5"]
    for rank, results in enumerate(run_ranks(2, scaled_and_not, specs)):
        for spec, (wanted, got) in zip(specs, results):
            np.testing.assert_array_equal(got, wanted, err_msg=f"{spec}, rank {rank}")


@pytest.mark.usefixtures("core")
def test_wrong_hooks_are_refused():
    with pytest.raises(gradtool.UsageError, match="process group"):
        gradtool.ddp_hook("topk")
    words = run_ranks(2, refuse_codecs)
    assert "second moments" in words[0][0] and "topk" in words[0][1]


def refuse_codecs(rank, size):
    words = []
    for spec in ("vgc", "topq"):
        try:
            gradtool.ddp_hook(spec)
            words.append("taken")
        except gradtool.Error as error:
            words.append(str(error))
    return words
