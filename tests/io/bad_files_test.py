"""bad_files_test.py GRADTOOL limited|unlimited: what does not conform is answered with one sentence and status 3.

limited: in at most 1 GiB of address space.
GRADTOOL_SHOW_SENTENCES=1 prints every sentence, to be read by people."""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import zlib

import conforming
import h5py
import numpy as np

GRADTOOL = sys.argv[1]
LIMITED = sys.argv[2] == "limited"
FOLDER = tempfile.mkdtemp()
failures = []
count = 0


# The limit counts memory that a program writes, not what it maps: the CUDA libraries alone map half a gigabyte. The programs inherit it;
# set in each of them, before it is executed, this process would be forked hundreds of times, which takes longer than what they do.
if LIMITED:
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))


def run(path, command="validate"):
    return subprocess.run([GRADTOOL, command, path], capture_output=True, text=True, timeout=600)


def expect(case, path, *fragments, status=3, lines=1):
    global count
    count += 1
    for command in ("validate", "info"):
        result = run(path, command)
        said = result.stderr
        problems = []
        if os.environ.get("GRADTOOL_SHOW_SENTENCES"):
            print(f"{case}: {said.strip() or result.stdout.splitlines()[0]}")
        if result.returncode != status:
            problems.append(f"exit status {result.returncode}, not {status}")
        if status == 3 and (said.count("\n") != lines or result.stdout):
            problems.append("not exactly one line")
        problems += [f"'{f}' is not said" for f in (path,) * (status == 3) + fragments if f not in said + result.stdout]
        if problems:
            failures.append(f"{case} ({command}): {'; '.join(problems)}: {said}{result.stdout[:200]}")


whole_files = {}  # of each set of options


def changed_file(change, options):
    """A conforming file, changed by `change(file)`."""
    path, key = os.path.join(FOLDER, f"{count}.h5"), repr(options)
    if key not in whole_files:
        conforming.write(path, **options)
        with open(path, "rb") as file:
            whole_files[key] = file.read()
    with open(path, "wb") as file:
        file.write(whole_files[key])
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def bad(case, change, *fragments, **options):
    """A conforming file, changed by `change(file)`, is refused with `fragments`."""
    path = changed_file(change, options)
    expect(case, path, *fragments)
    os.remove(path)


def good(case, change, **options):
    path = changed_file(change, options)
    expect(case, path, status=0)
    os.remove(path)


def replace(file, name, data=None, **options):
    del file[name]
    return file.create_dataset(name, data=data, **options)


def not_hdf5():
    path = os.path.join(FOLDER, "text.h5")
    with open(path, "w") as out:
        out.write("hello\n" * 1000)
    expect("text", path, "not an HDF5 file")
    open(path, "w").close()
    expect("empty", path, "empty")
    expect("absent", os.path.join(FOLDER, "absent.h5"), "no such file")
    expect("folder", FOLDER, "folder")
    os.mkfifo(os.path.join(FOLDER, "pipe"))
    expect("pipe", os.path.join(FOLDER, "pipe"), "not a regular file")


def truncations():
    for libver in ("earliest", "latest"):
        path = os.path.join(FOLDER, "whole.h5")
        conforming.write(path, libver=libver)
        whole = open(path, "rb").read()
        generator = random.Random(7)
        for at in [1, 8, 47, 48, 512, len(whole) - 1] + [generator.randrange(len(whole)) for _ in range(8)]:
            with open(os.path.join(FOLDER, "cut.h5"), "wb") as out:
                out.write(whole[:at])
            expect(f"cut at {at}", out.name, *["truncated"] * (at > 200))


def marked():
    """A file that HDF5 calls "being written": left by a SWMR writer, which is readable, and by a plain one, which is not."""
    path, plain, swmr = (os.path.join(FOLDER, name) for name in ("whole.h5", "plain.h5", "swmr.h5"))
    conforming.write(path, libver="latest")
    with h5py.File(path, "r+", libver="latest") as file:
        shutil.copy(path, plain)
        file.swmr_mode = True
        shutil.copy(path, swmr)
    expect("marked by a plain writer", plain, "h5clear")
    expect("marked by a SWMR writer", swmr, status=0)


