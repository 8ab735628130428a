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
from gradtool._writer import producer

pytestmark = pytest.mark.usefixtures("core", "gradtool_program")


@pytest.mark.parametrize("name", ["_files", "_codec", "_program", "_windows"])
def test_docstrings(name, monkeypatch):
    if name == "_program":
        pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module("gradtool." + name), extraglobs={"open": gradtool.open},
                             optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


def run_by(ranks, script):
    """Exit statuses of a script that so many processes run, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [subprocess.Popen([sys.executable, script], env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
    return [process.wait(timeout=240) for process in processes]


#: Scripts of the manual that need FSDP2.
SHARDED = ["train_sharded.py"]


def scripts_of(block):
    """The file that a block is, and how many processes run it."""
    found = re.match(r"# file: ([^\s,]+)(?:, by (\d+) processes)?\n", block)
    return found and (found[1], int(found[2] or 2))


def blocks_of_the_manual():
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)


def test_the_manuals_training_with_fsdp2(tmp_path):
    pytest.importorskip("torch")
    from fsdp2 import MISSING
    if MISSING:
        pytest.skip(f"this torch has no {', '.join(MISSING)}")
    ran = []
    for block in blocks_of_the_manual():
        if (script := scripts_of(block)) and script[0] in SHARDED:
            (tmp_path / script[0]).write_text(block)
            assert run_by(script[1], tmp_path / script[0]) == [0] * script[1]
            ran.append(script[0])
    assert ran == SHARDED


def test_the_manual(tmp_path, monkeypatch):
    """All of its blocks, one after the other; those that begin with a file's name are run by several processes."""
    pytest.importorskip("pandas")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of_the_manual()
    assert len(blocks) >= 8
    names: dict = {}
    for number, block in enumerate(blocks):
        script = scripts_of(block)
        if script is None:
            exec(compile(block, f"docs/python.md, block {number}", "exec"), names)  # pylint: disable=exec-used
            continue
        if script[0] not in SHARDED:
            (tmp_path / script[0]).write_text(block)
            assert run_by(script[1], tmp_path / script[0]) == [0] * script[1]
    with gradtool.open("ddp.h5") as run:
        assert run.workers == 2 and list(run.steps["iteration"]) == [0, 1, 2, 4, 5, 6, 9, 10, 11]
    with gradtool.open("delta.h5") as run:
        assert run.attributes["quantity"] == "weight_delta"


def test_the_version_is_that_of_the_program():
    text = (ROOT / "CMakeLists.txt").read_text()
    assert f"VERSION {gradtool.__version__} " in text
    assert f'version = "{gradtool.__version__}"' in (ROOT / "python/pyproject.toml").read_text()
    assert gradtool.__version__ in gradtool.run("--version")


def test_files_name_the_version_and_the_commit():
    named = re.fullmatch(r"gradtool ([\d.]+) \(([0-9a-f]{7,}(?:-dirty)?|unknown), torch 9\)", producer("torch 9"))
    assert named and named[1] == gradtool.__version__
    try:
        from gradtool._commit import COMMIT
    except ImportError:  # sources that were not built
        COMMIT = "unknown"
    assert named[2] == COMMIT
