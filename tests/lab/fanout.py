"""Measures what a change costs the routes primary by its number of replicas: CPU time of one redis-server, for docs/sizing.md.

    python3 tests/lab/fanout.py 0 1 10 30
"""

import hashlib
import socket
import subprocess
import sys
import tempfile
import time

PORT, CHANGES = 29400, 3000
# About what the script of a registration writes.
SCRIPT = b"""redis.call('SADD', KEYS[1], ARGV[1]) redis.call('HSET', KEYS[2], 'a', ARGV[2]) redis.call('SET', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2]) redis.call('LPUSH', KEYS[5], ARGV[2]) redis.call('LTRIM', KEYS[5], 0, 100)
redis.call('INCR', KEYS[6])"""


def info(section):
    output = subprocess.run(["redis-cli", "-p", str(PORT), "INFO", section], capture_output=True, text=True).stdout
    return dict(line.split(":", 1) for line in output.splitlines() if ":" in line)


def server(number, *arguments):
    folder = tempfile.mkdtemp(prefix="signalbox-fanout-")
    command = ["redis-server", "--port", str(PORT + number), "--bind", "127.0.0.1", "--save", "", "--dir", folder,
               "--repl-diskless-sync-delay", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def measure(replicas):
    servers = [server(0, "--appendonly", "yes")]
    try:
        servers += [server(number, "--replicaof", "127.0.0.1", str(PORT)) for number in range(1, replicas + 1)]
        while sum("state=online" in value for value in info("replication").values()) < replicas or not info("cpu"):
            time.sleep(0.1)
        connection = socket.create_connection(("127.0.0.1", PORT))
        replies = connection.makefile("rb")

        def send(*words):
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            return replies.readline()
        send(b"SCRIPT", b"LOAD", SCRIPT)
        replies.readline()
        digest = hashlib.sha1(SCRIPT).hexdigest().encode()

        def used():
            cpu = info("cpu")
            return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
        before = used()
        for number in range(CHANGES):
            keys = [b"%s:%d" % (name, number % 500) for name in (b"instances", b"instance", b"logkey")]
            send(b"EVALSHA", digest, b"6", *keys, b"addresses", b"changes", b"serial", b"10.0.0.1:%d" % number, b"x" * 120)
        print(f"{replicas:4} replicas: {(used() - before) / CHANGES * 1e6:6.1f} µs per change", flush=True)
    finally:
        for one in servers:
            one.kill()
            one.wait()


for word in sys.argv[1:]:
    measure(int(word))
