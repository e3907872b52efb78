"""Is there a C++ compiler that works? Asked before anything is compiled or written, and answered by compiling.

torch.compile takes the compiler that CXX names, else g++ (clang++ on macOS), and includes Python's headers in what it
makes; so does the program here. A compiler that is only there proves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = "#include <Python.h>\n#include <cmath>\ndouble root(double x) { return std::sqrt(x); }\n"
LONGEST_S = 60  # for a compiler on a slow disk; usual is a fifth of a second
REMEDY = "install g++ (and Python's headers, python3-dev), let CXX name a compiler that works, or leave --compile out"


def no_compiler() -> str:
    """Why nothing can be compiled here, and what to do; empty where a small program compiles (tried once a process).

    >>> no_compiler() == no_compiler()
    True
    """
    asked = os.environ.get("CXX")
    name = asked if asked is not None else "clang++" if sys.platform == "darwin" else "g++"
    if not (found := fault(name)):
        return ""
    who = f"{name} (CXX names no other)" if asked is None else f"{name!r}, which CXX names,"
    return f"--compile was asked for and needs a C++ compiler, and {who} {found}; {REMEDY}"


@cache
def fault(name: str) -> str:
    """What is wrong with this compiler, in words; empty if nothing is.

    >>> fault("no-such-compiler")
    'is not there'
    """
    try:
        with TemporaryDirectory() as folder:
            source, made = Path(folder, "root.cpp"), Path(folder, "root.so")
            source.write_text(PROGRAM, encoding="utf-8")
            done = run([name, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", str(made)])
            works = done.returncode == 0 and made.is_file()
    except FileNotFoundError as error:
        return "is not there" if error.filename == name else f"could not be tried: {error.strerror}"
    except (OSError, ValueError) as error:
        return f"cannot be run: {getattr(error, 'strerror', None) or error}"
    except subprocess.TimeoutExpired:
        return f"was not done with three lines after {LONGEST_S} s"
    if works:
        return ""
    errors = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
    reason = errors[0].removeprefix(f"{source}:") if errors else f"exit status {done.returncode} and no library"
    return f"does not compile three lines: {reason}"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=LONGEST_S,
        env={**os.environ, "LC_ALL": "C"},
    )
