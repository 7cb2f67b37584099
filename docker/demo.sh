#!/bin/sh
# Creates the token of the sample applications: it can only register instances of their two hosts. A token that still works is
# kept, so containers that run are not disturbed by another start.
set -eu
umask 027
SIGNALBOX_TOKEN=$(cat /secrets/token)
export SIGNALBOX_TOKEN
if [ -s /demo/token ] && SIGNALBOX_TOKEN=$(cat /demo/token) signalbox routes list --insecure >/dev/null 2>&1; then
    exit
fi
signalbox tokens revoke demo --insecure >/dev/null 2>&1 || true
signalbox tokens create demo --scope routes --host hello.localhost --host shop.localhost --insecure >/demo/token.new
mv /demo/token.new /demo/token
