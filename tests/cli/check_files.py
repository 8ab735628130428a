"""Files that a command reads and writes: nothing is destroyed, nothing is left behind, and what got lost is said.

Usage: check_files.py GRADTOOL WRITE_STEPS SOURCE_DIR
"""
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

import h5py
import numpy as np

GRADTOOL, WRITE_STEPS, ROOT = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
SAMPLE = str(ROOT / "datasets/lenet5-fashion-mnist.h5")
QUICK = ["--codec", "fp16", "-n", "1"]


def run(*arguments, **keywords):
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120} | keywords
    return subprocess.run([GRADTOOL, *map(str, arguments)], **keywords)


def expect(done, status, *words):
    assert done.returncode == status, f"{done.args}: exit {done.returncode}, not {status}: {done.stderr}"
    if status != 0:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("Try ")]
        assert len(lines) == 1 and lines[0].startswith("gradtool: "), f"{done.args}: not one sentence: {done.stderr!r}"
    for word in words:
        assert word in done.stderr, f"{done.args}: {done.stderr!r} does not say {word!r}"
    return done


def only(folder, *names):
    found = sorted(os.listdir(folder))
    assert found == sorted(names), f"{folder} holds {found}"


def check_inputs_are_not_outputs(folder):
    """Every spelling of the capture's path, for every option that writes, and nothing has changed afterwards."""
    capture = folder / "c.h5"
    shutil.copy(SAMPLE, capture)
    before = capture.read_bytes()
    (folder / "sub").mkdir()
    (folder / "soft.h5").symlink_to("c.h5")
    os.link(capture, folder / "hard.h5")
    (folder / "other").symlink_to(".")
    spellings = [capture, folder / "sub/../c.h5", folder / "new/../c.h5", folder / "soft.h5", folder / "hard.h5",
                 folder / "other/c.h5"]
    for spelling in spellings:
        expect(run("info", capture, "--json", spelling), 2, "--json", "same file", "FILE")
    for option in ("--csv", "--json", "--reconstruction"):
        expect(run("bench", capture, *QUICK, option, folder / "soft.h5"), 2, option, "same file")
    expect(run("info", folder / "hard.h5", "--csv", capture), 2, "--csv")
    for option in ("--csv", "--json", "--out"):
        expect(run("analyze", capture, option, folder / "other/c.h5"), 2, option)
    for name in ("variance.csv", "spectrum_bands.csv"):
        os.rename(capture, folder / name)
        expect(run("analyze", folder / name, "--out", folder), 2, "--out", name)
        os.rename(folder / name, capture)
    os.rename(capture, folder / "rank1.bin")
    expect(run("bench", folder / "rank1.bin", *QUICK, "--payloads", folder), 2, "--payloads", "rank1.bin")
    expect(run("bench", folder / "hard.h5", *QUICK, "--payloads", folder), 2, "--payloads", "rank1.bin")
    os.rename(folder / "rank1.bin", capture)
    with open(capture, "a") as log:
        expect(run("info", capture, stdout=log), 2, "standard output")
    assert capture.read_bytes() == before, "a refused command changed the capture"
    only(folder, "c.h5", "hard.h5", "other", "soft.h5", "sub")


