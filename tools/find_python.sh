#!/bin/sh
# Prints the first Python that can make the virtual environment: 3.11 or newer, with venv and pip's own installer.
# Candidates are the arguments, or the usual names; 3.11 comes first because constraints.txt was tested there.
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13 python3.14 python3 python

for candidate in "$@"; do
    # A name that is found may still not run (a version manager's stand-in), so each candidate is tried.
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done

echo "handgrad needs Python 3.11 or newer with its venv module; found none under these names: $*" >&2
echo "Install one (on Debian and Ubuntu: python3 and python3-venv), or point at one: make PYTHON=path/to/python3.11 TARGET" >&2
exit 1
