"""gradtool import: what other programs wrote arrives bit for bit, and what is damaged is one sentence.

The files are written here, safetensors by hand and NumPy's by NumPy, and read back with h5py.

Usage: check_import.py GRADTOOL limited|unlimited
"""
import io
import json
import os
import pathlib
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile

import h5py
import numpy as np

GRADTOOL, LIMITED = sys.argv[1], sys.argv[2] == "limited"
SHAPES = {"conv1.weight": (8, 3, 5, 5), "conv1.bias": (8,), "bn1.weight": (8,), "bn1.bias": (8,),
          "model.embed_tokens.weight": (50, 16), "h.0.ln_1.weight": (16,), "h.0.attn.c_attn.weight": (16, 48),
          "lstm.weight_ih_l0": (64, 16), "temperature": (), "experts": (2, 3, 4)}
KINDS = ["conv", "bias", "norm", "norm", "embedding", "norm", "linear", "recurrent", "other", "expert"]


HOME = os.getcwd()


# The limit counts memory that a program writes, not what it maps: the CUDA libraries alone map half a gigabyte. The programs inherit it;
# set in each of them, before it is executed, this process would be forked hundreds of times, which takes longer than what they do.
if LIMITED:
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))


def run(*arguments):
    return subprocess.run([GRADTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=240)


def done(*arguments):
    result = run(*arguments)
    assert result.returncode == 0, f"{arguments}: {result.stderr}"
    return result.stdout + result.stderr


def refused(arguments, status, *words):
    result = run(*arguments)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Try ")]
    assert result.returncode == status, f"{arguments}: exit {result.returncode}, not {status}: {result.stderr}"
    assert len(lines) == 1 and lines[0].startswith("gradtool: "), f"{arguments}: not one sentence: {result.stderr!r}"
    for word in words:
        assert word in lines[0], f"{arguments}: {lines[0]!r} does not say {word!r}"


def bfloat16(x):
    """The bits of x rounded to bfloat16."""
    bits = np.atleast_1d(np.asarray(x, np.float32)).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def values(seed, dtype="F32"):
    """An array of each shape; bfloat16 as uint16, and among them what is not finite, with odd bits."""
    random_state = np.random.default_rng(seed)
    arrays = {}
    for name, shape in SHAPES.items():
        x = np.asarray(random_state.standard_normal(shape) * 1e-3)
        x = {"F32": x.astype("<f4"), "F16": x.astype("<f2"), "BF16": bfloat16(x).reshape(shape).astype("<u2"), "F64": x.astype("<f8")}[dtype]
        if name == "conv1.bias":
            bits = x.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[x.itemsize])
            odd = {"F32": 0x7F800123, "F16": 0x7C01, "BF16": 0xFF83, "F64": 0xFFF0000000000000}[dtype]
            bits[3] = odd
            bits[4] = {"F32": 0x80000000, "F16": 0x8001, "BF16": 0x0001, "F64": 1}[dtype]
        arrays[name] = x
    return arrays


def write_safetensors(path, arrays, dtype="F32", padding=0, metadata=True):
    header, offset = {"__metadata__": {"format": "pt"}} if metadata else {}, 0
    for name, x in arrays.items():
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header).encode() + b" " * padding
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(x).tobytes() for x in arrays.values()))


def read(path):
    """{name: [S, W, n]}, as h5py has it."""
    with h5py.File(path) as file:
        return {group.attrs["name"]: group["gradient"][...] for group in file["tensors"].values()}


