#!/usr/bin/env python3
"""The small capture in datasets/ is valid and is what its README says. Usage: committed_file_test.py GRADTOOL FILE"""
import json
import os
import sys

import h5py
import numpy as np

from synthetic import check, run

program, path = map(os.path.abspath, sys.argv[1:])
check(os.path.getsize(path) < 2_000_000, f"{os.path.getsize(path)} bytes")
check(run(program, "validate", path).returncode == 0, "validate refuses it")
info = json.loads(run(program, "info", path, "--json", "-").stdout)
check((info["workers"], info["tensors"], info["elements"], info["complete"]) == (2, 10, 61706, True), f"{info}")
with h5py.File(path, "r") as file:
    check(file.attrs["model"] == "lenet5" and file.attrs["dataset"] == "fashion-mnist", "attributes")
    check("created" in file.attrs and "gradtool capture" in file.attrs["command"], "provenance")
    readme = open(os.path.join(os.path.dirname(path), "README.md")).read()
    check(file.attrs["command"] in readme, "README.md does not name the command that made it")
    steps = len(file["steps/iteration"])
    check(steps == info["steps"] >= 3, f"{steps} steps")
    for tensor in file["tensors"].values():
        gradient = tensor["gradient"][...]
        check(gradient.shape == (steps, 2, np.prod(tensor.attrs["shape"])), f"{tensor.name}: {gradient.shape}")
        check(np.isfinite(gradient).all() and gradient.any(axis=2).all(), f"{tensor.name}: zero or not finite")
        check(not np.array_equal(gradient[:, 0], gradient[:, 1]), f"{tensor.name}: the workers agree")
print("ok")
