#!/usr/bin/env python3
"""Both models learn. Usage: learning_test.py GRADTOOL"""
import json
import os
import sys
import tempfile

from synthetic import check, run, write_images

program = os.path.abspath(sys.argv[1])

with tempfile.TemporaryDirectory() as folder:
    write_images(folder, 2048)
    write_images(folder, 128, prefix="t10k", seed=1)
    for model, steps, batch in (("lenet5", "60", "16"), ("resnet20", "40", "8")):
        done = run(program, "capture", "--model", model, "--workers", "2", "--batch-size", batch, "--steps", steps,
                   "--end-step", "1", "--threads", "1", "--data-dir", folder, "--json", "-",
                   "--out", os.path.join(folder, model + ".h5"))
        check(done.returncode == 0, done.stderr)
        report = json.loads(done.stdout)
        print(model, report["first_loss"], report["last_loss"], report["accuracy"])
        check(2.0 < report["first_loss"] < 4.0, f"{model}: an untrained network should guess: {report['first_loss']}")
        check(report["last_loss"] < 0.5 * report["first_loss"], f"{model} does not learn: loss {report['last_loss']}")
        check(report["accuracy"] > 0.5, f"{model}: accuracy {report['accuracy']} on ten classes")
print("ok")
