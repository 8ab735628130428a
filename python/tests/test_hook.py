"""The hook that compresses DistributedDataParallel: memory formats, types, arguments, and what is refused on every rank."""

import pickle
import re
import warnings

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn
pytestmark = pytest.mark.usefixtures("core")


def sentence_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (gradtool.Error, RuntimeError) as error:  # DDP of torch 1.13 makes a RuntimeError of what its hook raises
        return str(error)
    return "taken"


class GivenGradients(nn.Module):
    """Parameters whose gradients are what the model is given."""

    def __init__(self, *shapes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, *gradients):
        return sum((weight * gradient).sum() for weight, gradient in zip(self.weights, gradients))


SPECS_BY_LAYOUT = ["powersgd:rank=1", "gradiveq", "dct", "zfp", "qsgd:bits=4", "topk:ratio=0.05", "iwp"]


def average_in_both_formats(rank, size, specs):
    results = []
    for spec in specs:
        for channels_last in (False, True):
            torch.manual_seed(7)
            model = GivenGradients((8, 6, 3, 3), (5, 8), (4, 8, 1, 3), (6, 2, 2, 3, 2))
            if channels_last:
                for weight, memory_format in ((0, torch.channels_last), (2, torch.channels_last), (3, torch.channels_last_3d)):
                    model.weights[weight].data = model.weights[weight].data.to(memory_format=memory_format)
                model.weights[1].data = torch.zeros(8, 5).t()  # a transposed matrix is dense, too
            with torch.no_grad():
                for weight in model.weights:
                    weight.copy_(torch.randn(weight.shape))
            ddp = nn.parallel.DistributedDataParallel(model)
            gradtool.ddp_hook(spec).register(ddp)
            torch.manual_seed(rank)
            for _ in range(3):
                ddp.zero_grad()
                ddp(*(torch.randn(weight.shape) for weight in model.weights)).backward()
            results.append([weight.grad.contiguous().numpy().copy() for weight in model.weights])
    return results


def test_channels_last_gives_the_averages_of_the_contiguous_model():
    """DDP's buckets hold tensors as they lie in memory; files and bench have them in the order of their indices."""
    results = run_ranks(2, average_in_both_formats, SPECS_BY_LAYOUT)[0]
    for number, spec in enumerate(SPECS_BY_LAYOUT):
        for contiguous, strided in zip(results[2 * number], results[2 * number + 1]):
            np.testing.assert_array_equal(strided, contiguous, err_msg=spec)


def average_narrow(rank, size):
    """Averages by type: uncompressed, compressed, and uncompressed because a value is not finite."""
    results = []
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        hook, parameters = gradtool.ddp_hook("none", start_iteration=2), [nn.Parameter(torch.zeros(40))]
        for step in range(4):
            gradient = torch.full((40,), 30000.0 + 2048 * rank, dtype=dtype)
            if step == 3 and rank == 1:
                gradient[7] = float("nan")
            hook._reduce(gradient, parameters, 0)
            hook.iteration += 1
            results.append(gradient.double().numpy())
    # Values that float32 cannot hold are averaged uncompressed.
    wide = torch.full((3,), 1e300 * (rank + 1), dtype=torch.float64)
    gradtool.ddp_hook("none")._reduce(wide, [nn.Parameter(torch.zeros(3))], 0)
    return results + [wide.numpy()]


def test_narrow_types_are_averaged_without_overflow_and_as_every_library_can():
    *results, wide = run_ranks(4, average_narrow)[0]
    for number, got in enumerate(results):
        finite = np.delete(got, 7)
        assert np.abs(finite - 33072).max() <= 33072 / 256, number
        assert np.isnan(got[7]) == (number % 4 == 3)
    np.testing.assert_allclose(wide, 2.5e300)


def average_small_and_large(rank, size):
    """Two buckets beside each other, of 40 bytes and of 44, with a gate of 44."""
    hook = gradtool.ddp_hook("signsgd", gate_bytes=44)
    small, large = torch.arange(10.0) * (rank + 1), torch.arange(11.0) * (rank + 1)
    hook._reduce(small, [nn.Parameter(torch.zeros(10))], 0)
    hook._reduce(large, [nn.Parameter(torch.zeros(11))], 1)
    for codec in ("dgc", "dion2"):  # the optimizer behind them has no momentum, and gated buckets would have none
        with pytest.raises(gradtool.Error, match="gate_bytes is 44, but .* own"):
            gradtool.ddp_hook(codec, gate_bytes=44)
    return small.numpy(), large.numpy(), [unit.reducer is not None for unit in hook._units.values()]


