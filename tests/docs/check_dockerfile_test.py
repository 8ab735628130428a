"""Tests that scripts/check_dockerfile.py takes the repository's Dockerfile, and finds what is wrong in others.

Usage: check_dockerfile_test.py CHECK_DOCKERFILE DOCKERFILE
"""

import pathlib
import subprocess
import sys
import tempfile

FINE = "ARG D=12\nFROM debian:${D} AS build\nRUN if true; then \\\n  # a comment\n  echo yes; \\\n  fi\nCOPY there.txt .\nFROM debian\nCOPY --from=build /a /a\nCMD [\"a\"]\n"
BAD = {  # what is in the place of FINE's line, and what is said
    "ARG D=12": [("ARG E=12", "2: FROM uses $D")],
    "FROM debian:${D} AS build": [("FROM debian AS", "2: FROM is followed by"), ("FORM debian AS build", "2: there is no instruction 'FORM'"),
                                  ("WORKDIR /a\nFROM debian AS build", "2: WORKDIR comes before FROM")],
    "  fi": [("  done", "3: the shell cannot read the command"), ("  fi; echo $D", "3: RUN uses $D, which is declared outside")],
    "COPY there.txt .": [("COPY here.txt .", "7: COPY takes here.txt"), ("COPY there.txt", "7: COPY needs a source"), ("COPY", "7: COPY has no arguments"),
                         ("COPY there.txt there.txt .", "needs a folder"), ("COPY hidden/a .", "7: COPY takes hidden/a, which is not there or in .docker")],
    "COPY --from=build /a /a": [("COPY --from=built /a /a", "9: COPY takes from the stage 'built'")],
    "CMD [\"a\"]": [("CMD [a]", "10: CMD is followed by a list that is no JSON"), ("CMD a \\", "the last line goes on")],
}


def said(file):
    return subprocess.run([sys.executable, sys.argv[1], file], capture_output=True, text=True)


result = said(sys.argv[2])
assert result.returncode == 0 and not result.stdout + result.stderr, result
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "there.txt").write_text("")
    (folder / "hidden").mkdir()
    (folder / "hidden/a").write_text("")
    (folder / ".dockerignore").write_text("hidden\n")
    file = folder / "Dockerfile"
    file.write_text(FINE)
    result = said(file)
    assert result.returncode == 0, result
    for line, others in BAD.items():
        assert line + "\n" in FINE
        for other, words in others:
            file.write_text(FINE.replace(line + "\n", other + "\n"))
            result = said(file)
            assert result.returncode == 1 and words in result.stdout and not result.stderr, (other, result)