def attributes():
    for name in ("format", "schema_version", "complete", "workers"):
        bad(f"no {name}", lambda f: f.attrs.__delitem__(name), f"'{name}'")
    for name in ("name", "shape", "kind"):
        bad(f"no {name}", lambda f: f["tensors/0001"].attrs.__delitem__(name), f"'{name}'", "/tensors/0001")
    for name in ("format", "producer", "model", "command"):
        bad(f"{name} is a number", lambda f: f.attrs.__setitem__(name, 5), f"'{name}'", "text")
        bad(f"{name} is a list", lambda f: f.attrs.__setitem__(name, ["a", "b"]), f"'{name}'", "text")
    for name in ("schema_version", "workers", "seed", "batch_size", "micro_batches", "complete", "interrupted"):
        bad(f"{name} is a text", lambda f: f.attrs.__setitem__(name, "5"), f"'{name}'", "integer")
        bad(f"{name} is a float", lambda f: f.attrs.__setitem__(name, 1.5), f"'{name}'", "integer")
        bad(f"{name} is a list", lambda f: f.attrs.__setitem__(name, [1, 2]), f"'{name}'", "integer")
        bad(f"{name} is empty", lambda f: f.attrs.__setitem__(name, h5py.Empty("i8")), f"'{name}'", "integer")
    bad("seed beyond 63 bits", lambda f: f.attrs.__setitem__("seed", np.uint64(2**63)), "'seed'")
    bad("another format", lambda f: f.attrs.__setitem__("format", "other"), "not a gradient file", "other")
    bad("newer", lambda f: f.attrs.__setitem__("schema_version", 2), "schema_version 2", "newer")
    bad("older", lambda f: f.attrs.__setitem__("schema_version", 0), "schema_version 0")
    bad("complete is 2", lambda f: f.attrs.__setitem__("complete", 2), "'complete'", "0 or 1")
    bad("unknown quantity", lambda f: f.attrs.__setitem__("quantity", "magic"), "'quantity'", "magic", "pseudo_gradient")
    bad("quantity is a number", lambda f: f.attrs.__setitem__("quantity", 1), "'quantity'", "text")
    bad("unknown reduce_dtype", lambda f: f.attrs.__setitem__("reduce_dtype", "f16"), "'reduce_dtype'", "f16", "bfloat16")
    bad("reduce_dtype is a number", lambda f: f.attrs.__setitem__("reduce_dtype", 16), "'reduce_dtype'", "text")
    for name, value in (("inner_steps", 0), ("averaged", 2), ("rank", -1), ("ranks", 0)):
        bad(f"{name} is {value}", lambda f: f.attrs.__setitem__(name, value), f"'{name}'")
        bad(f"{name} is a text", lambda f: f.attrs.__setitem__(name, "5"), f"'{name}'", "integer")
    bad("rank beyond ranks", lambda f: f.attrs.update(rank=4, ranks=4), "'rank' is 4", "'ranks', 4")
    bad("overflow in floats", lambda f: f.__setitem__("steps/overflow", np.zeros((3, 2))), "/steps/overflow", "type")
    bad("overflow is 2", lambda f: f.__setitem__("steps/overflow", np.full((3, 2), 2)), "/steps/overflow", "0 or 1")
    bad("overflow of 3 workers", lambda f: f.__setitem__("steps/overflow", np.zeros((3, 3), int)), "/steps/overflow",
        "'workers'")
    bad("overflow of 2 steps", lambda f: f.__setitem__("steps/overflow", np.zeros((2, 2), int)), "/steps/overflow",
        "2 steps")
    good("every new attribute", lambda f: f.attrs.update(quantity="pseudo_gradient", inner_steps=500, averaged=0, rank=3,
                                                         ranks=4, reduce_dtype="bfloat16"))
    good("overflow", lambda f: f.__setitem__("steps/overflow", np.array([[0, 1], [0, 0], [0, 0]], "u1")))
    for workers in (0, -1, 3, 2**40):
        bad(f"{workers} workers", lambda f: f.attrs.__setitem__("workers", workers), "workers", str(workers))
    bad("bad UTF-8", lambda f: f.attrs.__setitem__("model", np.bytes_(b"\xff\xfe")), "'model'", "UTF-8")
    bad("unknown kind", lambda f: f["tensors/0000"].attrs.__setitem__("kind", "magic"), "'kind'", "magic", "embedding")
    bad("name with a line end", lambda f: f["tensors/0000"].attrs.__setitem__("name", "a\nb"), "'name'")
    bad("empty name", lambda f: f["tensors/0000"].attrs.__setitem__("name", ""), "'name'")
    bad("same name", lambda f: f["tensors/0001"].attrs.__setitem__("name", "conv.weight"), "conv.weight", "another tensor")


