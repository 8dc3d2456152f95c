#!/usr/bin/env bash
# Makes .venv with pip and a pinned uv in it. Needs only $PYTHON (3.11 or newer) with pip, or uv.
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
if [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "${uv#*==}" ] &&
    # Any uv fetches the pinned one in a tenth of pip's time.
    ! { command -v uv && uv pip install --quiet --python .venv/bin/python "$uv"; } >/dev/null 2>&1; then
    own=$python
    if ! "$python" -c 'import pip' 2>/dev/null; then
        .venv/bin/python -m ensurepip --default-pip >/dev/null
        own=.venv/bin/python
    fi
    # Into a folder, for which pip starts once: into the environment, it would start again inside of it.
    folder=.venv/.fetched-uv
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore "$own" -m pip install --quiet --disable-pip-version-check \
        --no-deps --no-compile --upgrade --target "$folder" "$uv"
    mv "$folder/bin/uv" .venv/bin/uv
    rm -r "$folder"
fi
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    .venv/bin/uv pip install --quiet --python .venv/bin/python pip
fi
