#!/bin/sh
# in_memory.sh NAME COMMAND...: run a command whose temporary files lie in memory where there is room. Tests of stores
# wait for the syncs of a disk longer than they compute. A TMPDIR that is set already stays. After a failure the files
# are kept until the next run of this NAME in this checkout.
set -eu

name=$1
shift
memory=/dev/shm
need_kib=$((4 << 20))
if [ -z "${TMPDIR:-}" ] && [ -w "$memory" ] && [ "$(df -Pk "$memory" | awk 'NR == 2 { print $4 }')" -ge "$need_kib" ] &&
    [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -ge "$need_kib" ]; then
    folder=$memory/cometmq-$name-$(id -u)-$(pwd | cksum | cut -d ' ' -f 1)
    rm -rf "$folder"
    mkdir -m 755 "$folder" # tests run programs as other users in it
    export TMPDIR="$folder"
fi
status=0
"$@" || status=$?
if [ -n "${folder:-}" ] && [ "$status" -eq 0 ]; then
    rm -rf "$folder"
elif [ -n "${folder:-}" ]; then
    echo "$name: temporary files are in $folder until the next run"
fi
exit "$status"
