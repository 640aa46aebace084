"""A cluster of Valkey 9.1 or later under load, while whole ranges of slots move at once (CLUSTER MIGRATESLOTS), and what the clients saw.

  --mode move      three masters; some migrations are cancelled before the pause
  --mode replicas  each with a replica; replicas take over by CLUSTER FAILOVER
  --mode big       queues of 60,000 messages move
  --mode ranges    five hundred ranges in one command
  --mode kill      masters with an AOF are killed in the middle of imports

Never: what cluster.py says; a migration fails by itself; at the hand-over, when nothing is written any more, a key differs between source and target;
a key is left behind, or missing; a replica differs in the end.

All keys are in one database: Valkey 9.1.2 itself, without the module, sends what is written to another one than the snapshot ended with to the wrong one.

`--break forget`: one acked message is taken for not acked. `--break differ`: the target is written to at a hand-over.
"""

import random
import threading
import time

import cluster
from cluster import SLOTS, Client, Cluster, Load, Lost, info_at, left, slot
from lib import Err, Trial, free_port, pairs, until

ENDED = ("success", "failed", "cancelled")
EARLY = ("connecting", "sending-auth-command", "reading-auth-response", "sending-establish-command", "reading-establish-response", "waiting-to-snapshot",
         "snapshotting", "replicating", "waiting-to-pause")
KEYS = ("q", "hi", "lo", "sem", "lock", "tb", "lb", "hot", "user", "tenant", "gate")