def check_outputs_differ(folder):
    new, link = folder / "new.csv", folder / "link.csv"
    link.symlink_to("new.csv")  # to what is not there yet
    for other in (new, link, folder / "not/../new.csv"):
        expect(run("bench", SAMPLE, *QUICK, "--csv", new, "--json", other), 2, "--csv", "--json", "same file")
    for words in (["info", SAMPLE], ["list", "codecs"], ["analyze", SAMPLE, "--out", folder / "a"]):
        expect(run(*words, "--csv", new, "--json", link), 2, "same file")
        expect(run(*words, "--csv", "-", "--json", "-"), 2, "standard output")
    expect(run("analyze", SAMPLE, "--out", folder / "a", "--csv", folder / "a/spectrum.csv"), 2, "--csv", "--out")
    expect(run("bench", SAMPLE, *QUICK, "--payloads", folder / "p", "--csv", folder / "p/rank0.csv"), 2, "--payloads")
    expect(run("bench", SAMPLE, *QUICK, "--payloads", folder / "p", "--csv", folder / "p"), 2, "--payloads")
    expect(run("bench", SAMPLE, *QUICK, "--reconstruction", new, "--json", new), 2, "--reconstruction")
    capture = ["capture", "--model", "lenet5", "--data-dir", folder, "--out", folder / "x.h5"]
    expect(run(*capture, "--json", folder / "x.h5"), 2, "--json", "--out")
    expect(run(*capture, "--train-log", folder / "./x.h5"), 2, "--train-log")
    expect(run(*capture, "--force", "--json", folder / "train-labels-idx1-ubyte"), 2, "--json", "--data-dir")
    only(folder, "link.csv")
    # A link to a file that is not there is allowed, and so are one device for two outputs, and both in one folder.
    expect(run("info", SAMPLE, "--csv", link, "--json", folder / "new.json"), 0)
    assert link.is_symlink() and new.read_text().startswith("tensor,"), "the link was replaced instead of followed"
    expect(run("list", "codecs", "--csv", "/dev/null", "--json", "/dev/null"), 0)


def check_links_stay(folder):
    """A capture on a larger disk is often known by a link: --force replaces what the link points to."""
    (folder / "disk").mkdir()
    np.save(folder / "x.npy", np.float32([1, 2]))
    commands = [["import", folder / "x.npy"], ["merge", "--copy", SAMPLE]]
    for number, command in enumerate(commands):
        expect(run(*command, "-o", folder / "made" / "for" / "it.h5"), 0)
        shutil.rmtree(folder / "made")
        link, target = folder / f"{number}.h5", folder / "disk" / f"{number}.h5"
        link.symlink_to(target)
        for there in (False, True):
            expect(run(*command, "-o", link), 2, "exists already", "--force")
            expect(run(*command, "-o", link, "--force"), 0)
            assert link.is_symlink() and target.is_file() and not target.is_symlink(), f"{command}, {there}"
            expect(run("validate", target), 0)
    only(folder / "disk", *(f"{number}.h5" for number in range(len(commands))))

    (folder / "capture.h5").symlink_to(folder / "missing" / "capture.h5")
    expect(run("capture", "--model", "lenet5", "--out", folder / "capture.h5"), 2, "exists already", "--force")
    expect(run("import", folder / "x.npy", "-o", folder / "capture.h5", "--force"), 0)
    assert (folder / "capture.h5").is_symlink() and (folder / "missing" / "capture.h5").is_file()
    (folder / "file").touch()
    expect(run("import", folder / "x.npy", "-o", folder / "file" / "x.h5"), 4, "file/x.h5: cannot be written: Not a directory")

    # A view refers to files by name, so they must be beside what the link points to.
    shutil.copy(SAMPLE, folder / "disk" / "rank0.h5")
    shutil.copy(SAMPLE, folder / "rank0.h5")
    (folder / "view.h5").symlink_to(folder / "disk" / "view.h5")
    expect(run("merge", folder / "rank0.h5", "-o", folder / "view.h5", "--force"), 2, "rank0.h5, which lies in another folder")
    expect(run("merge", folder / "disk" / "rank0.h5", "-o", folder / "view.h5", "--force"), 0)
    assert (folder / "view.h5").is_symlink()
    expect(run("validate", folder / "disk" / "view.h5"), 0)


