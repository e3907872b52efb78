"""Whole files or none: everything this package writes appears under its name only when it is complete on disk."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from handgrad.core.errors import FileError, HandgradError

LFS = b"version https://git-lfs"
_PARTIAL = ".partial"
_LFS_SIZE = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` when the block ends well, and is removed when it does not.

    Until then the old file under that name stays as it was. Raises FileError where the disk or the folder refuses.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with replacing(target) as file:
    ...     _ = file.write(b"whole")
    >>> target.read_bytes()
    b'whole'
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        # "x" refuses to write through a link that somebody placed under this name.
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, HandgradError):
            reason = error.strerror or str(error)
            raise FileError(
                f"cannot write {path}: {reason}. What was there before is unchanged; "
                "check free space and permissions, or choose another folder."
            ) from None
        raise


def remove_partials(folder: Path, names: tuple[str, ...]) -> None:
    """Remove what killed runs left of the files `names` in `folder`; nothing else is touched."""
    for name in names:
        for left_over in folder.glob(f".{name}.*{_PARTIAL}"):
            with suppress(OSError):
                left_over.unlink()


def has_partial(folder: Path, name: str) -> bool:
    """Whether a killed run left a part of the file `name` in `folder`."""
    return any(folder.glob(f".{name}.*{_PARTIAL}"))


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable; some systems cannot open a folder, and there the rename alone has to do."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def regular_file(source: str | Path, what: str) -> Path:
    """The path of a readable, regular, non-empty file; `what` completes "there is no ...".

    Raises FileError for a missing file, a folder, a pipe or device (data are read twice), and where reading is not
    allowed; an empty file is refused too.
    """
    path = Path(source)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise FileError(f"there is no {what} {str(source)!r}; check the name and the folder.") from None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {str(source)!r}: {getattr(error, 'strerror', None) or error}.") from None
    if path.is_dir():
        raise FileError(f"{str(source)!r} is a folder; name the file inside it that is the {what}.")
    if not path.is_file():
        raise FileError(f"{str(source)!r} is a pipe or a device, which can be read once only; save it to a file first.")
    if found.st_size == 0:
        raise FileError(f"{str(source)!r} is empty (0 bytes); there is nothing to read.")
    if not os.access(path, os.R_OK):
        raise FileError(f"cannot read {str(source)!r}: permission denied.")
    return path


def require_regular(path: Path) -> int:
    """The bytes of a regular file, which may be 0. Raises FileError, also for a pipe, on which opening would wait."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise FileError(f"cannot read {path}: it is a folder, and a file was expected.")
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"cannot read {path}: it is a pipe or a device, and only regular files are read.")
    return found.st_size


def require_fetched(path: Path, start: bytes) -> None:
    """Raises FileError where a file begins as a Git LFS pointer, which stands for a file that was not fetched."""
    if start.startswith(LFS):
        size = _LFS_SIZE.search(start[:512])
        of = f" of {size[1].decode()} bytes" if size else ""
        raise FileError(f"{path} is a Git LFS pointer, not the file{of} that it stands for; git lfs pull fetches it")


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most `max_bytes`, without room for more than there are. Raises FileError."""
    size = require_regular(path)
    try:
        with open(path, "rb") as file:
            data = file.read(min(max_bytes, size) + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from None
    if len(data) > max_bytes:
        raise FileError(f"{path} has more than {max_bytes} bytes, too many for such a file; it is not read.")
    require_fetched(path, data)
    return data


def read_json(path: Path, max_bytes: int) -> Any:
    """The JSON value of a file of at most `max_bytes` bytes. Raises FileError."""
    data = read_bytes(path, max_bytes)
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{path} is not JSON: {reason}.") from None
