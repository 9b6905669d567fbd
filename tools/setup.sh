#!/bin/sh
# Makes this machine ready to build CometMQ: a C compiler, the Python headers, a virtual environment in .venv with the
# build tools. `make build` calls it. As root on Debian it installs what is missing and says so; elsewhere it prints
# the one command to run and stops.
#
#   tools/setup.sh [--only-check]      PYTHON=python3.12 tools/setup.sh
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Inside an activated .venv, `python3` is the environment's own; this asks its base, and creates the environment with
# it.
if command -v "$python" >/dev/null; then
    python=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
fi

# The Debian packages that are missing, one a line.
missing_packages() {
    if ! printf '#include <stdio.h>\nint main(void){return 0;}\n' | ${CC:-cc} -xc - -o /dev/null 2>/dev/null; then
        printf 'gcc\nlibc6-dev\n'
    fi
    "$python" - <<'PYTHON'
import importlib.util
import pathlib
import sysconfig

if not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists():
    print("python3-dev")
if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
    print("python3-venv")
PYTHON
}

install_packages() {
    packages=$*
    install="apt-get update && apt-get install -y --no-install-recommends $packages"
    case $packages in
    *python3-*)
        # Debian's packages serve Debian's own interpreter only.
        if ! "$python" -c 'import sys; raise SystemExit(sys.base_prefix != "/usr")'; then
            stop "$(command -v "$python") lacks its headers or the venv module. Install a complete Python >= 3.10," \
                "or use Debian's: PYTHON=/usr/bin/python3 make build"
        fi ;;
    esac
    if [ ! -e /etc/debian_version ] || ! command -v apt-get >/dev/null; then
        stop "missing here: $packages (Debian's names). Install them with this system's package manager."
    fi
    if [ "$(id -u)" -ne 0 ]; then
        stop "missing here: $packages. Run this once: sudo sh -c '$install'"
    fi
    say "missing here: $packages. Installing them with apt-get, as root."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    apt-get install -y -qq --no-install-recommends $packages >/dev/null
}

command -v "$python" >/dev/null || stop "$python not found. Install Python >= 3.10 (Debian: apt-get install python3)."
"$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' ||
    stop "$("$python" --version) is too old: CometMQ needs Python >= 3.10. Name another: PYTHON=python3.12 make build"

packages=$(missing_packages | tr '\n' ' ')
packages=${packages% }
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086  # a list of words
    install_packages $packages
    still=$(missing_packages | tr '\n' ' ')
    [ -z "$still" ] || stop "still missing after the installation: $still"
fi
[ "${1:-}" != --only-check ] || exit 0

# A virtual environment whose interpreter went away (moved checkout, upgraded Python) is created again.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making the virtual environment $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
say "installing the build tools into $venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -r tools/requirements-build.txt
