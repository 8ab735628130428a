"""Checks a Dockerfile without docker: instructions and their order, stages, arguments, what is copied, and the shell's syntax.

Usage: check_dockerfile.py DOCKERFILE        prints "FILE:LINE: what is wrong" for each fault, and ends with 1 where there is one
"""

import fnmatch
import json
import pathlib
import re
import shlex
import subprocess
import sys

INSTRUCTIONS = {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER",
                "VOLUME", "WORKDIR"}


def instructions(text):
    """Yields (line, instruction, arguments); a backslash at the end of a line continues it, and comments between are dropped."""
    begin, parts = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(#|$)", line):
            continue
        begin = begin or number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            name, _, arguments = "\n".join(parts).strip().partition(" ")
            yield begin, name, arguments.strip()
            begin, parts = 0, []
    if parts:
        yield begin, "", "the last line goes on"


def ignored(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) or path.startswith(pattern + "/") for pattern in patterns)


def faults(file):
    """Returns (line, what is wrong)."""
    folder = file.parent
    ignore = folder / ".dockerignore"
    patterns = [line for line in ignore.read_text(encoding="utf-8").split("\n") if line and line[0] != "#"] if ignore.exists() else []
    found, stages, outside, inside, started = [], [], set(), set(), False
    for line, name, arguments in instructions(file.read_text(encoding="utf-8")):
        if name not in INSTRUCTIONS:
            found.append((line, f"there is no instruction {name!r} ({arguments.splitlines()[0] if arguments else 'nothing follows'})"))
            continue
        if not arguments:
            found.append((line, f"{name} has no arguments"))
            continue
        if name == "ARG":
            (inside if started else outside).add(arguments.partition("=")[0])
        elif name == "FROM":
            words = arguments.split()
            found += [(line, f"FROM uses ${used}, which no ARG before the first FROM declares")
                      for used in re.findall(r"\$\{?(\w+)", words[0]) if used not in outside]
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                found.append((line, "FROM is followed by an image, and AS with a name"))
            stages.append(words[2] if len(words) == 3 else str(len(stages)))
            started, inside = True, set()
        elif not started:
            found.append((line, f"{name} comes before FROM"))
        elif name in ("COPY", "ADD"):
            words = shlex.split(arguments)
            flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
            paths = [word for word in words if not word.startswith("--")]
            if len(paths) < 2:
                found.append((line, f"{name} needs a source and a target"))
            elif len(paths) > 2 and not paths[-1].endswith("/"):
                found.append((line, f"{name} of several sources needs a folder, whose name ends with /"))
            if "from" in flags and flags["from"] not in stages[:-1]:
                found.append((line, f"{name} takes from the stage {flags['from']!r}, and the stages before are {stages[:-1]}"))
            for path in paths[:-1] if "from" not in flags else []:
                if path != "." and (not list(folder.glob(path)) or ignored(path, patterns)):
                    found.append((line, f"{name} takes {path}, which is not there or in .dockerignore"))
        elif arguments.startswith("[") and name in ("RUN", "CMD", "ENTRYPOINT"):
            try:
                if not all(isinstance(word, str) for word in json.loads(arguments)):
                    found.append((line, f"{name} is followed by a list of texts, or by a command"))
            except ValueError as error:
                found.append((line, f"{name} is followed by a list that is no JSON: {error}"))
        elif name in ("RUN", "CMD", "ENTRYPOINT"):
            command = re.sub(r"\A(--\S+\s+)+", "", arguments).replace("\n", " ")
            said = subprocess.run(["sh", "-n"], input=command, capture_output=True, text=True).stderr
            if said:
                found.append((line, f"the shell cannot read the command: {said.strip()}"))
            # A stage does not know the ARGs before the first FROM unless it declares them again.
            found += [(line, f"{name} uses ${used}, which is declared outside of this stage alone")
                      for used in sorted(set(re.findall(r"\$\{?(\w+)", command)) & (outside - inside))]
    if not stages:
        found.append((1, "there is no FROM"))
    return found


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    wrong = faults(path)
    for at, what in wrong:
        print(f"{path}:{at}: {what}")
    sys.exit(1 if wrong else 0)