def same_bits(a, b):
    return a.dtype == b.dtype and np.array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def check_safetensors(folder):
    out = folder / "out.h5"
    for dtype in ("F32", "F16", "BF16", "F64"):
        x = {(s, w): values(100 * s + w, dtype) for s in range(3) for w in range(2)}
        for (s, w), arrays in x.items():
            write_safetensors(folder / dtype / f"step{s * 50:05d}" / f"rank{w}.safetensors", arrays, dtype, padding=s)
        said = done("import", folder / dtype / "step{step}/rank{worker}.safetensors", "-o", out, "--force")
        assert "6 files, 3 steps, 2 workers, 10 tensors" in said, said
        assert ("f64 stored as f32" in said) == (dtype == "F64"), said
        got = read(out)
        assert list(got) == list(SHAPES), "the order of the file"
        for (s, w), arrays in x.items():
            for name, want in arrays.items():
                if dtype == "F64":
                    with np.errstate(over="ignore"):
                        want = want.astype(np.float32)
                assert same_bits(got[name][s, w], want.reshape(-1)), (dtype, name)
        with h5py.File(out) as file:
            groups = list(file["tensors"].values())
            assert list(file["steps/iteration"]) == [0, 50, 100]
            assert [group.attrs["kind"] for group in groups] == KINDS
            assert [tuple(group.attrs["shape"]) for group in groups] == list(SHAPES.values())
            assert groups[0].attrs["layout"] == "OIHW" and groups[6].attrs["layout"] == "OI"
            assert ("dtype" in groups[0]["gradient"].attrs) == (dtype == "BF16")
            assert file.attrs["complete"] == 1 and file.attrs["quantity"] == "gradient" and file.attrs["averaged"] == 0
        done("validate", out)
    # The values that are not finite make one tensor be skipped, no more.
    done("bench", out, "--codec", "topk", "-n", "1")
    done("analyze", out, "--out", folder / "analysis")
    said = done("import", folder / "F32/step00000/rank0.safetensors", "-o", out, "--force", "--kind", "experts=linear", "--kind",
                "^(conv1|h).*weight$=other", "--averaged", "--quantity", "activation", "--model", "toy", "--skip", "bn1",
                "--layers", "weight|experts")
    assert "1 file, 1 step, 1 worker, 6 tensors" in said, said
    with h5py.File(out) as file:
        kinds = {group.attrs["name"]: group.attrs["kind"] for group in file["tensors"].values()}
        assert kinds["experts"] == "linear" and kinds["conv1.weight"] == kinds["h.0.ln_1.weight"] == "other", kinds
        assert kinds["lstm.weight_ih_l0"] == "recurrent"
        assert file.attrs["averaged"] == 1 and file.attrs["quantity"] == "activation" and file.attrs["model"] == "toy"


def check_numpy(folder):
    out = folder / "out.h5"
    for stored in ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8"):
        for order in "CF":
            x = {name: np.array(v, dtype=stored, order=order) for name, v in values(5, "F64").items()}
            want = {name: v.astype("<f4" if stored[2] == "8" else "<" + stored[1:]) for name, v in x.items()}
            for save in (np.savez, np.savez_compressed):
                save(folder / "x.npz", **x)
                done("import", folder / "x.npz", "-o", out, "--force")
                got = read(out)
                assert list(got) == list(x)
                for name in x:
                    assert same_bits(got[name][0, 0], want[name].reshape(-1)), (stored, order, save, name)
            for name in ("conv1.weight", "experts", "temperature"):
                np.save(folder / "y7.npy", x[name])
                done("import", folder / "y{step}.npy", "-o", out, "--force")
                assert same_bits(read(out)["array"][0, 0], want[name].reshape(-1)), (stored, order, name)
                with h5py.File(out) as file:
                    assert list(file["steps/iteration"]) == [7]
    # Versions 2 and 3 of the header.
    for version in ((2, 0), (3, 0)):
        with open(folder / "v.npy", "wb") as file:
            np.lib.format.write_array(file, x["experts"].astype("<f4"), version)
        done("import", folder / "v.npy", "-o", out, "--force")
        assert same_bits(read(out)["array"][0, 0], x["experts"].astype("<f4").reshape(-1))
    # Larger than one part, turned and compressed; and a comment behind the archive.
    big = np.asfortranarray(np.random.default_rng(1).standard_normal((1100, 2300)).astype("<f4"))
    np.savez_compressed(folder / "big.npz", big=big, small=np.ones(3, "<f4"), c=np.ascontiguousarray(big))
    with zipfile.ZipFile(folder / "big.npz", "a") as archive:
        archive.comment = b"PK\x05\x06 not the end"
    done("import", folder / "big.npz", "-o", out, "--force")
    assert same_bits(read(out)["big"][0, 0], np.ascontiguousarray(big).reshape(-1))
    assert same_bits(read(out)["c"][0, 0], np.ascontiguousarray(big).reshape(-1))
    # An archive with the sizes of one that is larger than 4 GiB.
    with zipfile.ZipFile(folder / "z64.npz", "w") as archive:
        with archive.open("a.npy", "w", force_zip64=True) as member:
            np.save(member, np.arange(5, dtype="<f4"))
    done("import", folder / "z64.npz", "-o", out, "--force")
    assert list(read(out)["a"][0, 0]) == [0, 1, 2, 3, 4]