def test_buckets_below_the_gate_are_averaged_uncompressed():
    small, large, compressed = run_ranks(2, average_small_and_large)[0]
    np.testing.assert_array_equal(small, 1.5 * np.arange(10))
    assert compressed == [False, True] and np.abs(large - 1.5 * np.arange(11)).max() > 0.1


def types_that_are_added(rank, size):
    """By type of a small bucket, in which type its all-reduce adds, and the average of 1 and 2."""
    seen, all_reduce = [], torch.distributed.all_reduce

    def recorded(tensor, *arguments, **options):
        seen.append(str(tensor.dtype))
        return all_reduce(tensor, *arguments, **options)

    torch.distributed.all_reduce = recorded
    try:
        averages = []
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            small = torch.full((8,), 1.0 + rank, dtype=dtype)
            gradtool.ddp_hook("signsgd", gate_bytes=1024)._reduce(small, [nn.Parameter(torch.zeros(8))], 0)
            averages.append(small.double().tolist())
    finally:
        torch.distributed.all_reduce = all_reduce
    return seen, averages


def test_small_buckets_keep_their_type_where_the_library_adds_it():
    seen, averages = run_ranks(2, types_that_are_added)[0]
    assert seen == ["torch.float16", "torch.float32", "torch.float32", "torch.float64"]  # gloo does not add bfloat16 everywhere
    assert averages == [[1.5] * 8] * 4


def make_hooks_that_differ(rank, size):
    def differing(**options):
        spec = options.pop("spec", ("topk:ratio=0.05",))
        here = {name: values[rank % len(values)] for name, values in options.items()}
        return sentence_of(gradtool.ddp_hook, spec[rank % len(spec)], **here)

    class Scaler:
        get_scale = is_enabled = None
    return [differing(spec=("topk:ratio=0.05", "qsgd")), differing(spec=("topk:ratio=0.05", "topk:ratio=0.1")), differing(seed=(1, 2)),
            differing(start_iteration=(0, 5)), differing(scheme=("auto", "gather")), differing(scaler=(None, Scaler())),
            differing(spec=("topk", "topq")), differing(threads=(1, 0)), differing(gate_bytes=(0, 4096))]


def test_ranks_that_differ_end_with_one_sentence_on_all():
    words = ["the codec is topk:ratio=0.05.* on rank 0 and qsgd.* on rank 1", "ratio=0.05.* and .*ratio=0.1", "seed is 1 .* and 2",
             "start_iteration is 0 on rank 0 and 5 on rank 1", "scheme is auto on rank 0 and gather on rank 1",
             "scaler is None on rank 0 and a GradScaler on rank 1", "topq", "threads is 0; valid is a whole number from 1 on",
             "gate_bytes is 0 on rank 0 and 4096 on rank 1"]
    first, second = run_ranks(2, make_hooks_that_differ)
    for ours, theirs, word in zip(first, second, words):
        assert re.search(word, ours) and re.search(word, theirs), (ours, theirs)
        assert ours == theirs or ours == "rank 1 refuses: " + theirs


def refuse_arguments(rank, size):
    refused = [sentence_of(gradtool.ddp_hook, "topk", **{name: value}) for name, value in (
        ("scheme", "ring"), ("scheme", None), ("scheme", "sum"), ("all_reduce", "tree"), ("seed", -1), ("seed", 0.5), ("seed", 2 ** 64), ("threads", 0),
        ("threads", "2"), ("start_iteration", -1), ("start_iteration", None), ("gate_bytes", -1), ("scaler", 3), ("group", "gloo"))]
    refused += [sentence_of(gradtool.ddp_hook, spec, scheme=scheme) for spec, scheme in ((3, "auto"), ("powersgd", "gather"))]
    ddp, hook = nn.parallel.DistributedDataParallel(nn.Linear(3, 3)), gradtool.ddp_hook("topk")
    refused += [sentence_of(hook.register, model) for model in (nn.Linear, nn.Linear(3, 3), None)]
    hook.register(ddp)
    refused.append(sentence_of(hook.register, nn.parallel.DistributedDataParallel(nn.Linear(3, 3))))
    refused.append(sentence_of(gradtool.ddp_hook("topk").register, ddp))
    half = torch.distributed.new_group([0]), torch.distributed.new_group([1])
    of_half = nn.parallel.DistributedDataParallel(nn.Linear(3, 3), process_group=half[rank])
    refused.append(sentence_of(gradtool.ddp_hook("topk").register, of_half))
    refused.append(sentence_of(gradtool.ddp_hook, "topk", group=half[1 - rank]))
    gradtool.ddp_hook("topk", group=half[rank]).register(of_half)
    of_half(torch.ones(2, 3)).sum().backward()
    hook, spectrum = gradtool.ddp_hook("topk"), nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    of_half.module.spectrum = spectrum  # gloo of torch 1.13 refuses the model itself
    of_half.process_group = torch.distributed.group.WORLD
    refused += [sentence_of(hook.register, of_half), sentence_of(hook._reduce, spectrum.detach(), [spectrum], 0)]
    return refused


