"""The codecs of the package against the program's bytes, and against themselves on NumPy and PyTorch."""

import concurrent.futures
import csv
import json
import pickle
import subprocess

import numpy as np
import pytest

import gradtool

pytestmark = pytest.mark.usefixtures("core")


def codecs_for_one_rank():
    try:
        return [codec["name"] for codec in gradtool.codecs() if codec["aggregation"] in ("gather", "sum")]
    except ImportError:
        return []


def test_codecs_are_described_as_by_the_program(gradtool_program):
    said = subprocess.run([gradtool_program, "list", "codecs", "--json", "-"], check=True, capture_output=True).stdout
    # The program may be another build, with CUDA and with other libraries.
    ours, theirs = ({codec["name"]: {**codec, "spaces": None} for codec in codecs} for codecs in (gradtool.codecs(), json.loads(said)))
    both = ours.keys() & theirs.keys()
    assert "topk" in both and all(ours[name] == theirs[name] for name in both)


@pytest.mark.parametrize("name", codecs_for_one_rank())
def test_payloads_are_those_of_the_program(name, capture_file, gradtool_program, tmp_path):
    """All steps of two ranks, tensor by tensor: residuals and memories are the program's too."""
    subprocess.run([gradtool_program, "bench", capture_file, "--codec", name, "--granularity", "tensor", "--ranks", "2",
                    "--timing", "isolated", "--threads", "1", "--timeout", "0.05", "--seed", "7", "--payloads", tmp_path / "p", "--csv", tmp_path / "b.csv"],
                   check=True, capture_output=True)
    with gradtool.open(capture_file) as file:
        tensors = list(file)
        steps = file.steps
        ratio = steps["learning_rate"] / steps["learning_rate"][0]
        sizes = [int(np.prod(tensor.shape)) for tensor in tensors]
        compared = 0
        for rank in range(2):
            codec = gradtool.Codec(name, rank=rank, ranks=2, seed=7)
            data = (tmp_path / "p" / f"rank{rank}.bin").read_bytes()
            rows = list(csv.DictReader(open(tmp_path / "p" / f"rank{rank}.csv")))
            for row, after in zip(rows, rows[1:] + [None]):
                same = after is not None and (after["step"], after["unit"]) == (row["step"], row["unit"])
                if row["codec"] != name or (row["call"] == "all_gather" and same):
                    continue  # the uncompressed rows beside it, and sizes
                step, unit = int(row["step"]), int(row["unit"])
                tensor = tensors[unit]
                payload = codec.encode(tensor.gradient[step, rank], tensor=unit, step=step,
                                       weight=None if tensor.weight is None else tensor.weight[step],
                                       second_moment=None if tensor.second_moment is None else tensor.second_moment[step, rank],
                                       iteration=int(steps["iteration"][step]), learning_rate_ratio=float(ratio[step]),
                                       kind=tensor.kind, depth=sum(sizes[:unit]) / sum(sizes))
                sent = data[int(row["offset"]):int(row["offset"]) + int(row["bytes"])]
                assert payload.tobytes() == sent, f"{name}: rank {rank}, step {step}, {tensor.name}"
                compared += 1
    assert compared >= 2 * len(tensors)


def test_torch_and_numpy_give_the_same_bytes():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal((64, 48)).astype("f4")
    for name in codecs_for_one_rank():
        from_numpy = gradtool.Codec(name)
        from_torch = gradtool.Codec(name)
        for _ in range(2):
            payload = from_numpy.encode(values)
            tensor = from_torch.encode(torch.from_numpy(values))
            assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.uint8
            assert payload.tobytes() == tensor.numpy().tobytes(), name
        decoded = from_torch.decode(tensor, values.shape)
        np.testing.assert_array_equal(from_numpy.decode(payload, values.shape), decoded.numpy())


def test_decoding_adds_in_place_without_a_copy():
    codec = gradtool.Codec("bf16")
    values = np.float32([1, 2, 3, 4])
    payload = codec.encode(values)
    assert payload.nbytes == 8
    out = np.full(4, 10, "f4")
    address = out.ctypes.data
    codec.decode_add(payload, out, weight=-2.0)
    assert out.ctypes.data == address
    np.testing.assert_array_equal(out, 10 - 2 * values)


