"""One process a run folder: whoever trains in it holds a lock, which the system lets go when that process ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from handgrad.core.errors import FileError

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
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve()
        me = threading.get_ident()
        if place in _held:
            if _held[place] != me:
                raise _taken(folder, os.getpid())
            yield
            return
        handle = _locked(folder)
        _held[place] = me
        try:
            yield
        finally:
            del _held[place]
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(handle)
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        if type(error) in (OSError, *OSError.__subclasses__()) and getattr(error, "filename", None) in _names(folder):
            raise FileError(f"cannot use {str(folder)!r} as a run folder: {error.strerror or error}") from None
        raise


def _locked(folder: Path) -> int:
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise _taken(folder, pid or "unknown") from None
        except OSError:  # a file system without locks
            pass
        # Whoever held it may have removed the file in between: then this lock guards a file that is gone.
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return handle
        os.close(handle)
