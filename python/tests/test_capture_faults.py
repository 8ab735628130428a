"""Tests that a capture refuses whatever it would get wrong, or warns of it, in a sentence that names it."""

import copy
import gc
import io
import pickle
import re
import types
import warnings
import weakref

import h5py
import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from gradtool import _ddp, _fsdp, _ranks  # noqa: E402  pylint: disable=wrong-import-position
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))


def backward(model, rank=0):
    model(torch.ones(2, 6) + rank).square().sum().backward()


def warnings_of(function, *arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*arguments)
    return [str(w.message) for w in caught]


# ---- which parameters ----


def unfreeze(model):
    model[1].bias.requires_grad_(True)


def replace(model):
    model[1] = nn.Linear(5, 4)


def add(model):
    model.extra = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("change, names", [(unfreeze, "1.bias"), (replace, "1.weight, 1.bias"), (add, "extra")])
def test_what_is_trained_after_the_capture_was_made_is_refused(change, names, tmp_path):
    model = two_layers()
    model[1].bias.requires_grad_(False)
    with pytest.raises(gradtool.UsageError, match=f"iteration 2: the file would lack {names}, unfrozen, replaced or added"):
        with gradtool.Capture(model, tmp_path / "run.h5", every=2) as capture:
            for step in range(3):
                if step == 1:
                    change(model)
                backward(model)
                capture.step()
                model.zero_grad()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["iteration"].tolist() == [0]


def test_what_is_not_trained_any_more_is_named_once(tmp_path):
    model = two_layers()

    def train():
        with gradtool.Capture(model, tmp_path / "run.h5") as capture:
            for step in range(3):
                if step == 1:
                    model[0].bias.requires_grad_(False)
                model.zero_grad(set_to_none=True)
                backward(model)
                capture.step()
    said = warnings_of(train)
    assert len(said) == 1 and "iteration 1: the file has zeros where there is no gradient for 0.bias, frozen" in said[0]
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run["0.bias"].gradient[0].any() and not run["0.bias"].gradient[1:].any()


def test_parameters_without_a_shape_are_refused(tmp_path):
    with pytest.raises(gradtool.UsageError, match="0.weight has no shape"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradtool.Capture(nn.Sequential(nn.LazyLinear(3)), tmp_path / "lazy.h5")


# ---- which values ----


def test_gradients_that_are_zero_everywhere_are_warned_of_once(tmp_path):
    model = two_layers()

    def train():
        with gradtool.Capture(model, tmp_path / "run.h5") as capture:
            for step in range(3):
                backward(model)
                if step > 0:
                    for p in model.parameters():
                        p.grad.zero_()
                capture.step()
    said = warnings_of(train)
    assert len(said) == 1 and "iteration 1: all gradients are zero; was zero_grad(set_to_none=False) called before step()?" in said[0]


def test_a_micro_batch_whose_gradients_are_zero_is_named(tmp_path):
    model = two_layers()

    def train():
        with gradtool.Capture(model, tmp_path / "run.h5", micro_batches=2, micro_batches_as_workers=True) as capture:
            backward(model)
            capture.micro_batch()
            (0 * model(torch.ones(2, 6))).sum().backward()
            capture.step()
    assert [word for word in warnings_of(train) if "all gradients of micro-batch 1 are zero" in word]


@pytest.mark.parametrize("options", [{"micro_batches_as_workers": True}, {"second_moment": "micro_batches"}])
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("when", ["between micro-batches", "before step()"])
def test_gradients_that_are_cleared_within_a_step_are_refused(options, set_to_none, when, tmp_path):
    """The difference to what had accumulated would be of another micro-batch, or the sum of all with another sign."""
    model = two_layers()
    with pytest.raises(gradtool.UsageError, match="iteration 1: (gradients were cleared|no parameter has a gradient)"):
        with gradtool.Capture(model, tmp_path / "run.h5", micro_batches=3, **options) as capture:
            for step in range(2):
                for number in range(3):
                    if step == 1 and number == 2 and when == "between micro-batches":
                        model.zero_grad(set_to_none=set_to_none)
                    backward(model)
                    if number < 2:
                        capture.micro_batch()
                if step == 1 and when == "before step()":
                    model.zero_grad(set_to_none=set_to_none)
                capture.step()
                model.zero_grad()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.steps["iteration"].tolist() == [0]


def test_channels_last_is_stored_in_the_order_of_the_axes(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    with gradtool.Capture(model, tmp_path / "run.h5", weight=True, optimizer=optimizer, second_moment="adam") as capture:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 5, 5)).square().sum().backward()
            weight = model.weight.detach().numpy().copy()
            squares = {p: state["exp_avg_sq"].numpy() / (1 - 0.999) for p, state in optimizer.state.items()}
            capture.step()
            optimizer.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        assert not model.weight.is_contiguous()
        np.testing.assert_array_equal(run["weight"].gradient[1, 0], model.weight.grad.numpy())
        np.testing.assert_array_equal(run["weight"].weight[1], weight)
        np.testing.assert_allclose(run["weight"].second_moment[1, 0], squares[model.weight], rtol=1e-5)


