#!/usr/bin/env bash
# Makes .venv with pip and a pinned uv in it. Needs only $PYTHON (3.11 or newer) with pip.
set -euo pipefail

python=${PYTHON:-python3}
uv="uv==0.13.9"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Pippin needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if ! .venv/bin/python -c '' 2>/dev/null; then
    echo "Making the environment .venv ..."
    # Without the pip that comes with Python, which takes longer to unpack than all else; some systems have none.
    "$python" -m venv --without-pip .venv
fi
if [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "${uv#*==}" ]; then
    own=("$python" -m pip --python .venv/bin/python)
    if ! "${own[@]}" --version >/dev/null 2>&1; then # it is absent, or older than 22.3
        .venv/bin/python -m ensurepip >/dev/null
        own=(.venv/bin/python -m pip)
    fi
    "${own[@]}" install --quiet --disable-pip-version-check "$uv"
fi
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    .venv/bin/uv pip install --quiet --python .venv/bin/python pip
fi
