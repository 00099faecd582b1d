#!/bin/sh
# Linux and macOS: sh install.sh [FOLDER]. Needs one of the Pythons below, and no network.
here=$(cd "$(dirname "$0")" && pwd)
for version in @PYTHONS@; do
    if command -v "python$version" >/dev/null 2>&1; then
        exec "python$version" "$here/install.py" "$@"
    fi
done
if command -v python3 >/dev/null 2>&1; then
    exec python3 "$here/install.py" "$@" # says it where this is another version
fi
echo "install: no Python was found: install one of @PYTHONS@" >&2
exit 2