def test_a_sparse_micro_batch_is_refused(tmp_path):
    embedding = nn.Embedding(5, 3, sparse=True)
    capture = gradtool.Capture(embedding, tmp_path / "run.h5", micro_batches=2, second_moment="micro_batches")
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(gradtool.UsageError, match="gradient of weight is sparse"):
        capture.micro_batch()
    capture.close(complete=False)


# ---- trainings that keep gradients elsewhere ----


def test_main_grad_is_read_where_grad_is_none(tmp_path):
    """Megatron and TransformerEngine accumulate in float32, whatever the type of the parameter."""
    model = two_layers().to(torch.bfloat16)
    for p in model.parameters():
        p.main_grad = torch.randn(p.shape)
    with gradtool.Capture(model, tmp_path / "run.h5") as capture:
        capture.step()
    with gradtool.open(tmp_path / "run.h5") as run:
        for tensor, p in zip(run, model.parameters()):
            np.testing.assert_array_equal(tensor.gradient[0, 0], p.main_grad.numpy())


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_is_named_with_what_can_be_captured(stage, tmp_path):
    model = two_layers()
    for p in model.parameters():
        if stage == 3:
            p.ds_id, p.data = 1, torch.empty(0)
        else:
            p._hp_mapping = object()
    with pytest.raises(gradtool.UnavailableError, match="ZeRO.*stage 0, .*safe_get_full_grad"):
        with gradtool.Capture(model, tmp_path / "run.h5") as capture:
            capture.step()


# ---- copies of a model that is being captured ----


