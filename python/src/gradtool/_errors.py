"""The exceptions of gradtool. Each carries one sentence: what is wrong, where, and what would be valid."""


class Error(Exception):
    """Something failed. The program ends with another status than 0 where Python raises this."""


class UsageError(Error, ValueError):
    """A request is not valid: an unknown codec, a parameter out of its range (exit status 2)."""


class DataError(Error, ValueError):
    """A file or a payload is not what it claims to be (exit status 3)."""


class UnavailableError(Error, RuntimeError):
    """Not in this build, or not on this machine (exit status 77)."""


def list_names(names: list) -> str:
    """Names in a sentence: the first ones, where there are many."""
    return ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:10])} and {len(names) - 10} others"


_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"


def expect_content(path: str) -> None:
    """Raises DataError for what Git LFS leaves in place of a file that was not fetched."""
    with open(path, "rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise DataError(f"{path}: is a Git LFS pointer, not the file itself; run 'git lfs pull'")
