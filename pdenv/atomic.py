"""Files that are either written whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdenv.errors import InputError


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _is_special(path: Path) -> bool:
    """A device or a pipe, which must be written to and never replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _mode_for(path: Path) -> int:
    """The permissions of the file that is replaced, else those a new file gets."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    return 0o666 & ~_umask()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replace `path` by `data` in one step; an interrupted or failed write leaves what was there.

    Raises:
        InputError: the path cannot be written.
    """
    target = Path(os.path.realpath(path))  # a symlink stays one
    try:
        if _is_special(Path(path)):
            Path(path).write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, _mode_for(target))
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=str(path)) from None


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8."""
    write_bytes(path, text.encode())


def _check_folder(folder: Path, path: str | Path) -> None:
    """Refuse a folder that is not there or in which no file can be made."""
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; create it first", where=str(path))
    try:
        handle, probe = tempfile.mkstemp(dir=folder, prefix=".pdenv.")
    except OSError as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=str(path)) from None
    os.close(handle)
    os.unlink(probe)


def check_file(path: str | Path) -> None:
    """Raise InputError now if `write_bytes(path, …)` could not work later."""
    if not str(path):
        raise InputError("an output path is empty; give a file name")
    try:
        if Path(path).is_dir():
            raise InputError("is a folder; give a file name", where=str(path))
        if not _is_special(Path(path)):
            _check_folder(Path(os.path.realpath(path)).parent, path)
    except (OSError, ValueError) as error:  # a name too long, or with a null byte
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be written: {error}", where=str(path)) from None


def check_directory(path: str | Path) -> None:
    """Raise InputError now if `directory(path)` could not work later."""
    if not str(path):
        raise InputError("an output path is empty; give a folder name")
    there = Path(os.path.realpath(path))
    try:
        while not there.exists():  # folders above are made when they are needed
            there = there.parent
    except (OSError, ValueError) as error:  # a name too long, or with a null byte
        raise InputError(f"cannot be made: {error}", where=str(path)) from None
    if not there.is_dir():
        raise InputError(f"'{there}' exists and is not a folder; give another name", where=str(path))
    _check_folder(there, path)


@contextmanager
def directory(path: str | Path) -> Iterator[Path]:
    """A temporary folder whose files appear in `path` when the block ends well, each whole.

    A new `path` appears in one step, in folders that are made if they are not there. An existing one keeps its other
    files.
    """
    target = Path(os.path.realpath(path))
    parent = target if target.is_dir() else target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".pdenv."))
    except OSError as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=str(path)) from None
    try:
        yield temporary
        if target.is_dir():
            for file in sorted(temporary.iterdir()):
                os.replace(file, target / file.name)
        else:
            os.chmod(temporary, 0o777 & ~_umask())
            os.rename(temporary, target)
    except OSError as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=str(path)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