class Atomic(Cluster):
    """Three masters, with a replica each if the mode wants it."""

    def __init__(self, t):
        n = 6 if t.args.mode == "replicas" else 3
        options = [("cluster-enabled", "yes"), ("cluster-node-timeout", "3000"), ("cluster-require-full-coverage", "no")]
        options += [("appendonly", "yes"), ("appendfsync", "everysec")] if t.args.mode == "kill" else [("appendonly", "no")]
        self.t, self.nodes = t, [t.server("node%d" % i, [*options, ("cluster-port", str(free_port()))]) for i in range(n)]
        for node in self.nodes:
            node.start()
        self.ports = [node.port for node in self.nodes]
        self.by_port = dict(zip(self.ports, self.nodes))
        for i, node in enumerate(self.nodes):
            self.at(node.port, "CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < 3:
                self.at(node.port, "CLUSTER", "ADDSLOTSRANGE", i * SLOTS // 3, (i + 1) * SLOTS // 3 - 1)
            if i:
                self.at(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", node.port, dict(node.options)["cluster-port"])
        until("the nodes to know each other", lambda: all(len(self.seen_by(p)) == n for p in self.ports), 30)
        ids = [self.at(node.port, "CLUSTER", "MYID") for node in self.nodes]
        for i in range(3, n):
            until("a replica", lambda i=i: self.at(self.ports[i], "CLUSTER", "REPLICATE", ids[i - 3]) == b"OK", 10)
        until("the cluster to be whole", self.is_whole, 60)

    def is_whole(self):
        return (all(self.at(p, "CLUSTER", "INFO").startswith(b"cluster_state:ok") for p in self.ports)
                and all(n["link"] == "connected" for p in self.ports for n in self.seen_by(p)) and self.replicas_up())

    def jobs(self, port, operation):
        """The latest first."""
        told = self.at(port, "CLUSTER", "GETSLOTMIGRATIONS")
        all_ = [{k: v.decode() if isinstance(v, bytes) else v for k, v in pairs(j).items()} for j in told]
        return [j for j in all_ if j["operation"] == operation]

    def digest(self, port, key):
        return self.at(port, "DEBUG", "DIGEST-VALUE", key)

    def debug(self, port, what, on):
        self.at(port, "DEBUG", "SLOTMIGRATION", what, int(on))


class Mover:
    def __init__(self, t, nodes, load, r):
        self.t, self.cluster, self.load, self.r = t, nodes, load, r
        self.tags = load.tags
        self.stop = threading.Event()

    def ranges(self):
        """Source, and (first, last, target) of some ranges of its slots that hold tags; or of very many."""
        c, r = self.cluster, self.r
        masters = c.masters()
        source = c.owner(slot(r.choice(self.tags)))
        others = [m for m in masters if source and m["id"] != source["id"]]
        if not others:
            return None, []
        if self.t.args.mode == "ranges":
            target = r.choice(others)
            mine = [s for words in source["slots"] if not words.startswith("[") for s in self.span(words)]
            r.shuffle(mine)
            ours = [slot(x) for x in self.tags if slot(x) in set(mine)]
            return source, [(s, s, target) for s in list(dict.fromkeys(ours + mine))[:500]]
        out = []
        for tag in r.sample(self.tags, r.choice((1, 1, 2, 3))):
            wide = r.choice((0, 5, 300))
            first, last = max(0, slot(tag) - wide), min(SLOTS - 1, slot(tag) + wide)
            owned = [range(*self.bounds(words)) for words in source["slots"] if not words.startswith("[")]
            if not any(first in o and last in o for o in owned):
                first = last = slot(tag)
            free = not any(first <= b and a <= last for a, b, _ in out)
            if free and any(first in o and last in o for o in owned):
                out.append((first, last, r.choice(others)))
        return source, out

    @staticmethod
    def bounds(words):
        a, _, b = words.partition("-")
        return int(a), int(b or a) + 1

    def span(self, words):
        return range(*self.bounds(words))

    def run(self):
        while not self.stop.is_set():
            try:
                self.once()
            except (OSError, ConnectionError, AttributeError, TypeError, ValueError) as e:
                if self.t.args.mode not in ("kill", "replicas"):
                    self.t.bad("harness", "a migration: %r" % e)
                time.sleep(.3)
            time.sleep(self.r.random() * .15)

    def once(self):
        t, c, r = self.t, self.cluster, self.r
        source, ranges = self.ranges()
        if not ranges:
            time.sleep(.1)
            return
        port = source["port"]
        cancel = t.args.mode == "move" and r.random() < .2
        check = not cancel and t.args.mode != "kill" and len({x[2]["id"] for x in ranges}) == 1 and r.random() < .5
        target = ranges[0][2]["port"]
        words = []
        if t.args.mode == "ranges":
            words = ["SLOTSRANGE", *(n for a, b, _ in ranges for n in (a, b)), "NODE", ranges[0][2]["id"]]
        else:
            for a, b, to in ranges:
                words += ["SLOTSRANGE", a, b, "NODE", to["id"]]
        if cancel:
            c.debug(port, "PREVENT-PAUSE", True)
        told = c.at(port, "CLUSTER", "MIGRATESLOTS", *words)
        if isinstance(told, Err):
            t.count("not_begun")
            c.debug(port, "PREVENT-PAUSE", False)
            return
        jobs = 1 if t.args.mode == "ranges" else len(ranges)
        t.count("migrations", jobs)
        check = check and jobs == 1
        if check:
            c.debug(target, "PREVENT-FAILOVER", True)
        try:
            self.follow(port, target, jobs, time.time() + r.random() * .2 if cancel else None, check, ranges)
        finally:
            for p in {port, target, *(x[2]["port"] for x in ranges)}:
                c.debug(p, "PREVENT-PAUSE", False)
                c.debug(p, "PREVENT-FAILOVER", False)

    def follow(self, port, target, n, cancel_at, check, ranges):
        t, c = self.t, self.cluster
        end, mine = time.time() + 60, []
        while time.time() < end:
            mine = c.jobs(port, "EXPORT")[:n]
            if check and mine[0]["state"] == "failover-granted":
                self.compare(port, target, ranges)
                c.debug(target, "PREVENT-FAILOVER", False)
                check = False
            if all(j["state"] in ENDED for j in mine):
                break
            if cancel_at and time.time() > cancel_at and all(j["state"] in EARLY for j in mine):
                cancel_at = None
                c.at(port, "CLUSTER", "CANCELSLOTMIGRATIONS")
                c.debug(port, "PREVENT-PAUSE", False)
            time.sleep(.004)
        for j in mine:
            t.count("migrations_" + j["state"])
            if j["state"] not in ("success", "cancelled") and t.args.mode not in ("kill", "replicas"):
                t.bad("failed", "%s: %s" % (j["state"], j["message"]))

    def compare(self, source, target, ranges):
        """Nothing is written any more: each key is the same on both sides."""
        t, c = self.t, self.cluster
        try:
            until("the hand-over", lambda: c.jobs(target, "IMPORT")[0]["state"] == "failover-granted", 2, .002)
        except RuntimeError:
            return
        for tag in self.tags:
            if not any(a <= slot(tag) <= b for a, b, _ in ranges):
                continue
            for key in (tag + k for k in KEYS):
                x, y = c.digest(source, key), c.digest(target, key)
                if t.args.break_ == "differ" and x != [b"0" * 40]:
                    y = [b"1" * 40]
                t.count("digests")
                if x != y and x != [b"0" * 40] and y != [b"0" * 40]:
                    # A key that goes by its TTL may be there on one side only.
                    t.bad("digest", "%s at the hand-over: %r %r" % (key, x, y))
                if (x == [b"0" * 40]) != (y == [b"0" * 40]) and not key.endswith(("tb", "lb", "sem", "lock")):
                    t.bad("digest", "%s is on one side only: %r %r" % (key, x, y))


def kill(t, c, load, r):
    """Kills a master, rather one that takes part in a migration, and starts it again."""
    ports = c.ports[:]
    r.shuffle(ports)
    for port in ports:
        try:
            busy = [j["state"] for op in ("IMPORT", "EXPORT") for j in c.jobs(port, op) if j["state"] not in ENDED]
        except (OSError, ConnectionError):
            continue
        if busy or port == ports[-1]:
            before = time.time()
            c.by_port[port].kill9()
            t.count("masters_killed")
            t.count("in_a_migration", bool(busy))
            time.sleep(.3)
            c.by_port[port].start()
            load.hard = load.hard + [(before, time.time() + 1)]
            return


def trial(t):
    # Leases have to end while slots move, too.
    cluster.LEASE = .4
    r = random.Random(t.args.seed)
    random.seed(t.args.seed)
    c = Atomic(t)
    load = Load(t, c, r)
    load.tags = sorted({q[: q.index("}") + 1] for q in load.queues + load.several + list(load.limits)})
    if t.args.mode == "big":
        s = Client(c.ports)
        for q in load.queues:
            for _ in range(60):
                s.run("RQ.MPUSH", q, 1000, *["B" * 200] * 1000, "DELAY", 600000)
    mover = Mover(t, c, load, random.Random(t.args.seed + 1))
    thread = threading.Thread(target=mover.run, daemon=True)
    thread.start()
    end = time.time() + t.args.seconds
    while time.time() < end:
        time.sleep(min(2.5, max(0, end - time.time())))
        if time.time() < end - 3 and t.args.mode in ("kill", "replicas"):
            try:
                if t.args.mode == "kill":
                    kill(t, c, load, r)
                else:
                    c.change_master(r, "soft")
            except (OSError, ConnectionError, IndexError, AttributeError) as e:
                t.note("no change of masters: %r" % e)
    mover.stop.set()
    thread.join(90)
    load.draining.set()
    s = Client(c.ports)
    until("the queues to be empty", lambda: rest(t, s, load) == 0, 40, .3)
    load.stop.set()
    for x in load.threads:
        x.join(15)
        if x.is_alive():
            t.bad("stuck", "a client has no reply after 15 s")
    load.judge()
    check_the_end(t, c)
    t.note("seen by clients: %s" % dict(Client.seen))
    crashes(t, c)


def crashes(t, c):
    """What the servers' logs say, but for their own words about migrations that their AOF tells of and the cluster knows no more."""
    for node in c.nodes:
        for x in node.crashed():
            with open(node.log, errors="replace") as f:
                lines = [line for line in f if x in line]
            if not all("cluster|syncslots" in line for line in lines):
                t.bad("crash", "%s: %s" % (node.dir, lines[:3]))


def rest(t, s, load):
    """Messages that are left, but for those that wait for hours."""
    try:
        if t.args.mode == "big":
            return sum(s.run("RQ.LEN", q) - s.run("RQ.LEN", q, "DELAYED") for q in load.queues + load.several)
        return left(s, load)
    except (Lost, TypeError):
        return None


def check_the_end(t, c):
    """No object is left that is no key, and replicas are equal."""
    time.sleep(1.5)
    for port in c.ports:
        f = info_at(c, port, "sluice")
        ours = sum(int(v) for k, v in f.items() if k.startswith("sluice_") and k.endswith("_keys"))
        keys = c.at(port, "DBSIZE")
        if ours != keys:
            t.bad("left-behind", "port %d has %d keys and %d objects" % (port, keys, ours))
        if f["sluice_blocked_clients"] != "0":
            t.bad("blocked", "%s clients at port %d" % (f["sluice_blocked_clients"], port))
    view = c.view()
    for n in view:
        master = next((m for m in view if m["id"] == n["master"]), None)
        if master is None:
            continue
        for key in c.at(master["port"], "KEYS", "*"):
            pair = lambda: (c.digest(master["port"], key), c.digest(n["port"], key))
            try:
                until("a replica to be equal", lambda: pair()[0] == pair()[1], 5, .1)
            except RuntimeError:
                t.bad("replica", "%s differs on port %d: %r" % (key, n["port"], pair()))


def arguments(p):
    p.add_argument("--mode", default="move", choices=["move", "replicas", "big", "ranges", "kill"])
    p.add_argument("--seconds", type=float, default=60)
    p.set_defaults(apart=0)


if __name__ == "__main__":
    t = Trial(__doc__, ["forget", "differ"], arguments)
    t.run(trial)
