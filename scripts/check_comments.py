#!/usr/bin/env python3
"""Refuses comments and docstrings whose first word is What, Of, Where or As, or that begin with "The same": their subject comes late
or never, and a reader has to read them twice.

Usage: check_comments.py FILE...        paths relative to the root of the repository
"""
import ast
import io
import re
import sys
import tokenize

LATE_SUBJECT = re.compile(r"(What|Of|Where|As|The same)\b")
# A comment in C++ is led by //, /// or ///<, one of a shell or CMake script by #. Before a trailing one a space stands.
LEADS = {"//": re.compile(r"(?:^|(?<=\s))//[/!]?<?"), "#": re.compile(r"(?:^|(?<=\s))#")}


def comments_of_python(text):
    """Yields (line, column, alone, text) of every comment, and of every docstring with column None. alone: no code is before it."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield (*token.start, not token.line[:token.start[1]].strip(), token.string.lstrip("#"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, None, True, ast.get_docstring(node)


def comments_of_lines(text, lead):
    """Yields (line, column, alone, text) of every comment. A lead behind an odd number of quotes is taken for part of a string."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in LEADS[lead].finditer(line):
            if line[:match.start()].count('"') % 2 == 0:
                yield number, match.start(), not line[:match.start()].strip(), line[match.end():]
                break


def late_subjects(path):
    """Yields (line, text) of the comments that begin badly. A comment alone on its line goes on with one above it at the same column."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".py"):
        comments = comments_of_python(text)
    else:
        comments = comments_of_lines(text, "//" if path.endswith((".cpp", ".hpp", ".cu", ".cuh", ".h")) else "#")
    before = (0, None)
    for line, column, alone, comment in comments:
        goes_on = alone and column is not None and before == (line - 1, column)
        if not goes_on and LATE_SUBJECT.match(comment.lstrip()):
            yield line, comment.strip().splitlines()[0]
        before = (line, column)


def main(paths):
    found = [f"{path}:{line}: {text}" for path in paths for line, text in late_subjects(path)]
    for place in found:
        print(place, file=sys.stderr)
    if found:
        sys.exit(f"check_comments.py: {len(found)} comments begin with What, Of, Where, As or The same; valid is a sentence that begins with "
                 "its subject or its verb")


main(sys.argv[1:])
