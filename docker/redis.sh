#!/bin/sh
# Starts a Redis server as `signalbox up` does: an incomplete transaction at the end of the append-only file is removed first.
# Redis itself would apply the complete part of it (docs/reliability.md).
set -eu
signalbox repair-aof /data
exec "$@"
