"""Running the program `gradtool` and reading what it writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Optional, Sequence, Union

from ._errors import DataError, Error, UnavailableError, UsageError
from ._prototypes import served

_FAULTS = {2: UsageError, 3: DataError, 77: UnavailableError}


def program() -> str:
    """The path of the program: the one installed with this package, else the first one in PATH."""
    found = (shutil.which("gradtool", path=sysconfig.get_path("scripts")) or
             shutil.which("gradtool", path=os.path.dirname(sys.executable)) or shutil.which("gradtool"))
    if found is None:
        raise UnavailableError("the program 'gradtool' is neither beside this Python nor in PATH; GRADTOOL_PROGRAM=ON pip install ./python "
                               "builds it along with the package, and scripts/quickstart.sh builds it as build/release/bin/gradtool")
    return found


def _arguments(options: dict) -> list[str]:
    """Options as the command line takes them: codec=["topk", "qsgd"] is --codec topk --codec qsgd, advise=True is --advise."""
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        else:
            for each in value if isinstance(value, (list, tuple)) else [value]:
                arguments += [flag, os.fspath(each) if isinstance(each, os.PathLike) else str(each)]
    return arguments


def run(*arguments: Union[str, os.PathLike]) -> str:
    """Runs `gradtool ARGUMENTS...` and returns what it printed to standard output.

    Progress and warnings go to this process's standard error. Raises the exception that stands for the exit status,
    with the program's own sentence.
    """
    return _run(arguments)


def _run(arguments: Sequence, scratch: Optional[str] = None) -> str:
    """Does that, and does not tell what was written to the folder `scratch`, where nobody will find it."""
    command = [program(), *map(os.fspath, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    sentence = done.stderr.strip()
    if done.returncode != 0:
        said = [line[len("gradtool: "):] for line in sentence.splitlines() if line.startswith("gradtool: ")]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise _FAULTS.get(done.returncode, Error)(said[-1] if said else f"gradtool ended with {ended}: {sentence[-500:]}")
    said = [line for line in sentence.splitlines() if scratch is None or not line.startswith(f"wrote {scratch}{os.sep}")]
    if said:
        print(*said, sep="\n", file=sys.stderr)
    return done.stdout


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as missing:
        raise UnavailableError("pandas is not installed; pip install 'gradtool[pandas]'") from missing
    return pandas


def _number(word: Any) -> Any:
    """The number that a word stands for, or else the word: a column may have `auto` of one codec beside 2048 of another."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def bench(file: Union[str, os.PathLike], codec: Any = None, *, codecs: Any = None, **options: Any) -> Any:
    """Runs `gradtool bench` and returns its rows: a pandas DataFrame with one row per combination, columns as in the CSV, at
    the end one for each parameter of a codec (`params.ratio`), numbers as numbers, empty for codecs that have no such parameter.

    `codec`, or `codecs`, is a text, a class or an object with encode and decode or with reduce (docs/prototypes.md), or a list of these;
    all codecs if it is left out. A prototype has the row `python` with its class in `params`.
    Options are the program's, with underscores: `bench("run.h5", ["topk:ratio=0.01", "powersgd:rank=4"], network="10gbe",
    nodes=32, timeout=2)`. `gradtool bench --help` lists them, `gradtool list columns` says what the columns mean. With `csv=`
    the table is written to that file, too. `rows.attrs["printed"]` is what the program prints, and with `advise=True` `rows.attrs["advice"]` what to
    take on each network, as in the record of `--json`.

    >>> rows = bench("datasets/lenet5-fashion-mnist.h5", "bf16", timeout=0.2, network="wan", nodes=16, advise=True)
    >>> float(rows[rows.codec == "bf16"].payload_ratio.mean().round(2))
    2.0
    >>> rows.attrs["advice"][0]["network"]
    'wan'
    """
    pandas = _pandas()
    for name in ("csv", "json"):
        if options.get(name) == "-":
            raise UsageError(f"{name} is '-', and the rows are returned already; valid is the path of a file")
    if codec is not None and codecs is not None:
        raise UsageError("codec and codecs are both given; valid is one of them")
    chosen = codec if codec is not None else codecs if codecs is not None else "all"
    if isinstance(chosen, (list, tuple, str)) and not chosen:
        raise UsageError(f"codecs is {chosen!r}; valid is one codec at least, and all are benched where it is left out")
    with tempfile.TemporaryDirectory() as folder, served(chosen) as texts:
        csv = options.pop("csv", None) or os.path.join(folder, "bench.csv")
        if options.get("advise") and options.get("json") is None:
            options["json"] = os.path.join(folder, "bench.json")
        printed = _run(["bench", file, *_arguments({"codec": texts, **options, "csv": csv})], folder)
        rows = pandas.read_csv(csv)
        if options.get("advise"):
            with open(options["json"], encoding="utf-8") as record:
                rows.attrs["advice"] = json.load(record)["advice"]
    rows.attrs["printed"] = printed
    for column in (name for name in rows if name.startswith("params.") and not pandas.api.types.is_numeric_dtype(rows[name])):
        rows[column] = rows[column].astype(object).map(_number, na_action="ignore")
    return rows


def analyze(file: Union[str, os.PathLike], **options: Any) -> dict:
    """Runs `gradtool analyze` and returns its tables: pandas DataFrames by name (`"spectrum"`, `"variance"`, ...).

    With `out=` they are written to that folder, too.

    >>> sorted(analyze("datasets/lenet5-fashion-mnist.h5", only="variance,noise"))
    ['noise', 'noise_steps', 'variance']
    """
    pandas = _pandas()
    out = options.pop("out", None)
    with tempfile.TemporaryDirectory() as folder:
        _run(["analyze", file, *_arguments({**options, "out": folder})], folder)
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".csv")]
        tables = {name[:-len(".csv")]: pandas.read_csv(os.path.join(folder, name)) for name in names}
        if out is not None:
            shutil.copytree(folder, out, dirs_exist_ok=True)
        return tables
