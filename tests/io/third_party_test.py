"""third_party_test.py READ_VALUES: files written with h5py are read back value for value, whatever their layout."""

import os
import subprocess
import sys
import tempfile

import conforming
import numpy as np

READ_VALUES = sys.argv[1]
LAYOUTS = [{}, {"chunks": (1, 1, 1)}, {"chunks": True, "maxshape": (None, None, None)},
           {"chunks": True, "compression": "gzip", "shuffle": True},
           {"chunks": (2, 1, 50), "compression": "gzip", "shuffle": True, "maxshape": (None, None, None)},
           {"chunks": (2, 2, 1), "fletcher32": True, "shuffle": True, "maxshape": (None, None, None)},
           {"chunks": (1, 2, 1), "fletcher32": True, "compression": "gzip", "compression_opts": 9}]
STEPS, WORKERS = 3, 2

compared = 0
for dtype in ("f32", "f16", "bf16"):
    for libver in ("earliest", "latest"):
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "file.h5")
                conforming.write(path, STEPS, WORKERS, dtype, libver, layout, seed=compared)
                raw = subprocess.run([READ_VALUES, path], capture_output=True, check=True).stdout
                x = conforming.gradients(STEPS, WORKERS, dtype, seed=compared)
                expected = []
                for t in range(len(x)):
                    for s in range(STEPS):
                        for w in range(WORKERS):
                            expected += [x[t][s, w], (x[t] * x[t])[s, w]]
                        expected.append((x[t][:, 0, :] + 1)[s])
                expected = np.concatenate(expected)
                got = np.frombuffer(raw, dtype=np.float32)
                assert got.size == expected.size, (dtype, libver, layout, got.size, expected.size)
                assert (got.view(np.uint32) == expected.astype(np.float32).view(np.uint32)).all(), (dtype, libver, layout)
                compared += 1
print(f"{compared} files read back exactly")