def check_raw(folder):
    out, shapes = folder / "out.h5", folder / "shapes.txt"
    shapes.write_text("# name and shape\n\nconv1.weight 8,3,5,5\r\n  fc.weight\t4,2 \ntemperature scalar\n")
    for kind, dtype in (("f32", "<f4"), ("f16", "<f2"), ("bf16", "<u2")):
        x = np.random.default_rng(2).integers(0, 1 << 14, 609).astype(dtype)
        for w in range(3):
            (folder / f"dump_{w}.bin").write_bytes(np.roll(x, w).tobytes())
        done("import", folder / "dump_{worker}.bin", "--raw", kind, "--shapes", shapes, "-o", out, "--force")
        got = read(out)
        for w in range(3):
            assert same_bits(np.concatenate([got[name][0, w] for name in got]), np.roll(x, w)), kind
    x.tofile(folder / "short.bin")
    refused(["import", folder / "short.bin", "--raw", "f32", "--shapes", shapes, "-o", folder / "n.h5"], 3, "1218 bytes", "2436")
    for text, word in (("a", "line 1"), ("a 2,x", "line 1"), ("a 2\na 3", "line 2"), ("", "no array"), ("a 0", "line 1"),
                       ("a 9223372036854775807,2", "2^63"), ("a -1", "line 1"), ("a 2,", "line 1"), ("a 2 3", "line 1")):
        shapes.write_text(text)
        refused(["import", folder / "short.bin", "--raw", "f32", "--shapes", shapes, "-o", folder / "n.h5"], 3, word)


def check_differences(folder):
    out = folder / "out.h5"
    for dtype in ("F32", "BF16", "F64"):
        for s in range(3):
            for w in range(2):
                write_safetensors(folder / f"{dtype}w{w}" / f"{s * 10}.safetensors", values(10 * s + w, dtype), dtype)
        pattern = folder / (dtype + "w{worker}/{step}.safetensors")
        for negate in ([], ["--negate", "--inner-steps", "500"]):
            done("import", pattern, "--difference", *negate, "-o", out, "--force")
            got = read(out)
            for s in range(2):
                for w in range(2):
                    for name, a in values(10 * s + w, dtype).items():
                        b = values(10 * s + 10 + w, dtype)[name]
                        if dtype == "BF16":
                            a, b = ((x.reshape(-1).astype(np.uint32) << 16).view(np.float32) for x in (a, b))
                        with np.errstate(invalid="ignore"):
                            want = (a - b if negate else b - a).astype("<f4").reshape(-1)
                        assert np.array_equal(got[name][s, w], want, equal_nan=True), (dtype, name)
            with h5py.File(out) as file:
                assert list(file["steps/iteration"]) == [0, 10]
                assert file.attrs["quantity"] == ("pseudo_gradient" if negate else "weight_delta")
                assert file.attrs.get("inner_steps") == (500 if negate else None)
        done("bench", out, "--codec", "qsgd", "-n", "1")
    one = folder / "F32w0/0.safetensors"
    refused(["import", one, "--difference", "-o", folder / "n.h5"], 2, "two steps")
    refused(["import", one, "--negate", "-o", folder / "n.h5"], 2, "--difference")


