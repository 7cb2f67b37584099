#!/usr/bin/env python3
"""Receives webhooks, verifies them, and prints a line for each new event: webhook.py ADDRESS:PORT"""
import base64, hashlib, hmac, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

KEY = base64.b64decode(os.environ["SIGNALBOX_SECRET"].removeprefix("whsec_"))
# A delivery has at most `bus.batch_bytes` (1 MiB) of events.
MAX_BODY = 4 << 20


def is_genuine(headers, body):
    """Whether the body was signed with our key in the last five minutes. The body must be the bytes as received."""
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(time.time() - int(sent)) > 300:
        return False
    signed = f"{headers.get('webhook-id')}.{sent}.".encode() + body
    own = "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    # While a secret is being replaced, there are several signatures.
    return any(hmac.compare_digest(own.encode(), one.encode()) for one in headers.get("webhook-signature", "").split())


# A delivery whose answer was lost is repeated. An application stores the ID in the transaction that handles the event, with
# a unique index, instead of in memory.
handled, lock = set(), Lock()


def handle(event):
    for gap in event.get("gap", []):
        print("missing", gap["first"], gap["last"], gap["reason"], flush=True)
    if event["id"] not in handled:
        print(event["id"], event["topic"], event["type"], event["url"], json.dumps(event.get("data")), flush=True)
        handled.add(event["id"])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(self.receive())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def receive(self):
        length = int(self.headers.get("Content-Length", MAX_BODY + 1))
        if length > MAX_BODY:
            return 413
        body = self.rfile.read(length)
        if not is_genuine(self.headers, body):
            return 401
        with lock:
            for event in json.loads(body):
                handle(event)
        # Answered after the events were handled: if this program fails before, the delivery is repeated.
        return 204


if __name__ == "__main__":
    address, port = sys.argv[1].split(":")
    ThreadingHTTPServer((address, int(port)), Receiver).serve_forever()
