#!/usr/bin/env python3
"""Publishes one event and prints its ID: publish.py TOPIC KEY EVENT

KEY names the operation, for example order-7-paid. Every attempt carries it, so the event is not published twice if the
response to the first attempt was lost.
"""
import http.client, os, random, sys, time, urllib.error, urllib.request

URL = os.environ.get("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = os.environ["SIGNALBOX_TOKEN"]
ATTEMPTS = 9


def publish(topic, key, event):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Idempotency-Key": key}
    for attempt in range(ATTEMPTS):
        pause = random.uniform(0.5, 1) * 2**attempt
        try:
            request = urllib.request.Request(f"{URL}/topics/{topic}", event.encode(), headers)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.headers["X-Signalbox-Event-Id"])
        except urllib.error.HTTPError as error:
            # Other errors stay the same if the request is repeated.
            if error.code not in (408, 429, 500, 502, 503, 504):
                raise RuntimeError(error.read().decode()) from error
            failure = error
            pause = float(error.headers.get("Retry-After", pause))
        except (OSError, http.client.HTTPException) as error:
            # The event may have been accepted; the key makes the repetition safe.
            failure = error
        time.sleep(pause)
    raise failure


if __name__ == "__main__":
    try:
        print(publish(*sys.argv[1:]))
    except Exception as error:
        sys.exit(str(error))
