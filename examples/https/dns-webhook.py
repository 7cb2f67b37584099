#!/usr/bin/env python3
"""Creates and removes TXT records for DNS-01 challenges, by dynamic updates (RFC 2136) with nsupdate.

    SECRET_FILE=/etc/signalbox/dns-webhook.secret KEY_FILE=/etc/bind/acme.key SERVER=127.0.0.1 dns-webhook.py 127.0.0.1:8053

It answers 204 when the primary name server has the record. If secondaries need longer, wait for them before answering: the ACME
server may ask any of them.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = re.compile(r"_acme-challenge(\.[a-z0-9_-]{1,63})+")
VALUE = re.compile(r"[A-Za-z0-9_-]{43}")
MAX_AGE_SECONDS = 300


def is_signed(secret, headers, body):
    """Whether the call has a recent signature of Standard Webhooks 1.0."""
    call, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdigit() or abs(time.time() - int(at)) > MAX_AGE_SECONDS:
        return False
    digest = hmac.new(secret, f"{call}.{at}.".encode() + body, hashlib.sha256).digest()
    wanted = "v1," + base64.b64encode(digest).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted, one) for one in given)


def update(call):
    """Adds or removes the record. Other values of the record stay."""
    record, value = call["record"], call["value"]
    if not NAME.fullmatch(record) or not VALUE.fullmatch(value):
        raise ValueError("not a record of a challenge")
    if call["action"] == "create":
        line = f'update add {record}. 60 TXT "{value}"'
    else:
        line = f'update delete {record}. TXT "{value}"'
    commands = f"server {os.environ.get('SERVER', '127.0.0.1')}\n{line}\nsend\n"
    program = os.environ.get("NSUPDATE", "nsupdate")
    subprocess.run([program, "-k", os.environ["KEY_FILE"]], input=commands, text=True, check=True, timeout=60)


class Handler(BaseHTTPRequestHandler):
    secret = b""

    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), 65536))
        if not is_signed(self.secret, self.headers, body):
            return self.answer(401)
        try:
            update(json.loads(body))
        except (ValueError, KeyError):
            return self.answer(400)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"nsupdate: {error}", file=sys.stderr)
            return self.answer(502)
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()


def main():
    with open(os.environ["SECRET_FILE"], encoding="ascii") as file:
        Handler.secret = base64.b64decode(file.read().strip().removeprefix("whsec_"))
    host, port = sys.argv[1].rsplit(":", 1)
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
