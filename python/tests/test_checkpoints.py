"""Importing checkpoints: values bit for bit, and one sentence for everything that is none."""

import json
import os
import pickle
import struct
import subprocess

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")


def write_safetensors(path, tensors):
    """By hand, from the format's description: length, JSON, raw values."""
    names = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "complex64": "C64",
             "uint16": "BF16"}
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
        assert run.steps["iteration"].tolist() == [0, 30] and run.workers == 2
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
    (tmp_path / "empty.pt").write_bytes(b"")
    for path in ("hostile.pt", "raw.pt", "empty.pt"):
        with pytest.raises(gradtool.DataError, match="weights alone") as caught:
            gradtool.import_checkpoint(path, "out.h5")
        assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
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


GOOD = {"dtype": "F32", "shape": [3, 3], "data_offsets": [0, 36]}


def write_raw(path, header, data=bytes(36)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("header, sentence", [
    *[({"w": {**GOOD, **change}}, "not dtype, shape and data_offsets") for change in (
        {"shape": [-3, -3]}, {"shape": [3.0, 3.0]}, {"shape": ["3", "3"]}, {"shape": "33"}, {"shape": [[3], [3]]}, {"shape": [True, 9]},
        {"data_offsets": [None, 36]}, {"data_offsets": [0, 3, 36]}, {"data_offsets": [0.0, 36.0]}, {"dtype": ["F32"]}, {"dtype": 3})],
    *[({name: GOOD}, "names of 1 to 1024 bytes") for name in ("", "w" * 1025, "a\n", "\ud800")],
    ({"w": 3}, "not dtype"), ([1, 2], "no object"), (b"[" * 50000, "not valid JSON"),
    (b'{"w": %s, "w": %s}' % ((json.dumps(GOOD).encode(),) * 2), "twice"),
    ({"w": {**GOOD, "shape": [3, 3] + [1] * 31}}, "33 dimensions"),
    ({"w": {**GOOD, "shape": [0, 3], "data_offsets": [0, 0]}}, "bytes behind"),
    ({"w": GOOD, "v": {**GOOD, "shape": [8], "data_offsets": [4, 36]}}, "side by side"),
    ({"w": GOOD, "v": {**GOOD, "dtype": "F8_E4M3", "shape": [0], "data_offsets": [36, 36]}}, "type F8_E4M3"),
    ({"w": {**GOOD, "shape": [8], "data_offsets": [4, 36]}}, "side by side")])
def test_headers_of_safetensors_that_are_refused(header, sentence, tmp_path):
    write_raw(tmp_path / "a.safetensors", header)
    with pytest.raises(gradtool.DataError, match=sentence):
        gradtool.import_checkpoint(tmp_path / "a.safetensors", tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


def test_tied_weights_of_torch_are_taken_once(tmp_path):
    shared = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    torch.save({"wte.weight": shared, "head.weight": shared, "bias": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.warns(UserWarning, match="head.weight is tied to wte.weight"):
        gradtool.import_checkpoint(tmp_path / "a.pt", tmp_path / "a.h5")
    with gradtool.open(tmp_path / "a.h5") as run:
        assert list(run.tensors) == ["wte.weight", "bias"]


def test_tensors_without_elements_are_left_out(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"none": np.zeros((0, 3), "f4"), "w": np.ones(5, "f4")})
    gradtool.import_checkpoint(tmp_path / "a.safetensors", tmp_path / "a.h5")
    with gradtool.open(tmp_path / "a.h5") as run:
        assert list(run.tensors) == ["w"]


def test_whatever_is_damaged_ends_in_an_error_of_gradtool(tmp_path, gradtool_program):
    """Bytes that are flipped, and headers in which a value is replaced or a part is doubled."""
    rng = np.random.default_rng(5)
    path, out = tmp_path / "a.safetensors", tmp_path / "a.h5"
    write_safetensors(path, sample())
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    values = [None, True, -1, 0, 3, 2 ** 70, 0.5, "F32", "I64", "", "\0", [], [0], [1, 2], {}, {"dtype": "F32"}, [[[]]]]
    taken = 0
    for attempt in range(400):
        damaged = bytearray(whole)
        if attempt % 2:
            for _ in range(int(rng.integers(1, 4))):
                damaged[int(rng.integers(0, 8 + length))] ^= 1 << int(rng.integers(0, 8))
        else:
            header = json.loads(whole[8:8 + length])
            name = list(header)[int(rng.integers(0, len(header)))]
            value = values[int(rng.integers(0, len(values)))]
            inner = list(header[name])[int(rng.integers(0, len(header[name])))]
            change = int(rng.integers(0, 3))
            if change == 0:
                header[name] = value
            elif change == 1 or not isinstance(header[name][inner], list):
                header[name][inner] = value
            else:
                header[name][inner] = header[name][inner] + [value]
            text = json.dumps(header).encode()
            damaged = struct.pack("<Q", len(text)) + text + whole[8 + length:]
        path.write_bytes(damaged)
        try:
            gradtool.import_checkpoint(path, out, replace=True)
        except gradtool.Error as error:
            assert str(error)
            continue
        taken += 1
        if taken % 10 == 0:
            done = subprocess.run([gradtool_program, "validate", out], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    assert 20 < taken < 380


def test_a_difference_is_rounded_once(tmp_path):
    """And has the iteration of the earlier step, as `gradtool import` gives it."""
    for step in range(3):
        write_safetensors(tmp_path / f"s{step}.safetensors", {"w": np.full(4, 1 + step * 1e-9)})
        torch.save({"w": torch.full((4,), 1 + step * 1e-9, dtype=torch.float64)}, tmp_path / f"s{step}.pt")
    for suffix in ("safetensors", "pt"):
        gradtool.import_checkpoint([tmp_path / f"s{step}.{suffix}" for step in range(3)], tmp_path / f"{suffix}.h5", difference=True)
        with gradtool.open(tmp_path / f"{suffix}.h5") as run:
            assert run.steps["iteration"].tolist() == [0, 1]
            np.testing.assert_allclose(run["w"].gradient[:], 1e-9, rtol=1e-6)


def test_a_difference_is_that_of_the_program(tmp_path, gradtool_program):
    for step in (5, 7, 20):
        write_safetensors(tmp_path / f"s{step}.safetensors", {"w": np.random.default_rng(step).standard_normal((4, 3))})
    paths = [tmp_path / f"s{step}.safetensors" for step in (5, 7, 20)]
    gradtool.import_checkpoint(paths, tmp_path / "ours.h5", difference=True, negate=True, iterations=[5, 7, 20])
    subprocess.run([gradtool_program, "import", tmp_path / "s{step}.safetensors", "--difference", "--negate", "-o", tmp_path / "theirs.h5"],
                   check=True, capture_output=True)
    with gradtool.open(tmp_path / "ours.h5") as ours, gradtool.open(tmp_path / "theirs.h5") as theirs:
        np.testing.assert_array_equal(ours.steps["iteration"], theirs.steps["iteration"])
        np.testing.assert_array_equal(ours["w"].gradient[:], theirs["w"].gradient[:])


def test_kinds_of_recurrent_layers_are_those_of_a_capture(tmp_path):
    model = torch.nn.LSTM(4, 5)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    gradtool.import_checkpoint(tmp_path / "a.pt", tmp_path / "a.h5")
    with gradtool.Capture(model, tmp_path / "b.h5") as capture:
        model(torch.ones(2, 3, 4))[0].sum().backward()
        capture.step()
    with gradtool.open(tmp_path / "a.h5") as imported, gradtool.open(tmp_path / "b.h5") as captured:
        assert [(t.name, t.kind) for t in imported] == [(t.name, t.kind) for t in captured]


def test_sentences_about_checkpoints_of_torch(tmp_path):
    torch.save({"net": {"w": torch.zeros(3)}, "epoch": 3}, tmp_path / "net.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, sentence in (("net.pt", "'net', 'epoch'; key="), ("list.pt", "one list")):
        with pytest.raises(gradtool.DataError, match=sentence):
            gradtool.import_checkpoint(tmp_path / name, tmp_path / "out.h5")
    gradtool.import_checkpoint(tmp_path / "net.pt", tmp_path / "out.h5", key="net")
    with pytest.raises(gradtool.UsageError, match="one of the checkpoints"):
        gradtool.import_checkpoint(tmp_path / "net.pt", tmp_path / "net.pt", key="net", replace=True)
    with pytest.raises(gradtool.UsageError, match="inner_steps is 0"):
        gradtool.import_checkpoint([tmp_path / "net.pt"] * 2, tmp_path / "no.h5", key="net", difference=True, negate=True, inner_steps=0)
    for text in ('{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 50000, '{"weight_map": {"a": [1]}}'):
        folder = tmp_path / "folder"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(gradtool.DataError, match="index.json: (names|is not)"):
            gradtool.import_checkpoint(folder, tmp_path / "no.h5")


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


def test_names_of_wrapped_models_agree_with_those_of_bare_ones(tmp_path):
    state = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}
    torch.save(state, tmp_path / "bare.pt")
    for name, wrap in (("ddp", "module.{}".format), ("compiled", "_orig_mod.{}".format), ("both", "module._orig_mod.{}".format),
                       ("inner", lambda name: name.replace("fc.", "fc._orig_mod."))):
        torch.save({wrap(key): 3 * value for key, value in state.items()}, tmp_path / f"{name}.pt")
        for paths in (["bare.pt", f"{name}.pt"], [f"{name}.pt", "bare.pt"]):
            with pytest.warns(UserWarning, match=f"{name}.pt: was saved from a wrapper .* is taken as fc.weight"):
                gradtool.import_checkpoint([tmp_path / p for p in paths], tmp_path / "a.h5", difference=True, replace=True)
            with gradtool.open(tmp_path / "a.h5") as run:
                assert list(run.tensors) == ["fc.weight", "fc.bias"]
                assert (run["fc.weight"].gradient[:] == (2 if paths[0] == "bare.pt" else -2)).all()
    # A prefix that only some names have is none of a wrapper, and names that are the same stay.
    torch.save({"module.fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}, tmp_path / "some.pt")
    with pytest.raises(gradtool.DataError, match="fc.weight is not there"):
        gradtool.import_checkpoint([tmp_path / "bare.pt", tmp_path / "some.pt"], tmp_path / "b.h5")
    gradtool.import_checkpoint([tmp_path / "ddp.pt", tmp_path / "ddp.pt"], tmp_path / "b.h5")
    with gradtool.open(tmp_path / "b.h5") as run:
        assert list(run.tensors) == ["module.fc.weight", "module.fc.bias"]


def test_checkpoints_of_torch_distributed_are_named(tmp_path):
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"PK")
    for path in (folder, folder / "__0_0.distcp"):
        with pytest.raises(gradtool.UsageError, match=r"dcp_to_torch_save\('.*dcp', 'checkpoint.pt'\)"):
            gradtool.import_checkpoint(path, tmp_path / "a.h5")


def test_pointers_of_git_lfs_are_named(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (tmp_path / "a.safetensors", tmp_path / "a.pt", folder / "model.safetensors.index.json"):
        path.write_text(pointer)
        with pytest.raises(gradtool.DataError, match="is a Git LFS pointer.*git lfs pull"):
            gradtool.import_checkpoint(folder if path.suffix == ".json" else path, tmp_path / "a.h5")
    (tmp_path / "run.h5").write_text(pointer)
    with pytest.raises(gradtool.DataError, match="is a Git LFS pointer.*git lfs pull"):
        gradtool.open(tmp_path / "run.h5")


def test_transposed_tied_weights_are_taken_once(tmp_path):
    weight = torch.randn(3, 4)
    torch.save({"embedding": weight, "head": weight.t(), "rows": weight[:2]}, tmp_path / "a.pt")
    with pytest.warns(UserWarning, match="head is tied to embedding"):
        gradtool.import_checkpoint(tmp_path / "a.pt", tmp_path / "a.h5")
    with gradtool.open(tmp_path / "a.h5") as run:
        assert list(run.tensors) == ["embedding", "rows"]


def test_what_is_not_taken_is_named_once(tmp_path):
    state = {"weight": torch.ones(2), "steps": torch.tensor(3), "mask": torch.ones(2, dtype=torch.bool), "empty": torch.ones(0, 4),
             "ema": {"weight": torch.ones(2)}, "epoch": 3}
    for number in range(2):
        torch.save(state, tmp_path / f"{number}.pt")
    write_safetensors(tmp_path / "a.safetensors", {"weight": np.ones(2, "f4"), "packed": np.ones(2, "i4"), "empty": np.ones((0, 4), "f4")})
    reasons = [["they hold whole numbers: steps, mask", "they have no elements: empty", "they are no tensors (key= names a dictionary of "
                "tensors): ema"], ["they hold whole numbers: packed", "they have no elements: empty"]]
    for sources, wanted in zip(([tmp_path / "0.pt", tmp_path / "1.pt"], [tmp_path / "a.safetensors"]), reasons):
        with pytest.warns(UserWarning) as said:
            gradtool.import_checkpoint(sources, tmp_path / "a.h5", replace=True)
        assert [str(w.message) for w in said] == [f"{sources[0]}: not taken, because {reason}" for reason in wanted]


@pytest.mark.parametrize("tensor, words", [
    (torch.eye(2).to_sparse(), "tensor 'odd' is sparse"), (torch.ones(2, device="meta"), r"tensor 'odd' is without values \(meta\)"),
    (torch.ones(2, dtype=torch.complex64), "tensor 'odd' has values of type torch.complex64"),
    # torch 1.13 does not load it as weights alone.
    (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "tensor 'odd' has values of type torch.qint8|as weights alone")])
def test_tensors_of_torch_that_no_file_holds_are_refused_by_name(tensor, words, tmp_path):
    torch.save({"weight": torch.ones(2), "odd": tensor}, tmp_path / "a.pt")
    with pytest.raises(gradtool.DataError, match=words):
        gradtool.import_checkpoint(tmp_path / "a.pt", tmp_path / "a.h5")


def test_complex_tensors_of_safetensors_are_refused_by_name(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"weight": np.ones(2, "f4"), "odd": np.ones(2, "c8")})
    with pytest.raises(gradtool.DataError, match="tensor 'odd' has values of type C64"):
        gradtool.import_checkpoint(tmp_path / "a.safetensors", tmp_path / "a.h5")
