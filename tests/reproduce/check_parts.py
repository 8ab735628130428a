"""The parts of scripts/reproduce that figures depend on: formulas against what gradtool counts and models, cutting captures,
picking rows, crossings. On the committed capture; no experiment is run.

Usage: check_parts.py GRADTOOL SOURCE_DIR
"""
import os
import re
import subprocess
import sys
import tempfile
import types

gradtool, root = sys.argv[1:]
sys.path.insert(0, os.path.join(root, "scripts", "reproduce"))
import common  # noqa: E402
import dlcp  # noqa: E402
import fft  # noqa: E402
import gradiveq  # noqa: E402
import iwp  # noqa: E402
import vgc  # noqa: E402

capture = os.path.join(root, "datasets", "lenet5-fashion-mnist.h5")
fixed = ["--granularity", "model", "--timing", "isolated", "-n", 1]


def close(x, y, tolerance=1e-9):
    assert x is not None and abs(x - y) <= tolerance * abs(y), (x, y)


def arithmetic():
    close(common.crossing([(2, 0.5), (4, 1.5), (8, 3)], 1.0), 3)
    close(common.crossing([(100, 9.0), (200, 7.0), (400, 3.0)], 5.0), 300)
    assert common.crossing([(1, 2), (2, 3)], 5) is None
    assert [common.number(x) for x in (None, "a", 0, 1234.4, 0.1234, 2e-5)] == ["", "a", "0", "1,234", "0.123", "2.00e-05"]
    close(common.highest(lambda rate: 500 / rate, 5), 100, 1e-6)
    assert common.highest(lambda rate: 4.9, 5) is None
    close(gradiveq.cycle(100 * 2.0, 1.0), 1.2)
    close(dlcp.at_loss([(0.1, 0.2), (0.2, 0.6)], 0.15), 0.4)
    assert dlcp.delivered("important bytes delivered: 99.5 %; bytes sent again: 0 %", "bytes sent again") == 0
    close(fft.scaling(32, fft.gather_seconds(32, 1)), 32 * 0.4 / 2.6)  # the paper's bar for SGD: 4.9
    close(fft.scaling(32, fft.gather_seconds(32, 21.3)), 25.4, 1e-2)
    # ResNet-32: 31 convolutions, 62 tensors of one dimension beside them, a linear layer; docs/codecs.md on slices.
    shapes = [("conv", (16, 3, 3, 3))] + [("conv", (16, 16, 3, 3))] * 10 + [("conv", (32, 16, 3, 3))] + [("conv", (32, 32, 3, 3))] * 9
    shapes += [("conv", (64, 32, 3, 3))] + [("conv", (64, 64, 3, 3))] * 9 + [("norm", (2272,)), ("linear", (10, 64)), ("bias", (10,))]
    floats, covered = gradiveq.smallest_payload(shapes)
    assert covered == 464154 - 2272 - 650 and floats == 99 * (1 + 10 * 3 + 3 + 9 * 9 + 9 + 9 * 9) + 2272 + 650, (floats, covered)


def against_the_program(options):
    has_fft = "\nfft " in subprocess.run([gradtool, "list", "codecs"], check=True, stdout=subprocess.PIPE, text=True).stdout
    transform = ["fft:theta=0.85,bits=10,range=auto"] if has_fft else []
    rows = common.bench(options, [*transform, "qsgd:bits=3", "iwp:roots=1,mask=bitmap", "vgc:alpha=1"],
                        [*fixed, "--network", "lab:alpha=50us,beta=0.94Gbps", "--nodes", "2,16"])
    none = common.pick(rows, "none", time_source="measured")
    n = int(none["elements"])
    for ranks in (2, 16):
        close(common.pick(rows, "none", time_source="modelled", ranks=ranks)["comm_us_median"] * 1e-6,
              common.all_reduce_seconds(4 * n, ranks, 50e-6, 0.94e9 / 8))
    for name, codec in (("FFT", "fft"), ("QSGD", "qsgd"))[0 if has_fft else 1:]:
        close(common.pick(rows, codec, time_source="measured")["payload_ratio"], fft.formula_ratio(name, n), 1e-3)
    mask = common.pick(rows, "iwp:mask=bitmap", time_source="measured")
    # 8 n bytes of a long ring against 8 |M| and a bitmap of n bits with its header.
    close(iwp.with_many_ranks(mask), 8 * n / (8 * n / mask["element_ratio"] + n / 8), 1e-2)
    try:
        common.pick(rows, "none")
        raise AssertionError("several rows, and none was refused")
    except LookupError:
        pass


def micro_batches(path, steps):
    """Two tensors of noise with a mean, 4 micro-batches: what VGC looks at."""
    import h5py
    import numpy as np
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=1, producer="test", micro_batches=4)
        file["steps/iteration"] = np.arange(steps)
        for number, n in enumerate((500, 3000)):
            parts = (rng.standard_normal((4, steps, 1, n)) * np.exp(rng.standard_normal(n)) + 0.3).astype("f4")
            group = file.create_group(f"tensors/{number:04d}")
            group.attrs.update(name=f"t{number}", shape=np.array([n], "i8"), kind="other")
            group["gradient"], group["second_moment"] = parts.mean(axis=0), np.square(parts / 4).sum(axis=0)


def cut_captures(options, folder):
    import h5py
    whole = os.path.join(folder, "whole.h5")
    micro_batches(whole, 3)
    cut = common.cut(whole, os.path.join(folder, "cut.h5"), 1, 1)
    with h5py.File(whole) as before, h5py.File(cut) as after:
        assert (after["tensors/0001/gradient"][0] == before["tensors/0001/gradient"][1]).all() and after["steps/iteration"][()] == [1]
    row = common.pick(common.bench(options, ["vgc:alpha=1"], fixed, capture=cut), "vgc")
    passed, sent, zeros = vgc.first_step(cut, 1.0)
    assert 0.1 < sent < passed < 0.9 and zeros == 0, (passed, sent, zeros)
    close(1 / row["element_ratio"], sent)  # what was sent in the only step is what NumPy says


def report(options):
    common.write_report(options, "parts", "Title", "A claim.", [common.table(["a", "b", "c"], [[1, None, None], ["x", 0.5, ""]])])
    with open(os.path.join(options.out, "parts.md")) as file:
        text = file.read()
    assert "| a | b |\n| --- | --- |\n| 1 |  |\n| x | 0.5 |" in text and "**loaded**" in text, text
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text), text


with tempfile.TemporaryDirectory() as folder:
    options = types.SimpleNamespace(gradtool=gradtool, capture=capture, out=folder, work=folder, quick=True, note="loaded", no_cluster=False)
    arithmetic()
    against_the_program(options)
    cut_captures(options, folder)
    report(options)
print("formulas, cut captures, rows and report as expected")
