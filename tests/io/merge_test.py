"""merge_test.py GRADTOOL READ_VALUES: files of ranks, written with h5py, become one, by reference and by copy.

What `gradtool merge` makes is compared, value for value, with what was written; a view of files that are missing, cut,
exchanged or foreign is refused, never read as zeros."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import conforming
import h5py
import numpy as np

GRADTOOL, READ_VALUES = sys.argv[1], sys.argv[2]
RANKS, STEPS = 4, 5


def run(*arguments):
    return subprocess.run([GRADTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=600)


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
    return lines[0]


def write_rank(path, rank, dtype="f32", steps=STEPS, change=None, **options):
    """One rank's file with one worker, and values that no other rank has."""
    conforming.write(path, steps, 1, dtype, seed=100 + rank, **options)
    with h5py.File(path, "r+") as file:
        file.attrs.update(rank=rank, ranks=RANKS)
        file["steps/loss"][...] = rank + np.arange(steps)[:, None] / 10
        file["steps/overflow"] = np.full((steps, 1), rank == 2, "u1")
        if change:
            change(file)


def ranks(folder, names="rank{}.h5", **options):
    folder.mkdir(exist_ok=True)
    paths = [folder / names.format(rank) for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        write_rank(path, rank, **options)
    return paths


def values_of(path):
    raw = subprocess.run([READ_VALUES, path], capture_output=True)
    assert raw.returncode == 0, raw.stderr.decode()
    return np.frombuffer(raw.stdout, np.uint32)


def expected(dtype, steps=range(STEPS)):
    """The values in the order of READ_VALUES: gradients and second moments of all workers, then the first's weight."""
    x = [conforming.gradients(STEPS, 1, dtype, 100 + rank) for rank in range(RANKS)]
    parts = []
    for t in x[0]:
        for s in steps:
            for w in range(RANKS):
                gradient = x[w][t][s, 0]
                second = gradient * gradient
                parts += [gradient, second]
            parts.append(x[0][t][s, 0] + 1)
    return np.concatenate(parts).astype(np.float32).view(np.uint32)


def views_and_copies(folder):
    compared = 0
    for dtype in ("f32", "f16", "bf16"):
        for layout in ({}, {"chunks": True, "compression": "gzip", "shuffle": True}, {"chunks": (1, 1, 1)}):
            for libver in ("earliest", "latest"):
                here = folder / f"{compared}"
                paths = ranks(here, dtype=dtype, gradient_options=layout, libver=libver)
                view, copy = here / "run.h5", folder / f"copy{compared}.h5"
                said = done("merge", *reversed(paths), "-o", view)  # the attribute decides, not the order given
                assert "4 workers" in said and "refers to these files" in said, said
                assert view.stat().st_size < 100_000
                done("merge", *paths, "--copy", "-o", copy)
                for merged in (view, copy):
                    assert np.array_equal(values_of(merged), expected(dtype)), (dtype, layout, libver, merged)
                with h5py.File(view) as file:  # other programs read it too
                    got = file["tensors/0000/gradient"][...]
                    want = np.concatenate([h5py.File(path)["tensors/0000/gradient"][...] for path in paths], axis=1)
                    assert got.dtype == want.dtype and np.array_equal(got, want)
                    assert np.allclose(file["steps/loss"][...], np.arange(4) + np.arange(STEPS)[:, None] / 10)
                    assert np.array_equal(file["steps/overflow"][...], np.tile([0, 0, 1, 0], (STEPS, 1)))
                    assert np.array_equal(file["steps/compute_seconds"][...], np.full((STEPS, 4), 0.25))
                    assert file.attrs["ranks"] == 4 and "rank" not in file.attrs and file.attrs["complete"] == 1
                    assert file.attrs["model"] == "toy" and "seed" not in file.attrs, "the seeds differ"
                compared += 1
    return compared


def every_command(folder):
    paths = ranks(folder)
    for path in paths:
        with h5py.File(path, "r+") as file:
            del file["steps/overflow"]
    view = folder / "run.h5"
    done("merge", *paths, "-o", view)
    text = done("info", view)
    assert "merged view" in text and "of 4 files in its folder: rank0.h5, rank1.h5, rank2.h5, rank3.h5" in text, text
    info = json.loads(run("info", view, "--json", "-").stdout)
    assert info["sources"] == [str(path) for path in paths] and info["workers"] == 4, info
    assert info["file_bytes"] > sum(path.stat().st_size for path in paths)
    assert json.loads(run("info", paths[0], "--json", "-").stdout)["sources"] == []
    done("validate", "--strict", view)
    record = folder / "bench.json"
    done("bench", view, "--codec", "topk:ratio=0.1", "-n", "1", "--json", record)
    sources = json.load(open(record))["file"]["sources"]
    sums = subprocess.run(["sha256sum", *paths], capture_output=True, text=True, check=True).stdout.split()
    assert [source["sha256"] for source in sources] == sums[::2] and [s["path"] for s in sources] == sums[1::2]
    done("analyze", view, "--out", folder / "analysis", "--json", folder / "analysis.json")
    assert [s["sha256"] for s in json.load(open(folder / "analysis.json"))["sources"]] == sums[::2]
    done("tune", view, "--network", "1gbe", "--codec", "topk", "--budget", "1")
    # The numbers equal those from a file with all values.
    done("merge", *paths, "--copy", "-o", folder / "copy.h5")
    rows = [[row["nmse"] for row in json.loads(run("bench", path, "--codec", "topk,qsgd", "-n", "1", "--json", "-").stdout)["rows"]]
            for path in (view, folder / "copy.h5")]
    assert rows[0] == rows[1], "a view is not its copy"
    # From elsewhere, through a link, and after all files have moved together.
    os.symlink(view, folder.parent / "link.h5")
    done("validate", folder.parent / "link.h5")
    shutil.copytree(folder, folder.parent / "moved")
    shutil.rmtree(folder)
    done("validate", "--strict", folder.parent / "moved" / "run.h5")
    os.chdir(folder.parent / "moved")
    done("validate", "run.h5")
    # Nothing that a view refers to is overwritten.
    for command in (["info", "run.h5", "--csv", "rank1.h5"], ["bench", "run.h5", "--codec", "topk", "--csv", "rank1.h5"],
                    ["analyze", "run.h5", "--json", "rank2.h5"], ["tune", "run.h5", "--network", "1gbe", "--csv", "rank3.h5"],
                    ["merge", "run.h5", "--copy", "--force", "-o", "rank0.h5"]):
        refused(command, 2, "rank")
    done("merge", "run.h5", "--copy", "-o", "again.h5")
    assert np.array_equal(values_of("again.h5"), values_of("run.h5"))


def steps_and_attributes(folder):
    paths = ranks(folder)

    def keep(path, steps, iterations):
        conforming.write(path, steps, 1, seed=100 + int(path.stem[-1]))
        with h5py.File(path, "r+") as file:
            file.attrs.update(rank=int(path.stem[-1]), ranks=RANKS)
            file["steps/iteration"][...] = iterations

    keep(paths[1], 4, [0, 10, 20, 40])
    keep(paths[2], 5, [10, 20, 30, 40, 50])
    out = folder / "run.h5"
    said = done("merge", *paths, "-o", out)
    assert "3 steps are left out" in said and "iteration 0" in said and "rank2.h5 lacks" in said, said
    assert "overflow is left out" in said
    with h5py.File(out) as file:
        assert list(file["steps/iteration"]) == [10, 20, 40]
        assert "overflow" not in file["steps"]
        got = file["tensors/0000/gradient"][...]
    done("validate", out)
    own = [conforming.gradients(n, 1, "f32", 100 + rank)[0] for rank, n in enumerate((5, 4, 5, 5))]
    for rank, rows in enumerate(([1, 2, 4], [1, 2, 3], [0, 1, 3], [1, 2, 4])):
        assert np.array_equal(got[:, rank], own[rank][rows, 0]), rank
    assert np.array_equal(values_of(out)[:216], own[0][1, 0].view(np.uint32))
    # Without the attribute on all of them, the order given counts.
    with h5py.File(paths[3], "r+") as file:
        del file.attrs["rank"]
    said = done("merge", paths[3], paths[0], "-o", out, "--force")
    assert "in the order given" in said and "the job had 4 ranks, the files have 2" in said, said
    with h5py.File(out) as file:
        assert np.array_equal(file["tensors/0000/gradient"][0, 0], own[3][0, 0])
    # Several workers in a file.
    conforming.write(folder / "pair.h5", 5, 2, seed=7)
    conforming.write(folder / "one.h5", 5, 1, seed=8)
    done("merge", folder / "pair.h5", folder / "one.h5", "-o", out, "--force")
    with h5py.File(out) as file:
        assert np.array_equal(file["tensors/0000/gradient"][:, :2], conforming.gradients(5, 2, "f32", 7)[0])
        assert np.array_equal(file["tensors/0000/gradient"][:, 2:], conforming.gradients(5, 1, "f32", 8)[0])
    done("validate", "--strict", out)


def unlike_files(folder):
    """Each way in which files do not belong together, in one sentence, and no file is left."""
    out = folder / "run.h5"
    cases = {
        "another name": (lambda f: f["tensors/0000"].attrs.__setitem__("name", "other"), "'other'"),
        "another shape": (lambda f: f["tensors/0000"].attrs.__setitem__("shape", [216]), "[216]"),
        "fewer tensors": (lambda f: f["tensors"].__delitem__("0002"), "2 tensors"),
        "no second moment": (lambda f: f["tensors/0001"].__delitem__("second_moment"), "second moments"),
        "other iterations": (lambda f: f["steps/iteration"].write_direct(np.arange(5) + 1000), "iterations in common"),
        "an iteration twice": (lambda f: f["steps/iteration"].write_direct(np.zeros(5, int)), "iteration 0 twice"),
        "same rank": (lambda f: f.attrs.__setitem__("rank", 0), "rank 0"),
        "another job": (lambda f: f.attrs.__setitem__("ranks", 9), "'ranks'"),
        "another quantity": (lambda f: f.attrs.__setitem__("quantity", "weight"), "'quantity'"),
        "another inner_steps": (lambda f: f.attrs.__setitem__("inner_steps", 5), "'inner_steps'"),
        "averaged": (lambda f: f.attrs.__setitem__("averaged", 1), "'averaged'"),
        "another model": (lambda f: f.attrs.__setitem__("model", "other"), "'model'"),
        "micro-batches": (lambda f: f.attrs.__setitem__("micro_batches", 2), "'micro_batches'"),
    }
    for case, (change, word) in cases.items():
        paths = ranks(folder)
        write_rank(paths[3], 3, change=change)
        for copy in ([], ["--copy"]):
            said = refused(["merge", *paths, "-o", out, *copy], 3, word, "rank")
            assert not out.exists(), (case, said)
    paths = ranks(folder)
    write_rank(paths[3], 3, dtype="f16")
    refused(["merge", *paths, "-o", out], 3, "f16", "f32", "rank3.h5")
    paths = ranks(folder)
    with h5py.File(paths[2], "r+") as file:
        x = file["tensors/0001/second_moment"][...].astype("f2")
        del file["tensors/0001/second_moment"]
        file["tensors/0001/second_moment"] = x
    refused(["merge", *paths, "-o", out], 3, "rank2.h5", "f16", "second_moment")
    paths = ranks(folder)
    refused(["merge", *paths, paths[0], "-o", out], 2, "twice")
    refused(["merge", *paths, "-o", paths[0]], 2, "same file")
    refused(["merge", *paths], 2, "--out")
    refused(["merge", "-o", out], 2, "FILES")
    refused(["merge", *paths, folder / "absent.h5", "-o", out], 3, "absent.h5", "no such file")
    refused(["merge", *paths, "-o", folder.parent / "elsewhere.h5"], 2, "another folder", "--copy")
    refused(["merge", *paths, "-o", folder / "no/such/folder.h5"], 2, "another folder")
    shutil.copy(paths[3], folder / "rank%b.h5")
    refused(["merge", *paths[:3], folder / "rank%b.h5", "-o", out], 2, "rename")
    done("merge", *paths, "-o", out)
    refused(["merge", *paths, "-o", out], 2, "exists already", "--force")
    refused(["merge", out, "-o", folder / "view.h5"], 2, "merged view itself")
    done("merge", *paths, "-o", out, "--force")


def broken_views(folder):
    """Each rule of a view, broken: one sentence, and never zeros."""
    paths = ranks(folder)
    view = folder / "run.h5"
    done("merge", *paths, "-o", view)
    whole = view.read_bytes()

    def broken(*words, command="validate"):
        for command in ("validate", "info", "bench"):
            said = refused([command, view], 3, str(view), *words)
        return said

    kept = paths[2].read_bytes()
    paths[2].unlink()
    broken("rank2.h5", "no such file", "move the files", "merge --copy")
    paths[2].mkdir()
    broken("rank2.h5", "folder")
    paths[2].rmdir()
    os.mkfifo(paths[2])
    broken("rank2.h5", "not a regular file")
    paths[2].unlink()
    for damage, words in ((kept[:1000], ["rank2.h5", "truncated"]), (b"", ["rank2.h5", "empty"]),
                          (b"hello" * 1000, ["rank2.h5", "not an HDF5 file"]), (whole, ["rank2.h5", "virtual"])):
        paths[2].write_bytes(damage)
        broken(*words)
    conforming.write(paths[2], STEPS - 1, 1)
    broken("rank2.h5", "4 whole steps of 1 workers")
    conforming.write(paths[2], STEPS, 1, "f16")
    broken("rank2.h5", "another type")
    write_rank(paths[2], 2, change=lambda f: f["tensors"].move("0000", "7777"))
    broken("/tensors/0000/gradient", "rank2.h5", "no such data set")

    def other_shape(f):
        group = f["tensors/0000"]
        group.attrs["shape"] = [4]
        for name in ("gradient", "second_moment", "weight"):
            x = group[name][..., :4]
            del group[name]
            group[name] = x

    write_rank(paths[2], 2, change=other_shape)
    broken("rank2.h5", "216 elements")
    write_rank(paths[2], 2, change=lambda f: f["tensors/0000"].attrs.__delitem__("name"))
    broken("rank2.h5", "'name'")
    paths[2].write_bytes(kept)
    done("validate", view)

    def mapped(change, *words):
        """The view with another first data set: `change(layout)` maps it."""
        view.write_bytes(whole)
        with h5py.File(view, "r+") as file:
            del file["tensors/0000/gradient"]
            layout = h5py.VirtualLayout((STEPS, RANKS, 216), "f4")
            change(layout)
            file["tensors/0000"].create_virtual_dataset("gradient", layout)
        if words:
            broken(*words)
        else:
            done("validate", view)

    def source(name, key="/tensors/0000/gradient", shape=(STEPS, 1, 216)):
        return h5py.VirtualSource(name, key, shape)

    def all_but_last(layout):
        for rank in range(3):
            layout[:, rank:rank + 1] = source(f"rank{rank}.h5")

    def last(where, *arguments):
        def change(layout):
            all_but_last(layout)
            layout[where] = source(*arguments)
        return change

    every = np.s_[:, 3:4]
    mapped(last(every, "rank3.h5"))
    mapped(last(every, "rank3.h5", "tensors/0000/gradient"))
    mapped(all_but_last, "exactly one file")
    mapped(lambda layout: None, "/tensors/0000/gradient: ")  # h5py makes an ordinary data set of it, never written
    for name in ("/etc/passwd", str(paths[3]), "../" + folder.name + "/rank3.h5", "sub/rank3.h5", "..", ".", "rank%%3.h5",
                 "rank3\n.h5"):
        mapped(last(every, name), "same folder")
    mapped(last(every, "rank9.h5"), "rank9.h5", "no such file")
    mapped(last(every, "run.h5"), "run.h5", "virtual")
    mapped(last(every, "rank3.h5", "/tensors/0000/second_moment"), "must be the gradient")
    mapped(last(every, "rank3.h5", "/steps/loss"), "must be the gradient")
    mapped(last(np.s_[:4, 3:4], "rank3.h5", "/tensors/0000/gradient", (4, 1, 216)), "exactly one file")
    mapped(last(np.s_[:, 3:4, :100], "rank3.h5", "/tensors/0000/gradient", (STEPS, 1, 100)), "one block")

    def half(layout):
        all_but_last(layout)
        layout[:, 3:4, ] = source("rank3.h5", shape=(STEPS, 1, 300))[:, :, 50:266]

    mapped(half, "one block")

    def strided(layout):
        all_but_last(layout)
        layout[::2, 3:4] = source("rank3.h5", shape=(3, 1, 216))
        layout[1::2, 3:4] = source("rank3.h5", shape=(2, 1, 216))

    mapped(strided, "one block")

    def twice(layout):
        all_but_last(layout)
        layout[:, 3:4] = source("rank3.h5")
        layout[:, 2:3] = source("rank3.h5")

    mapped(twice, "exactly one file")

    def late(layout):
        all_but_last(layout)
        layout[:, 3:4] = source("rank3.h5", shape=(100, 1, 216))[95:]

    mapped(late, "rank3.h5", "5 whole steps")

    def in_steps(layout):  # as third parties may do it: step by step, and in any order
        for s in reversed(range(STEPS)):
            for rank in range(RANKS):
                layout[s:s + 1, rank:rank + 1] = source(f"rank{rank}.h5")[s:s + 1]

    mapped(in_steps)
    assert np.array_equal(values_of(view), expected("f32"))
    view.write_bytes(whole)
    with h5py.File(view, "r+") as file:  # an unlimited selection
        del file["tensors/0000/gradient"]
        layout = h5py.VirtualLayout((STEPS, 1, 216), "f4", maxshape=(None, 1, 216))
        layout[:h5py.h5s.UNLIMITED] = h5py.VirtualSource("rank0.h5", "/tensors/0000/gradient", (STEPS, 1, 216),
                                                         maxshape=(None, 1, 216))[:h5py.h5s.UNLIMITED]
        file["tensors/0000"].create_virtual_dataset("gradient", layout)
    broken("one block")
    view.write_bytes(whole)
    with h5py.File(view, "r+") as file:  # a column
        del file["steps/loss"]
        layout = h5py.VirtualLayout((STEPS, RANKS), "f4")
        layout[:, 0:1] = h5py.VirtualSource("rank0.h5", "/steps/loss", (STEPS, 1))
        file.create_virtual_dataset("steps/loss", layout)
    broken("/steps/loss", "other files")


def killed_writers(folder):
    """Sources with the mark of a SWMR writer that was killed, and the last step of one unfinished."""
    folder.mkdir()
    paths = [folder / f"rank{rank}.h5" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        steps = 3 if rank == 1 else STEPS
        script = f"""
import sys, os, signal, h5py, numpy as np
sys.path.insert(0, {os.path.dirname(conforming.__file__)!r})
import conforming
x = conforming.gradients({STEPS}, 1, "f32", {100 + rank})
file = h5py.File({str(path)!r}, "w", libver="latest")
file.attrs.update(format="gradtool.gradients", schema_version=1, complete=0, workers=1, rank={rank}, ranks={RANKS})
iteration = file.create_dataset("steps/iteration", (0,), "i8", maxshape=(None,))
sets = []
for t, (name, shape, kind, layout) in enumerate(conforming.SHAPES):
    group = file.create_group(f"tensors/{{t:04d}}")
    group.attrs.update(name=name, shape=np.array(shape, "i8"), kind=kind)
    sets.append(group.create_dataset("gradient", (0, 1, x[t].shape[2]), "f4", maxshape=(None, 1, x[t].shape[2])))
file.swmr_mode = True
for s in range({steps}):
    for t, data in enumerate(sets):
        data.resize(s + 1, axis=0)
        data[s] = x[t][s]
        data.flush()
    iteration.resize(s + 1, axis=0)
    iteration[s] = 10 * s
    iteration.flush()
sets[0].resize({steps} + 1, axis=0)
sets[0].flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
        subprocess.run([sys.executable, "-c", script])
        try:
            h5py.File(path).close()
            raise AssertionError("the mark of a writer is not there, so this tests nothing")
        except OSError:
            pass
    view = folder / "run.h5"
    said = done("merge", *paths, "-o", view)
    assert "2 steps are left out" in said and "rank1.h5" in said, said
    x = [conforming.gradients(STEPS, 1, "f32", 100 + rank) for rank in range(RANKS)]
    want = np.concatenate([x[w][t][s, 0] for t in range(3) for s in range(3) for w in range(RANKS)])
    assert np.array_equal(values_of(view), want.view(np.uint32)), "values of a killed writer's file got lost"
    info = json.loads(run("info", view, "--json", "-").stdout)
    assert not info["complete"] and not info["interrupted"] and info["steps"] == 3
    done("validate", view)
    done("bench", view, "--codec", "topk", "-n", "1")
    done("merge", *paths, "--copy", "-o", folder / "copy.h5")
    assert np.array_equal(values_of(folder / "copy.h5"), want.view(np.uint32))
    assert not json.loads(run("info", folder / "copy.h5", "--json", "-").stdout)["complete"]


home = os.getcwd()
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch).resolve()
    for name in ("views", "unlike", "broken"):
        (scratch / name).mkdir()
    compared = views_and_copies(scratch / "views")
    every_command(scratch / "commands")
    os.chdir(home)
    steps_and_attributes(scratch / "steps")
    unlike_files(scratch / "unlike")
    broken_views(scratch / "broken")
    killed_writers(scratch / "killed")
print(f"{compared} kinds of files merged, every value the same")