def check_patterns(folder):
    n = folder / "n.h5"
    for s in (1, 2, 30):
        for w in range(3):
            write_safetensors(folder / f"s{s:03d}" / f"r{w}_{s:03d}.safetensors", values(s), "F32")
    pattern = folder / "s{step}/r{worker}_{step}.safetensors"
    done("import", pattern, "-o", folder / "ok.h5")
    with h5py.File(folder / "ok.h5") as file:
        assert list(file["steps/iteration"]) == [1, 2, 30] and file.attrs["workers"] == 3
    os.rename(folder / "s002/r2_002.safetensors", folder / "s002/gone")
    refused(["import", pattern, "-o", n], 3, "s002/r2_002.safetensors is missing")
    os.rename(folder / "s002/gone", folder / "s002/r2_002.safetensors")
    for s in (1, 2, 30):
        os.rename(folder / f"s{s:03d}/r1_{s:03d}.safetensors", folder / f"s{s:03d}/r9_{s:03d}.safetensors")
    refused(["import", pattern, "-o", n], 3, "r1_001.safetensors is missing", "workers 0 and 2")
    refused(["import", folder / "x{step}.npz", "-o", n], 3, "no such file")
    refused(["import", folder / "s{rank}", "-o", n], 2, "{step} and {worker}")
    refused(["import", folder / "{step}{worker}.npz", "-o", n], 2, "two numbers")
    refused(["import", folder / "{step", "-o", n], 2, "braces")
    write_safetensors(folder / "t" / "1.safetensors", values(1))
    write_safetensors(folder / "t" / "01.safetensors", values(1))
    refused(["import", folder / "t/{step}.safetensors", "-o", n], 3, "both of step 1")
    os.chdir(folder / "s001")  # relative, and with no folder at all
    refused(["import", "r{worker}_{step}.safetensors", "-o", "../rel.h5"], 3, "r1_001.safetensors is missing")
    done("import", "r0_{step}.safetensors", "-o", "../rel.h5")
    done("import", "../s{step}/r0_{step}.safetensors", "-o", "../rel.h5", "--force")
    os.chdir(HOME)
    assert not n.exists()


