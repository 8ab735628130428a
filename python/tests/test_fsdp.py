"""FSDP2 in processes of gloo: captures of each rank's own gradient, and the hook that averages replicas."""

import re
import warnings

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from fsdp2 import needs_fsdp2  # noqa: E402  pylint: disable=wrong-import-position
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn


class Net(nn.Module):
    """Layers whose rows no number of ranks divides, of which some ranks have none; and two experts, of which a batch may use one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm = nn.Linear(6, 7), nn.LayerNorm(7)
        self.experts = nn.ModuleList([nn.Linear(7, 3), nn.Linear(7, 3)])
        self.last = nn.Linear(3, 2)

    def forward(self, inputs, expert=None):
        hidden = self.norm(torch.relu(self.first(inputs)))
        if expert is None:  # tokens are routed, and an expert may get none
            chosen = (hidden[:, 0] > 0).long()
            out = torch.zeros(len(hidden), 3, dtype=hidden.dtype)
            for number, each in enumerate(self.experts):
                out = out.index_add(0, (chosen == number).nonzero().reshape(-1), each(hidden[chosen == number]))
        else:
            out = self.experts[expert](hidden)
        return self.last(torch.tanh(out))


def batch(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator).to(dtype)


def loss_of(model, rank, step, expert=None, dtype=torch.float32):
    return (model(batch(rank, step, dtype), expert).float() ** 2).mean()


def numbers(tensors):
    return [tensor.detach().float().reshape(-1).numpy().copy() for tensor in tensors]


def own_gradients(rank, steps, expert=None, dtype=torch.float32):
    """One rank's gradient of the mean loss of some batches, at the initial weights, computed in one process."""
    model = Net().to(dtype)
    for step in steps:
        (loss_of(model, rank, step, expert, dtype) / len(steps)).backward()
    return numbers(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def sharded(mesh, dtype=torch.float32, experts_apart=True, **options):
    from torch.distributed.fsdp import fully_shard
    model = Net().to(dtype)
    for module in (model.first, *(model.experts if experts_apart else ())):
        fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def mesh_of(*extents, names=None):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", extents, mesh_dim_names=names)


def capture_variants(rank, size, folder):
    """Captures of one step each; returns what the ranks' own gradients are."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    wanted = {}

    def capture(name, model, backward, **options):
        with gradtool.Capture(model, f"{folder}/{name}.h5", **options) as capture:
            backward(model, capture)
            capture.step()

    def once(dtype=torch.float32):
        return lambda model, capture: loss_of(model, rank, 0, dtype=dtype).backward()

    def accumulate(model, capture):
        for step in range(3):
            model.set_requires_gradient_sync(step == 2)
            (loss_of(model, rank, step) / 3).backward()
            if step < 2:
                capture.micro_batch()

    capture("plain", sharded(mesh_of(size)), once())
    wanted["plain"] = own_gradients(rank, [0])
    capture("hsdp", sharded(mesh_of(2, size // 2, names=("replicate", "shard"))), once())
    wanted["hsdp"] = wanted["plain"]
    for dtype in (torch.float64, torch.float16):
        capture(str(dtype), sharded(mesh_of(size), dtype), once(dtype))
        wanted[str(dtype)] = own_gradients(rank, [0], dtype=dtype)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    capture("mixed", sharded(mesh_of(size), mp_policy=policy), once())
    wanted["mixed"] = own_gradients(rank, [0], dtype=torch.bfloat16)
    capture("accumulated", sharded(mesh_of(size)), accumulate, micro_batches=3)
    wanted["accumulated"] = own_gradients(rank, [0, 1, 2])
    model = sharded(mesh_of(size))
    model.first.weight.requires_grad_(False)
    capture("frozen", model, once())
    wanted["frozen"] = wanted["plain"][1:]
    if hasattr(model, "set_reduce_scatter_unused_params"):
        for name, apart in (("unused", True), ("unused_together", False)):
            model = sharded(mesh_of(size), experts_apart=apart)
            model.set_reduce_scatter_unused_params(True)
            expert = None if apart else rank % 2
            capture(name, model, lambda model, _, expert=expert: loss_of(model, rank, 0, expert).backward())
            wanted[name] = own_gradients(rank, [0], expert)
    return wanted


@needs_fsdp2
def test_each_ranks_own_gradient_is_captured(tmp_path):
    results = run_ranks(4, capture_variants, str(tmp_path))
    for name in results[0]:
        narrow = {"torch.float16": 2e-3, "mixed": 2e-2}.get(name, 1e-5)
        with gradtool.open(tmp_path / f"{name}.h5") as run:
            assert run.workers == 4 and run.complete and len(run.tensors) == len(results[0][name])
            for rank, wanted in enumerate(results):
                for tensor, values in zip(run, wanted[name]):
                    got = np.asarray(tensor.gradient[0, rank], "f4").reshape(-1)
                    np.testing.assert_allclose(got, values, rtol=narrow, atol=narrow * max(1e-3, np.abs(values).max()),
                                               err_msg=f"{name}, {tensor.name}, rank {rank}")
    for name in ("plain", "hsdp"):  # an expert without tokens has zeros
        assert any(not np.any(wanted[name][at]) for wanted in results for at in (4, 6)), "every rank's batch used both experts"


def sentence_of(function):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
    except (gradtool.Error, RuntimeError) as error:
        return str(error)
    return "taken"


def capture_what_is_refused(rank, size, folder):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def capture(name, model, *backward):
        with gradtool.Capture(model, f"{folder}/{name}.h5", merge="no") as capture:
            for each in backward:
                each(model)
            capture.step()

    def unused(model):
        loss_of(model, rank, 0, 0).backward()

    def late(model):
        loss_of(model, rank, 0).backward()
        model.set_requires_gradient_sync(False)
        loss_of(model, rank, 0).backward()

    def replace(model):
        model.first.weight.requires_grad_(True)
        loss_of(model, rank, 0).backward()

    two = mesh_of(2, size // 2, names=("dp", "tp"))
    parallel = parallelize_module(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6)), two["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    words = [sentence_of(lambda: capture("tp", fully_shard(parallel, mesh=two["dp"])))]
    words.append(sentence_of(lambda: capture("one", sharded(mesh_of(size, 1, names=("replicate", "shard"))))))
    wide = fully_shard(nn.Linear(8, 8), mesh=mesh_of(size), shard_placement_fn=lambda p: Shard(p.dim() - 1))
    words.append(sentence_of(lambda: capture("wide", wide)))
    words.append(sentence_of(lambda: capture("unused", sharded(mesh_of(size), experts_apart=False), unused)))
    words.append(sentence_of(lambda: capture("late", sharded(mesh_of(size)), late)))
    frozen = sharded(mesh_of(size))
    frozen.first.weight.requires_grad_(False)
    words.append(sentence_of(lambda: capture("unfrozen", frozen, replace)))
    return words


@needs_fsdp2
def test_what_fsdp2_would_not_show_is_refused_on_all_ranks(tmp_path):
    words = [r"parameter 0.weight is sharded over 2 dimensions .* as by tensor parallelism", "sharded over one rank and replicated over others",
             "parameter weight is sharded along dimension 1", r"some were not used in this backward pass; .*(set_reduce_scatter_unused_params|all of them)",
             r"set_requires_gradient_sync\(False\) came after", "unfrozen, replaced or loaded"]
    for results in run_ranks(4, capture_what_is_refused, str(tmp_path)):
        assert len(results) == len(words)
        for sentence, word in zip(results, words):
            assert re.search(word, sentence), f"{sentence} / {word}"


def capture_alone(rank, size, folder):
    model = sharded(mesh_of(1))
    with gradtool.Capture(model, f"{folder}/alone.h5") as capture:
        for _ in range(2):
            model.zero_grad()
            loss_of(model, 0, 0).backward()
            capture.step()


@needs_fsdp2
def test_one_process_of_fsdp2_is_captured(tmp_path):
    run_ranks(1, capture_alone, str(tmp_path))
    with gradtool.open(tmp_path / "alone.h5") as run:
        for tensor, wanted in zip(run, own_gradients(0, [0])):
            for step in range(2):
                np.testing.assert_allclose(tensor.gradient[step, 0].reshape(-1), wanted, rtol=1e-5, atol=1e-8)


# ---- the hook that averages replicas ----

needs_core = pytest.mark.usefixtures("core")

# The parameters that each module reduces, in the order of the modules: of the model itself, then of those in it.
REDUCED = [["norm.weight", "norm.bias", "last.weight", "last.bias"], ["first.weight", "first.bias"], ["experts.0.weight", "experts.0.bias"],
           ["experts.1.weight", "experts.1.bias"]]


def replicated(spec, mesh=None, **options):
    mesh = mesh or mesh_of(2, 2, names=("replicate", "shard"))
    model = sharded(mesh["shard"])
    return model, gradtool.fsdp_hook(spec, group=mesh["replicate"], **options).register(model)


def reduce_with_hook(rank, size, folder, variants):
    """By variant the averaged gradients of three steps, by name; what goes in is in a capture. And what was sent."""
    results = []
    for number, (spec, options) in enumerate(variants):
        model, hook = replicated(spec, **options)
        steps = []
        with gradtool.Capture(model, f"{folder}/{number}.h5") as capture:
            for step in range(3):
                model.zero_grad()
                loss_of(model, rank, step).backward()
                capture.step()
                steps.append({name: p.grad.full_tensor().numpy().copy() for name, p in model.named_parameters()})
        assert hook.iteration == 3 and hook.payload_bytes > 0 and hook.reached
        results.append((steps, hook.bytes_sent, hook.reduce_scatter.bytes_sent if hook.reduce_scatter else 0))
    return results


def part_of(gradient, shard, shards=2):
    """A shard's rows of a gradient, padded with zeros."""
    rows = -(-len(gradient) // shards)
    part = np.zeros((rows, *gradient.shape[1:]), "f4")
    own = gradient[shard * rows:(shard + 1) * rows]
    part[:len(own)] = own
    return part


def codec_means(inputs, spec, tensors, number, op="all-reduce"):
    """The codec's own reduction of inputs[rank][step], among ranks that are threads."""
    import queue
    from concurrent.futures import ThreadPoolExecutor
    from gradtool import _core
    size = len(inputs)
    boxes = {(a, b): queue.Queue() for a in range(size) for b in range(size)}

    def run(rank):
        def exchange(to, out, from_, into):
            if out is not None:
                boxes[rank, to].put(bytes(np.asarray(out)))
            if into is not None:
                np.asarray(into)[:] = np.frombuffer(boxes[from_, rank].get(timeout=60), np.uint8)

        def all_reduce(values):
            mine = np.asarray(values).view("f4")
            exchange(1 - rank, values, 1 - rank, other := np.empty(4 * len(mine), "u1"))
            mine += other.view("f4")
        ranks = _core.HostRanks(rank, size, 1, exchange, all_reduce, "auto")
        reducer = _core.HostReducer(ranks, spec, tensors, "auto", op=op)
        outputs = []
        for step, values in enumerate(inputs[rank]):
            outputs.append(values.astype("f4").copy())
            reducer.reduce(outputs[-1], None, None, seed=1, step=step, tensor=number, iteration=step, learning_rate_ratio=1.0)
        return outputs

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def wanted_averages(run, spec, inside):
    """By step and name, what a job of two nodes with two ranks each gets: means within a node, reduced between nodes by the codec."""
    own = {tensor.name: tensor.gradient[:] for tensor in run}
    kinds = {tensor.name: (tensor.kind, tensor.layout) for tensor in run}
    elements = {name: values[0, 0].size for name, values in own.items()}
    names, total = list(own), sum(elements.values())
    depth = {name: sum(elements[before] for before in names[:at]) / total for at, name in enumerate(names)}
    averaged = [{name: np.zeros_like(values[0, 0]) for name, values in own.items()} for _ in range(3)]
    for number, reduced in enumerate(REDUCED):
        shapes = {name: part_of(own[name][0, 0], 0).shape for name in reduced}

        def parts(step, rank, shard):
            return np.concatenate([part_of(own[name][step, rank], shard).reshape(-1) for name in reduced])
        width = sum(int(np.prod(shape)) for shape in shapes.values())
        scattered = {}  # node, shard: the mean within the node, by step
        for node in range(2):
            whole = [[np.concatenate([parts(step, 2 * node + local, shard) for shard in range(2)]) for step in range(3)] for local in range(2)]
            if inside is None:
                means = [[(a + b) / np.float32(2) for a, b in zip(*whole)]] * 2
            else:
                means = codec_means(whole, inside, [("values", [2 * width], "other", "", 0.0)], number, "reduce-scatter")
            for shard in range(2):
                scattered[node, shard] = [mean[shard * width:(shard + 1) * width] for mean in means[shard]]
        for shard in range(2):
            if spec == "none":
                means = [(a + b) / np.float32(2) for a, b in zip(scattered[0, shard], scattered[1, shard])]
            else:
                tensors = [(name, list(shapes[name]), *kinds[name], depth[name]) for name in reduced]
                means, other = codec_means([scattered[0, shard], scattered[1, shard]], spec, tensors, number)
                assert all(np.array_equal(a, b) for a, b in zip(means, other))
            for step, mean in enumerate(means):
                at = 0
                for name in reduced:
                    rows, part = shapes[name][0], mean[at:at + int(np.prod(shapes[name]))].reshape(shapes[name])
                    target = averaged[step][name][shard * rows:(shard + 1) * rows]
                    target[:] = part[:len(target)]
                    at += part.size
    return averaged


HOOKED = [("none", {}), ("topk:ratio=0.2,ef=on", {}), ("qsgd:bits=4", {}), ("powersgd:rank=1", {}), ("bf16", {"reduce_scatter": "fp16"}),
          ("none", {"reduce_scatter": "qsgd:bits=4"}), ("topk:ratio=0.2,ef=on", {"reduce_scatter": "topk:ratio=0.3,ef=on"})]


@needs_fsdp2
@needs_core
def test_replicas_are_averaged_as_the_codec_averages(tmp_path):
    results = run_ranks(4, reduce_with_hook, str(tmp_path), HOOKED)
    for number, (spec, options) in enumerate(HOOKED):
        said = f"{spec} {options}"
        with gradtool.open(tmp_path / f"{number}.h5") as run:
            wanted = wanted_averages(run, spec, options.get("reduce_scatter"))
            exact = [{t.name: t.gradient[step].astype("f8").mean(axis=0) for t in run} for step in range(3)]
            for rank in range(4):
                for tensor, own in zip(run, own_gradients(rank, [1])):
                    np.testing.assert_allclose(tensor.gradient[1, rank].reshape(-1), own, rtol=1e-4, atol=1e-7)
        lossy = spec != "none" or bool(options)
        worst = 0.0
        for steps, sent, sent_inside in (result[number] for result in results):
            assert sent > 0 and (sent_inside > 0) == ("reduce_scatter" in options)
            for step in range(3):
                for name, averaged in steps[step].items():
                    np.testing.assert_array_equal(averaged, wanted[step][name], err_msg=f"{said}, step {step}, {name}")
                    worst = max(worst, np.abs(averaged - exact[step][name]).max())
        assert (worst > 1e-6) == lossy, said


def train_replicated(rank, size, folder, trainings, begin, end, save_at):
    """The weights after iterations of a training that goes on from its saved state unless it begins at 0."""
    results = []
    for number, (spec, options) in enumerate(trainings):
        model, hook = replicated(spec, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        path = f"{folder}/{number}.{rank}"
        if begin > 0:
            saved = torch.load(path, weights_only=False)
            with torch.no_grad():
                for p, values in zip(model.parameters(), saved["parts"]):
                    p.to_local().copy_(values)
            hook.load_state_dict(saved["hook"])
        for step in range(begin, end):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
            if step + 1 == save_at:
                torch.save({"parts": [p.to_local().clone() for p in model.parameters()], "hook": hook.state_dict()}, path)
        assert hook.iteration == end
        results.append((numbers(p.full_tensor() for p in model.parameters()), hook.bytes_sent))
    return results


@needs_fsdp2
@needs_core
def test_a_saved_hook_of_fsdp2_goes_on_with_the_same_bits(tmp_path):
    trainings = [("topk:ratio=0.2,ef=on", {}), ("powersgd:rank=1", {}), ("qsgd:bits=4", {}), ("iwp", {}), ("topk:ef=on", {"start_iteration": 5}),
                 ("topk:ratio=0.2,ef=on", {"reduce_scatter": "topk:ratio=0.3,ef=on"})]
    whole = run_ranks(4, train_replicated, str(tmp_path), trainings, 0, 8, 4)
    parts = run_ranks(4, train_replicated, str(tmp_path), trainings, 4, 8, None)
    for rank in range(4):
        for (spec, _), (weights, sent), (again, sent_again), (first, _) in zip(trainings, whole[rank], parts[rank], whole[0]):
            assert sent_again == sent, spec
            for ours, theirs, of_rank_0 in zip(weights, again, first):
                np.testing.assert_array_equal(theirs, ours, err_msg=spec)
                np.testing.assert_array_equal(ours, of_rank_0, err_msg=spec)  # replicas stay equal


def average_types(rank, size):
    """Averages where FSDP2 reduces in other types, or has divided before, beside those of PyTorch's own HSDP."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    results = []
    for dtype, policy in ((torch.float16, {}), (torch.float64, {}), (torch.bfloat16, {}), (torch.float32, {"reduce_dtype": torch.bfloat16})):
        for hooked in (False, True):
            options = {"mp_policy": MixedPrecisionPolicy(**policy)}
            model = sharded(mesh["shard"] if hooked else mesh, dtype, **options)
            if hooked:
                gradtool.fsdp_hook("none", group=mesh["replicate"]).register(model)
            loss_of(model, rank, 0, dtype=dtype).backward()
            results.append(numbers(p.grad.full_tensor() for p in model.parameters()))
    return results


@needs_fsdp2
@needs_core
def test_narrow_and_wide_types_are_averaged_as_hsdp_averages_them():
    results = run_ranks(4, average_types)[0]
    for tolerance, theirs, ours in zip((2e-3, 1e-6, 2e-2, 2e-2), results[::2], results[1::2]):
        for their, our in zip(theirs, ours):
            np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance * np.abs(their).max())


def misuse_hooks(rank, size):
    from torch.distributed.fsdp import fully_shard
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    between = mesh["replicate"]

    def hook(spec="topk", **options):
        return gradtool.fsdp_hook(spec, group=between, **options)
    words = [sentence_of(lambda: hook().register(sharded(mesh))), sentence_of(lambda: hook().register(nn.Linear(3, 3))),
             sentence_of(lambda: hook().register(nn.Linear)), sentence_of(lambda: gradtool.fsdp_hook("topk").register(sharded(mesh["shard"]))),
             sentence_of(lambda: hook("topk" if rank < 2 else "qsgd")), sentence_of(lambda: hook(reduce_scatter="powersgd").register(sharded(mesh["shard"]))),
             sentence_of(lambda: hook("vgc"))]
    model, used = sharded(mesh["shard"], experts_apart=False), hook()
    words.append(sentence_of(used.state_dict))
    used.register(model)
    words.append(sentence_of(lambda: used.register(model)))
    words.append(sentence_of(lambda: loss_of(model, rank, 0, 0).backward()))  # uses one expert
    state = replicated("topk")[1].state_dict()
    for changed in ({**state, "rank": 1 - state["rank"]}, {**state, "shard": "7 of 8"}, {**state, "ranks": 4}, {**state, "reduce_scatter": "fp8"}, 3):
        words.append(sentence_of(lambda: replicated("topk")[1].load_state_dict(changed)))
    model, used = replicated("none")
    model.set_gradient_divide_factor(3.0)
    words.append(sentence_of(lambda: loss_of(model, rank, 0).backward()))
    model, used = replicated("none", reduce_scatter="fp8")
    model.set_gradient_divide_factor(3.0)
    words.append(sentence_of(lambda: loss_of(model, rank, 0).backward()))
    layer = fully_shard(nn.Linear(8, 8, bias=False), mesh=mesh["shard"])
    layer(torch.full((2, 8), float("nan") if rank == 3 else 1.0)).sum().backward()
    hook().register(layer)
    layer.zero_grad()
    layer(torch.full((2, 8), float("nan") if rank == 3 else 1.0)).sum().backward()
    words.append(str(layer.weight.grad.full_tensor().isnan().all().item()))
    return words


@needs_fsdp2
@needs_core
def test_what_the_hook_of_fsdp2_cannot_do_is_refused_on_all_ranks():
    words = ["a mesh with replicas, which FSDP2 averages itself", "the type Linear; valid is one that fully_shard", "the class Linear; valid is one",
             r"sharded over the ranks \[\d, \d\] and the hook averages over \[0, 1, 2, 3\]", "the codec is .* on rank 0 and .* on rank 1",
             "powersgd", "second moments", "register it with hook.register", "registered with a model already",
             r"some were not used in this backward pass; .*(set_reduce_scatter_unused_params|all of them)",
             "rank is . in the saved state", "shard is 7 of 8 in the saved state", "ranks is 4 in the saved state", "reduce_scatter is fp8 in the saved",
             "not one of a hook", "taken|PREMUL|premul|not supported|Cannot", "set_gradient_divide_factor makes FSDP2 ask|PREMUL|premul", "True"]
    for results in run_ranks(4, misuse_hooks):
        assert len(results) == len(words)
        for sentence, word in zip(results, words):
            assert re.search(word, sentence), f"{sentence} / {word}"


def test_a_torch_without_the_hook_of_fsdp2_is_named():
    from gradtool import _fsdp
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].set_requires_gradient_sync = model[0].reshard = None
    with pytest.raises(gradtool.UnavailableError, match=r"torch .* cannot replace .*: its FSDPModule has no set_all_reduce_hook; take a later version"):
        _fsdp.expect_method(model, "set_all_reduce_hook", "replace the all-reduce between replicas of FSDP2")
