"""Machines as network namespaces on one bridge, and faults between them.

A fault between two machines changes only their neighbor tables. The address of a peer leads to a hardware address that no
machine has (a silent, one-way cut), or to the relay, which forwards frames late, twice or not at all.
"""

import heapq
import random
import select
import socket
import subprocess
import threading
import time

NOWHERE = "02:00:00:00:00:01"
RELAY = "02:00:00:00:00:02"


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def hardware(ip):
    return "02:00:" + ":".join(f"{int(part):02x}" for part in ip.split("."))


class Network:
    """The bridge, which is also the address of clients and applications: the first of the network."""

    def __init__(self, name, prefix, aliases):
        self.bridge, self.prefix, self.client = name, prefix, f"{prefix}.1"
        self.machines = {}
        sh("ip", "link", "add", name, "type", "bridge")
        sh("ip", "addr", "add", f"{self.client}/24", "dev", name)
        for number in aliases:
            sh("ip", "addr", "add", f"{prefix}.{number}/24", "dev", name)
        sh("ip", "link", "set", name, "up")
        self.relay = Relay(name)

    def add(self, machine, ip):
        link = f"v{len(self.machines)}{self.bridge}"
        space = f"{self.bridge}-{machine}"
        sh("ip", "netns", "add", space)
        sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        sh("ip", "-n", space, "link", "set", "eth0", "address", hardware(ip))
        sh("ip", "-n", space, "addr", "add", f"{ip}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            sh("ip", "-n", space, "link", "set", device, "up")
        # The relay sends frames as they are, so their checksums and sizes must be those of a wire.
        sh("ip", "netns", "exec", space, "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off")
        sh("ip", "link", "set", link, "master", self.bridge, "up")
        self.machines[machine] = (space, ip, link)

    def space(self, machine):
        return self.machines[machine][0]

    def ip(self, machine):
        return self.machines[machine][1]

    def plug(self, machine, connected):
        sh("ip", "link", "set", self.machines[machine][2], "up" if connected else "down")

    def lead(self, source, target, address):
        sh("ip", "-n", self.space(source), "neigh", "replace", self.ip(target), "lladdr", address,
           "dev", "eth0", "nud", "permanent")

    def cut(self, source, target):
        """Frames from `source` to `target` are lost. The other direction works."""
        self.lead(source, target, NOWHERE)

    def disturb(self, one, other, delay, loss, twice):
        self.relay.rule = (delay, loss, twice)
        self.lead(one, other, RELAY)
        self.lead(other, one, RELAY)

    def heal(self):
        for one in self.machines:
            for other in self.machines:
                if one != other:
                    self.lead(one, other, hardware(self.ip(other)))
            self.plug(one, True)


class Relay(threading.Thread):
    """Forwards the frames that machines send to its hardware address."""

    def __init__(self, bridge):
        super().__init__(daemon=True)
        self.rule = (0, 0, 0)
        self.random = random.Random(bridge)
        near, far = f"r0{bridge}", f"r1{bridge}"
        sh("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        sh("ip", "link", "set", near, "address", RELAY, "up")
        sh("ip", "link", "set", far, "master", bridge, "up")
        sh("ethtool", "-K", near, "tx", "off", "gro", "off")
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.socket.bind((near, 0x0800))
        self.address = bytes.fromhex(RELAY.replace(":", ""))
        self.start()

    def run(self):
        waiting, number = [], 0
        while True:
            patience = max(0, waiting[0][0] - time.monotonic()) if waiting else 1
            if select.select([self.socket], [], [], patience)[0]:
                frame = self.socket.recv(65536)
                if frame[:6] == self.address:
                    delay, loss, twice = self.rule
                    target = bytes([2, 0]) + frame[30:34]
                    for _ in range(2 if self.random.random() < twice else 1):
                        if self.random.random() >= loss:
                            number += 1
                            due = time.monotonic() + delay * (0.5 + self.random.random())
                            heapq.heappush(waiting, (due, number, target + self.address + frame[12:]))
            while waiting and waiting[0][0] <= time.monotonic():
                try:
                    self.socket.send(heapq.heappop(waiting)[2])
                except OSError:
                    pass  # The link of the machine is down: the frame is lost.