def check_mistakes(folder):
    n = folder / "n.h5"
    good = folder / "good.safetensors"
    write_safetensors(good, values(1))
    for name in ("model.pt", "model.pth", "pytorch_model.bin", "x.ckpt"):
        (folder / name).write_bytes(b"\x80\x02}q\x00.")
        refused(["import", folder / name, "-o", n], 2, "pickle", "gradtool.import_checkpoint")
    refused(["import", folder / "x.dat", "-o", n], 2, ".safetensors")
    refused(["import", folder / "absent.npz", "-o", n], 3, "no such file")
    (folder / "folder.npz").mkdir()
    refused(["import", folder / "folder.npz", "-o", n], 3, "folder")
    os.mkfifo(folder / "pipe.npy")
    refused(["import", folder / "pipe.npy", "-o", n], 3, "not a regular file")
    distributed = folder / "distributed"
    distributed.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (distributed / name).write_bytes(b"\x80\x02}q\x00.")
    for path in (distributed, distributed / "__0_0.distcp"):
        refused(["import", path, "-o", n], 2, "torch.distributed.checkpoint", "dcp_to_torch", "gradtool.import_checkpoint")
    for name in ("lfs.safetensors", "lfs.npz", "lfs.npy", "lfs.pt", "lfs.bin", "lfs.h5"):
        (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
        for command in (["info"], ["import", "-o", n]):
            refused([*command, folder / name], 3, name + ": is a Git LFS pointer", "git lfs pull")
    refused(["compare", folder / "lfs.h5", folder / "lfs.npy"], 3, "is a Git LFS pointer")
    np.save(folder / "bfloat16.npy", np.zeros(3, "V2"))  # what NumPy writes of ml_dtypes' bfloat16
    refused(["import", folder / "bfloat16.npy", "-o", n], 3, "type |V2", "array.astype('float32')")
    np.savez(folder / "wide.npz", a=np.array([1.0, 0.0, -1e39]), b=np.array([np.inf, np.nan, 3.4e38]))
    refused(["import", folder / "wide.npz", "-o", n], 3, "'a' has -1e+39 at element 2", "float32", "--skip")
    assert not n.exists()
    done("import", folder / "wide.npz", "-o", n, "--skip", "^a$")  # what is not finite was so before
    n.unlink()
    # The difference of two float32 may be too large for one.
    np.savez(folder / "w1.npz", a=np.array([3e38], "f4")), np.savez(folder / "w2.npz", a=np.array([-3e38], "f4"))
    refused(["import", folder / "w{step}.npz", "-o", n, "--difference"], 3, "'a' has -6e+38 at element 0")
    refused(["import", good, "-o", good, "--force"], 2, "same file")
    refused(["import", good], 2, "--out")
    refused(["import", good, "-o", n, "--raw", "f32"], 2, "--shapes")
    refused(["import", good, "-o", n, "--shapes", good], 2, "--raw")
    refused(["import", good, "-o", n, "--quantity", "magic"], 2, "--quantity")
    refused(["import", good, "-o", n, "--inner-steps", "0"], 2, "--inner-steps")
    for kind in ("x", "=conv", "x=magic", "(=conv"):
        refused(["import", good, "-o", n, "--kind", kind], 2, "conv" if kind != "(=conv" else "(")
    refused(["import", good, "-o", n, "--layers", "nothing"], 3, "--layers")
    refused(["import", good, "-o", good / "n.h5"], 4, "n.h5: cannot be written: Not a directory")
    refused(["import", good, "-o", "/proc/n.h5"], 4, "cannot create '/proc/n.h5': No such file or directory")
    n.write_text("mine")
    refused(["import", good, "-o", n], 2, "exists already")
    assert n.read_text() == "mine"
    n.unlink()
    # Files that differ.
    for change, word in ((lambda x: x.pop("experts"), "lacks the array 'experts'"),
                         (lambda x: x.__setitem__("experts", np.zeros((4, 3, 2), "f4")), "[4, 3, 2]")):
        x = values(1)
        write_safetensors(folder / "d" / "1.safetensors", x)
        change(x)
        write_safetensors(folder / "d" / "2.safetensors", x)
        refused(["import", folder / "d/{step}.safetensors", "-o", n], 3, "2.safetensors", word)
    assert not n.exists()


def safetensors_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def check_damaged_safetensors(folder):
    path, n = folder / "x.safetensors", folder / "n.h5"
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

    def bad(data, *words):
        path.write_bytes(data)
        refused(["import", path, "-o", n], 3, str(path), *words)

    bad(b"", "fewer than 8 bytes")
    bad(struct.pack("<Q", 1 << 60) + b"{}", "truncated")
    bad(struct.pack("<Q", 2**64 - 1) + b"{}", "truncated")
    bad(safetensors_bytes(b"{" + b" " * 100_000_000), "100 MB")
    bad(safetensors_bytes(json.dumps({"a": tensor}).encode() + b"\0" * 8, b"x" * 8), "NUL")
    bad(safetensors_bytes({"a": tensor, "b": tensor}, b"x" * 8), "'b'", "side by side")
    bad(safetensors_bytes({"a": tensor, "b": {**tensor, "data_offsets": [4, 12]}}, b"x" * 12), "'b'", "side by side")
    bad(safetensors_bytes({"a": {**tensor, "data_offsets": [4, 12]}}, b"x" * 12), "'a'", "side by side")
    bad(safetensors_bytes({"a": tensor, "i": {**tensor, "dtype": "I64"}}, b"x" * 8), "side by side")
    bad(safetensors_bytes({"a": tensor}, b"x" * 9), "1 bytes behind")
    for metadata in (None, {"step": 3, "loss": 1.5, "none": None, "yes": True}):
        path.write_bytes(safetensors_bytes({"__metadata__": metadata, "a": tensor}, b"\0" * 8))
        done("import", path, "-o", folder / "s.h5", "--force")
    bad(safetensors_bytes(b"[]"), "header")
    bad(safetensors_bytes(b"1"), "header")
    bad(safetensors_bytes(b'{"a":'), "not JSON")
    bad(safetensors_bytes(b"[" * 100000), "header")
    bad(safetensors_bytes(b'{"a":' * 100000), "header")
    bad(safetensors_bytes({}), "no array")
    bad(safetensors_bytes({"a": {**tensor, "dtype": "I64", "data_offsets": [0, 16]}}, b"x" * 16), "'a'", "I64", "--skip")
    bad(safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}, b"x" * 8), "'a'", "data_offsets")
    bad(safetensors_bytes({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"x" * 8), "'a'", "shape")
    bad(safetensors_bytes({"a": tensor}, b"x" * 7), "'a'", "truncated")
    bad(safetensors_bytes({"a": {**tensor, "shape": [3]}}, b"x" * 8), "'a'", "8 bytes", "12")
    bad(safetensors_bytes({"a": {**tensor, "data_offsets": [8, 0]}}, b"x" * 8), "'a'")
    bad(safetensors_bytes({"a": {**tensor, "data_offsets": [2**62, 2**62 + 8]}}, b"x" * 8), "truncated")
    bad(safetensors_bytes({"a": {**tensor, "shape": [2**62, 4]}}, b"x" * 8), "2^63")
    bad(safetensors_bytes({"a": {**tensor, "shape": [-2]}}, b"x" * 8), "negative")
    bad(safetensors_bytes({"a": {**tensor, "shape": [1] * 33}}, b"x" * 8), "32")
    bad(safetensors_bytes({"a": {**tensor, "shape": 2}}, b"x" * 8), "shape")
    bad(safetensors_bytes({"a": {**tensor, "shape": [2.0]}}, b"x" * 8), "fraction")
    bad(safetensors_bytes({"a": 1}), "'a'")
    bad(safetensors_bytes({"a\x1b[31m": tensor}, b"x" * 8), "control characters")
    bad(safetensors_bytes({"": tensor}, b"x" * 8), "name")
    bad(safetensors_bytes(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                          b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"x" * 8), "twice")
    path.write_bytes(safetensors_bytes({"a": tensor, "i": {**tensor, "dtype": "I32", "data_offsets": [8, 16]},
                                        "e": {**tensor, "shape": [0, 3], "data_offsets": [16, 16]}}, b"\0" * 16))
    assert "without elements left out" in done("import", path, "-o", folder / "s.h5", "--skip", "^i$", "--force")
    whole = safetensors_bytes({"a": tensor}, b"x" * 8)
    for cut in [*range(10), *range(10, len(whole) - 10, 7), *range(len(whole) - 10, len(whole))]:
        bad(whole[:cut])
    assert not n.exists()


def npy_bytes(header, data=b"", version=1):
    text = header.encode() if isinstance(header, str) else header
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def check_damaged_numpy(folder):
    npy, npz, n = folder / "x.npy", folder / "x.npz", folder / "n.h5"

    def bad(data, *words, path=npy):
        path.write_bytes(data)
        refused(["import", path, "-o", n], 3, str(path), *words)

    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    npy.write_bytes(npy_bytes(good, b"\0" * 8))
    done("import", npy, "-o", folder / "s.h5")
    bad(b"", "NUMPY")
    bad(b"PK\x03\x04" + b"\0" * 100, "NUMPY")
    bad(npy_bytes(good, b"\0" * 8, 9), "version 9")
    bad(npy_bytes(good, b"\0" * 7), "truncated")
    bad(npy_bytes(good, b"\0" * 9), "1 bytes behind")
    bad(npy_bytes(good.replace("(2,)", "(2, -1)"), b"\0" * 8), "negative")
    bad(npy_bytes(good.replace("(2,)", "(4611686018427387904, 4)"), b"\0" * 8), "2^63")
    bad(npy_bytes(good.replace("(2,)", "(99999999999999999999,)"), b"\0" * 8), "damaged header")
    bad(npy_bytes(good.replace("(2,)", "(0,)")), "no array")
    for header in (good.replace("'descr'", "'other'"), good.replace("(2,)", "(2)"), good[:20], "", "{}", good + "x", good.replace("False", "Maybe"),
                   good.replace("(2,)", "2"), "{'descr': __import__('os')}", "(" * 60000):
        bad(npy_bytes(header, b"\0" * 8), "header")
    for descr in ("'<i8'", "'|u1'", "'<f16'", "'<c8'", "'|O'", "'<V2'", "[('a', '<f4')]"):
        bad(npy_bytes(good.replace("'<f4'", descr), b"\0" * 8), "type", descr.strip("'"))
    bad(npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (65536, 4096)}"), "truncated")
    with open(npy, "wb") as file:  # a hole: 1 GiB that takes no place
        file.write(npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (65536, 4096)}"))
        file.truncate(file.tell() + (1 << 30))
    refused(["import", npy, "-o", n], 3, "Fortran", "512 MiB")

    # Members that share bytes: of few bytes many values.
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(100, "<f4"), b=np.zeros(100, "<f4"))
    whole = buffer.getvalue()
    entries = [at for at in range(len(whole)) if whole[at:at + 4] == b"PK\x01\x02"]
    for changed_by in (0, 31, 200):
        changed = bytearray(whole)
        first = struct.unpack_from("<I", whole, entries[0] + 42)[0]
        struct.pack_into("<I", changed, entries[1] + 42, first + changed_by)
        bad(bytes(changed), "overlap", path=npz)

    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(1000, dtype="<f4"), b=np.ones((3, 4), "<f8"))
    whole = buffer.getvalue()
    directory = whole.index(b"PK\x01\x02")
    for cut in [*range(0, directory, 31), *range(directory, len(whole), 7), len(whole) - 1]:
        bad(whole[:cut], path=npz)
    generator = random.Random(3)
    survived = 0
    places = [*range(0, 60, 3), *range(60, directory, 51), *range(directory, len(whole), 4)]  # headers closely, what is deflated has a checksum
    for at in places:  # one changed byte: noticed, or harmless
        changed = bytearray(whole)
        changed[at] ^= 1 << generator.randrange(8)
        npz.write_bytes(changed)
        result = run("import", npz, "-o", folder / "c.h5", "--force")
        assert result.returncode in (0, 3), result.stderr
        if result.returncode == 0:
            survived += 1
            got = read(folder / "c.h5")
            assert [x for x in got.values() if np.array_equal(x[0, 0], np.arange(1000, dtype="<f4"))], "wrong values"
    assert survived < len(places) / 2, (survived, len(places))
    with zipfile.ZipFile(npz, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(["import", npz, "-o", n], 3, "readme.txt")
    with zipfile.ZipFile(npz, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", npy_bytes(good, b"\0" * 8))
    refused(["import", npz, "-o", n], 3, "method 12")
    with zipfile.ZipFile(npz, "w") as archive:
        pass
    refused(["import", npz, "-o", n], 3, "no array")
    # A small file that says that it is large: 10 TB, in a member of some bytes.
    huge = npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (2500000000000,)}")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(npz, "w", method) as archive:
            archive.writestr("a.npy", huge)
        refused(["import", npz, "-o", n], 3, "truncated")
    assert not n.exists()


def check_full_disk(folder):
    """With and without a file to replace, and for merge: the sentence names the user's file, nothing half is left, and what was there stays."""
    a, out = folder / "a.safetensors", folder / "out.h5"
    elements = 100_000
    a.write_bytes(safetensors_bytes({"w": {"dtype": "F32", "shape": [elements], "data_offsets": [0, 4 * elements]}}, bytes(4 * elements)))
    done("import", a, "-o", folder / "rank0.h5")

    def full(*arguments):
        result = subprocess.run([GRADTOOL, *map(str, arguments), "-o", str(out), "--force"], capture_output=True, text=True,
                                preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                                    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))))
        assert result.returncode == 4 and result.stderr.count("\n") == 1, result.stderr
        assert "out.h5" in result.stderr and "File too large" in result.stderr and ".gradtool" not in result.stderr, result.stderr
        return result.stderr

    for what in (["import", a], ["merge", folder / "rank0.h5", "--copy"]):
        out.write_text("mine")
        said = full(*what)
        assert "out.h5' stays as it was" in said and "whole steps" not in said, said
        assert out.read_text() == "mine" and not list(folder.glob(".gradtool*"))
        out.unlink()
        said = full(*what)
        assert "stays as it was" not in said, said
        assert not out.exists()