def shapes():
    def shape(value):
        return lambda f: f["tensors/0000"].attrs.__setitem__("shape", value)

    bad("product differs", shape([8, 3, 3, 4]), "/tensors/0000/gradient", "'shape'", "288")
    bad("extent 0", shape([8, 0]), "'shape'", "extent 0")
    bad("extent -1", shape([-8, -27]), "'shape'", "-8")
    bad("overflow to 216", shape([2**62, 4, 216]), "'shape'", "2^64")
    bad("overflow to 0", shape([2**32, 2**32, 216]), "'shape'", "2^64")
    bad("floats", shape([216.0]), "'shape'", "integer")
    bad("text", shape("216"), "'shape'")
    bad("two dimensions", shape([[8, 27]]), "'shape'", "one-dimensional")
    bad("33 dimensions", shape([1] * 32 + [216]), "'shape'", "too many")


def extents():
    x = np.ones((3, 2, 216), dtype=np.float32)
    g = "tensors/0000/gradient"
    bad("gradient short", lambda f: replace(f, g, x[:2]), "2 steps", "3")
    bad("gradient long", lambda f: replace(f, "tensors/0001/gradient", np.ones((4, 2, 8), "f4")), "4 steps", "3")
    bad("other workers", lambda f: replace(f, g, np.ones((3, 1, 216), "f4")), g, "'workers'")
    bad("rank 2", lambda f: replace(f, g, x[0]), g, "dimensions")
    bad("scalar", lambda f: replace(f, g, np.float32(1)), g, "dimensions")
    bad("null", lambda f: replace(f, g, h5py.Empty("f4")), g, "dimensions")
    bad("iteration short", lambda f: replace(f, "steps/iteration", np.arange(2)), "/steps/iteration has 2")
    bad("epoch long", lambda f: replace(f, "steps/epoch", np.arange(4.0)), "/steps/epoch", "4 steps")
    bad("loss per step", lambda f: replace(f, "steps/loss", np.ones(3, "f4")), "/steps/loss", "dimensions")
    bad("loss of 3 workers", lambda f: replace(f, "steps/loss", np.ones((3, 3), "f4")), "/steps/loss", "'workers'")
    bad("times of 3 workers", lambda f: replace(f, "steps/compute_seconds", np.ones((3, 3))), "/steps/compute_seconds", "'workers'")
    weights = "steps/batch_weight"
    bad("weights of 3 workers", lambda f: f.create_dataset(weights, data=np.ones((3, 3))), "/" + weights, "'workers'")
    bad("weights of 4 steps", lambda f: f.create_dataset(weights, data=np.ones((4, 2))), "/" + weights, "4 steps")
    bad("weights in integers", lambda f: f.create_dataset(weights, data=np.ones((3, 2), "i8")), "/" + weights, "type")
    bad("a negative weight", lambda f: f.create_dataset(weights, data=np.array([[1, 1], [1, -2], [1, 1.0]])), "/" + weights, "-2 at step 1; must be")
    bad("one unknown weight", lambda f: f.create_dataset(weights, data=np.array([[1, 1], [1, np.nan], [1, 1.0]])), "/" + weights, "nan at step 1; must be")
    good("weights of nothing", lambda f: f.create_dataset(weights, data=np.zeros((3, 2))))
    good("weights of some steps", lambda f: f.create_dataset(weights, data=np.array([[1, 0], [np.nan] * 2, [3, 4.0]], "f4")))
    bad("readiness of 3 workers", lambda f: readiness(f, np.ones((3, 3))), "/readiness/ready", "'workers'")
    bad("readiness of 2 tensors", lambda f: readiness(f, np.ones((2, 2))), "/readiness/ready", "number of tensors")
    bad("readiness in one dimension", lambda f: readiness(f, np.ones(2)), "/readiness/ready", "dimensions")
    bad("readiness above 1", lambda f: readiness(f, np.full((2, 3), 1.5)), "/readiness/ready", "1.5", "0 to 1")
    bad("a pass below 0", lambda f: readiness(f, np.ones((2, 3)), [-0.5, 0.5]), "/readiness/backward_share", "-0.5")
    bad("half of readiness", lambda f: f.create_dataset("readiness/ready", data=np.ones((2, 3))), "backward_share")
    bad("second moment short", lambda f: replace(f, "tensors/0000/second_moment", x[:1]), "second_moment", "1 steps")
    bad("weight with workers", lambda f: replace(f, "tensors/0000/weight", x), "weight", "dimensions")
    bad("weight of other size", lambda f: replace(f, "tensors/0000/weight", x[:, 0, :9]), "weight", "216")
    bad("no steps at all", lambda f: None, "no whole step", steps=0)
    bad("two unfinished", lambda f: (f.attrs.__setitem__("complete", 0), replace(f, g, x[:1])), "1 steps", "unfinished")

    def no_tensors(f):
        del f["tensors"]
        f.create_group("tensors")

    bad("no tensors", no_tensors, "no tensors")