def test_a_lossless_codec_gives_every_bit_back():
    """All patterns of bfloat16, and some millions of float32: signs of zeros and bits of NaNs as well."""
    narrow = (np.arange(1 << 16, dtype="u4") << 16).view("f4")
    wide = np.random.default_rng(3).integers(0, 1 << 32, 1 << 21, dtype="u4").view("f4")
    for spec, values in (("exponent", narrow), ("exponent:dtype=fp32", narrow), ("exponent", wide)):
        codec = gradtool.Codec(spec)
        decoded = codec.decode(codec.encode(values), values.shape)
        np.testing.assert_array_equal(decoded.view("u4"), values.view("u4"), spec)


def test_error_feedback_sends_everything_in_the_end():
    """With error feedback the decoded sum over steps approaches the sum of the gradients (NumPy's own top-k beside it)."""
    rng = np.random.default_rng(1)
    codec = gradtool.Codec("topk:ratio=0.1,ef=on")
    residual = np.zeros(200, "f4")
    for _ in range(20):
        gradient = rng.standard_normal(200).astype("f4")
        decoded = codec.decode(codec.encode(gradient), 200)
        held = residual + gradient
        expected = np.zeros_like(held)
        largest = np.argsort(-np.abs(held), kind="stable")[:20]
        expected[largest] = held[largest]
        np.testing.assert_array_equal(decoded, expected)
        residual = held - expected


def test_ef21_sends_differences_to_what_was_sent():
    """Decoded payloads add up to NumPy's own EF21 with top-k."""
    rng = np.random.default_rng(1)
    codec = gradtool.Codec("topk:ratio=0.1,ef=ef21")
    received, sent = np.zeros(200, "f4"), np.zeros(200, "f4")
    for _ in range(20):
        gradient = rng.standard_normal(200).astype("f4")
        codec.decode_add(codec.encode(gradient), received)
        largest = np.argsort(-np.abs(gradient - sent), kind="stable")[:20]
        sent[largest] += (gradient - sent)[largest]
        np.testing.assert_array_equal(received, sent)
    with pytest.raises(gradtool.UsageError, match="does not promise"):
        gradtool.Codec("terngrad:ef=ef21")


@pytest.mark.parametrize("spec, eta", [("topk:ratio=0.1,ef=ef21m", 0.1), ("topk:ratio=0.1,ef=ef21m,eta=0.5", 0.5)])
def test_ef21m_sends_differences_of_an_average(spec, eta):
    """Decoded payloads add up to NumPy's own EF21 with momentum and top-k, in float32."""
    rng = np.random.default_rng(1)
    codec = gradtool.Codec(spec)
    received, sent, average = np.zeros(200, "f4"), np.zeros(200, "f4"), None
    for _ in range(20):
        gradient = rng.standard_normal(200).astype("f4")
        codec.decode_add(codec.encode(gradient), received)
        average = gradient if average is None else average + np.float32(eta) * (gradient - average)
        largest = np.argsort(-np.abs(average - sent), kind="stable")[:20]
        sent[largest] += (average - sent)[largest]
        np.testing.assert_array_equal(received, sent)


@pytest.mark.parametrize("spec, sentence", [
    ("topq", "topk"), ("topk:ratio=2", "ratio"), ("topk:ration=0.1", "ratio"), ("", "codec")])
def test_wrong_codecs_are_refused_with_the_programs_sentence(spec, sentence):
    with pytest.raises(gradtool.UsageError, match=sentence):
        gradtool.Codec(spec)


def test_what_does_not_fit_is_refused():
    codec = gradtool.Codec("qsgd")
    payload = codec.encode(np.ones(1000, "f4"))
    with pytest.raises(gradtool.DataError):
        codec.decode(payload[:-3], 1000)
    with pytest.raises(gradtool.UsageError, match="key of its own"):
        codec.encode(np.ones(10, "f4"))
    with pytest.raises(gradtool.UsageError, match="only between ranks"):
        gradtool.Codec("powersgd").encode(np.ones((4, 4), "f4"))
    with pytest.raises(gradtool.UsageError, match="real numbers"):
        codec.encode(np.array(["a"]), tensor=2)
    with pytest.raises(gradtool.UsageError, match="no elements"):
        codec.encode(np.ones((0, 3), "f4"), tensor=3)


