#!/bin/sh
# Creates the token of the sample applications, which can only register instances of their two hosts. If an earlier
# token still works, it is kept, so that another start does not affect running containers.
set -eu
umask 027
SIGNALBOX_TOKEN=$(cat /secrets/token)
export SIGNALBOX_TOKEN
if [ -s /demo/token ] && SIGNALBOX_TOKEN=$(cat /demo/token) signalbox routes list --insecure >/dev/null 2>&1; then
    exit
fi
signalbox tokens revoke demo --yes --insecure >/dev/null 2>&1 || true
signalbox tokens create demo --scope routes --host hello.localhost --host shop.localhost --insecure >/demo/token.new
mv /demo/token.new /demo/token
