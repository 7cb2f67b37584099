"""The faults of a topology. Each is begun, lasts some seconds, and is ended."""

import signal


class Fault:
    """`routers` are the machines whose own requests may fail in the meantime."""

    def __init__(self, kind, name, begin, end, seconds, routers=()):
        self.kind, self.name, self.begin, self.end, self.seconds = kind, name, begin, end, seconds
        self.routers = list(routers)


# A kill is frequent in reality, and takes little time here.
WEIGHTS = {"kill": 10, "freeze": 4, "isolate": 3, "cut": 3, "cut one way": 3, "disturb": 3, "machine loss": 3, "full disk": 2,
           "clock": 3, "restart": 3, "upgrade": 10}
SERVERS = ("redis-routes", "redis-stats", "redis-fabric")
NETWORK = ("cut", "cut one way", "disturb")


def choose(site, random):
    kinds = [kind for kind in WEIGHTS if kind not in NETWORK or len(site.machines()) > 1]
    if len(site.builds) == 1:
        kinds.remove("upgrade")
    kind = random.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
    return globals()[kind.replace(" ", "_")](site, random)


def routers_of(processes):
    """nginx itself is affected, not only a part without which it works."""
    return {process.machine for process in processes if process.kind == "edge"}


def kill(site, random):
    """Restarted by a supervisor after a second, or, of servers that have replicas, eight seconds later."""
    process = random.choice(site.processes)
    seconds = random.choice((1, 8)) if len(site.of("sentinel")) > 1 and process.kind in SERVERS else 1
    kind = f"kill {process.kind}" if seconds == 1 else f"loss of {process.kind}, {site.role(process)}"
    return Fault(kind, f"kill {process} for {seconds} s", process.kill, process.start, seconds, routers_of([process]))


def freeze(site, random):
    process = random.choice(site.processes)
    seconds = random.choice((2, 6))
    return Fault(f"freeze {process.kind}", f"freeze {process} for {seconds} s", lambda: process.signal(signal.SIGSTOP),
                 lambda: process.signal(signal.SIGCONT), seconds, routers_of([process]))


def isolate(site, random):
    machine = random.choice(site.machines())
    return Fault("isolate machine", f"isolate {machine}", lambda: site.network.plug(machine, False), site.network.heal,
                 random.choice((3, 8)), [machine])


def pair(site, random):
    return random.sample(site.machines(), 2)


def cut(site, random):
    one, other = pair(site, random)

    def begin():
        site.network.cut(one, other)
        site.network.cut(other, one)
    return Fault("cut two machines", f"cut {one} and {other}", begin, site.network.heal, random.choice((3, 8)))


def cut_one_way(site, random):
    one, other = pair(site, random)
    return Fault("cut one way", f"cut {one} to {other}", lambda: site.network.cut(one, other), site.network.heal,
                 random.choice((3, 8)))


def disturb(site, random):
    one, other = pair(site, random)
    delay, loss, twice = random.choice(((0.05, 0, 0), (0.3, 0, 0), (0, 0.05, 0), (0.02, 0.02, 0.02)))
    return Fault("delay or loss", f"delay {delay} s, loss {loss}, twice {twice} between {one} and {other}",
                 lambda: site.network.disturb(one, other, delay, loss, twice), site.network.heal, 6)


def machine_loss(site, random):
    machine = random.choice(site.machines())
    processes = site.at(machine)
    random.shuffle(processes)

    def begin():
        for process in processes:
            process.kill()

    def end():
        for process in processes:
            process.start()
    order = " ".join(process.name for process in processes)
    return Fault("machine loss", f"lose {machine}, started again as {order}", begin, end, random.choice((1, 8)), [machine])


def full_disk(site, random):
    machine = random.choice(site.machines())
    return Fault("full disk", f"fill the disk of {machine}", lambda: site.fill(machine, True),
                 lambda: site.fill(machine, False), 5)


def clock(site, random):
    process = random.choice(site.of("pacemaker", "sidecar"))
    skew = random.choice(("+300s", "-300s", "+2s", None))

    def begin():
        process.skew = skew
        process.kill()
        process.start()
    return Fault(f"clock of {process.kind}", f"clock of {process}: {skew}", begin, lambda: None, 3)


def restart(site, random):
    process = random.choice(site.processes)

    def begin():
        process.end()
        process.start()
    return Fault(f"restart {process.kind}", f"restart {process}", begin, lambda: None, 1, routers_of([process]))


def upgrade(site, random):
    """Or a downgrade: a program of one machine is replaced by the other version."""
    process = random.choice(site.of("pacemaker", "sidecar", "edge"))
    build = next(build for build in site.builds if build is not process.build)

    def begin():
        process.end()
        process.build = build
        process.start()
    return Fault(f"{process.kind} to {build.name}", f"{process} to the {build.name} version", begin, lambda: None, 1,
                 routers_of([process]))