def readiness(file, ready, backward_share=(0.5, 0.5)):
    file["readiness/ready"] = ready
    file["readiness/backward_share"] = np.array(backward_share)


def types():
    g = "tensors/0000/gradient"
    for dtype in ("f8", "i4", "i2", "u2", "S4", "c8", [("a", "f4")]):
        bad(f"gradient of {dtype}", lambda f: replace(f, g, np.ones((3, 2, 216)).astype(dtype)), g, "type")
    bad("bfloat16 of another kind", lambda f: f[g].attrs.__setitem__("dtype", "posit16"), g, "bfloat16", dtype="bf16")
    bad("dtype is a number", lambda f: f[g].attrs.__setitem__("dtype", 16), g, "'dtype'", dtype="bf16")
    bad("iteration of floats", lambda f: replace(f, "steps/iteration", np.arange(3.0)), "/steps/iteration", "type")
    bad("times in integers", lambda f: replace(f, "steps/compute_seconds", np.ones((3, 2), "i8")), "/steps/compute_seconds", "type")
    bad("readiness in integers", lambda f: readiness(f, np.ones((2, 3), "i8")), "/readiness/ready", "type")
    bad("loss of text", lambda f: replace(f, "steps/loss", np.full((3, 2), b"x")), "/steps/loss", "type")
    bad("epoch of ints", lambda f: replace(f, "steps/epoch", np.arange(3)), "/steps/epoch", "type")


def objects():
    bad("no steps group", lambda f: f.__delitem__("steps"), "/steps", "missing")
    bad("no iteration", lambda f: f.__delitem__("steps/iteration"), "/steps/iteration", "missing")
    bad("no tensors group", lambda f: f.__delitem__("tensors"), "/tensors", "missing")
    bad("no gradient", lambda f: f.__delitem__("tensors/0001/gradient"), "/tensors/0001/gradient", "missing")
    bad("tensors is a data set", lambda f: replace(f, "tensors", np.ones(3)), "/tensors", "not a group")
    bad("steps is a data set", lambda f: replace(f, "steps", np.ones(3)), "/steps", "not a group")
    bad("tensor is a data set", lambda f: replace(f, "tensors/0001", np.ones(3)), "/tensors/0001", "not a group")
    bad("not a number", lambda f: f["tensors"].move("0001", "one"), "/tensors", "'one'")
    bad("a name with a line end", lambda f: f["tensors"].move("0001", "a\nb"), "/tensors", "a\\x0ab")
    bad("number twice", lambda f: f["tensors"].create_group("1"), "/tensors", "number")

    def group_as_gradient(f):
        del f["tensors/0000/gradient"]
        f.create_group("tensors/0000/gradient")

    bad("gradient is a group", group_as_gradient, "/tensors/0000/gradient", "not a data set")

    def link(name, target):
        def change(f):
            del f[name]
            f[name] = target
        return change

    bad("soft link", link("tensors/0001", h5py.SoftLink("/tensors/0000")), "/tensors/0001", "link")
    bad("soft link to itself", link("tensors", h5py.SoftLink("/tensors")), "/tensors", "link")
    bad("external link", link("tensors/0001", h5py.ExternalLink("/etc/passwd", "/")), "/tensors/0001", "link")
    bad("external data set", link("steps/iteration", h5py.ExternalLink("a.h5", "/x")), "/steps/iteration", "link")

    def cycle(f):
        del f["tensors/0001"]
        f["tensors/0001"] = f["/"]

    bad("cycle", cycle, "/tensors/0001", "'name'")


