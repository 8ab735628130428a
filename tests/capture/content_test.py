#!/usr/bin/env python3
"""capture writes what it says: the same content for the same seed, the tensors asked for, and steps that agree with
each other however they were selected. Usage: content_test.py GRADTOOL"""
import json
import os
import sys
import tempfile

import h5py
import numpy as np

from synthetic import check, contents, run, write_images

program = os.path.abspath(sys.argv[1])


def capture(folder, *arguments, threads="1", data="../data", batch="16"):
    """Runs in `folder` with out.h5 as the file, so that the command recorded in it is the same in every folder."""
    os.makedirs(folder, exist_ok=True)
    done = run(program, "capture", "--data-dir", data, "--batch-size", batch, "--out", "out.h5",
               "--threads", threads, *arguments, cwd=folder)
    check(done.returncode == 0, f"capture {arguments}: {done.stderr}")
    return contents(os.path.join(folder, "out.h5"))


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def by_name(found, what):
    names = {key[:-len("@name")]: str(value) for key, value in found.items() if key.endswith("@name")}
    return {name: found[f"{group}/{what}"] for group, name in names.items()}


with tempfile.TemporaryDirectory() as root:
    os.mkdir(os.path.join(root, "data"))
    write_images(os.path.join(root, "data"))

    # Text: the same file for the same command, samples of their own for every worker, and an epoch of all sequences.
    with open(os.path.join(root, "text"), "wb") as file:
        file.write(bytes((7 * i * i + i // 3) % 256 for i in range(2000)))
    for model in ("gpt-nano", "char-rnn"):
        language = ("--model", model, "--workers", "2", "--steps", "3", "--sequence-length", "16", "--optimizer", "adamw",
                    "--lr-schedule", "warmup:2:cosine")
        first, second = (capture(os.path.join(root, f"{model}-{i}"), *language, threads="2", data="../text") for i in (1, 2))
        check(equal(first, second), f"{model}: the same command gave two different files")
        check(np.allclose(first["steps/epoch"], np.arange(3) / (1799 // 16 // 2 // 16)), f"{model}: {first['steps/epoch']}")
        check(np.allclose(first["steps/learning_rate"] / first["steps/learning_rate"][1], [0.5, 1, 1]), "warm-up")
        check(str(first["/@dataset"]) == "text:file=text,sequence_length=16", str(first["/@dataset"]))
        check(str(first["/@optimizer"]).startswith("adamw:learning_rate="), str(first["/@optimizer"]))
        for name, gradient in by_name(first, "gradient").items():
            check(not np.array_equal(gradient[0, 0], gradient[0, 1]), f"{model} {name}: two workers agree")

    # An image takes resnet20 a hundred times as long as lenet5.
    for model, batch, threads in (("lenet5", "16", "2"), ("resnet20", "2", "1")):
        common = ("--model", model, "--workers", "2", "--steps", "6")
        first, second = (capture(os.path.join(root, f"{model}-{i}"), *common, threads=threads, batch=batch) for i in (1, 2))
        check(equal(first, second), f"{model}: the same command with {threads} threads gave two different files")

        # Which steps are captured, and which tensors, must not change the training or the values.
        part = capture(os.path.join(root, f"{model}-4"), *common, "--start-step", "1", "--every", "2",
                       "--layers", "conv1", "--with", "weight", threads=threads, batch=batch)
        check(part["steps/iteration"].tolist() == [1, 3, 5], f"iterations {part['steps/iteration']}")
        check(np.array_equal(part["steps/loss"], first["steps/loss"][1::2]), "losses differ between selections")
        whole = by_name(first, "gradient")
        some = by_name(part, "gradient")
        check(list(some) == [name for name in whole if "conv1" in name], f"--layers conv1 chose {list(some)}")
        for name in some:
            check(np.array_equal(some[name], whole[name][1::2]), f"{model} {name} differs between selections")
        if model == "lenet5":
            # Windows: 6 iterations hold two of two, the first one at the start, the last one at the end. Another seed is another training.
            windows = capture(os.path.join(root, f"{model}-windows"), *common, "--windows", "2", "--window-steps", "2", threads=threads, batch=batch)
            check(windows["steps/iteration"].tolist() == [0, 1, 4, 5], f"windows: iterations {windows['steps/iteration']}")
            check(int(windows["/@complete"]) == 1, "a capture of windows is not marked complete")
            for name, gradient in by_name(windows, "gradient").items():
                check(np.array_equal(gradient, whole[name][[0, 1, 4, 5]]), f"{model} {name} differs in windows")
            said = run(program, "info", os.path.join(root, f"{model}-windows", "out.h5"), "--json", "-")
            check(json.loads(said.stdout)["windows"] == [{"first_iteration": 0, "last_iteration": 1},
                                                         {"first_iteration": 4, "last_iteration": 5}], said.stdout[:2000])
            other = capture(os.path.join(root, f"{model}-3"), *common, "--seed", "2", threads=threads, batch=batch)
            check(not np.array_equal(first["steps/loss"], other["steps/loss"]), f"{model}: the seed changes nothing")
        check(int(first["/@complete"]) == 1, "a finished capture is not marked complete")
        with h5py.File(os.path.join(root, f"{model}-4", "out.h5")) as file:
            seconds = file["steps/compute_seconds"][...]
            ready, share = file["readiness/ready"][...], file["readiness/backward_share"][...]
        check(ready.shape == (2, len(some)) and (0 < ready).all() and (ready <= 1).all(), f"readiness {ready}")
        check(share.shape == (2,) and (0 < share).all() and (share < 1).all(), f"share of the backward pass {share}")
        check(seconds.shape == (3, 2) and seconds.dtype == np.float64 and (seconds > 0).all() and seconds.sum() < 60,
              f"times of computation {seconds}")
        check((first["/@workers"], first["/@batch_size"], first["/@seed"]) == (2, int(batch), 1), "attributes")
        check(str(first["/@model"]) == model and "momentum=0.9" in str(first["/@optimizer"]), "attributes")

    # The gradients, averaged by NumPy and followed by SGD, lead from each stored weight to the next one.
    steps = capture(os.path.join(root, "sgd"), "--model", "lenet5", "--workers", "3", "--steps", "5",
                    "--with", "weight", "--learning-rate", "0.05", "--lr-schedule", "step:2:0.5")
    check(np.allclose(steps["steps/learning_rate"], [0.05, 0.05, 0.025, 0.025, 0.0125]), "learning rates")
    check(np.allclose(steps["steps/epoch"], np.arange(5) / (512 // 3 // 16)), "epochs")
    weights, gradients = by_name(steps, "weight"), by_name(steps, "gradient")
    for name, weight in weights.items():
        velocity = 0.0
        for step in range(4):
            mean = gradients[name][step].astype(np.float64).mean(axis=0)
            velocity = 0.9 * velocity + mean + 1e-4 * weight[step]
            expected = weight[step] - steps["steps/learning_rate"][step] * velocity
            check(np.allclose(weight[step + 1], expected, rtol=1e-5, atol=1e-7), f"{name}: SGD at step {step}")

    # Two bytes an element, rounded to nearest even; second moments that are what they are called.
    split = ("--model", "lenet5", "--workers", "2", "--steps", "2", "--micro-batches", "4")
    full = capture(os.path.join(root, "f32"), *split)
    half = capture(os.path.join(root, "f16"), *split, "--dtype", "f16")
    brain = capture(os.path.join(root, "bf16"), *split, "--dtype", "bf16")
    for name, gradient in by_name(full, "gradient").items():
        check(np.array_equal(by_name(half, "gradient")[name], gradient.astype(np.float16)), f"{name} in f16")
        bits = gradient.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        check(np.array_equal(by_name(brain, "gradient")[name], rounded), f"{name} in bf16")
        # By Cauchy and Schwarz K sum of squares >= square of the sum; equal only if all micro-batches agree.
        second_moment = by_name(full, "second_moment")[name].astype(np.float64)
        square = gradient.astype(np.float64) ** 2
        check((4 * second_moment * (1 + 1e-5) + 1e-30 >= square).all(), f"{name}: second moment too small")
        check(second_moment.sum() > 0.26 * square.sum(), f"{name}: micro-batches do not differ")
print("ok")
