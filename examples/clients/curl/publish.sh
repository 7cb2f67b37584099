#!/usr/bin/env bash
# Publishes one event and prints its ID: publish TOPIC KEY EVENT
#
# KEY names the operation, for example order-7-paid. Every attempt carries it, so an event is not published twice if the
# response to the first attempt was lost.
set -euo pipefail
topic=$1 key=$2 event=$3
body=$(mktemp)
trap 'rm -f "$body"' EXIT

# Every user of a machine can read the arguments of a program, so the token is passed in a file descriptor.
login() { printf 'header = "Authorization: Bearer %s"\n' "$SIGNALBOX_TOKEN"; }

# curl retries 408, 429, 500, 502, 503 and 504 after `Retry-After` or an increasing delay; with --retry-all-errors also
# connections that failed.
answer=$(curl -sS --config <(login) --max-time 10 --retry 8 --retry-all-errors \
    -H 'Content-Type: application/json' -H "Idempotency-Key: $key" --data-binary "$event" \
    -o "$body" -w '%{http_code} %header{x-signalbox-event-id}' "${SIGNALBOX_URL:-http://127.0.0.1:8081}/topics/$topic")

case $answer in
    "200 "*) echo "${answer#200 }" ;;
    *) cat "$body" >&2; exit 1 ;;
esac
