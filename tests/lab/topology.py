"""A topology of examples/topologies, started as processes: the files of a folder are the programs of a machine."""

import os
import pathlib
import re
import signal
import subprocess
import time

import network

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/topologies"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
DISK = "128m"


class Process:
    """A program of a machine, which a supervisor would restart after a second."""

    def __init__(self, site, machine, name, command, environment):
        self.site, self.machine, self.name = site, machine, name
        self.command, self.environment = command, environment
        self.child, self.skew = None, None
        self.build = site.builds[0]

    def __str__(self):
        return f"{self.machine}/{self.name}"

    @property
    def kind(self):
        return re.sub(r"-\d$", "", self.name)

    def start(self):
        if self.child and self.child.poll() is None:
            return
        environment = {**os.environ, **self.environment}
        command = [self.build.resolve(word) for word in self.command]
        if self.kind == "edge":
            environment |= {"NGINX_DIR": str(self.build.nginx), "LUA_DIR": str(self.build.lua)}
        if self.skew:
            environment |= {"LD_PRELOAD": FAKETIME, "FAKETIME": self.skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        if self.name.startswith("redis-"):
            data = self.site.folder / self.machine / "lib" / self.name
            subprocess.run([self.build.resolve("signalbox"), "repair-aof", data], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        log = open(self.site.folder / "logs" / f"{self.machine}-{self.name}.log", "ab")
        space = self.site.network.space(self.machine)
        self.child = subprocess.Popen(["ip", "netns", "exec", space, *command], env=environment, stdout=log,
                                      stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def signal(self, number):
        if self.child:
            try:
                os.killpg(self.child.pid, number)
            except ProcessLookupError:
                pass

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.child:
            self.child.wait()

    def end(self):
        self.signal(signal.SIGTERM)
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def is_running(self):
        return self.child is not None and self.child.poll() is None


class Build:
    """Programs of one version, with their configuration of nginx."""

    def __init__(self, name, programs, nginx, lua):
        self.name, self.programs, self.nginx, self.lua = name, programs, nginx, lua

    @classmethod
    def of_package(cls, folder):
        """A Debian package that was unpacked into a folder."""
        library = folder / "usr/lib/signalbox"
        return cls("previous", folder / "usr/bin", library / "nginx", library / "lua")

    def resolve(self, word):
        """The path of a program of Signalbox. Other words of a command are returned as they are."""
        return str(self.programs / word) if word.startswith("signalbox") else word


class Site:
    """The machines of a topology. Every program starts with the first of the builds."""

    def __init__(self, topology, number, folder, builds):
        self.topology, self.folder, self.builds = topology, folder, builds
        self.processes, self.spaces_full = [], {}
        machines = sorted(path for path in (EXAMPLES / topology).iterdir() if path.is_dir())
        text = "".join(path.read_text() for path in machines[0].iterdir())
        self.prefix = re.search(r"\b(10\.77\.\d+)\.\d+", text).group(1)
        self.network = network.Network(f"lab{number}", self.prefix, range(100, 120))
        self.secrets = folder / "secrets"
        subprocess.run([builds[0].resolve("signalbox"), "secrets", self.secrets], check=True, stdout=subprocess.DEVNULL)
        self.token = (self.secrets / "token").read_text().strip()
        (folder / "logs").mkdir()
        for path in machines:
            self.add_machine(path)

    def add_machine(self, path):
        machine, files = path.name, {file.name: file.read_text() for file in path.iterdir()}
        text = "".join(text for name, text in files.items() if name != "pacemaker.toml")
        listeners = files.get("pacemaker.toml", "").splitlines()[:1] + files.get("edge.env", "").splitlines()
        listeners += re.findall(r"^bind .*", text, re.M)
        own = re.search(re.escape(self.prefix) + r"\.\d+", "\n".join(listeners)).group(0)
        self.network.add(machine, own)
        home = self.folder / machine
        home.mkdir()
        network.sh("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(home))
        for name in ("etc", "log", "lib/router", "lib/sentinel", "run"):
            (home / name).mkdir(parents=True)
        password = (self.secrets / "users/sentinel.password").read_text().strip()
        for name, text in sorted(files.items()):
            for old, new in (("/etc/signalbox", self.secrets), ("/var/lib/signalbox", home / "lib"),
                             ("/var/log/signalbox", home / "log"), ("/run/signalbox", home / "run"),
                             ("auth-pass", "auth-pass"), (" PASSWORD\n", f" {password}\n")):
                text = text.replace(old, str(new))
            if replicas := os.environ.get("LAB_WAIT_REPLICAS"):
                text = re.sub(r"wait_replicas=[\w-]+", f"wait_replicas={replicas}", text)
            (home / "etc" / name).write_text(text)
            self.add_program(machine, home / "etc" / name)

    def add_program(self, machine, file):
        name, environment = file.stem, {"NO_COLOR": "1"}
        if name.startswith("redis-"):
            (self.folder / machine / "lib" / name).mkdir()
            command = ["redis-server", str(file)]
        elif name == "sentinel":
            command = ["redis-server", str(file), "--sentinel"]
        elif name == "edge":
            lines = (line for line in file.read_text().splitlines() if "=" in line and not line.startswith("#"))
            environment |= {key: value.strip('"') for key, value in (line.split("=", 1) for line in lines)}
            modules = "/usr/lib/nginx/modules"
            environment |= {
                "NGINX_BINARY": "/usr/sbin/nginx", "WORKER_PROCESSES": "1", "USER_LINE": "user root;",
                "LOAD_MODULES": f"load_module {modules}/ndk_http_module.so; "
                                f"load_module {modules}/ngx_http_lua_module.so;"}
            command = ["signalbox", "edge", "run"]
        elif name == "pacemaker":
            command = ["signalbox-pacemaker", "--config", str(file),
                       "--set", "bus.allow_http=true", "--set", f'bus.allow_networks=["{self.prefix}.0/24"]']
        else:
            command = ["signalbox-sidecar", "--config", str(file)]
        self.processes.append(Process(self, machine, name, command, environment))

    def supervise(self):
        """Starts what ended by itself, as systemd would. A replica of Redis ends if its disk is full."""
        for process in self.processes:
            process.start()

    def of(self, *kinds):
        return [process for process in self.processes if process.kind in kinds]

    def machines(self):
        return list(self.network.machines)

    def at(self, machine):
        return [process for process in self.processes if process.machine == machine]

    def pacemakers(self):
        return [f"{self.network.ip(process.machine)}:8700" for process in self.of("pacemaker")]

    def routers(self):
        return {process.machine: f"{self.network.ip(process.machine)}:8080" for process in self.of("edge")}

    def start(self):
        order = ("redis-routes", "redis-stats", "redis-fabric", "sentinel", "redis-routes-replica", "edge", "sidecar",
                 "pacemaker")
        for kind in order:
            for process in self.of(kind):
                process.start()
            if kind == "redis-fabric" and len(self.of(kind)) > 3:
                self.create_cluster()

    def operator(self, machine, port, *words):
        """The output of a command at a Redis server, as the operator."""
        password = (self.secrets / "users/operator.password").read_text().strip()
        ip = self.network.ip(machine)
        host = ip if any(f"bind {ip}" in (self.folder / process.machine / "etc" / f"{process.name}.conf").read_text()
                         for process in self.at(machine) if process.name.startswith("redis-")) else "127.0.0.1"
        command = ["ip", "netns", "exec", self.network.space(machine), "timeout", "30", "redis-cli", "-h", host,
                   "-p", str(port), "--user", "operator", *map(str, words)]
        done = subprocess.run(command, env={**os.environ, "REDISCLI_AUTH": password}, capture_output=True, text=True)
        return done.stdout.strip()

    def create_cluster(self):
        nodes = [f"{self.network.ip(process.machine)}:700{process.name[-1]}" for process in self.of("redis-fabric")]
        first = self.of("redis-fabric")[0].machine
        for process in self.of("redis-fabric"):
            deadline = time.monotonic() + 20
            while self.operator(process.machine, f"700{process.name[-1]}", "PING") != "PONG":
                assert time.monotonic() < deadline, f"{process} does not answer"
                time.sleep(0.1)
        output = self.operator(first, 7001, "--cluster", "create", *nodes, "--cluster-replicas", len(nodes) // 3 - 1, "--cluster-yes")
        if "All 16384 slots covered" not in output:
            raise AssertionError(f"cluster not created: {output[-2000:]}")

    def role(self, process):
        """`primary` or `replica`, of a Redis server."""
        port = re.search(r"^port (\d+)", (self.folder / process.machine / "etc" / f"{process.name}.conf").read_text(), re.M)
        state = self.operator(process.machine, port.group(1), "INFO", "replication")
        return "primary" if "role:master" in state else "replica"

    def stats_primary(self):
        return next((server.machine for server in self.of("redis-stats") if self.role(server) == "primary"), None)

    def fill(self, machine, full):
        ballast = self.folder / machine / "ballast"
        if not full:
            ballast.unlink(missing_ok=True)
            return
        try:
            with open(ballast, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        except OSError:
            pass

    def stop(self):
        for process in self.processes:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGKILL)
        for process in self.processes:
            if process.child:
                process.child.wait()