@pytest.mark.parametrize("wrapped", [False, True])
def test_copies_and_pickles_of_a_captured_model_know_nothing_of_it(wrapped, tmp_path):
    class Wrapper(nn.Module):
        """Wraps a module as torch.compile does."""

        def __init__(self, model):
            super().__init__()
            self._orig_mod = model

        def forward(self, inputs):
            return self._orig_mod(inputs)
    model = two_layers()
    trained = Wrapper(model) if wrapped else model
    with gradtool.Capture(trained, tmp_path / "run.h5") as capture:
        saved = io.BytesIO()
        torch.save(model, saved)
        assert b"gradtool" not in saved.getvalue(), "it could not be loaded where there is no gradtool"
        saved.seek(0)
        copies = [copy.deepcopy(trained), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
        copies.append(torch.optim.swa_utils.AveragedModel(trained))
        for other in copies:
            backward(other)
            assert capture._began is None and all(p.grad is None for p in model.parameters())
            with torch.no_grad():
                np.testing.assert_array_equal(other(torch.ones(1, 6)), model(torch.ones(1, 6)))
        backward(trained)
        capture.step()
    watch = pickle.loads(pickle.dumps(_ddp._Watch(model, capture, (None, print))))  # newer DDPs take the hook's state along
    assert watch.capture is watch.model() is None and watch.hook == (None, _ddp._all_reduce)


# ---- files that are in the way, and that differ ----


def test_a_file_in_the_way_of_a_restarted_job(tmp_path, monkeypatch):
    (tmp_path / "run.h5").write_text("mine")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    with pytest.raises(gradtool.UsageError, match=r"exists; give another path or replace=True \(.*2 times.*TORCHELASTIC_RESTART_COUNT"):
        gradtool.Capture(two_layers(), tmp_path / "run.h5")


def test_a_merge_says_which_ranks_have_which_steps(tmp_path):
    for rank, iterations in enumerate([range(6), range(6), range(4, 9), range(20, 22)]):
        model = two_layers()
        with gradtool.Capture(model, tmp_path / f"{rank}.h5", iterations=iterations) as capture:
            for _ in range(30):
                backward(model)
                capture.step()
    files = [tmp_path / f"{rank}.h5" for rank in range(4)]
    with pytest.warns(UserWarning, match="0.h5 and 1 more: 6 steps of iterations 0 to 5; 2.h5: 5 steps of iterations 4 to 8"):
        gradtool.merge(files[:3], tmp_path / "run.h5")
    with pytest.raises(gradtool.DataError, match="in common: .*; 3.h5: 2 steps of iterations 20 to 21"):
        gradtool.merge(files, tmp_path / "other.h5")


# ---- FSDP2, of which only what needs no FSDP2 ----


class Placement:
    def __init__(self, dim):
        self.dim = dim

    def is_replicate(self):
        return self.dim is None

    def is_shard(self):
        return self.dim is not None


@pytest.mark.parametrize("dims, sentence", [((0,), None), ((None, 0), None), ((1,), "along dimension 1"),
                                            ((0, 0), "parameter weight is sharded over 2 .*tensor parallel"), ((0, None), None)])
def test_fsdp2_on_a_mesh(dims, sentence):
    layer = nn.Linear(4, 3, bias=False)
    layer.weight.placements = [Placement(dim) for dim in dims]
    if sentence is None:
        _fsdp.expect_rows("weight", layer.weight)
        return
    with pytest.raises(gradtool.UnavailableError, match=sentence):
        _fsdp.expect_rows("weight", layer.weight)


def reducing(layer):
    """The layer as FSDP2 would have it, with both of its parameters."""
    group = types.SimpleNamespace(fsdp_params=[types.SimpleNamespace(sharded_param=p) for p in (layer.weight, layer.bias)])
    layer._get_fsdp_state = lambda: types.SimpleNamespace(_fsdp_param_group=group)
    return layer


def test_parameters_of_fsdp2_that_were_not_used_are_named(monkeypatch):
    monkeypatch.setattr(_fsdp.dist, "get_world_size", lambda group: 2)
    layer = nn.Linear(4, 3)
    capture = types.SimpleNamespace(iteration=7, name_of=lambda p: "weight" if p is layer.weight else "bias", knows=lambda p: True)
    with pytest.raises(gradtool.UsageError, match=r"iteration 7: .* reduces 16 values, .*\(weight, bias\) have 20: some were not used"):
        _fsdp._show(capture, reducing(layer), torch.zeros(16), None)


def test_the_type_of_fsdp2s_reduce_scatter_is_noted(monkeypatch):
    monkeypatch.setattr(_fsdp.dist, "get_world_size", lambda group: 2)
    layer, noted = nn.Linear(4, 3), []
    capture = types.SimpleNamespace(note_reduced_in=noted.append, bucket_ready=lambda p, m: None, take=lambda p, g: None, knows=lambda p: True,
                                    leave_out=lambda seconds, since: None, backward_ended=lambda: None)
    _fsdp._show(capture, reducing(layer), torch.zeros(20, dtype=torch.bfloat16), None)
    assert noted == [torch.bfloat16]


@pytest.mark.parametrize("said, seen, stored", [
    (None, [], None), (None, [torch.float32], None), (None, [torch.bfloat16] * 2, "bfloat16"), (torch.float16, [], "float16"),
    (torch.float32, [], None), (None, [torch.float64], None), (torch.float16, [torch.bfloat16], "float16")])
def test_the_type_in_which_a_job_reduces_is_in_the_file(tmp_path, said, seen, stored):
    model = nn.Linear(3, 2)
    with gradtool.Capture(model, tmp_path / "run.h5", reduce_dtype=said) as capture:
        for dtype in seen:
            capture.note_reduced_in(dtype)
        model(torch.ones(1, 3)).sum().backward()
        capture.step()
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs.get("reduce_dtype") == stored


def test_a_job_that_reduces_in_several_types_is_said_to(tmp_path):
    model = nn.Linear(3, 2)
    with pytest.warns(UserWarning, match=r"in several types \(bfloat16, float32\)"):
        with gradtool.Capture(model, tmp_path / "run.h5") as capture:
            capture.note_reduced_in(torch.float32)
            capture.note_reduced_in(torch.bfloat16)
            model(torch.ones(1, 3)).sum().backward()
            capture.step()
    with pytest.raises(gradtool.UsageError, match="reduce_dtype is torch.float64; valid is"):
        gradtool.Capture(model, tmp_path / "other.h5", reduce_dtype=torch.float64)


def test_a_model_of_fsdp2_is_not_captured_twice_at_once(tmp_path, monkeypatch):
    model = two_layers()
    model.set_requires_gradient_sync = model.reshard = None
    monkeypatch.setitem(_fsdp._CAPTURES, model, types.SimpleNamespace(closed=False, path="other.h5"))
    with pytest.raises(gradtool.UsageError, match="captured already, to other.h5"):
        gradtool.Capture(model, tmp_path / "run.h5")


@pytest.mark.parametrize("groups", ["_fsdp_param_group", "_fsdp_param_groups"])
def test_gradients_that_fsdp2_has_not_reduced_are_refused(groups):
    model = two_layers()
    parameter = types.SimpleNamespace(unsharded_accumulated_grad=None, _unsharded_param=types.SimpleNamespace(grad=None))
    group = types.SimpleNamespace(fsdp_params=[parameter])
    model[1]._get_fsdp_state = lambda: types.SimpleNamespace(**{groups: [group] if groups.endswith("s") else group})
    _fsdp.expect_all_reduced(model, 3)
    for place in (parameter, parameter._unsharded_param):
        name = "grad" if place is parameter._unsharded_param else "unsharded_accumulated_grad"
        setattr(place, name, torch.ones(3))
        with pytest.raises(gradtool.UsageError, match=r"iteration 3: .*set_requires_gradient_sync\(False\)"):
            _fsdp.expect_all_reduced(model, 3)
        setattr(place, name, None)


# ---- DistributedDataParallel ----


def within_a_group(rank, path):
    """Each rank is a group of its own, so that nothing is averaged."""
    groups = [torch.distributed.new_group([0]), torch.distributed.new_group([1])]
    model = ddp(two_layers(), process_group=groups[rank])
    with gradtool.Capture(model, f"{path}.{rank}") as capture:
        backward(model, rank)
        capture.step()
    alone = two_layers()
    backward(alone, rank)
    with gradtool.open(capture.path) as run:
        assert run.workers == 1
        for tensor, p, wanted in zip(run, model.parameters(), alone.parameters()):
            np.testing.assert_allclose(p.grad, wanted.grad, rtol=1e-5)
            np.testing.assert_allclose(tensor.gradient[0, 0], wanted.grad, rtol=1e-5)


def ddp(model, **options):
    return nn.parallel.DistributedDataParallel(model, **options)


def synchronise_first(rank, path):
    model = ddp(two_layers())
    with gradtool.Capture(model, path, merge="no") as capture:
        with model.no_sync():  # this order is the right one
            backward(model, rank)
        backward(model, rank)
        capture.step()
        model.zero_grad()
        backward(model, rank)
        torch.autograd.grad(model.module(torch.ones(2, 6)).sum(), list(model.module.parameters()))  # adds to no gradient
        capture.step()
        model.zero_grad()
        backward(model, rank)
        with model.no_sync():
            backward(model, rank)
        capture.step()


def wrap_frozen(rank, path):
    model = two_layers()
    model[0].bias.requires_grad_(False)
    model = ddp(model)
    model.module[0].bias.requires_grad_(True)
    with gradtool.Capture(model, path, merge="no") as capture:
        backward(model, rank)
        capture.step()


def join(rank, path):
    model = ddp(two_layers())
    with gradtool.Capture(model, path, first=2, merge="no") as capture:
        with model.join():
            for _ in range(2 * rank):  # rank 0 has nothing
                backward(model, rank)
                capture.step()


def look_up_sparse(rank, path):
    model = ddp(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)))
    with gradtool.Capture(model, path, first=1, merge="no") as capture:
        for _ in range(2):
            model(torch.tensor([1, 2])).sum().backward()
            capture.step()


