"""The side of a prototype that runs in Python: serves one class of a file to gradtool, which starts it with this text.

Requests are lines of JSON on a socket, and so are answers. Gradients, payloads and results lie in memory that both map: values
from `values` on, the payload from `payload` on. An answer with `error` is a sentence for the user.
"""
import copy
import importlib.util
import inspect
import json
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback


class Refused(Exception):
    """A sentence for the user."""


class Missing(Refused):
    """The interpreter lacks a package."""


def numpy_or_refuse():
    try:
        import numpy
        return numpy
    except ImportError as missing:
        raise Missing(f"{sys.executable} has no NumPy ({missing}); install it there, or name another interpreter in GRADTOOL_PYTHON") from missing


def is_prototype(value):
    return inspect.isclass(value) and (hasattr(value, "encode") and hasattr(value, "decode") or hasattr(value, "reduce"))


def classes_of(path):
    """The prototypes that the file defines itself, by name."""
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    spec = importlib.util.spec_from_file_location("gradtool_prototype", path)
    if spec is None:
        raise Refused("its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if is_prototype(value) and value.__module__ == module.__name__}


def as_text(value):
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def from_text(text, default):
    if isinstance(default, bool):
        return text == "on"
    return int(float(text)) if isinstance(default, int) else type(default)(text)


def parameters_of(cls):
    """The constructor's parameters, which have defaults: [{name, kind, default, choices, search}]. An object has been constructed."""
    if not inspect.isclass(cls):
        return []
    search = getattr(cls, "search", {})
    place, rows = f"{cls.__name__}.__init__", []
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default, name = parameter.default, parameter.name
        if default is parameter.empty:
            raise Refused(f"parameter {name} of {place} has no default; give it one")
        if name in ("ef", "file", "cls", "delays"):
            raise Refused(f"parameter {name} of {place} has a name that gradtool uses itself; call it something else")
        values, choices = [as_text(value) for value in search.get(name, [])], []
        if isinstance(default, bool):
            kind, choices = "choice", ["on", "off"]
        elif isinstance(default, (int, float)):
            kind = "integer" if isinstance(default, int) else "real"
        elif isinstance(default, str):
            kind, choices = "choice", sorted({default, *values})
        else:
            raise Refused(f"parameter {name} of {place} is {default!r}; valid are an int, a float, a bool and a str")
        rows.append({"name": name, "kind": kind, "default": as_text(default), "choices": choices, "search": values})
    unknown = sorted(set(search) - {row["name"] for row in rows})
    if unknown:
        raise Refused(f"{cls.__name__}.search names {', '.join(unknown)}, which {place} does not take")
    return rows


class Context:
    """All that encode may depend on besides the gradient."""

    def __init__(self, seed=0, step=0, rank=0, ranks=1, tensor="trial", index=0, shape=(16, 16), iteration=0, learning_rate_ratio=1.0):
        self.seed, self.step, self.rank, self.ranks = seed, step, rank, ranks
        self.tensor, self.index, self.shape = tensor, index, tuple(shape)
        self.iteration, self.learning_rate_ratio = iteration, learning_rate_ratio

    def rng(self, shared=False):
        """A NumPy generator, the same for equal seed, step and tensor, and for equal rank unless it is shared."""
        random = numpy_or_refuse().random
        return random.Generator(random.Philox(random.SeedSequence([self.seed, self.step, self.index, 0 if shared else self.rank + 1])))


class Server:
    """Serves one class. Each public method is a request, whose fields are its parameters, and returns the answer."""

    def __init__(self, memory, classes):
        self._np = numpy_or_refuse()
        self._memory_file, self._memory = memory, None
        self._classes, self._class = classes(), None
        self._objects = {}
        self._saved = b""
        self._kinds = {}  # of what encode returns, by parameters: "bytes", or whether several arrays, and their types

    def answer(self, request):
        size = request.pop("memory", 0)
        if size and (self._memory is None or len(self._memory) < size):
            self._memory = mmap.mmap(self._memory_file, size)
        return getattr(self, request.pop("do"))(**request)

    def describe(self, cls):
        if not self._classes:
            raise Refused("it has no class with encode and decode, or with reduce")
        if cls and cls not in self._classes:
            raise Refused(f"it has no prototype {cls}; there are {', '.join(self._classes)}")
        if not cls and len(self._classes) > 1:
            raise Refused(f"it has several prototypes; choose one with cls=NAME: {', '.join(self._classes)}")
        name = cls or next(iter(self._classes))
        self._class = self._classes[name]
        said = {"cls": name, "several": len(self._classes) > 1, "parameters": parameters_of(self._class),
                "reduces": hasattr(self._class, "reduce"), "doc": (inspect.getdoc(self._class) or "").split("\n", maxsplit=1)[0]}
        if said["reduces"]:
            return said
        sums = self._declared("sums")
        if sums not in (None, "float32", "float16"):
            raise Refused(f"{name}.sums is {sums!r}; valid are None, 'float32' and 'float16'")
        changes, feedback = self._try({}), bool(self._declared("error_feedback"))
        memory = changes if self._declared("memory") is None else bool(self._declared("memory"))
        if memory and feedback:
            raise Refused(f"{name} keeps state of its own and asks for error_feedback; keep the residual in the state, or say memory = False")
        delays = memory if self._declared("delays") is None else bool(self._declared("delays"))
        return {**said, "sums": sums or "", "memory": memory, "delays": delays, "error_feedback": feedback,
                "unbiased": bool(self._declared("unbiased")), "by_layout": bool(self._declared("by_layout"))}

    def plan(self, parameters, tensor, shape, n):
        """The size of a payload of n elements, and the shapes of its arrays where n decides them, which are then not sent: two
        gradients, of noise and of mostly zeros, are encoded to learn that."""
        fixed, trials = self._declared("fixed_size"), []
        noise = self._np.random.default_rng(0).standard_normal(n, dtype="f4") * self._np.float32(1e-3)
        mostly_zero = self._np.where(self._np.arange(n) % 4 == 0, 1000 * noise, 0).astype("f4")
        for gradient in [noise] if fixed else [noise, mostly_zero]:
            encoded = self._make(parameters).encode(gradient, Context(tensor=tensor, shape=shape))
            trials.append(self._arrays(encoded, parameters))
        shapes = [[list(each.shape) for each in arrays] for arrays in trials]
        if fixed is not False and shapes[0] == shapes[-1]:
            return {"bytes": self._packed(trials[0], shapes[0], parameters).nbytes, "shapes": shapes[0]}
        if self._declared("sums"):
            raise Refused("encode returned payloads of different sizes; those that are added (sums) have one size")
        return {"bytes": max(8 * n + 4096, 2 * max(self._packed(arrays, None, parameters).nbytes for arrays in trials)), "shapes": None}

    def encode(self, key, parameters, context, n, shapes, values, payload, room):
        instance = self._object(key, parameters)
        watched = not key and self._declared("memory") is None
        before = self._state(instance) if watched else None
        arrays = self._arrays(instance.encode(self._array("f4", values, n).copy(), Context(**context)), parameters)
        if watched and self._state(instance) != before:
            raise Refused("encode changed self, which it did not when the file was read; say memory = True in the class")
        if shapes is not None and [list(each.shape) for each in arrays] != shapes:
            raise Refused(f"encode returned {sum(each.nbytes for each in arrays)} bytes for {n} elements in other shapes than of a trial; "
                          "say fixed_size = False in the class")
        blob = self._packed(arrays, shapes, parameters)
        if blob.nbytes > room:
            raise Refused(f"encode returned {blob.nbytes} bytes for {n} elements, more than the {room} that were expected")
        self._array("u1", payload, blob.nbytes)[:] = blob
        return {"bytes": blob.nbytes}

    def decode(self, parameters, n, shapes, values, payload, size):
        given = self._unpacked(self._array("u1", payload, size), shapes, parameters)
        self._array("f4", values, n)[:] = self._vector(self._object("", parameters).decode(given, n), n, "decode")
        return {}

    def reduce(self, key, parameters, context, ranks, n):
        gradients = [self._array("f4", 4 * n * rank, n).copy() for rank in range(ranks)]
        said = self._object(key, parameters).reduce(gradients, Context(**context))
        if not (isinstance(said, tuple) and len(said) == 2):
            raise Refused("reduce did not return a pair: the mean, and the bytes that a rank sends")
        if isinstance(said[1], bool) or said[1] != int(said[1]) or said[1] < 0:
            raise Refused(f"reduce says that a rank sends {said[1]!r} bytes; valid is a whole number, 0 or more")
        self._array("f4", 0, n)[:] = self._vector(said[0], n, "reduce")
        return {"bytes": int(said[1])}

    def forget(self, key):
        self._objects.pop(key, None)
        return {}

    def save(self, key):
        self._saved = pickle.dumps(self._objects[key])
        return {"bytes": len(self._saved)}

    def fetch(self):
        self._memory[:len(self._saved)] = self._saved
        return {}

    def restore(self, key, size):
        self._objects[key] = pickle.loads(self._memory[:size])
        return {}

    def _array(self, kind, offset, count):
        return self._np.frombuffer(self._memory, dtype=kind, count=count, offset=offset)

    def _declared(self, name):
        """An attribute of the class: one of an object is its state."""
        return getattr(self._class if inspect.isclass(self._class) else type(self._class), name, None)

    def _make(self, parameters):
        if not inspect.isclass(self._class):
            return copy.deepcopy(self._class)
        defaults = {p.name: p.default for p in inspect.signature(self._class).parameters.values()}
        return self._class(**{name: from_text(text, defaults[name]) for name, text in parameters.items()})

    def _object(self, key, parameters):
        """The object that keeps the state `key`; "" is the one without state, of these parameters."""
        key = key or json.dumps(parameters)
        if key not in self._objects:
            self._objects[key] = self._make(parameters)
        return self._objects[key]

    def _state(self, value, depth=0):
        """A value that changes where attributes are bound anew, or where arrays, containers and generators in them change."""
        def inside(values):
            return tuple(self._state(each, depth + 1) for each in values)
        if isinstance(value, self._np.ndarray):
            return value.shape, value.tobytes()
        if hasattr(value, "detach"):
            return self._state(value.detach().cpu().numpy())
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)) or callable(value) or depth > 20:
            return repr(value)
        if isinstance(value, dict):
            return inside(value.keys()), inside(value.values())
        if isinstance(value, (list, tuple)):
            return inside(value)
        if hasattr(value, "__dict__"):
            return inside(vars(value).items())
        try:
            return pickle.dumps(value)
        except Exception:  # a thing that cannot be pickled, such as a lock, is told apart by its name alone
            return repr(value)

    def _try(self, parameters):
        """Encodes and decodes two gradients of noise. Returns whether that changed the object."""
        instance = self._make(parameters)
        before = self._state(instance)
        for seed in range(2):
            noise = self._np.random.default_rng(seed).standard_normal(256, dtype="f4")
            blob = self._packed(self._arrays(instance.encode(noise, Context()), parameters), None, parameters)
            self._vector(instance.decode(self._unpacked(blob, None, parameters), 256), 256, "decode")
        return self._state(instance) != before

    def _arrays(self, encoded, parameters):
        """The arrays that encode returned; bytes are one of them."""
        if isinstance(encoded, (bytes, bytearray, memoryview)):
            arrays, kind = [self._np.frombuffer(encoded, dtype="u1")], "bytes"
        else:
            several = isinstance(encoded, (tuple, list))
            arrays = [self._as_array(each) for each in (encoded if several else [encoded])]
            kind = several, tuple(each.dtype.str for each in arrays)
        if self._kinds.setdefault(json.dumps(parameters), kind) != kind:
            raise Refused("encode returned other types, or another number of arrays, than before, which decode could not tell apart")
        sums = self._declared("sums")
        if sums and kind != (False, (self._np.dtype(sums).str,)):
            raise Refused(f"sums is {sums!r}, and encode returned something else than one array of that type")
        return arrays

    def _kind(self, parameters):
        """Learned from noise where a payload of others is decoded first."""
        if json.dumps(parameters) not in self._kinds:
            self._try(parameters)
        return self._kinds[json.dumps(parameters)]

    def _as_array(self, value):
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        if not isinstance(value, (self._np.ndarray, self._np.generic)) or value.dtype.kind not in "biufc":
            raise Refused(f"encode returned a {type(value).__name__}; valid are bytes, an array of numbers, and a tuple of arrays")
        return self._np.ascontiguousarray(value).reshape(value.shape)

    def _packed(self, arrays, shapes, parameters):
        """Arrays one behind the other. Where their shapes are not known, each stands behind the number of its dimensions, a byte, and
        these, 8 bytes each; bytes stand alone."""
        np, parts = self._np, []
        for each in arrays:
            if shapes is None and self._kind(parameters) != "bytes":
                parts += [np.array([each.ndim], dtype="u1"), np.array(each.shape, dtype="<i8").view("u1")]
            parts.append(each.reshape(-1).view("u1"))
        return np.concatenate(parts) if parts else np.empty(0, "u1")

    def _unpacked(self, blob, shapes, parameters):
        """The payload as encode returned it: bytes, an array, or a tuple of arrays."""
        kind = self._kind(parameters)
        if kind == "bytes":
            return blob.tobytes()
        np, at, arrays = self._np, 0, []
        several, types = kind
        for i, dtype in enumerate(types):
            shape = shapes[i] if shapes is not None else None
            if shape is None:
                dimensions = self._cut(blob, at, 1)[0]
                shape = np.frombuffer(self._cut(blob, at + 1, 8 * dimensions), dtype="<i8")
                at += 1 + 8 * dimensions
            size = int(np.prod(shape, dtype="i8")) * np.dtype(dtype).itemsize
            arrays.append(np.frombuffer(self._cut(blob, at, size), dtype=dtype).reshape(shape))
            at += size
        if at != blob.nbytes:
            self._cut(blob, at, -1)
        return tuple(arrays) if several else arrays[0]

    def _cut(self, blob, at, size):
        """A copy of bytes of a payload, writable and aligned."""
        if size < 0 or at + size > blob.nbytes:
            raise Refused("a payload is damaged: its arrays do not fit its size")
        return bytearray(blob[at:at + size])

    def _vector(self, value, n, source):
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else self._np.asarray(value)
        if value.size != n or value.dtype.kind not in "biuf":
            raise Refused(f"{source} returned {value.size} values of type {value.dtype}; valid are the {n} numbers of the gradient")
        return value.reshape(-1)


def said_of(error, path):
    """One sentence about an exception, with the place in the user's file."""
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.abspath(frame.filename) == os.path.abspath(path)]
    place = f" (line {places[-1].lineno}, in {places[-1].name})" if places else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def end_with(control):
    """Ends this process when the other side is gone, whatever the user's code and its threads are doing."""
    hangup = select.poll()
    hangup.register(control, select.POLLRDHUP)
    while not hangup.poll():
        pass
    os._exit(0)


def serve(control, memory, classes, path):
    """Answers until nobody asks any more. `classes()`: the prototypes by name."""
    server = None
    with control.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            try:
                server = server or Server(memory, classes)
                answer = server.answer(json.loads(line))
            except Exception as error:  # the user's code may raise anything
                answer = {"error": said_of(error, path), "missing": isinstance(error, Missing)}
            control.sendall((json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides when it ends
    program = socket.socket(fileno=3)
    threading.Thread(target=end_with, args=(program,), daemon=True).start()
    serve(program, 4, lambda: classes_of(sys.argv[1]), sys.argv[1])
    os._exit(0)  # not waiting for threads of the user's
