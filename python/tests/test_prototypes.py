"""Codecs and reducers in Python (docs/prototypes.md), from Python: as objects for the program, as files in a trial and in a codec."""

import numpy as np
import pytest

import gradtool

pytestmark = pytest.mark.usefixtures("core")


class TopK:
    """k largest, with a residual"""

    def __init__(self, ratio=0.01):
        self.ratio, self.residual = ratio, 0

    def encode(self, x, ctx):
        u = x + self.residual
        kept = np.argsort(-np.abs(u), kind="stable")[:max(1, round(self.ratio * x.size))].astype(np.uint32)
        self.residual = u.copy()
        self.residual[kept] = 0
        return u[kept], kept

    def decode(self, payload, n):
        out = np.zeros(n, np.float32)
        out[payload[1]] = payload[0]
        return out


class Mean:
    def reduce(self, gradients, ctx):
        return sum(gradients) / len(gradients), 1000


def test_objects_and_classes_ride_beside_codecs(capture_file, gradtool_program):
    prototype = TopK(0.1)
    rows = gradtool.bench(capture_file, codecs=["topk:ratio=0.1", "topk", prototype, TopK, Mean], timeout=0.05, granularity="tensor")
    rows = rows[(rows.tensor == "all") & (rows.timing == "isolated")]
    rows = rows.set_index(rows.codec + ":" + rows.params)
    ours, theirs = rows.loc["python:file=@TopK,delays=on"], rows[rows.index.str.startswith("topk:ratio=0.1,")].iloc[0]
    assert ours.nmse == theirs.nmse and ours.cumulative_nmse == theirs.cumulative_nmse
    class_row = rows.loc["python:file=@TopK-2,delays=on,ratio=0.01"]
    assert class_row.nmse == rows[rows.index.str.startswith("topk:ratio=0.01,")].iloc[0].nmse
    with gradtool.open(capture_file) as file:
        assert rows.loc["python:file=@Mean"].wire_bytes_per_rank == 1000 * len(list(file))
    assert np.ndim(prototype.residual) == 0, "the object that was given keeps what it had"


def test_what_is_no_prototype_is_refused(capture_file, gradtool_program):
    with pytest.raises(gradtool.UsageError, match="neither encode and decode nor reduce"):
        gradtool.bench(capture_file, codecs=[object()])
    with pytest.raises(gradtool.UsageError, match="both given"):
        gradtool.bench(capture_file, "bf16", codecs=["bf16"])

    class Wrong(TopK):
        def encode(self, x, ctx):
            raise KeyError("nothing")
    with pytest.raises(gradtool.DataError, match="KeyError: 'nothing' .line .*in encode"):
        gradtool.bench(capture_file, codecs=[Wrong()])


FILE = '''
import numpy as np


class Rounded:
    """every value rounded to a multiple of the step"""

    def __init__(self, step=0.001):
        self.step = step

    def encode(self, x, ctx):
        return np.rint(x / self.step).astype(np.int32)

    def decode(self, payload, n):
        return payload * np.float32(self.step)
'''


def test_codec_of_a_file(tmp_path):
    path = tmp_path / "rounded.py"
    path.write_text(FILE)
    codec = gradtool.Codec(f"python:{path},step=0.5")
    values = np.array([0.2, 0.3, -1.4, 7.0], dtype="f4")
    payload = codec.encode(values)
    assert payload.nbytes == 16
    assert codec.decode(payload, shape=values.shape).tolist() == [0.0, 0.5, -1.5, 7.0]
    with pytest.raises(gradtool.UsageError, match="stop"):
        gradtool.Codec(f"python:{path},stop=0.5")


def test_trial_of_a_file(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "rounded.py"
    path.write_text(FILE)

    def train(trial):
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in trial:
            x = torch.randn(trial.workers, 16, 8, generator=torch.Generator().manual_seed(step))
            trial.step(model, optimizer, (((model(x[w]) - x[w].sum(1, keepdim=True)) ** 2).mean() for w in range(trial.workers)))

    result = gradtool.trial(train, [f"python:{path},step=1e-6", f"python:{path},step=100"], steps=40, workers=2, seeds=2, progress=False)
    fine, coarse = (result.frame().set_index("codec").loc[f"python:file={path},step={step}"] for step in ("1e-6", "100"))
    assert (fine.verdict, coarse.verdict) == ("learns", "loses")
