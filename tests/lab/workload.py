"""Clients of a running topology, which record what they were promised, and the check of all promises at the end."""

import collections
import http.client
import http.server
import json
import random
import threading
import time

# The message of a pacemaker that finds that a promoted primary lacks accepted calls.
LOSS = "does not have accepted events"
PATIENCE = 3.0
STABLE_HOSTS, DYNAMIC_HOSTS, OBJECTS = 4, 6, 6
STABLE, DYNAMIC = "17", "18"
MACHINE = """state_machines:
  lab:
    states:
      - gate: open
        exit_condition: metadata.ready
        triggers: [{metadata: ready}]
        next: done
      - gate: done
"""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def handle_error(self, *_):
        pass  # A client that was killed.


class Handler(http.server.BaseHTTPRequestHandler):
    """Applications answer every path. Receivers note what they are sent."""

    protocol_version = "HTTP/1.1"
    workload = None

    def do_GET(self):
        self.reply(b"application")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"[]")
        self.workload.received(self.path, body)
        self.reply(b"")

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Client:
    """A client that keeps one connection, and goes to the next address after a failure."""

    def __init__(self, addresses, token=None):
        self.addresses, self.token, self.connection = list(addresses), token, None

    def call(self, method, target, body=None, **headers):
        """Status, headers and body; the status is 0 if the outcome is unknown."""
        try:
            if not self.connection:
                self.connection = http.client.HTTPConnection(self.addresses[0], timeout=PATIENCE)
            if self.token:
                headers["Authorization"] = f"Bearer {self.token}"
            text = body if isinstance(body, (str, type(None))) else json.dumps(body)
            if text is not None:
                headers.setdefault("Content-Type", "application/json")
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            self.connection.request(method, target, text, headers)
            answer = self.connection.getresponse()
            data = answer.read()
            if answer.status >= 500:
                self.rotate()
            return answer.status, dict(answer.getheaders()), data
        except (OSError, http.client.HTTPException) as error:
            self.rotate()
            return 0, {}, str(error).encode()

    def rotate(self):
        if self.connection:
            self.connection.close()
        self.connection = None
        self.addresses.append(self.addresses.pop(0))


