"""The examples of docs/python.md and of the docstrings run."""

import doctest
import importlib
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

import gradtool
from conftest import ROOT

pytestmark = pytest.mark.usefixtures("core", "gradtool_program")


@pytest.mark.parametrize("name", ["_files", "_codec", "_program", "_windows"])
def test_docstrings(name, monkeypatch):
    if name == "_program":
        pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module("gradtool." + name), extraglobs={"open": gradtool.open},
                             optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


def run_by_two(script):
    """Exit statuses of a script that two processes run, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [subprocess.Popen([sys.executable, script], env={**environment, "RANK": str(rank)}) for rank in range(2)]
    return [process.wait(timeout=240) for process in processes]


def test_the_manual(tmp_path, monkeypatch):
    """All of its blocks, one after the other; those that begin with a file's name are run by two processes."""
    pytest.importorskip("pandas")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    assert len(blocks) >= 8
    names: dict = {}
    for number, block in enumerate(blocks):
        script = re.match(r"# file: (\S+)\n", block)
        if script is None:
            exec(compile(block, f"docs/python.md, block {number}", "exec"), names)  # pylint: disable=exec-used
            continue
        (tmp_path / script[1]).write_text(block)
        assert run_by_two(tmp_path / script[1]) == [0, 0]
    with gradtool.open("ddp.h5") as run:
        assert run.workers == 2 and list(run.steps["iteration"]) == [0, 1, 2, 4, 5, 6, 9, 10, 11]
    with gradtool.open("delta.h5") as run:
        assert run.attributes["quantity"] == "weight_delta"


def test_the_version_is_that_of_the_program():
    text = (ROOT / "CMakeLists.txt").read_text()
    assert f"VERSION {gradtool.__version__} " in text
    assert f'version = "{gradtool.__version__}"' in (ROOT / "python/pyproject.toml").read_text()
    assert gradtool.__version__ in gradtool.run("--version")