def test_arguments_that_are_not_valid_are_refused_before_the_training():
    words = ["called 'ring'; valid is auto, sum, gather", "scheme is None; valid is auto", "cannot ride on a sum", "all_reduce is 'tree'; valid is auto, ring or doubling", "seed is -1", "seed is 0.5",
             r"below 2\^64", "threads is 0", "threads is '2'", "start_iteration is -1", "start_iteration is None", "gate_bytes is -1",
             "scaler is of the type int", "group is 'gloo'; valid is a process group", "the codec is 3", "reducer of its own",
             "the class Linear; valid is what DistributedDataParallel", "the type Linear; valid", "the type NoneType; valid",
             "registered with a model already", "has a communication hook already", r"over the ranks \[\d\] and the hook over \[0, 1\]",
             "a process group of which this rank is a member", "spectrum has the type torch.complex64; valid are real numbers",
             r"\(3,\) is of the type torch.complex64; valid are real numbers"]
    for results in run_ranks(2, refuse_arguments):
        assert len(results) == len(words)
        for sentence, word in zip(results, words):
            assert re.search(word, sentence), f"{sentence} / {word}"


def average_in_groups(rank, size):
    """Two halves of a job average apart, at the same time."""
    halves = [torch.distributed.new_group([0, 2]), torch.distributed.new_group([1, 3])]
    ddp = nn.parallel.DistributedDataParallel(GivenGradients((40, 30)), process_group=halves[rank % 2])
    hook = gradtool.ddp_hook("bf16", scheme="hop", group=halves[rank % 2]).register(ddp)
    ddp(torch.full((40, 30), 1.0 + rank)).backward()
    hook.close()
    words = [sentence_of(gradtool.ddp_hook, "topk", group="gloo" if rank == 3 else halves[rank % 2])]
    return ddp.module.weights[0].grad.unique().tolist(), words


def test_groups_that_do_not_overlap_average_apart():
    for rank, (values, words) in enumerate(run_ranks(4, average_in_groups)):
        assert values == [2.0 + rank % 2]
        assert re.search("^group is 'gloo'; valid" if rank == 3 else "^rank 3 refuses: group is 'gloo'; valid is a process group", words[0])


