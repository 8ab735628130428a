"""Importing checkpoints: values bit for bit, and one sentence for everything that is none."""

import json
import os
import pickle
import struct

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")


def write_safetensors(path, tensors):
    """By hand, from the format's description: length, JSON, raw values."""
    names = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "uint16": "BF16"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": names[values.dtype.name], "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sample(seed=0):
    rng = np.random.default_rng(seed)
    return {"wte.weight": rng.standard_normal((7, 3)).astype("f4"), "h.0.ln_1.weight": rng.standard_normal(3).astype("f2"),
            "fc.weight": rng.integers(0, 65536, (4, 3), dtype="u2"), "fc.bias": rng.standard_normal(4),
            "positions": np.arange(5)}


def test_safetensors_bit_for_bit(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", sample())
    gradtool.import_checkpoint(tmp_path / "a.safetensors", tmp_path / "a.h5", averaged=True, model="toy")
    with gradtool.open(tmp_path / "a.h5") as run:
        assert list(run.tensors) == ["wte.weight", "h.0.ln_1.weight", "fc.weight", "fc.bias"]  # no integers
        assert [t.kind for t in run] == ["embedding", "norm", "linear", "bias"]
        assert (run.attributes["quantity"], run.attributes["averaged"], run.attributes["model"]) == ("weight", 1, "toy")
        for name, values in sample().items():
            if name != "positions":
                stored = run[name].gradient.bits[0, 0]
                np.testing.assert_array_equal(stored, values.astype("f4" if values.dtype == "f8" else values.dtype).ravel())


def test_folder_of_hugging_face_in_parts(tmp_path):
    tensors = sample()
    del tensors["positions"]
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(tensors)
    write_safetensors(folder / "model-1.safetensors", {n: tensors[n] for n in names[:2]})
    write_safetensors(folder / "model-2.safetensors", {n: tensors[n] for n in names[2:]})
    index = {"weight_map": {n: f"model-{1 + (i >= 2)}.safetensors" for i, n in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    gradtool.import_checkpoint(folder, tmp_path / "a.h5")
    with gradtool.open(tmp_path / "a.h5") as run:
        assert list(run.tensors) == names
    index["weight_map"]["fc.bias"] = "../secret.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(gradtool.DataError, match="not in the folder"):
        gradtool.import_checkpoint(folder, tmp_path / "b.h5")


def test_differences_of_torch_checkpoints_of_several_workers(tmp_path):
    states = {}
    for step in range(3):
        for worker in range(2):
            states[step, worker] = {"w": torch.randn(4, 5), "b": torch.randn(4).to(torch.bfloat16)}
            torch.save({"model": states[step, worker], "epoch": 1}, tmp_path / f"{step}_{worker}.pt")
    paths = [[tmp_path / f"{step}_{worker}.pt" for worker in range(2)] for step in range(3)]
    gradtool.import_checkpoint(paths, tmp_path / "d.h5", difference=True, negate=True, inner_steps=30, iterations=[0, 30, 60])
    with gradtool.open(tmp_path / "d.h5") as run:
        assert (run.attributes["quantity"], run.attributes["inner_steps"]) == ("pseudo_gradient", 30)
        assert run.steps["iteration"].tolist() == [30, 60] and run.workers == 2
        for step in range(2):
            for worker in range(2):
                for name in ("w", "b"):
                    wanted = states[step, worker][name].float() - states[step + 1, worker][name].float()
                    np.testing.assert_array_equal(run[name].gradient[step, worker], wanted.numpy())


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_no_pickle_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.zeros(3), "extra": Hostile()}, "hostile.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Hostile()))
    for path in ("hostile.pt", "raw.pt"):
        with pytest.raises(gradtool.DataError, match="weights alone"):
            gradtool.import_checkpoint(path, "out.h5")
    assert not os.path.exists("executed") and not os.path.exists("out.h5")


@pytest.mark.parametrize("damage, sentence", [
    (lambda b: b[:4], "header"), (lambda b: struct.pack("<Q", 2 ** 60) + b[8:], "header"),
    (lambda b: b[:8] + b"x" + b[9:], "not valid"), (lambda b: b[:-1], "does not fit"), (lambda b: b"", "header")])
def test_damaged_safetensors(damage, sentence, tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"w": np.zeros(5, "f4")})
    (tmp_path / "a.safetensors").write_bytes(damage((tmp_path / "a.safetensors").read_bytes()))
    with pytest.raises(gradtool.DataError, match=sentence):
        gradtool.import_checkpoint(tmp_path / "a.safetensors", tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


def test_what_does_not_go_together_is_refused(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"w": np.zeros(5, "f4")})
    write_safetensors(tmp_path / "b.safetensors", {"w": np.zeros(6, "f4")})
    a, b, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "out.h5"
    with pytest.raises(gradtool.DataError, match=r"float32 \[6\], but float32 \[5\]"):
        gradtool.import_checkpoint([a, b], out)
    for arguments, options, sentence in ((([a, [a, a]],), {}, "each worker"), (([a],), {"difference": True}, "two"),
                                         ((a,), {"quantity": "loss"}, "quantity"), ((a,), {"negate": True}, "difference"),
                                         (([a],), {"iterations": [1, 2]}, "iterations"),
                                         ((tmp_path / "x.npz",), {}, "no such file")):
        with pytest.raises(gradtool.Error, match=sentence):
            gradtool.import_checkpoint(*arguments, out, **options)
    (tmp_path / "x.npz").write_bytes(b"PK")
    with pytest.raises(gradtool.UsageError, match="no known kind"):
        gradtool.import_checkpoint(tmp_path / "x.npz", out)
    assert not out.exists()
