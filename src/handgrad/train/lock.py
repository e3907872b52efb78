"""One process a run folder: whoever trains in it holds a lock, which the system lets go when that process ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from handgrad.core.errors import ConfigError, FileError, HandgradError

try:
    import fcntl
except ImportError:  # a system without such locks: the folder is then not guarded
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_held: dict[Path, int] = {}  # folder -> the thread of this process that holds it


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for this thread alone, made where it is missing; the thread that holds it may ask again.

    A process that was killed leaves a file that locks nothing. When the block raises, folders that this call made and
    that are empty are gone again. Raises ConfigError where another process holds it, FileError where it cannot be used.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with held(folder):
    ...     sorted(path.name for path in folder.iterdir())
    ['.lock']
    """
    made = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            place, me = folder.resolve(), threading.get_ident()
            again = _held.get(place) == me
            handle = None if again else _locked(folder, place)
        except OSError as error:
            if isinstance(error, HandgradError):
                raise
            raise FileError(f"cannot use {str(folder)!r} as a run folder: {error.strerror or error}") from None
        if handle is None:
            yield
            return
        _held[place] = me
        try:
            yield
        finally:
            del _held[place]
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(handle)
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise


def _locked(folder: Path, place: Path) -> int:
    """The open lock file, locked."""
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if place in _held:
                raise BlockingIOError
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise ConfigError(
                f"process {pid or 'unknown'} is training in {folder}, and two would spoil each other's files; "
                "wait until it ends, stop it, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        # Whoever held it may have removed the file in between: then this lock guards a file that is gone.
        if not _same(handle, path):
            os.close(handle)
            continue
        with suppress(OSError):  # the number is for people; a full disk does not weaken the lock
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        return handle


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
