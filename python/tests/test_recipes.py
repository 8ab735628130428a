"""The scripts of docs/recipes.md, where their libraries are installed."""

import re
import shlex
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


def test_scripts_are_short_and_their_programs_have_the_options(gradtool_program):
    launcher = pytest.importorskip("torch.distributed.run").get_args_parser()
    shell = re.findall(r"```sh\n(.*?)```", TEXT, re.S)
    assert all(sum(bool(line.strip()) for line in script.splitlines()) <= 30 for script in [*SCRIPTS.values(), *shell])
    called = []
    for line in (line for script in shell for line in script.splitlines()):
        program, _, words = re.match(r"(?:srun )?(?:(?:-\S+=\S+ |-\S+ \S+ )*)(\w*)( ?)(.*)", line).groups()
        words = shlex.split(words, comments=True)
        if program == "torchrun":  # which has options with underscores alone in torch 1.13
            words = [re.sub("(?<=[a-z])-(?=[a-z])", "_", word) if word.startswith("--") else word for word in words]
            assert launcher.parse_args(words).training_script == "train_ddp.py"
        elif program == "gradtool":
            text = subprocess.run([gradtool_program, words[0], "--help"], capture_output=True, text=True, check=True).stdout
            assert all(re.search(rf"(^|[\s,]){word}\b", text) for word in words if word.startswith("-")), line
        else:
            continue
        called.append((program, words[0]))
    assert called == [("torchrun", "--nnodes"), ("gradtool", "probe"), ("gradtool", "bench")]


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