def faults(rank, size, folder):
    words = []
    for function in (synchronise_first, wrap_frozen, join, look_up_sparse, within_a_group):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(rank, f"{folder}/{function.__name__}.h5")
            words.append("nothing")
        except (gradtool.Error, RuntimeError) as error:  # DDP of torch 1.13 makes a RuntimeError of what its hook raises
            words.append(str(error))
    return words


def test_what_ddp_would_not_show_is_refused_on_all_ranks(tmp_path):
    for late, frozen, joined, sparse, grouped in run_ranks(2, faults, str(tmp_path)):
        assert "iteration 2: a backward pass under no_sync() came after the one that synchronises" in late
        assert "iteration 0: DistributedDataParallel has not reduced 0.bias; wrap the model when" in frozen
        assert "trained with join()" in joined
        assert "iteration 1: the gradient of 0.weight is sparse" in sparse
        assert grouped == "nothing"


def capture_odd_models(rank, size, folder):
    """A model in channels_last, and one of which DDP ignores a parameter, copied in the middle."""
    image, gradients = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(rank)), []
    for view in (False, True):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)).to(memory_format=torch.channels_last)
        alone = copy.deepcopy(inner)
        alone(image).square().sum().backward()
        gradients.append([p.grad.numpy() for p in alone.parameters()])
        model = ddp(inner, gradient_as_bucket_view=view)
        with gradtool.Capture(model, f"{folder}/{view}.h5") as capture:
            model(image).square().sum().backward()
            capture.step()
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is None, "the capture keeps the model alive"
    inner = two_layers()
    inner._ddp_params_and_buffers_to_ignore = ["0.bias"]
    model = ddp(inner)

    def train():
        with gradtool.Capture(model, f"{folder}/ignored.h5") as capture:
            pickle.loads(pickle.dumps(model.module))
            backward(copy.deepcopy(model).module, rank)
            assert not capture._gradients.seen and capture._began is None
            backward(model, rank)
            capture.step()
    return gradients, warnings_of(train)