def check_memory(folder):
    """A checkpoint of 4 GiB, whose values take no place on the disk, and of it a tensor that is as large as the memory."""
    path, out = folder / "large.safetensors", folder / "large.h5"
    elements = 1 << 27  # 8 tensors of 512 MiB
    header = {f"t{i}.weight": {"dtype": "F32", "shape": [elements], "data_offsets": [4 * i * elements, 4 * (i + 1) * elements]}
              for i in range(8)}
    with open(path, "wb") as file:
        file.write(safetensors_bytes(header))
        file.truncate(file.tell() + 32 * elements)
    result = subprocess.run([GRADTOOL, "import", path, "-o", out, "--layers", "t7"], capture_output=True, text=True,
                            preexec_fn=lambda: LIMITED and resource.setrlimit(resource.RLIMIT_DATA, (4 * elements,) * 2))
    assert result.returncode == 0, result.stderr
    with h5py.File(out) as file:
        assert file["tensors/0000/gradient"].shape == (1, 1, elements)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    for check in (check_safetensors, check_numpy, check_raw, check_differences, check_patterns, check_mistakes,
                  check_damaged_safetensors, check_damaged_numpy, check_full_disk, check_memory):
        here = scratch / check.__name__
        here.mkdir()
        check(here)
print("what was imported is what was written")