def refuse_sparse(rank, size):
    class Sparse(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.tokens = kind(10, 4, sparse=True)

        def forward(self, inputs):
            return self.tokens(inputs).sum()
    words = [sentence_of(gradtool.ddp_hook("topk").register, nn.parallel.DistributedDataParallel(Sparse(kind)))
             for kind in (nn.Embedding, nn.EmbeddingBag)]
    ddp = nn.parallel.DistributedDataParallel(Sparse(nn.Embedding))
    ddp.register_comm_hook(None, gradtool.ddp_hook("topk"))
    words.append(sentence_of(lambda: ddp(torch.tensor([[1, 2]])).backward()))
    return words


def test_sparse_gradients_are_refused_by_name():
    for words in run_ranks(2, refuse_sparse):
        assert "the gradient of tokens.weight is sparse" in words[0] and "Embedding with sparse=False" in words[0]
        assert "EmbeddingBag with sparse=False" in words[1]
        assert "is sparse, which no codec takes" in words[2]


def capture_then_compress(rank, size, path):
    """Averages in a training that was captured before, and in one that was not; and returns what a capture beside the hook shows."""
    results = []
    for captured in (False, True):
        ddp = nn.parallel.DistributedDataParallel(GivenGradients((8, 6)))
        torch.manual_seed(rank)
        if captured:
            with gradtool.Capture(ddp, f"{path}.before.h5") as capture:
                for _ in range(2):
                    ddp.zero_grad()
                    ddp(torch.full((8, 6), float(rank))).backward()
                    capture.step()
        hook = gradtool.ddp_hook("topk:ratio=0.2").register(ddp)
        for step in range(3):
            ddp.zero_grad()
            gradient = torch.randn(8, 6)
            if step == 2 and captured:
                with gradtool.Capture(ddp, f"{path}.beside.h5") as capture:
                    ddp(gradient).backward()
                    capture.step()
                results.append(gradient.numpy())
            else:
                ddp(gradient).backward()
        assert hook.iteration == 3
        results.append(ddp.module.weights[0].grad.numpy().copy())
    return results


def test_a_captured_model_is_compressed_in_the_same_process(tmp_path):
    for rank, (alone, gradient, after) in enumerate(run_ranks(2, capture_then_compress, str(tmp_path / "run"))):
        np.testing.assert_array_equal(after, alone)
        with gradtool.open(tmp_path / "run.beside.h5") as run:
            np.testing.assert_array_equal(next(iter(run)).gradient[0, rank], gradient)


class Crossed(nn.Module):
    """Gradients arrive in another order than that of the parameters, so that DDP cuts its buckets otherwise after the first iteration."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.last, self.first, self.middle = nn.Linear(24, 10), nn.Linear(16, 40), nn.Linear(40, 24)

    def forward(self, inputs):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(inputs)))))


def train_crossed(rank, path, spec, options, begin, end, save_at=None):
    """The weights after the iterations from `begin` to `end`, of a training that goes on from `path` unless it begins at 0."""
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 3000
    ddp = nn.parallel.DistributedDataParallel(Crossed(), bucket_cap_mb=0.003)
    hook = gradtool.ddp_hook(spec, **options).register(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    if begin > 0:
        saved = torch.load(f"{path}.{rank}")
        ddp.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        hook.load_state_dict(saved["hook"])
    for step in range(begin, end):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        (ddp(torch.randn(8, 16, generator=generator)) ** 2).mean().backward()
        optimizer.step()
        if step + 1 == save_at:
            torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict()}, f"{path}.{rank}")
    assert hook.iteration == end
    cut = [[name for p in unit.parameters for name, q in ddp.named_parameters() if p is q] for _, unit in sorted(hook._units.items())]
    return torch.cat([p.detach().reshape(-1) for p in ddp.parameters()]).numpy().copy(), hook.bytes_sent, cut


def train_each(rank, size, folder, trainings, *iterations):
    return [train_crossed(rank, f"{folder}/{number}", spec, options, *iterations) for number, (spec, options) in enumerate(trainings)]


def test_a_saved_hook_goes_on_with_the_same_bits(tmp_path):
    """In new processes, where DDP begins with other buckets than it had when the state was saved."""
    trainings = [("topk:ratio=0.1,ef=on", {}), ("topk:ratio=0.1,ef=ef21", {}), ("topk:ratio=0.1,ef=ef21m", {}), ("powersgd:rank=2", {}), ("qsgd:bits=4", {}), ("dgc", {}),
                 ("bf16", {"scheme": "hop"}), ("efsignsgd", {}), ("gradiveq", {}), ("oktopk", {}), ("topk:ef=on", {"start_iteration": 12})]
    whole = run_ranks(2, train_each, str(tmp_path), trainings, 0, 20, 10)
    parts = run_ranks(2, train_each, str(tmp_path), trainings, 10, 20)
    for rank in range(2):
        for (spec, _), (weights, *rest), (again, *rest_again) in zip(trainings, whole[rank], parts[rank]):
            np.testing.assert_array_equal(again, weights, err_msg=spec)
            assert rest_again == rest and len(rest[1]) == 2, spec  # bytes and buckets


def load_what_does_not_fit(rank, size, path):
    def hook_of(spec="topk:ratio=0.1", module=Crossed, **options):
        ddp = nn.parallel.DistributedDataParallel(module(), bucket_cap_mb=0.003)
        return ddp, gradtool.ddp_hook(spec, **options).register(ddp)
    train_crossed(rank, path, "topk:ratio=0.1", {}, 0, 3, 3)
    saved, other = torch.load(f"{path}.{rank}")["hook"], gradtool.ddp_hook("topk:ratio=0.1")
    words = [sentence_of(other.state_dict), sentence_of(other.load_state_dict, saved), sentence_of(pickle.dumps, other)]
    for options, state in (({"spec": "topk:ratio=0.2"}, saved), ({"seed": 2}, saved), ({"scheme": "gather"}, saved), ({}, {**saved, "ranks": 4}),
                           ({}, {**saved, "rank": 0}), ({}, {"model": 3}), ({}, {**saved, "iteration": rank}),
                           ({"module": lambda: nn.Linear(3, 3)}, saved)):
        words.append(sentence_of(hook_of(**options)[1].load_state_dict, state))
    kept = saved["buckets"][0]["kept"]
    words.append(sentence_of(hook_of()[1].load_state_dict, {**saved, "buckets": [{**saved["buckets"][0], "kept": kept[:-4]}]}))
    for damaged in ({**saved, "buckets": None}, {**saved, "iteration": "x"}, {**saved, "buckets": [{"parameters": []}]}):
        assert "the state of the hook is damaged" in sentence_of(hook_of()[1].load_state_dict, damaged)
    # A hook that saves what it has loaded saves the same.
    ddp, hook = hook_of()
    hook.load_state_dict(saved)
    again = hook.state_dict()
    assert again.keys() == saved.keys() and all(torch.equal(a["kept"], b["kept"]) for a, b in zip(again["buckets"], saved["buckets"]))
    # Buckets of another size drop what was kept, which a warning says.
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1 << 20
    ddp = nn.parallel.DistributedDataParallel(Crossed())
    gradtool.ddp_hook("topk:ratio=0.1").register(ddp).load_state_dict(saved)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            ddp(torch.ones(8, 16)).sum().backward()
    words.append("; ".join(str(warning.message) for warning in caught if "bucket" in str(warning.message)))
    return words


def test_states_that_do_not_fit_are_refused_on_every_rank(tmp_path):
    words = ["hook.register", "hook.register", "cannot be saved itself; save hook.state_dict",
             "codec is topk:ratio=0.1.* in the saved state and topk:ratio=0.2", "seed is 1 in the saved state and 2",
             "scheme is auto in the saved state and gather", "ranks is 4 in the saved state and 2", "rank is 0 in the saved state and 1",
             "not one of a hook", "iteration of the saved state is 0 on rank 0 and 1 on rank 1", "a parameter last.* which this one has not",
             "saved state: it ends too early", "cuts bucket 0 otherwise .* dropped; give it the same bucket_cap_mb"]
    for results in run_ranks(2, load_what_does_not_fit, str(tmp_path / "run")):
        assert len(results) == len(words)
        for sentence, word in zip(results, words):
            assert re.search(word, sentence), f"{sentence} / {word}"


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
def test_small_sums_take_few_messages(size, tmp_path, gradtool_program):
    """PowerSGD's two all-reduces of a small matrix: 2 ceil(log2 p) latencies each are what bench's model allows."""
    import math
    import queue
    from concurrent.futures import ThreadPoolExecutor
    from gradtool import _core
    gradients = np.random.default_rng(1).standard_normal((size, 32 * 32)).astype("f4")

    def averages(algorithm):
        boxes = {(a, b): queue.Queue() for a in range(size) for b in range(size)}

        def run(rank):
            def exchange(to, out, from_, into):
                if out is not None:
                    boxes[rank, to].put(bytes(np.asarray(out)))
                if into is not None:
                    np.asarray(into)[:] = np.frombuffer(boxes[from_, rank].get(timeout=60), np.uint8)

            ranks = _core.HostRanks(rank, size, 1, exchange, exchange, algorithm)
            reducer = _core.HostReducer(ranks, "powersgd:rank=2", [("weight", [32, 32], "linear", "OI", 0.0)], "auto")
            values = gradients[rank].copy()
            reducer.reduce(values, None, None, seed=1, step=0, tensor=0, iteration=0, learning_rate_ratio=1.0)
            return values, ranks.messages_sent

        with ThreadPoolExecutor(size) as pool:
            results = list(pool.map(run, range(size)))
        assert all(np.array_equal(values, results[0][0]) for values, _ in results)
        return results[0][0], max(messages for _, messages in results)

    (few, messages), (ring, many) = averages("auto"), averages("ring")
    assert np.allclose(few, ring, rtol=0, atol=1e-4 * np.abs(ring).max())
    assert many == 2 * 2 * (size - 1)
    assert messages <= 2 * 2 * math.ceil(math.log2(size))
    if size & (size - 1) == 0:
        assert messages == 2 * math.log2(size)
    assert messages == modelled_messages(tmp_path, size)


def modelled_messages(folder, size):
    """Bench's model of the hook's messages, from a replay on two ranks."""
    import csv
    import h5py
    with h5py.File(folder / "two.h5", "w") as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=2)
        file["steps/iteration"] = np.arange(2)
        tensor = file.create_group("tensors/0000")
        tensor.attrs.update(name="weight", shape=[32, 32], kind="linear", layout="OI")
        tensor["gradient"] = np.random.default_rng(1).standard_normal((2, 2, 32 * 32)).astype("f4")
    gradtool.run("bench", folder / "two.h5", "--codec", "powersgd:rank=2", "--network", "10gbe", "--nodes", str(size), "--library", "hook", "--timing",
                 "isolated", "--timeout", "0.1", "--csv", folder / "rows.csv")
    with open(folder / "rows.csv", encoding="utf-8") as table:
        return next(float(row["messages"]) for row in csv.DictReader(table) if row["codec"] == "powersgd" and row["time_source"] == "modelled")
