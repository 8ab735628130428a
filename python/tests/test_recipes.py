"""The scripts of docs/recipes.md, where their libraries are installed."""

import re
import subprocess
import sys

import numpy as np
import pytest

import gradtool
from conftest import ROOT

TEXT = (ROOT / "docs/recipes.md").read_text()
SCRIPTS = {name: text for text, name in re.findall(r"```python\n(# file: (\S+)\n.*?)```", TEXT, re.S)}
LIBRARIES = {"hf_trainer.py": ["transformers", "accelerate"], "with_accelerate.py": ["accelerate"], "with_lightning.py": ["lightning"]}
WRITTEN = {"hf_trainer.py": "hf.h5", "with_accelerate.py": "accelerate.h5", "with_lightning.py": "lightning.h5"}


def test_every_script_is_run():
    assert set(SCRIPTS) == set(LIBRARIES) == set(WRITTEN)
    for name, text in SCRIPTS.items():
        compile(text, name, "exec")
    for number, script in enumerate(re.findall(r"```sh\n(.*?)```", TEXT, re.S)):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, number


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_script(name, tmp_path):
    for library in LIBRARIES[name]:
        pytest.importorskip(library)
    (tmp_path / name).write_text(SCRIPTS[name])
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    with gradtool.open(tmp_path / WRITTEN[name]) as run:
        assert list(run.steps["iteration"]) == [0, 1, 3, 4, 6, 7]
        assert all(np.abs(tensor.gradient[0, 0]).max() > 0 for tensor in run)
