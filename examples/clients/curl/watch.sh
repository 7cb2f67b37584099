#!/usr/bin/env bash
# Watches the events of a topic as they are accepted, and prints a line of JSON for each: watch.sh TOPIC POSITION_FILE
#
# The position is stored after each event, so the next start continues where this one ended.
set -euo pipefail
topic=$1 position=$2
head=$(mktemp)
trap 'rm -f "$head"' EXIT

# Every user of a machine can read the arguments of a program, so the token is passed in a file descriptor.
headers() {
    printf 'header = "Authorization: Bearer %s"\n' "$SIGNALBOX_TOKEN"
    if [ -s "$position" ]; then printf 'header = "Last-Event-ID: %s"\n' "$(cat "$position")"; fi
}

# Reads the lines of messages. An empty line ends a message.
messages() {
    local line event=message data='' id=''
    while IFS= read -r line; do
        case $line in
            'event: '*) event=${line#event: } ;;
            'data: '*) data=${line#data: } ;;
            'id: '*) id=${line#id: } ;;
            '')
                case $event in
                    message) [ -z "$data" ] || printf '%s\n' "$data" ;;
                    gap) echo "these events are no longer in the log: $data" >&2 ;;
                    end) case $data in *token_revoked*) echo "the token was revoked" >&2; return 1 ;; esac ;;
                esac
                # A message without data carries a position, too: it advances while no event matches.
                if [ -n "$id" ]; then
                    printf %s "$id" >"$position.new"
                    mv "$position.new" "$position"
                fi
                event=message data='' id=''
                ;;
        esac
    done
}

while true; do
    : >"$head"
    # A stream without events sends a comment every 15 seconds: 45 seconds without a byte are a lost connection.
    curl -sSN --fail-with-body --config <(headers) --connect-timeout 10 --speed-limit 1 --speed-time 45 -D "$head" \
        "${SIGNALBOX_URL:-http://127.0.0.1:8081}/events?topic=$topic" | messages || [ "${PIPESTATUS[1]}" = 0 ] || exit 1
    # A repetition does not change an answer such as 401.
    case $(head -n 1 "$head") in *" 429"*) ;; *" 4"*) head -n 1 "$head" >&2; exit 1 ;; esac
    sleep 1
done