def lies_about_size():
    """Extents without the data to go with them: small files that promise terabytes."""
    x = (3, 2, 1 << 40)
    g = "tensors/0000/gradient"

    def huge(**options):
        def change(f):
            f["tensors/0000"].attrs["shape"] = [1 << 40]
            replace(f, g, shape=x, dtype="f4", **options)
            for name in ("second_moment", "weight"):
                del f["tensors/0000/" + name]
        return change

    bad("contiguous", huge(), g, "more than the whole file")
    bad("chunked", huge(chunks=(1, 1, 1 << 20)), g, "more than the whole file")
    bad("compressed", huge(chunks=(1, 1, 1 << 20), compression="gzip"), g, "never written in full")
    bad("compressed in huge chunks", huge(chunks=(1, 1, 1 << 29), compression="gzip"), g, "64 MiB")

    def many_steps(f):
        for name in ("iteration", "epoch", "learning_rate", "loss", "compute_seconds"):
            shape = (1 << 40, 2) if name in ("loss", "compute_seconds") else (1 << 40,)
            dtype = f["steps/" + name].dtype
            replace(f, "steps/" + name, shape=shape, dtype=dtype, chunks=(64,) + shape[1:])
        for group in f["tensors"].values():
            n = group["weight"].shape[1]
            del group["second_moment"], group["weight"]
            replace(group, "gradient", shape=(1 << 40, 2, n), dtype="f4", chunks=(1, 1, n))

    bad("2^40 steps", many_steps, "1099511627776 steps")
    bad("unwritten", lambda f: replace(f, g, shape=(3, 2, 216), dtype="f4"), g, "never written")
    bad("half written", lambda f: replace(f, g, shape=(3, 2, 216), dtype="f4", chunks=(1, 2, 216)).write_direct(
        np.ones((1, 2, 216), "f4"), dest_sel=np.s_[0:1]), g, "1 of 3 chunks")


def values_elsewhere():
    g = "tensors/0000/gradient"

    def external(f):
        del f[g]
        f.create_dataset(g, (3, 2, 216), "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])

    def virtual(f):
        layout = h5py.VirtualLayout((3, 2, 216), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "x", (3, 2, 216))
        del f[g]
        f.create_virtual_dataset(g, layout)

    bad("external storage", external, g, "other files")
    bad("virtual", virtual, "merged view", "other.h5", "no such file", "gradtool merge --copy")

    def unknown_filter(f):
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((3, 2, 216))
        creation.set_filter(32999, h5py.h5z.FLAG_OPTIONAL)
        del f[g]
        h5py.h5d.create(f["tensors/0000"].id, b"gradient", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3, 2, 216)),
                        creation)

    bad("unknown filter", unknown_filter, g, "32999", "not available")


