#!/usr/bin/env bash
# Verifies a webhook and prints its events: webhook.sh ID TIMESTAMP SIGNATURES <BODY
#
# The arguments are the headers webhook-id, webhook-timestamp and webhook-signature; the body is read from standard input. A
# shell script cannot serve HTTP, so this is for looking into one delivery. The examples in other languages are receivers.
set -euo pipefail
id=$1 sent=$2 signatures=$3
body=$(mktemp)
trap 'rm -f "$body"' EXIT
# The signature covers the bytes of the body: nothing may be parsed and written again before it is verified.
cat >"$body"

age=$(($(date +%s) - sent))
[ "${age#-}" -lt 300 ] || { echo "the delivery is too old" >&2; exit 1; }

# openssl reads keys from its arguments only, which every user of the machine can see: do not use this on a shared machine.
key=$(printf %s "${SIGNALBOX_SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
own=$({ printf '%s.%s.' "$id" "$sent"; cat "$body"; } | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)

# While a secret is being replaced, there are several signatures. One that matches is enough.
case " $signatures " in
    *" v1,$own "*) ;;
    *) echo "the signature does not match" >&2; exit 1 ;;
esac
jq -r '.[] | "\(.id) \(.topic) \(.type) \(.url) \(.data | tojson)"' "$body"
