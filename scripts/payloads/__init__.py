"""Decoders for gradtool payloads in NumPy, written from docs/payload-format.md and sharing nothing with the C++ code.

`payloads.module("qsgd").decode(parameters, n, payload)` gives n float32 values; parameters are strings by name, as
`payloads.parameters("bits=4,bucket=512")` splits them. Where tensors' shapes matter,
`decode_layout(parameters, tensors, payload)` reads units of several tensors (dicts of shape, kind, first, elements).
Codecs that are several collectives have `follow(...)` instead; see tests/reduce/check_messages.py.
"""
import importlib


class Missing(Exception):
    """A decoder needs a library that this machine does not have."""


def parameters(text):
    """'a=1,b=x' as a dict of strings."""
    return dict(item.split("=", 1) for item in text.split(",")) if text else {}


def module(codec):
    """The decoder module of a codec; ModuleNotFoundError where there is none."""
    return importlib.import_module("payloads." + codec)
