#!/usr/bin/env python3
"""Pulls messages from a queue and posts each to an HTTP address: worker.py QUEUE TARGET CONCURRENCY

2xx acknowledges a message. Any other answer returns it to the queue with a delay. After SIGTERM the worker finishes the
messages that it has, and ends.
"""
import json, os, signal, sys, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = os.environ.get("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = os.environ["SIGNALBOX_TOKEN"]
QUEUE, TARGET, CONCURRENCY = sys.argv[1], sys.argv[2], int(sys.argv[3])


def call(operation="", body=None):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/queues/{QUEUE}{operation}", data, headers), timeout=30) as answer:
        return json.load(answer)


def handle(message):
    # The ID is the same in every attempt, so the target can recognize a repetition.
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(message["id"])}
    urllib.request.urlopen(urllib.request.Request(TARGET, json.dumps(message).encode(), headers)).close()


free = threading.Semaphore(CONCURRENCY)
ending = threading.Event()
lock, receipts = threading.Lock(), set()


def settle(message):
    receipt = message["receipt"]
    try:
        try:
            handle(message)
        except Exception as error:
            print(f"{message['id']} failed: {error}", file=sys.stderr)
            call("/nack", {"receipts": [receipt], "delay_seconds": 1})
        else:
            call("/ack", {"receipts": [receipt]})
    except Exception as error:
        # The lease expires, and the message is handed out again.
        print(f"{message['id']} was not settled: {error}", file=sys.stderr)
    finally:
        with lock:
            receipts.discard(receipt)
        free.release()


def heartbeat(lease_seconds):
    """Extends the leases of all messages that are being handled, so that no other worker receives them."""
    while not ended.wait(lease_seconds / 3):
        with lock:
            held = list(receipts)
        try:
            if held:
                call("/extend", {"receipts": held, "lease_seconds": lease_seconds})
        except Exception as error:
            print(f"leases were not extended: {error}", file=sys.stderr)


signal.signal(signal.SIGTERM, lambda *_: ending.set())
ended = threading.Event()
threading.Thread(target=heartbeat, args=(call()["lease_seconds"],), daemon=True).start()
with ThreadPoolExecutor(CONCURRENCY) as pool:
    while not ending.is_set():
        # Pull only what can be handled immediately: the lease of a message begins with the pull.
        if not free.acquire(timeout=1):
            continue
        slots = 1
        while free.acquire(blocking=False):
            slots += 1
        messages = []
        try:
            messages = call("/pull", {"max": slots, "wait_seconds": 5})["messages"]
        except Exception as error:
            print(f"pull failed: {error}", file=sys.stderr)
            ending.wait(1)
        for message in messages:
            with lock:
                receipts.add(message["receipt"])
            pool.submit(settle, message)
        for _ in range(slots - len(messages)):
            free.release()
ended.set()