def test_reset_forgets_the_residual():
    codec = gradtool.Codec("topk:ratio=0.1")
    first = codec.encode(np.arange(100, dtype="f4"))
    second = codec.encode(np.arange(100, dtype="f4"))
    codec.reset()
    assert codec.encode(np.arange(100, dtype="f4")).tobytes() == first.tobytes() != second.tobytes()


def test_any_layout_and_type_of_array_is_taken():
    codec = gradtool.Codec("fp16")
    values = np.arange(24, dtype="f8").reshape(4, 6)
    np.testing.assert_array_equal(codec.decode(codec.encode(values.T), (6, 4)), values.T)


@pytest.mark.parametrize("spec", ["fft:theta=0.9", "topk:ratio=0.05", "exponent", "onebit"])
def test_threads_may_share_a_codec(spec):
    """Every payload is decoded by four threads at once; each result is the one that a thread alone gets."""
    values = np.random.default_rng(3).standard_normal((40, 50)).astype("f4")
    codec = gradtool.Codec(spec)
    payload = codec.encode(values)
    alone = codec.decode(payload, values.shape)
    shared = gradtool.Codec(spec)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: shared.encode(values), range(200)))
        for decoded in threads.map(lambda _: shared.decode(payload, values.shape), range(200)):
            np.testing.assert_array_equal(decoded, alone)
    assert shared._tensors[0].steps == 200


def test_numbers_that_are_not_real_are_refused():
    torch = pytest.importorskip("torch")
    for values in (np.ones(4, "c8"), torch.ones(4, dtype=torch.complex64), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(gradtool.UsageError, match="valid are real numbers"):
            gradtool.Codec("bf16").encode(values)


@pytest.mark.parametrize("values, sentence", [
    (np.array([2 ** 24 + 1, 3]), r"integers beyond 2\^24"), (np.array([2 ** 63 + 1], "u8"), r"integers beyond 2\^24"),
    (np.array([-2 ** 63]), r"integers beyond 2\^24"), (np.array([1e300, 1]), "infinite in float32"),
    (np.ma.array([1.0, 2.0], mask=[0, 1]), "masked array"), ([[1.0], [1.0, 2.0]], "no array of numbers"), (None, "real numbers")])
def test_values_that_float32_would_change_silently_are_refused(values, sentence):
    with pytest.raises(gradtool.UsageError, match=sentence):
        gradtool.Codec("none").encode(values)
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray) and values.dtype != np.uint64:
        torch = pytest.importorskip("torch")
        with pytest.raises(gradtool.UsageError, match=sentence):
            gradtool.Codec("none").encode(torch.from_numpy(values))


def test_tensors_that_are_not_dense_numbers_in_memory_are_refused():
    torch = pytest.importorskip("torch")
    for values, sentence in ((torch.eye(3).to_sparse(), "sparse"), (torch.eye(3).to_sparse_csr(), "sparse"),
                             (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantised"),
                             (torch.ones(3, device="meta"), "on meta; valid are cpu and cuda")):
        with pytest.raises(gradtool.Error, match=sentence):
            gradtool.Codec("none").encode(values)


def test_values_that_float32_holds_are_taken():
    torch = pytest.importorskip("torch")
    for values in (np.float32(3), np.array(2.5), np.array([2 ** 24, -2 ** 24]), np.array([2.0 ** 120, np.inf, np.nan]), torch.tensor(3.0),
                   torch.ones(3, requires_grad=True), torch.ones(2, 3).t(), torch.tensor([2.0 ** 120, float("inf")], dtype=torch.float64),
                   torch.tensor([2 ** 24], dtype=torch.int64), torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last)):
        codec = gradtool.Codec("none")
        decoded = codec.decode(codec.encode(values), np.shape(values))
        values = values.detach().numpy() if isinstance(values, torch.Tensor) else values
        np.testing.assert_array_equal(np.asarray(decoded), values)