def other_writers():
    """Conforming in unusual ways."""
    def odd(f):
        f.attrs["workers"] = np.uint8(2)
        f.attrs["schema_version"] = np.int16(1)
        f.attrs["seed"] = np.array([5], dtype=">i4")
        f.attrs["complete"] = True
        f.attrs["model"] = np.bytes_("fixed length")
        f.attrs["format"] = np.bytes_("gradtool.gradients")
        f["tensors/0001"].attrs["shape"] = 8
        f["tensors/0002"].attrs["shape"] = ()
        f["tensors/0000"].attrs["shape"] = np.array([8, 3, 3, 3], dtype="u1")
        for name in ("producer", "created", "dataset", "optimizer", "batch_size", "micro_batches", "command"):
            del f.attrs[name]
        for name in ("epoch", "learning_rate", "loss", "compute_seconds"):
            del f["steps/" + name]
        replace(f, "steps/iteration", np.arange(3, dtype=">u2"))
        f["notes"] = "other members are nobody's business"
        f["tensors/0000"].attrs["more"] = 1

    good("odd types", odd)
    good("big-endian", lambda f: replace(f, "tensors/0000/gradient", np.ones((3, 2, 216), ">f4")))
    good("empty shape", lambda f: f["tensors/0002"].attrs.__setitem__("shape", h5py.Empty("i8")))
    good("32 dimensions", lambda f: f["tensors/0002"].attrs.__setitem__("shape", [1] * 32))
    good("readiness that is not known", lambda f: readiness(f, np.full((2, 3), np.nan, "f4"), [np.nan, 1.0]))
    good("unfinished step", lambda f: (f.attrs.__setitem__("complete", 0),
                                       replace(f, "steps/iteration", np.arange(2))))
    for options in ({"chunks": (1, 1, 1)}, {"chunks": True, "maxshape": (None, None, None)},
                    {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}):
        for dtype in ("f32", "f16", "bf16"):
            good(f"{dtype} {options}", lambda f: None, dtype=dtype, gradient_options=options)


def control_characters():
    """Checks that text from a file cannot command the terminal."""
    path = os.path.join(FOLDER, "control.h5")
    conforming.write(path)
    with h5py.File(path, "r+") as file:
        for name in ("model", "dataset", "producer", "created", "optimizer", "command"):
            file.attrs[name] = "\x1b[2J\x07" + name
        file["tensors/0000"].attrs["layout"] = "\x1b[2JOIHW"
    for command in (("info",), ("validate",), ("analyze", "--out", os.path.join(FOLDER, "out")), ("bench", "-n", "1", "--codec", "topk")):
        result = subprocess.run([GRADTOOL, command[0], path, *command[1:]], capture_output=True, text=True, timeout=600)
        said = result.stdout + result.stderr
        if result.returncode != 0 or "\x1b" in said or "\x07" in said:
            failures.append(f"control characters ({command[0]}): status {result.returncode}: {said!r}")


