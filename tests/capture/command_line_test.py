#!/usr/bin/env python3
"""Bad input: one sentence and the right exit status, and nothing left behind. Usage: command_line_test.py GRADTOOL"""
import os
import resource
import subprocess
import sys
import tempfile

from synthetic import check, run, write_images

program = os.path.abspath(sys.argv[1])

with tempfile.TemporaryDirectory() as folder:
    write_images(folder, 64)
    write_images(folder, 32, prefix="t10k")
    out = os.path.join(folder, "out.h5")
    good = ["--model", "lenet5", "--workers", "2", "--batch-size", "8", "--steps", "2", "--threads", "1",
            "--data-dir", folder, "--out", out]

    def refused(status, says, *arguments, keep=()):
        options = dict(zip(good[::2], good[1::2]))
        done = run(program, "capture", *[word for pair in options.items() for word in pair if pair[0] not in keep],
                   *arguments)
        check(done.returncode == status, f"{arguments}: exit {done.returncode}, not {status}: {done.stderr}")
        sentences = [line for line in done.stderr.splitlines() if not line.startswith("Try '")]
        check(len(sentences) == 1 and says in sentences[0], f"{arguments}: {done.stderr!r} does not say {says!r} once")
        check(not os.path.exists(out), f"{arguments}: left a file behind")

    help_text = run(program, "capture", "--help")
    check(help_text.returncode == 0, "--help")
    for word in ("--model", "--micro-batches", "--lr-schedule", "--layers", "--log-steps", "resnet20", "Examples:"):
        check(word in help_text.stdout, f"--help does not mention {word}")

    refused(2, "--worker", "--workerz", "3")
    refused(2, "lenet5", "--model", "lenet", keep=("--model",))
    refused(2, "--layers 'nothing' matches none of the 10 tensors", "--layers", "nothing")
    refused(2, "64", "--batch-size", "64", keep=("--batch-size",))
    refused(2, "--with second_moment needs --micro-batches", "--with", "weight,second_moment")
    refused(2, "--every", "--every", "0")
    refused(2, "write cpu, cuda or cuda:INDEX", "--device", "cuda:-1")
    # Not by run(), which takes 77 for a build without LibTorch; that one says a sentence of the same kind.
    nowhere = subprocess.run([program, "capture", *good, "--device", "cuda:1000"], capture_output=True, text=True)
    check(nowhere.returncode == 77 and nowhere.stderr.count("\n") == 1 and "LibTorch" in nowhere.stderr,
          f"a GPU that is not there: {nowhere.returncode} {nowhere.stderr}")
    check(not os.path.exists(out), "a GPU that is not there: left a file behind")
    refused(3, "dataset-fashion-mnist", "--data-dir", "/nonexistent", keep=("--data-dir",))
    refused(3, "cifar-10-binary.tar.gz", "--dataset", "cifar10")
    refused(3, "cifar-100-binary.tar.gz", "--dataset", "cifar100")
    refused(2, "gpt2 takes text", "--model", "gpt2", "--dataset", "fashion-mnist", keep=("--model",))
    refused(2, "--data-dir is missing", "--model", "gpt2", keep=("--model", "--data-dir"))
    refused(3, "too few for a sequence of 1024 tokens", "--model", "gpt2", "--sequence-length", "1024",
            "--data-dir", os.path.join(folder, "t10k-labels-idx1-ubyte"), keep=("--model", "--data-dir"))
    refused(2, "the data set has 28 x 28; --image-size enlarges them", "--model", "alexnet", keep=("--model",))
    refused(4, "--train-log", "--train-log", "/nonexistent/log.csv")

    # A disk with little room: nothing stays that the next run would be refused for.
    log = os.path.join(folder, "log.csv")
    for size in (0, 20, 5000, 20000):
        done = run(program, "capture", *good, "--train-log", log,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        check(done.returncode == 4 and done.stderr.count("\n") == 1, f"room for {size}: {done.returncode} {done.stderr}")
        check(not os.path.exists(out), f"room for {size}: a file without a step was left behind")
        if os.path.exists(log):  # only with what it is for
            check(len(open(log).readlines()) > 1, f"room for {size}: a log without a row was left behind")
            os.remove(log)

    labels = os.path.join(folder, "train-labels-idx1-ubyte")
    original = open(labels, "rb").read()
    for damaged, says in ((original[:-1], "truncated"), (b"\0\0\x08\x02" + original[4:], "magic number"),
                          (original[:-1] + b"\x0a", "label 10"), (original[:7] + b"\x3f" + original[8:], "63 labels")):
        with open(labels, "wb") as file:
            file.write(damaged)
        refused(3, says)
    with open(labels, "wb") as file:
        file.write(original)

    done = run(program, "capture", *good, "--train-log", log, "--end-step", "1")
    check(done.returncode == 0, done.stderr)
    check(done.stderr == "", f"noise on standard error: {done.stderr}")
    for word in ("Trained lenet5", "on the first 32 test images", "1 step,", "10 tensors", "61706 elements", out):
        check(word in done.stdout, f"the summary lacks {word}: {done.stdout}")
    lines = open(log).read().splitlines()
    check(lines[0] == "iteration,epoch,learning_rate,loss,captured", lines[0])
    check([line.split(",")[0] + line.split(",")[4] for line in lines[1:]] == ["01", "10"], f"{lines}")

    before = os.stat(out).st_mtime_ns
    again = run(program, "capture", *good)
    check(again.returncode == 2 and "--force" in again.stderr, f"overwriting: {again.returncode} {again.stderr}")
    check(os.stat(out).st_mtime_ns == before, "the existing file was touched")
    os.rename(out, os.path.join(folder, "elsewhere.h5"))
    os.symlink("elsewhere.h5", out)
    check(run(program, "capture", *good, "--force").returncode == 0, "--force")
    replaced = os.stat(os.path.join(folder, "elsewhere.h5"))
    check(os.path.islink(out) and replaced.st_mtime_ns != before, "--force replaced a link instead of what it points to")
print("ok")
