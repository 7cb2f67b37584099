#!/usr/bin/env python3
"""Watches the events of a topic as they are accepted, and prints a line of JSON for each: watch.py TOPIC POSITION_FILE

The position is stored after each event, so the next start continues where this one ended.
"""
import http.client, os, sys, time, urllib.error, urllib.request

URL = os.environ.get("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = os.environ["SIGNALBOX_TOKEN"]


def messages(stream):
    """Yields (event, data, id) of server-sent events. A message may have only an ID: then no event matched for a while."""
    message = {}
    for line in stream:
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name:
            message[name] = value
        else:
            yield message.get("event", "message"), message.get("data"), message.get("id")
            message = {}


def watch(topic, position):
    while True:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if os.path.exists(position):
            with open(position) as file:
                headers["Last-Event-ID"] = file.read()
        try:
            # A stream without events sends a comment every 15 seconds.
            request = urllib.request.Request(f"{URL}/events?topic={topic}", headers=headers)
            with urllib.request.urlopen(request, timeout=45) as stream:
                for event, data, last in messages(stream):
                    if event == "end" and "token_revoked" in data:
                        sys.exit("the token was revoked")
                    elif event == "gap":
                        print("these events are no longer in the log:", data, file=sys.stderr)
                    elif event == "message" and data:
                        print(data, flush=True)
                    if last:
                        with open(f"{position}.new", "w") as file:
                            file.write(last)
                        os.replace(f"{position}.new", position)
        except urllib.error.HTTPError as error:
            # Other errors stay the same if the request is repeated.
            if error.code != 429 and error.code < 500:
                sys.exit(error.read().decode())
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(1)


if __name__ == "__main__":
    watch(*sys.argv[1:])