class Workload:
    def __init__(self, site, seed):
        self.site, self.random = site, random.Random(seed)
        self.lock, self.ending, self.paused = threading.Lock(), threading.Event(), threading.Event()
        self.attempts = collections.defaultdict(list)   # kind → [(begun, ended, succeeded)]
        self.requests = []                              # (router, begun, ended, status, text) that were not 200
        self.counts, self.last = collections.Counter(), {}
        self.promised = {}                              # event number → (id, object)
        self.pushed, self.pulled = [], collections.defaultdict(set)
        self.sequenced = collections.defaultdict(list)  # object → numbers as delivered
        self.ordered = collections.defaultdict(list)    # object → numbers as accepted
        self.instances, self.labels = {}, {}
        self.lost = set()                               # what is missing, and was reported as lost
        self.flaws = []
        handler = type("LabHandler", (Handler,), {"workload": self})
        addresses = [site.network.client]
        addresses += [f"{site.prefix}.{number}" for number in range(100, 102 + DYNAMIC_HOSTS)]
        for address in addresses:
            server = Server((address, 9000), handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.threads = []

    # ── set up ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def until(self, what, seconds, attempt):
        deadline = time.monotonic() + seconds
        while True:
            result = attempt()
            if result is True:
                return True
            if time.monotonic() > deadline:
                self.flaws.append(f"{what} did not happen within {seconds} s: {result}")
                return False
            time.sleep(0.2)

    def must(self, client, method, target, body=None, **headers):
        def attempt():
            status, _, data = client.call(method, target, body, **headers)
            return status in (200, 201, 202, 204) or f"{status} {data[:300]}"
        if not self.until(f"{method} {target}", 60, attempt):
            raise AssertionError(self.flaws[-1])

    def prepare(self):
        root = self.root()
        url = f"http://{self.site.network.client}:9000"
        for number in range(2):
            hosts = [f"h{host}.lab" for host in range(STABLE_HOSTS)]
            body = {"address": f"{self.site.prefix}.{100 + number}:9000", "hostnames": hosts, "version_type_id": STABLE}
            self.must(root, "PUT", f"/instances/stable-{number}", body)
        self.must(root, "POST", "/subscription", {"topics": ["orders"], "callback": f"{url}/pushed", "uuid": "lab",
                                                  "timeout": 0})
        self.must(root, "PUT", "/queues/all", {"pattern": ".*:update:orders", "lease_seconds": 5})
        self.must(root, "PUT", "/backends/works", {"prefix": "work:", "callback": f"{url}/sequenced", "uuid": "lab"})
        _, _, data = root.call("POST", "/state-machines/lab/plan", MACHINE, Content_Type="application/yaml")
        plan = json.loads(data or b"{}").get("plan")
        self.must(root, "POST", "/state-machines/lab/apply", {"plan": plan})
        for router, address in self.site.routers().items():
            # Without its replica, a router serves the hosts that it has served before.
            def serves(address=address, router=router):
                client = Client([address])
                answers = [client.call("GET", "/", Host=f"h{host}.lab") for host in range(STABLE_HOSTS)]
                wrong = [f"{router}: {status} {data[:200]}" for status, _, data in answers if status != 200]
                return wrong[0] if wrong else True
            if not self.until(f"{router} serves", 30, serves):
                raise AssertionError(self.flaws[-1])

    def root(self):
        addresses = self.site.pacemakers()
        return Client(self.random.sample(addresses, len(addresses)), self.site.token)

    def start(self):
        work = [self.publish, self.publish_ordered, self.pull, self.register, self.label, self.read_statistics]
        work += [lambda router=router, address=address: self.request(router, address)
                 for router, address in self.site.routers().items()]
        for function in work:
            thread = threading.Thread(target=self.run, args=(function,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def run(self, function):
        try:
            function()
        except Exception as error:  # A client that dies would check nothing.
            self.flaws.append(f"client ended: {error!r}")

    def stop(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(180)
            if thread.is_alive():
                self.flaws.append("a client did not complete its last call within 180 s")

    def insist(self, kind, client, method, target, body=None, accept=(200, 201, 202, 204), **headers):
        """Repeats a call until it is accepted, as a client with an idempotency key does."""
        while True:
            begun = time.monotonic()
            status, answer, data = client.call(method, target, body, **headers)
            ended = time.monotonic()
            with self.lock:
                self.attempts[kind].append((begun, ended, status in accept))
                self.last[kind] = f"{status} {data[:300].decode(errors='replace')}"
                self.counts[kind] += status in accept
            if status in accept:
                return status, answer, data
            if 400 <= status < 500 and status not in (401, 403, 408, 409, 425, 429):
                self.flaws.append(f"{method} {target} was rejected: {status} {data[:300]}")
                return status, answer, data
            time.sleep(0.2)

    # ── clients ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def request(self, router, address):
        client, number = Client([address]), 0
        while not self.ending.is_set():
            number += 1
            begun = time.monotonic()
            status, _, data = client.call("GET", f"/{number}", Host=f"h{number % STABLE_HOSTS}.lab")
            ended = time.monotonic()
            with self.lock:
                self.counts["request"] += 1
                self.attempts[f"request {router}"].append((begun, ended, status == 200))
                if status != 200:
                    self.requests.append((router, begun, ended, status, data[:200].decode(errors="replace")))
            time.sleep(0.05)

    def publish(self):
        client, number = self.root(), 0
        while not self.ending.is_set():
            number += 1
            key = f"order:{number % OBJECTS}"
            body = {"type": "update", "url": "https://lab.example/1", "object": key, "environment": f"e{number % 3}",
                    "data": number}
            _, headers, _ = self.insist("publish", client, "POST", "/topics/orders", body,
                                        Idempotency_Key=f"publish-{number}")
            identity = {name.lower(): value for name, value in headers.items()}.get("x-signalbox-event-id")
            if identity:
                self.promised[number] = (int(identity), key)
            time.sleep(0.08)

    def publish_ordered(self):
        client, number = self.root(), 0
        while not self.ending.is_set():
            number += 1
            key = f"work:{number % OBJECTS}"
            body = {"data": number, "events": [{"topic": "works", "type": "update", "data": number}],
                    "idempotency_key": f"work-{number}"}
            status, _, _ = self.insist("object", client, "POST", f"/objects/{key}/events", body)
            if status == 202:
                self.ordered[key].append(number)
            time.sleep(0.3)

    def pull(self):
        client = self.root()
        while not self.ending.is_set():
            _, _, data = self.insist("pull", client, "POST", "/queues/all/pull", {"max": 20, "wait_seconds": 1})
            self.take(client, data)

    def take(self, client, data):
        messages = json.loads(data or b"{}").get("messages", [])
        if not messages:
            return 0
        for message in messages:
            payload = message.get("payload")
            number = payload.get("data") if isinstance(payload, dict) else payload
            self.pulled[number].add(message["id"])
        client.call("POST", "/queues/all/ack", {"receipts": [message["receipt"] for message in messages]})
        return len(messages)

    def register(self):
        client, number = self.root(), 0
        while not self.ending.is_set():
            number += 1
            slot = number % DYNAMIC_HOSTS
            identity = f"dynamic-{slot}"
            if identity in self.instances:
                self.insist("register", client, "DELETE", f"/instances/{identity}", accept=(200, 202, 204, 404))
                self.instances.pop(identity)
            else:
                body = {"address": f"{self.site.prefix}.{102 + slot}:9000", "hostnames": [f"d{slot}.lab"],
                        "version_type_id": DYNAMIC}
                self.insist("register", client, "PUT", f"/instances/{identity}", body)
                self.instances[identity] = f"d{slot}.lab"
            time.sleep(0.4)

    def read_statistics(self):
        client = Client([address.replace(":8080", ":8081") for address in self.site.routers().values()], self.site.token)
        while not self.ending.is_set():
            self.insist("statistics", client, "GET", f"/stats/version_type/{STABLE}")
            time.sleep(0.4)

    def label(self):
        client, number = self.root(), 0
        while not self.ending.is_set():
            number += 1
            target = f"/state-machines/lab/labels/l{number}"
            # A repeated creation is answered 409.
            self.insist("label", client, "POST", target, {"metadata": {}}, accept=(200, 201, 409))
            self.insist("label", client, "PATCH", target, {"metadata": {"ready": True}})
            self.labels[f"l{number}"] = "done"
            time.sleep(0.5)

    def received(self, path, body):
        for event in body if isinstance(body, list) else [body]:
            with self.lock:
                if path == "/pushed":
                    self.pushed.append(event)
                else:
                    self.sequenced[event.get("object")].append(event)

    # ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def healthy_since(self, begun):
        """The kinds of calls that have not succeeded since `begun`."""
        kinds = ["publish", "object", "pull", "register", "label", "statistics"] + [f"request {name}" for name in self.site.routers()]
        with self.lock:
            return [kind for kind in kinds
                    if not any(ok and at >= begun for at, _, ok in self.attempts[kind][-200:])]

    def outage(self, kind, since, until):
        """Seconds from `since` to the end of the last call that failed, 0 if none did."""
        with self.lock:
            failed = [end for at, end, ok in self.attempts[kind] if not ok and end >= since and at <= until]
        return max(failed, default=since) - since

    def check(self):
        """Everything that was promised, after all faults have ended."""
        root = self.root()
        self.complete("pushed events", self.missing_pushed)
        self.complete("pulled messages", lambda: self.missing_pulled(root))
        self.complete("ordered events", self.missing_sequenced)
        self.check_order()
        for name, state in sorted(self.labels.items()):
            def reached(name=name, state=state):
                status, _, data = root.call("GET", f"/state-machines/lab/labels/{name}")
                if status == 404 and self.may_be_lost([name]):
                    self.lost.add(name)
                    return True
                found = json.loads(data).get("state") if status == 200 else data[:100]
                return found == state or f"{status} {found}"
            self.until(f"label {name} reaches {state}", 30, reached)
        if self.lost:
            self.counts["reported as lost"] = len(self.lost)
        for router, address in self.site.routers().items():
            client = Client([address])
            for slot in range(DYNAMIC_HOSTS):
                live = f"dynamic-{slot}" in self.instances
                def routed(slot=slot, live=live, client=client):
                    status, _, data = client.call("GET", "/", Host=f"d{slot}.lab")
                    return (status == 200) == live or f"{status} {data[:100]}, registered: {live}"
                self.until(f"{router} routes d{slot}.lab", 30, routed)
        self.until("every complete log line is counted once", 60, self.counted)

    def complete(self, what, missing):
        """Waits until nothing is missing. A failover may lose what was accepted, but then a pacemaker reports how many calls were lost."""
        begun = time.monotonic()
        while left := missing():
            waited = time.monotonic() - begun
            if waited > 120:
                self.flaws.append(f"{what}: {len(left)} are missing, such as {left[:5]}; reported as lost: {self.reported()}")
                return
            if waited > 30 and self.may_be_lost(left):
                self.lost.update(left)
                return
            time.sleep(0.2)

    def may_be_lost(self, missing):
        return len(self.lost | set(missing)) <= self.reported()

    def reported(self):
        """The number of accepted calls that the pacemakers reported as lost."""
        calls = 0
        for path in self.site.folder.glob("logs/*-pacemaker.log"):
            for line in path.read_text(errors="replace").splitlines():
                if LOSS in line:
                    calls += json.loads(line)["calls"]
        return calls

    def missing_pushed(self):
        with self.lock:
            seen = {event["id"] for event in self.pushed}
        return [event[0] for event in self.promised.values() if event[0] not in seen]

    def missing_pulled(self, client):
        taken = 1
        while taken:
            status, _, data = client.call("POST", "/queues/all/pull", {"max": 100})
            taken = self.take(client, data) if status == 200 else 0
        return [event[0] for number, event in self.promised.items() if event[0] not in self.pulled[number]]

    def missing_sequenced(self):
        with self.lock:
            seen = {event.get("data") for events in self.sequenced.values() for event in events}
        return [f"ordered {number}" for numbers in self.ordered.values() for number in numbers if number not in seen]

    def check_order(self):
        with self.lock:
            pushed = list(self.pushed)
            sequenced = {key: list(events) for key, events in self.sequenced.items()}
        first, seen, numbers = collections.defaultdict(list), set(), collections.defaultdict(set)
        for event in pushed:
            numbers[event.get("data")].add(event["id"])
            if event["id"] not in seen:
                seen.add(event["id"])
                first[event.get("object")].append(event)
        for key, events in first.items():
            identities = [event["id"] for event in events]
            if identities != sorted(identities):
                self.flaws.append(f"first deliveries of {key} are not in order")
            for before, event in zip(events, events[1:]):
                if event.get("prev") != before["id"] and "gap" not in event and before["id"] not in self.lost:
                    self.flaws.append(f"{key}: {event['id']} names {event.get('prev')}, not {before['id']}")
        for number, identities in numbers.items():
            if len(identities - self.lost) > 1:
                self.flaws.append(f"publish {number} was repeated under one key and became {len(identities)} events")
        for key, events in sequenced.items():
            data = list(dict.fromkeys(event.get("data") for event in events))
            if data != sorted(data):
                self.flaws.append(f"first deliveries of {key} to its backend are not in order: {data}")

    def counted(self):
        wanted = collections.Counter()
        for process in self.site.of("edge"):
            for path in (self.site.folder / process.machine / "log").glob("access.log*"):
                for line in path.read_bytes().split(b"\n")[:-1]:
                    try:
                        wanted[json.loads(line)["key"]] += 1
                    except (ValueError, KeyError):
                        continue  # The sidecar counts such a line as bad.
        primary = self.site.stats_primary()
        found = {key: self.site.operator(primary, 6403, "HGET", f"stat:{key}", "requests") if primary else "no primary"
                 for key in (STABLE, DYNAMIC)}
        wanted = {key: str(wanted[key] or "") for key in (STABLE, DYNAMIC)}
        return found == wanted or f"counted {found}, log lines {wanted}"
