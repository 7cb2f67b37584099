#!/usr/bin/env bash
# Pulls messages from a queue and posts each to an HTTP address: worker.sh QUEUE TARGET CONCURRENCY
#
# 2xx acknowledges a message. Any other answer returns it to the queue with a delay. After SIGTERM the worker finishes the
# messages that it has, and ends.
set -euo pipefail
queue=$1 target=$2 concurrency=$3
url=${SIGNALBOX_URL:-http://127.0.0.1:8081}/queues/$queue

# Every user of a machine can read the arguments of a program, so the token is passed in a file descriptor.
login() { printf 'header = "Authorization: Bearer %s"\n' "$SIGNALBOX_TOKEN"; }
json=(-H 'Content-Type: application/json')
call() { # OPERATION BODY
    curl -sS --fail-with-body --config <(login) --max-time 30 --retry 4 --retry-connrefused "${json[@]}" \
        --data-binary "$2" "$url/$1"
}

# Extends the lease while a message is being handled, so that no other worker receives it.
heartbeat() { # RECEIPT
    while sleep "$pause"; do call extend "{\"receipts\": [\"$1\"], \"lease_seconds\": $lease}" >/dev/null || true; done
}

handle() { # MESSAGE
    # The ID is the same in every attempt, so the target can recognize a repetition.
    curl -sS --fail -o /dev/null "${json[@]}" -H "Idempotency-Key: $(jq .id <<<"$1")" --data-binary "$1" "$target"
}

consume() {
    trap '' TERM INT
    local message receipt
    while [ ! -e "$ended" ]; do
        message=$(call pull '{"max": 1, "wait_seconds": 5}' | jq -c '.messages[0] // empty') || { sleep 1; continue; }
        [ -n "$message" ] || continue
        receipt=$(jq -r .receipt <<<"$message")
        heartbeat "$receipt" >/dev/null &
        if handle "$message"; then
            call ack "{\"receipts\": [\"$receipt\"]}" >/dev/null || true
        else
            call nack "{\"receipts\": [\"$receipt\"], \"delay_seconds\": 1}" >/dev/null || true
        fi
        kill -KILL $! && wait $! 2>/dev/null || true
    done
}

lease=$(curl -sS --fail --config <(login) "$url" | jq .lease_seconds)
pause=$(jq -n "$lease / 3")
ended=$(mktemp -u)
trap 'rm -f "$ended"' EXIT
trap 'touch "$ended"' TERM INT
for ((i = 0; i < concurrency; i++)); do consume & done
# A signal interrupts `wait`, so it is called until it returns because all workers have ended.
until wait; do :; done