def check_one_writer(folder):
    """Whoever wants to replace a capture that is being written is refused; who only reads it is not."""
    path = folder / "w.h5"
    writer = subprocess.Popen([WRITE_STEPS, path, "100000000", "2", "f32", "small"], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(3):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGSTOP)
        node = path.stat().st_ino
        with h5py.File(path, "r") as file:
            assert file["steps/iteration"].shape[0] >= 3
        replace = ["capture", "--model", "lenet5", "--out", path, "--force"]
        done = run(*replace)
        if done.returncode == 77:
            print("not checked: capture --force, which this build lacks")
        else:
            expect(done, 2, "being written")
        (folder / "alias.h5").symlink_to(path)
        if done.returncode != 77:
            expect(run("capture", "--model", "lenet5", "--out", folder / "alias.h5", "--force"), 2, "being written")
        assert path.stat().st_ino == node, "the file was replaced"
    finally:
        writer.kill()
        writer.communicate()
    assert run("validate", path).returncode == 0


def check_temporary_files(folder):
    """A user's own X.part is not touched, no link is followed where a temporary file would be, nothing is left."""
    victim, own = folder / "victim", folder / "out.csv.part"
    victim.write_text("precious")
    own.write_text("mine")
    (folder / "out.json.part").symlink_to("victim")
    expect(run("info", SAMPLE, "--csv", folder / "out.csv", "--json", folder / "out.json"), 0)
    assert own.read_text() == "mine" and victim.read_text() == "precious"
    only(folder, "out.csv", "out.csv.part", "out.json", "out.json.part", "victim")
    private = folder / "out.csv"
    private.chmod(0o600)
    expect(run("info", SAMPLE, "--csv", private), 0)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600, "a private file became readable for others"
    # Killed in the middle of writing payloads.
    payloads = folder / "p"
    bench = subprocess.Popen([GRADTOOL, "bench", SAMPLE, "--codec", "topk:ratio=0.9", "--payloads", payloads],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not payloads.exists() and bench.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    bench.kill()
    bench.wait()
    assert all(name.startswith("rank") for name in os.listdir(payloads)), os.listdir(payloads)


def check_no_folders_of_failures(folder):
    """A folder is made when there is something to put into it, and goes again where that did not come to be."""
    for words in (["--csv", folder / "a/b/x.csv", "--network", "10gbe", "--nodes", "4,2"],
                  ["--json", folder / "a/b/x.json", "--layers", "no such tensor"],
                  ["--payloads", folder / "a/p"], ["--csv", folder / "a/x.csv", "--ranks", "3"],
                  ["--payloads", folder / "a/p", "--codec", "topk", "--pipeline", "2"]):
        expect(run("bench", SAMPLE, *words), 2)
        only(folder)
    expect(run("analyze", SAMPLE, "--out", folder / "a/b", "--layers", "no such tensor"), 2)
    expect(run("analyze", folder / "absent.h5", "--out", folder / "a/b"), 3)
    expect(run("info", folder / "absent.h5", "--json", folder / "a/x.json"), 3)
    expect(run("info", SAMPLE, "--json", folder / "a/x.json", **small_files(10)), 4, "x.json")
    if HAS_CAPTURE:
        capture = ["capture", "--model", "lenet5", "--data-dir", folder / "absent", "--out", folder / "a/b/c.h5"]
        assert run(*capture, "--json", folder / "a/x.json").returncode == 3
    only(folder)
    (folder / "file").write_text("")
    for path in ("file/x.csv", "file/deeper/x.csv"):
        expect(run("bench", SAMPLE, *QUICK, "--csv", folder / path), 4, "Not a directory")
    expect(run("info", SAMPLE, "--csv", folder / "new/deep/x.csv"), 0)
    only(folder / "new/deep", "x.csv")


def check_devices_and_pipes(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    for words in (["info", SAMPLE], ["bench", SAMPLE, *QUICK]):
        got = []
        reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
        reader.start()
        expect(run(*words, "--csv", pipe), 0)
        reader.join(timeout=600)
        lines = got[0].splitlines()
        assert len(set(lines)) == len(lines) > 1, f"a pipe gets the table once: {len(lines)} lines"
    assert stat.S_ISFIFO(pipe.stat().st_mode), "the pipe was replaced"
    expect(run("capture", "--model", "lenet5", "--out", pipe, "--force"), *((77,) if not HAS_CAPTURE else (2, "plain file")))
    assert stat.S_ISFIFO(pipe.stat().st_mode), "the pipe was replaced"
    null = folder / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_text("")
    except OSError:
        print("not checked: a device, which cannot be made or used here")
        return
    expect(run("info", SAMPLE, "--csv", null), 0)
    expect(run("bench", SAMPLE, *QUICK, "--csv", null, "--json", null), 0)
    assert stat.S_ISCHR(null.stat().st_mode), "the device was replaced"


def check_lost_output(folder):
    with open("/dev/full", "w") as full:
        for words in (["info", SAMPLE, "--json", "-"], ["info", SAMPLE], ["list"], ["--help"], ["--version"],
                      ["bench", SAMPLE, *QUICK, "--csv", "-"], ["bench", SAMPLE, *QUICK], ["validate", SAMPLE]):
            done = run(*words, stdout=full)
            assert done.returncode == 4 and "output is lost" in done.stderr.splitlines()[-1], (words, done)
        done = run("info", SAMPLE, "--json", "/dev/full")
        expect(done, 4, "/dev/full", "No space left")
        assert run("info", folder / "absent.h5", stderr=full, stdout=subprocess.DEVNULL).returncode == 3
        csv = folder / "kept.csv"
        run("bench", SAMPLE, *QUICK, "--csv", csv, stdout=full, stderr=full)
        assert csv.read_text().count("fp16") == 2, "the table went down with a note"

    def closed(number):
        return {"preexec_fn": lambda: os.close(number)}
    assert run("info", SAMPLE, **closed(2)).returncode == 0
    assert run("bench", SAMPLE, "--codec", "qsdg", **closed(2)).returncode == 2
    expect(run("list", **closed(1)), 4, "output is lost")
    # A file must not become standard error: it would be written into.
    done = run("bench", SAMPLE, *QUICK, "--reconstruction", folder / "r.h5", **closed(2))
    assert done.returncode == 0 and run("validate", folder / "r.h5").returncode == 0


def small_files(size, ignore_signal=False):
    """Imitates a disk with little room: no file can be longer than `size` bytes. gradtool itself ignores the signal."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if ignore_signal:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return {"preexec_fn": limit}


def check_full_disk(folder):
    old = folder / "old.csv"
    old.write_text("old,table\n")
    expect(run("info", SAMPLE, "--csv", old, **small_files(10)), 4, "old.csv", "File too large")
    assert old.read_text() == "old,table\n"
    done = run("bench", SAMPLE, *QUICK, "--payloads", folder / "p", **small_files(1000))
    assert done.returncode == 1 and "failed" in done.stderr and "wrote" not in done.stderr, done
    only(folder, "old.csv")
    for size in (0, 3000, 16384, 30000):
        done = run("bench", SAMPLE, *QUICK, "--reconstruction", folder / "r.h5", **small_files(size))
        assert done.returncode in (1, 4) and "wrote" not in done.stderr, done
        subprocess.run([WRITE_STEPS, folder / "w.h5", "2", "2", "f32", "small"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, **small_files(size, ignore_signal=True))
        only(folder, "old.csv")


HAS_CAPTURE = run("capture").returncode != 77
for check in (check_inputs_are_not_outputs, check_outputs_differ, check_links_stay, check_one_writer, check_temporary_files,
              check_no_folders_of_failures,
              check_devices_and_pipes, check_lost_output, check_full_disk):
    with tempfile.TemporaryDirectory() as scratch:
        try:
            check(pathlib.Path(scratch).resolve())
        except BaseException:
            print(f"in {check.__name__}:", file=sys.stderr)
            raise
print("files are safe")
