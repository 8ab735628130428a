"""The GPU's side of codecs and hooks, in a build with the emulated GPU (emulation/README.md), whose memory is the host's: tensors stay PyTorch's
on the CPU, and what encodes, decodes, adds and sends is what does so on a card."""

import types

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position
from test_hook import train_crossed  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture(autouse=True)
def emulated(core):
    if not core.emulated_cuda:
        pytest.skip("the module was not built with -DGRADTOOL_CUDA=EMULATED")


def gpu_in_the_place_of_the_host(module):
    """Everything that `module` asks the compiled side for is the GPU's from now on."""
    core = module._core
    names = {name: getattr(core, name) for name in dir(core)}
    for kind in ("Codec", "Ranks", "Reducer"):
        names["Host" + kind] = names["Cuda" + kind]
    module._core = types.SimpleNamespace(**names)


#: Spec, arguments of the hook, and by how much weights may differ from those that the CPU's side trains, of 1: 0 where all steps are
#: elementwise or add in one order; more where products and transforms round otherwise.
TRAININGS = [("none", {}, 1e-6), ("bf16", {"scheme": "hop"}, 0), ("bf16", {"scheme": "alltoall"}, 0), ("fp16", {"scheme": "sum"}, 0),
             ("fp8", {}, 1e-6), ("int8", {}, 1e-6), ("qsgd:bits=4", {}, 1e-6), ("topk:ratio=0.1", {}, 0), ("topk:ratio=0.1,ef=ef21", {}, 1e-6),
             ("efsignsgd", {}, 1e-5), ("onebit", {}, 1e-5), ("terngrad", {}, 1e-5), ("oktopk", {}, 1e-5), ("dgc", {}, 1e-5),
             ("powersgd:rank=2", {}, 1e-3), ("thc", {}, 1e-3), ("topk:ratio=0.1", {"start_iteration": 3}, 0)]


def train_on(rank, size, gpu, path):
    if gpu:
        from gradtool import _averaging
        gpu_in_the_place_of_the_host(_averaging)
    return [train_crossed(rank, path, spec, options, 0, 6) for spec, options, _ in TRAININGS]


@pytest.mark.parametrize("size", [2, 3])
def test_the_hook_trains_what_it_trains_on_the_cpu(size, tmp_path):
    host, gpu = (run_ranks(size, train_on, gpu, str(tmp_path)) for gpu in (False, True))
    for number, (spec, _, most) in enumerate(TRAININGS):
        for rank in range(size):
            weights, sent, buckets = gpu[rank][number]
            np.testing.assert_array_equal(weights, gpu[0][number][0], err_msg=f"{spec}: ranks differ")
            np.testing.assert_allclose(weights, host[rank][number][0], rtol=0, atol=most, err_msg=spec)
            assert buckets == host[rank][number][2], spec
            assert sent == host[rank][number][1], spec


def refuse_to_save(rank, size, path):
    from gradtool import _averaging
    gpu_in_the_place_of_the_host(_averaging)
    try:
        train_crossed(rank, path, "topk:ratio=0.1", {}, 0, 3, 3)
    except gradtool.UnavailableError as error:
        return str(error)


def test_what_a_gpu_keeps_cannot_be_saved_and_every_rank_says_so(tmp_path):
    for sentence in run_ranks(2, refuse_to_save, str(tmp_path)):
        assert "GPU" in sentence


@pytest.mark.parametrize("spec", ["bf16", "fp8", "int8", "nvfp4", "qsgd:bits=4", "topk:ratio=0.1", "topk:ratio=0.1,ef=ef21", "efsignsgd", "natural", "terngrad"])
def test_a_codec_writes_and_reads_the_bytes_of_the_cpu(spec, monkeypatch):
    from gradtool import _codec
    steps = np.random.default_rng(1).standard_normal((4, 5000), dtype=np.float32)
    host = gradtool.Codec(spec, seed=7)
    payloads = [host.encode(step) for step in steps]
    means = [host.decode(payload, 5000) for payload in payloads]
    monkeypatch.setattr(_codec, "_core", _codec._core)
    gpu_in_the_place_of_the_host(_codec)
    gpu = gradtool.Codec(spec, seed=7)
    for step, payload, mean in zip(steps, payloads, means):
        mine = gpu.encode(step)
        np.testing.assert_array_equal(mine, payload)
        np.testing.assert_array_equal(gpu.decode(mine, 5000), mean)
