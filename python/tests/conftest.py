import os
import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def capture_file():
    """A real capture: LeNet-5 on Fashion-MNIST."""
    return ROOT / "datasets" / "lenet5-fashion-mnist.h5"


@pytest.fixture
def gradtool_program():
    """The program, which the tests of files ask whether a file conforms."""
    try:
        from gradtool._program import program
        return program()
    except Exception:
        if os.environ.get("GRADTOOL_TESTS_NEED_ALL"):
            raise
        pytest.skip("there is no program 'gradtool' here")


@pytest.fixture
def core():
    """The compiled module."""
    if os.environ.get("GRADTOOL_TESTS_NEED_ALL"):
        import gradtool._core
    return pytest.importorskip("gradtool._core", reason="the compiled module is not here")