def test_arguments_of_a_codec_that_are_not_valid_are_refused():
    ones, codec = np.ones(4, "f4"), gradtool.Codec("topk:ratio=0.5")
    payload = codec.encode(ones)
    for name, value in (("rank", "a"), ("ranks", 0), ("rank", 1), ("seed", -1), ("seed", 2 ** 64), ("threads", 1.5)):
        with pytest.raises(gradtool.UsageError, match=f"{name} is {value!r}"):
            gradtool.Codec("topk", **{name: value})
    for name, value in (("step", -1), ("step", 2 ** 32), ("iteration", 0.5), ("learning_rate_ratio", float("nan")), ("kind", "foo"),
                        ("depth", 7)):
        with pytest.raises(gradtool.UsageError, match=f"{name} is {value!r}"):
            gradtool.Codec("topk").encode(ones, **{name: value})
    with pytest.raises(gradtool.UsageError, match="the codec is 3"):
        gradtool.Codec(3)
    for damaged in (payload.astype("f4"), payload.astype("i8") + 256, list(payload), payload.reshape(1, -1)):
        with pytest.raises(gradtool.UsageError, match="valid is uint8 of one dimension"):
            codec.decode(damaged, 4)
    for shape in (-4, (4.0,)):
        with pytest.raises(gradtool.UsageError, match="an extent of the shape is"):
            codec.decode(payload, shape)
    read_only = np.zeros(4, "f4")
    read_only.setflags(write=False)
    with pytest.raises(gradtool.UsageError, match="may be written to"):
        codec.decode_add(payload, read_only)
    with pytest.raises(gradtool.UsageError, match="weight is 'x'"):
        codec.decode_add(payload, np.zeros(4, "f4"), weight="x")
    np.testing.assert_array_equal(codec.decode(payload.tobytes(), 4), codec.decode(payload, 4))


@pytest.mark.parametrize("spec", ["topk:ratio=0.1,ef=on", "topk:ratio=0.1,ef=ef21", "topk:ratio=0.1,ef=ef21m", "qsgd:bits=4", "dgc", "adacomp", "strom:tau=0.5"])
def test_a_saved_codec_goes_on_with_the_same_bytes(spec):
    rng = np.random.default_rng(5)
    gradients = [rng.standard_normal((20, 30)).astype("f4") for _ in range(8)]
    codec, again = gradtool.Codec(spec, seed=3), gradtool.Codec(spec, seed=3)
    again.encode(gradients[7], tensor="bias")  # is forgotten
    for step, gradient in enumerate(gradients):
        if step == 4:
            again.load_state_dict(pickle.loads(pickle.dumps(codec.state_dict())))
        payloads = [each.encode(gradient, tensor="weight", kind="linear", depth=0.5).tobytes() for each in (codec, again)[:1 + (step >= 4)]]
        assert len(set(payloads)) == 1
    assert again.state_dict() == codec.state_dict()


def test_states_of_other_codecs_are_refused():
    codec = gradtool.Codec("topk:ratio=0.1")
    codec.encode(np.ones(40, "f4"))
    saved = codec.state_dict()
    for other, sentence in ((gradtool.Codec("topk:ratio=0.2"), "codec is topk:ratio=0.1.* and topk:ratio=0.2"),
                            (gradtool.Codec("topk:ratio=0.1", seed=2), "seed is 1 in the saved state and 2"),
                            (gradtool.Codec("topk:ratio=0.1", rank=1, ranks=2), "rank is 0 in the saved state and 1")):
        with pytest.raises(gradtool.UsageError, match=sentence):
            other.load_state_dict(saved)
    with pytest.raises(gradtool.DataError, match="not one of a codec"):
        codec.load_state_dict({"weight": 3})
    saved["tensors"][0]["kept"] = saved["tensors"][0]["kept"][:-4]
    with pytest.raises(gradtool.DataError, match="saved state"):
        codec.load_state_dict(saved)
    for damage in (lambda tensor: tensor.pop("kept"), lambda tensor: tensor.update(shape=None), lambda tensor: tensor.update(number="one")):
        broken = pickle.loads(pickle.dumps(codec.state_dict()))
        damage(broken["tensors"][0])
        with pytest.raises(gradtool.DataError, match="the state of the codec is damaged"):
            codec.load_state_dict(broken)
    with pytest.raises(gradtool.DataError, match="the state of the codec is damaged"):
        codec.load_state_dict({**codec.state_dict(), "tensors": None})
    with pytest.raises(gradtool.UsageError, match="save codec.state_dict"):
        pickle.dumps(codec)
