"""Tests that scripts/check_comments.py finds comments that begin badly, and takes nothing else for one, and that scripts/check.sh hands it new files
too.

Usage: check_comments_test.py CHECK_COMMENTS
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

BAD = {  # file, its text, the lines that are named
    "block.cpp": ("int a;\n/// What a rank keeps.\n/// Of both levels.\nint b;\n// The sum. Where it is late, it is 0.\n", [2]),
    "trailing.hpp": ("struct S {\n  int a;  ///< The first.\n  int b;  ///< Of both.\n  int c;  // As before,\n          // Where it ends.\n};\n", [3, 4]),
    "kernel.cu": ("  // The same for a block.\n", [1]),
    "script.sh": ("#!/bin/sh\nset -e  # What follows fails.\n# Whatever fails ends it.\n", [2]),
    "CMakeLists.txt": ("# As CTest wants it.\n", [1]),
    "lib/bench/nested.cpp": ("// What is in a folder.\n", [1]),
    "text.py": ('"""Of the module."""\n\n\ndef f():\n    """What it returns.\n\n    More.\n    """\n    return "# What"  # Where it is\n', [1, 5, 9]),
}
GOOD = {
    "good.cpp": ('const char* a = "see // What";  // Asks, or\n                                // What not.\n/// Offsets in bytes.\n// whatever\n', []),
    "good.py": ('"""A module.\n\nWhat it has.\n"""\nX = """\n# not a comment\n"""\nY = "# Of"  # the same\n', []),
}

with tempfile.TemporaryDirectory() as folder:
    for name, (text, lines) in {**BAD, **GOOD}.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        ran = subprocess.run([sys.executable, sys.argv[1], name], cwd=folder, check=False, stderr=subprocess.PIPE, text=True)
        named = [int(line.split(":")[1]) for line in ran.stderr.splitlines() if line.startswith(f"{name}:")]
        assert sorted(named) == lines, f"{name}: lines {named} were named, not {lines}"
        assert ran.returncode == (1 if lines else 0), f"{name}: exit status {ran.returncode}"
        assert not lines or f"{len(lines)} comments begin with What" in ran.stderr, ran.stderr

with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    git = ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org"]
    (root / "scripts").mkdir()
    for script in ("check.sh", "check_comments.py"):
        shutil.copy(pathlib.Path(sys.argv[1]).parent / script, root / "scripts")
    (root / "removed.cpp").write_text("int a;\n")
    (root / ".gitignore").write_text("build/\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *command], check=True)
    (root / "removed.cpp").unlink()
    check = [root / "scripts/check.sh", "comments"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0, "a file that was removed is looked for"
    (root / "build").mkdir()
    for name in ("new.py", "build/ignored.py"):
        (root / name).write_text("# What is new.\n")
    ran = subprocess.run(check, check=False, capture_output=True, text=True)
    assert ran.returncode != 0 and "new.py:1" in ran.stderr and "ignored" not in ran.stderr, ran