def damaged_chunks():
    """Chunks whose bytes are not one chunk. HDF5 1.10 believes them: it reads behind what they inflate to."""
    g, extent = "tensors/0000/gradient", (3, 2, 216)
    x = np.random.default_rng(5).standard_normal((1, 1, 216)).astype("f4")
    plain = x.tobytes()
    shuffled = np.frombuffer(plain, "u1").reshape(-1, 4).T.tobytes()

    def first_chunk(stored, mask=0, chunks=(1, 1, 216), **options):
        def change(f):
            data = replace(f, g, np.ones(extent, "f4"), chunks=chunks, **options)
            data.id.write_direct_chunk((0, 0, 0), stored, mask)
        return change

    gzip = {"compression": "gzip"}
    all_three = {"compression": "gzip", "shuffle": True, "fletcher32": True}  # h5py's order: shuffle, deflate, fletcher32
    said = (g, "[0, 0, 0]", "do not unpack to the 864 bytes")
    # The following filters agree with their chunks.
    good("its own deflate", first_chunk(zlib.compress(plain), **gzip))
    good("its own shuffle", first_chunk(zlib.compress(shuffled), shuffle=True, **gzip))
    good("not deflated, and the mask says so", first_chunk(plain, 1, **gzip))
    good("shuffled only, and the mask says so", first_chunk(shuffled, 0b110, **all_three))

    bad("inflates to less", first_chunk(zlib.compress(plain[:-4]), **gzip), *said)
    bad("inflates to nothing", first_chunk(zlib.compress(b""), **gzip), *said)
    bad("inflates to more", first_chunk(zlib.compress(plain + b"\0"), **gzip), *said)
    bad("not deflated, and the mask says nothing", first_chunk(plain, **gzip), *said)
    bad("deflated, and the mask says otherwise", first_chunk(zlib.compress(plain), 1, **gzip), *said)
    bad("masked and short", first_chunk(plain[:8], 1, **gzip), *said)
    bad("masked and long", first_chunk(plain + plain, 1, **gzip), *said)
    bad("one byte", first_chunk(b"x", **gzip), *said)
    bad("a stream that is cut off", first_chunk(zlib.compress(plain)[:-9], **gzip), *said)
    bad("a checksum of zlib's that is wrong", first_chunk(zlib.compress(plain)[:-4] + b"1234", **gzip), *said)
    bad("shuffled and short", first_chunk(plain[:-4], shuffle=True), *said)
    bad("a checksum of HDF5's that is wrong", first_chunk(plain + b"1234", fletcher32=True), *said)
    bad("a checksum of HDF5's alone", first_chunk(b"1234", fletcher32=True), *said)
    bad("a chunk longer than deflate makes", first_chunk(bytes(3000), **gzip), *said)
    # The column that decides how many steps there are.
    bad("damaged iterations", lambda f: replace(f, "steps/iteration", np.arange(3), chunks=(3,), compression="gzip")
        .id.write_direct_chunk((0,), zlib.compress(b"12345678")), "/steps/iteration", "[0]", "the 24 bytes")

    # 1.5 GiB of zeros in 1.5 MB: a chunk is never inflated beyond its size.
    block = zlib.compressobj(9, wbits=-15)
    mebibyte = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    bomb = b"\x78\xda" + 1536 * mebibyte + b"\3\0" + (((1536 << 20) % 65521) << 16 | 1).to_bytes(4, "big")
    bad("a bomb that is longer than deflate makes", first_chunk(bomb, **gzip), *said)
    large = {"chunks": (1, 1, 1 << 20)}

    def hide_bomb(f):
        f["tensors/0000"].attrs["shape"] = [1 << 20]
        for name in ("second_moment", "weight"):
            del f["tensors/0000/" + name]
        data = replace(f, g, shape=(3, 2, 1 << 20), dtype="f4", **large, **gzip)
        data[...] = 0
        data.id.write_direct_chunk((0, 0, 0), bomb)

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    bad("a bomb", hide_bomb, g, "do not unpack to the 4194304 bytes")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if LIMITED and used > max(before, 256 << 10):  # in KiB
        failures.append(f"a bomb took {used >> 10} MiB of memory")

    def deflated_twice(f):
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk(extent)
        for _ in range(2):
            creation.set_filter(h5py.h5z.FILTER_DEFLATE, h5py.h5z.FLAG_OPTIONAL, (1,))
        del f[g]
        h5py.h5d.create(f["tensors/0000"].id, b"gradient", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(extent), creation)

    bad("deflated twice", deflated_twice, g, "more than once")
    bad("more than deflate can hold", lambda f: many_chunks_of_zeros(f, g), g, "more than the whole file could inflate to")


def many_chunks_of_zeros(f, g):
    """Every chunk exists, but each is three bytes long: 2^34 values in 30 KB."""
    n = 1 << 34
    f["tensors/0000"].attrs["shape"] = [n]
    for name in ("second_moment", "weight"):
        del f["tensors/0000/" + name]
    data = replace(f, g, shape=(3, 2, n), dtype="f4", chunks=(1, 1, 1 << 24), compression="gzip")
    for step in range(3):
        for worker in range(2):
            for first in range(0, n, 1 << 24):
                data.id.write_direct_chunk((step, worker, first), b"abc")


for part in (control_characters, damaged_chunks, not_hdf5, truncations, marked, attributes, shapes, extents, types, objects, lies_about_size,
             values_elsewhere, other_writers):
    part()
shutil.rmtree(FOLDER)
print(f"{count} files, {len(failures)} failures")
print("\n".join(failures))
sys.exit(1 if failures else 0)
