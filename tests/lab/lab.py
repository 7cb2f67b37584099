"""The laboratory: starts the topologies of examples/topologies, injects faults under load, and checks every promise.

LAB_SECONDS: duration of all topologies together (600). LAB_SEED repeats a sequence of faults. LAB_TOPOLOGIES: their names.
LAB_PROGRAMS: the folder of the programs. LAB_PREVIOUS: a folder into which the package of the previous version was unpacked
(dpkg-deb -x); everything starts with that version, and upgrades and downgrades of single programs are faults, too.
LAB_WAIT_REPLICAS replaces the value of wait_replicas. Called in namespaces of its own by .ci/lab.
"""

import collections
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

import faults
import topology
import workload

TOPOLOGIES = ("one-machine", "two-routers", "high-availability", "large")
RECOVERY = 90


def main():
    seconds = int(os.environ.get("LAB_SECONDS", "600"))
    seed = int(os.environ.get("LAB_SEED") or random.SystemRandom().randrange(1 << 32))
    names = os.environ.get("LAB_TOPOLOGIES", " ".join(TOPOLOGIES)).split()
    print(f"LAB_SEED={seed}, {seconds} s, {' '.join(names)}", flush=True)
    broken = False
    for number, name in enumerate(names):
        broken |= not run(name, number, seconds / len(names), f"{seed}/{name}")
    sys.exit(1 if broken else 0)


def run(name, number, seconds, seed):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"signalbox-lab-{name}-"))
    folder.chmod(0o755)
    programs = pathlib.Path(os.environ.get("LAB_PROGRAMS", topology.ROOT / "target/debug"))
    builds = [topology.Build("current", programs, topology.ROOT / "nginx", topology.ROOT / "lua")]
    if os.environ.get("LAB_PREVIOUS"):
        builds.insert(0, topology.Build.of_package(pathlib.Path(os.environ["LAB_PREVIOUS"])))
    site = topology.Site(name, number, folder, builds)
    work = None
    history, recoveries = [], collections.defaultdict(list)
    try:
        site.start()
        work = workload.Workload(site, seed)
        work.prepare()
        work.start()
        chooser = random.Random(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not work.flaws:
            inject(site, work, faults.choose(site, chooser), history, recoveries)
        work.stop()
        check_requests(work, history)
        work.check()
    except (AssertionError, OSError) as error:
        (work.flaws if work else history).append(str(error))
    finally:
        site.stop()
    report(name, seed, work, history, recoveries)
    flaws = work.flaws if work else history
    if flaws:
        # The disks of the machines are gone with the namespaces.
        for machine in site.machines():
            shutil.copytree(folder / machine, folder / "kept" / machine, ignore=shutil.ignore_patterns("*.sock", "ballast"))
        print(f"  data and logs: {folder}", flush=True)
        (folder / "history.json").write_text(json.dumps(history, indent=1))
    else:
        for machine in site.machines():
            os.system(f"umount -l {folder / machine}")
        shutil.rmtree(folder, ignore_errors=True)
    return not flaws


def inject(site, work, fault, history, recoveries):
    begun = time.monotonic()
    entry = {"fault": fault.name, "at": begun, "routers": fault.routers}
    history.append(entry)
    print(f"  {len(history):4} {fault.name}", flush=True)
    fault.begin()
    time.sleep(fault.seconds)
    fault.end()
    healed = time.monotonic()
    late = []
    while time.monotonic() < healed + RECOVERY:
        site.supervise()
        late = work.healthy_since(healed)
        if not late or work.flaws:
            break
        time.sleep(0.1)
    entry["until"] = time.monotonic()
    if late and not work.flaws:
        last = {kind: work.last.get(kind) for kind in late}
        work.flaws.append(f"did not work {RECOVERY} s after the end of {fault.name}: {last}")
    for kind in ("publish", "register", "statistics", "request"):
        kinds = [one for one in work.attempts if one.split(" ")[0] == kind]
        recoveries[fault.kind, kind].append(max(work.outage(one, begun, entry["until"]) for one in kinds))


def check_requests(work, history):
    """A request may fail only at a router that is itself out of order."""
    for router, begun, ended, status, text in work.requests:
        excused = any(router in fault["routers"] and ended >= fault["at"] and begun <= fault["until"]
                      for fault in history)
        if not excused:
            near = [fault["fault"] for fault in history if fault["at"] <= ended and begun <= fault["until"]]
            work.flaws.append(f"{router} answered {status} {text} during {near}")


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def report(name, seed, work, history, recoveries):
    counts = dict(work.counts) if work else {}
    print(f"{name}: seed {seed}, {len(history)} faults, {counts}")
    for (kind, call), values in sorted(recoveries.items()):
        if max(values) > 0:
            print(f"  {kind:28} {call:10} n {len(values):4}  p50 {percentile(values, 0.5):5.1f} s"
                  f"  max {max(values):5.1f} s")
    for flaw in (work.flaws if work else history)[:20]:
        print(f"  VIOLATION: {flaw}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
