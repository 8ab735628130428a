"""Decoders for gradtool payloads in NumPy, written from the methods' READMEs and sharing nothing with the C++ code.

Each lies with its method, lib/methods/<name>/reader.py; this package finds them and holds what several need.
`payloads.module("qsgd").decode(parameters, n, payload)` gives n float32 values; parameters are strings by name, as
`payloads.parameters("bits=4,bucket=512")` splits them. Where tensors' shapes matter,
`decode_layout(parameters, tensors, payload)` reads units of several tensors (dicts of shape, kind, first, elements).
`check(parameters, input, payload)`, where a module has it, asserts that the payload is what the method's paper makes of the input.
Codecs that are several collectives have `follow(...)` instead; see tests/reduce/check_messages.py.
"""
import importlib.util
import pathlib
import sys

METHODS = pathlib.Path(__file__).resolve().parents[2] / "lib/methods"


class Missing(Exception):
    """A decoder needs a library that this machine does not have."""


def parameters(text):
    """'a=1,b=x' as a dict of strings."""
    return dict(item.split("=", 1) for item in text.split(",")) if text else {}


def module(codec):
    """The reader of a codec; FileNotFoundError where it has none."""
    name = f"payloads.methods.{codec}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, METHODS / codec / "reader.py")
        reader = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reader)
        sys.modules[name] = reader
    return sys.modules[name]
