#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment: tools/venv.sh PYTHON FOLDER
set -euo pipefail
python=$1
venv=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "gpudra needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
  echo "Install one, or name it: make PYTHON=python3.12 ..." >&2
  exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
  echo "set-up 1/2: virtual environment in $venv"
  if ! "$python" -m venv "$venv" 2>/tmp/gpudra-venv.$$; then
    cat /tmp/gpudra-venv.$$ >&2
    rm -f /tmp/gpudra-venv.$$
    rm -rf "$venv"
    echo "The venv module is incomplete here; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
  rm -f /tmp/gpudra-venv.$$
fi
echo "set-up 2/2: packages (about a minute the first time)"
# The warning about same-named folders does not apply: gpudra's folders are never imported bare.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 2> >(grep -v -e BuildBackendWarning -e '^ *!!' -e '^ *\*\**$' -e 'careful with folders' -e 'name as your package' -e 'with strategy, WheelFile' -e '^ *$' >&2)