def test_ddp_in_channels_last_and_with_parameters_that_it_ignores(tmp_path):
    results = run_ranks(2, capture_odd_models, str(tmp_path))
    for number, view in enumerate((False, True)):
        with gradtool.open(tmp_path / f"{view}.h5") as run:
            for i, tensor in enumerate(run):
                for rank in range(2):
                    np.testing.assert_allclose(tensor.gradient[0, rank], results[rank][0][number][i], rtol=1e-5, atol=1e-6)
    assert [len(said) for _, said in results] == [1, 0] and "told to ignore them: 0.bias" in results[0][1][0]
    with gradtool.open(tmp_path / "ignored.h5") as run:
        assert list(run.tensors) == ["0.weight", "1.weight", "1.bias"]


def come_late(rank, size, folder):
    """Rank 1 makes its Capture, calls step and closes when rank 0 has said that it misses it."""
    store = torch.distributed.distributed_c10d._get_default_store()
    said, model = [], two_layers()

    def wait(times):
        if rank == 1:
            store.wait([f"said {times}"])
    _ranks.PATIENCE = 0.0 if rank == 0 else 600.0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: (said.append(str(message)), store.set(f"said {len(said)}", "yes"))
        wait(1)
        with gradtool.Capture(model, f"{folder}/run.h5") as capture:
            backward(model, rank)
            wait(2)
            capture.step()
            wait(3)
    return said


def test_a_rank_that_waits_for_others_says_so(tmp_path):
    said = run_ranks(2, come_late, str(tmp_path))
    assert said[1] == [] and len(said[0]) == 3
    for word, occasion in zip(said[0], (r"made the capture to .*run.h5", r"called step\(\) in iteration 0", r"closed the capture")):
        assert re.match(f"only 1 of 2 ranks have {occasion}.* after 0 s", word), word
    with gradtool.open(tmp_path / "run.h5") as run:
        assert run.workers == 2


def with_other_options(rank, size, folder):
    said = []
    refused = (i for i in [1.5 - rank / 2])  # 1.5 on rank 0
    for number, options in enumerate(({"merge": "copy" if rank == 0 else "no"}, {"every": rank}, {"every": 1 + rank}, {"iterations": refused})):
        try:
            gradtool.Capture(two_layers(), f"{folder}/run{number}.h5", **options).close()
        except gradtool.UsageError as error:
            said.append(str(error))
    return said


def test_ranks_with_other_options_are_told_so(tmp_path):
    for said in run_ranks(2, with_other_options, str(tmp_path)):
        assert said[0] == "merge is copy on rank 0 and no on rank 1; every rank needs the same", said
        assert "every is 0" in said[1] and "every is 1 on rank 0 and 2" in said[2] and "iterations is" in said[3], said
    assert list(tmp_path.iterdir()) == []
