"""A cluster of three masters and three replicas under load, while slots move key by key and masters change, and what the clients saw.

  --mode reshard   slots move all the time
  --mode soft      and replicas take over by CLUSTER FAILOVER
  --mode kill      and masters are killed, or overridden with FORCE, as well

  --apart SECONDS  the nodes' wall clocks differ by as much (a preloaded library)

Never: a message that was acknowledged is lost, a receipt or number is given twice or is smaller than an earlier one of its key, a message comes after
its ack, totals do not add up. While clocks agree also: two hold one lease, a lease ends early, a limiter or semaphore gives more than its limit. What a
master that is killed or overridden had not replicated may be lost, and be done again, near that instant.

`--break forget`: one acked message is taken for not acked. `--break ghost`: a receipt is told twice.
"""

import collections
import random
import threading
import time

from lib import LOST, Clock, Conn, Err, Trial, free_port, info, pairs, until

SLOTS = 16384
LEASE = 1.5
NEAR = 4.0  # how long before and after a hard failover what is lost is lost by the server (s)


def slot(key):
    key = key.encode() if isinstance(key, str) else key
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    crc = 0
    for b in key:
        crc ^= b << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc % SLOTS


class Lost(Exception):
    """The connection ended before the reply."""


class Refused(Exception):
    pass


class Client:
    """A cluster client: follows MOVED and ASK, tries again after TRYAGAIN and while there is no master."""

    known = {}  # slot -> port, shared
    seen = collections.Counter()

    def __init__(self, ports):
        self.ports, self.conns = ports, {}

    def run(self, *words, key=None, tries=80):
        at, ask = slot(key or words[1]), None
        for n in range(tries):
            port = ask or Client.known.get(at) or random.choice(self.ports)
            try:
                if port not in self.conns:
                    self.conns[port] = Conn(port, 8)
                c = self.conns[port]
            except OSError:
                Client.known.pop(at, None)
                ask = None
                time.sleep(.1)
                continue
            try:
                if ask:
                    c.call("ASKING")
                reply = c.call(*words)
            except (OSError, ConnectionError) as e:
                self.conns.pop(port).close()
                Client.known.pop(at, None)
                raise Lost() from e
            ask = None
            if not isinstance(reply, Err):
                return reply
            code, *rest = reply.split()
            Client.seen[code] += 1
            # While a move is broken off and its target has another master, one node says ASK and the other MOVED.
            if code in ("MOVED", "ASK") and n > 4:
                time.sleep(.1)
            if code == "MOVED":
                Client.known[at] = int(rest[1].rsplit(":", 1)[1])
            elif code == "ASK":
                ask = int(rest[1].rsplit(":", 1)[1])
            elif code in ("TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED", "LOADING", "READONLY", "MASTERDOWN", "REDIRECT"):
                Client.known.pop(at, None)
                time.sleep(.02 if code == "TRYAGAIN" else .1)
            else:
                raise Refused("%s: %s" % (words[0], reply))
        raise Refused("%s: gave up" % words[0])


class Cluster:
    def __init__(self, t):
        options = [("cluster-enabled", "yes"), ("cluster-node-timeout", "2000"), ("cluster-require-full-coverage", "no"), ("appendonly", "no")]
        self.t, self.nodes = t, [t.server("node%d" % i, [*options, ("cluster-port", str(free_port()))]) for i in range(6)]
        for i, n in enumerate(self.nodes):
            if t.args.apart:
                Clock(t, n).set(t.args.apart * (i % 3) / 2)
            n.start()
        # Slots of moves that broke off.
        self.broken_off = set()
        self.ports = [n.port for n in self.nodes]
        self.by_port = dict(zip(self.ports, self.nodes))
        first = self.nodes[0]
        for i, n in enumerate(self.nodes):
            self.at(n.port, "CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < 3:
                self.at(n.port, "CLUSTER", "ADDSLOTSRANGE", i * SLOTS // 3, (i + 1) * SLOTS // 3 - 1)
            if i:
                bus = dict(n.options)["cluster-port"]
                self.at(first.port, "CLUSTER", "MEET", "127.0.0.1", n.port, bus)
        until("the nodes to know each other", lambda: all(len(self.seen_by(p)) == 6 for p in self.ports), 30)
        ids = [self.at(n.port, "CLUSTER", "MYID") for n in self.nodes]
        for i in range(3, 6):
            until("a replica", lambda i=i: self.at(self.nodes[i].port, "CLUSTER", "REPLICATE", ids[i - 3]) == b"OK", 10)
        until("the cluster to be whole", lambda: all(self.at(p, "CLUSTER", "INFO").startswith(b"cluster_state:ok") for p in self.ports)
              and all(n["link"] == "connected" for p in self.ports for n in self.seen_by(p)) and self.replicas_up(), 60)

    def replicas_up(self):
        return all(info_at(self, n.port, "replication").get("master_link_status") == "up" for n in self.nodes[3:])

    def at(self, port, *words):
        c = Conn(port, 10)
        try:
            return c.call(*words)
        finally:
            c.close()

    def seen_by(self, port):
        out = []
        for line in self.at(port, "CLUSTER", "NODES").decode().splitlines():
            f = line.split()
            out.append(dict(id=f[0], port=int(f[1].split("@")[0].split(",")[0].rsplit(":", 1)[1]), flags=f[2].split(","), master=f[3], link=f[7], slots=f[8:]))
        return out

    def view(self):
        for port in self.ports:
            try:
                return self.seen_by(port)
            except (OSError, ConnectionError, AttributeError):
                continue
        return []

    def masters(self):
        return [n for n in self.view() if "master" in n["flags"] and not any("fail" in f for f in n["flags"]) and n["slots"]]

    def owner(self, at):
        for n in self.masters():
            for r in n["slots"]:
                if not r.startswith("["):
                    a, _, b = r.partition("-")
                    if int(a) <= at <= int(b or a):
                        return n
        return None

    def move(self, at, r, slow):
        """Moves a slot to another master, key by key."""
        t, source = self.t, self.owner(at)
        others = [m for m in self.masters() if source and m["id"] != source["id"]]
        if not others:
            return
        target = r.choice(others)
        try:
            self.at(target["port"], "CLUSTER", "SETSLOT", at, "IMPORTING", source["id"])
            self.at(source["port"], "CLUSTER", "SETSLOT", at, "MIGRATING", target["id"])
            for _ in range(200):
                if slow:
                    time.sleep(r.random() * .15)
                keys = self.at(source["port"], "CLUSTER", "GETKEYSINSLOT", at, 1 if slow else 100)
                if not keys or isinstance(keys, Err):
                    break
                told = self.at(source["port"], "MIGRATE", "127.0.0.1", target["port"], "", 0, 8000, "KEYS", *keys)
                if isinstance(told, Err):
                    # What an earlier move that broke off had taken there is there still, and clients have made the key anew here.
                    if "BUSYKEY" in told and at not in self.broken_off:
                        t.bad("busykey", "%s: %r" % (told, keys))
                    break
                t.count("keys_moved", len(keys))
            for port in [target["port"], source["port"]] + [m["port"] for m in others]:
                self.at(port, "CLUSTER", "SETSLOT", at, "NODE", target["id"])
            t.count("slots_moved")
        except (OSError, ConnectionError):
            t.count("moves_broken_off")
            self.broken_off.add(at)
            time.sleep(.5)
            for m in self.masters():
                try:
                    self.at(m["port"], "CLUSTER", "SETSLOT", at, "STABLE")
                except (OSError, ConnectionError):
                    pass

    def change_master(self, r, how):
        """When it was hard: the instant."""
        view = self.view()
        masters = [n for n in view if "master" in n["flags"] and n["slots"] and not any("fail" in f for f in n["flags"])]
        master = r.choice(masters)
        replicas = [n for n in view if n["master"] == master["id"] and not any("fail" in f for f in n["flags"]) and n["link"] == "connected"]
        if not replicas:
            return None
        port, before = replicas[0]["port"], time.time()
        if how == "kill":
            self.by_port[master["port"]].kill9()
            self.t.count("masters_killed")
        else:
            self.at(port, "CLUSTER", "FAILOVER", *(["FORCE"] if how == "force" else []))

        def took_over():
            try:
                return any("master" in n["flags"] and "myself" in n["flags"] for n in self.seen_by(port))
            except (OSError, ConnectionError):
                return False

        try:
            until("the replica to take over", took_over, 20, .05)
            self.t.count("failovers")
        except RuntimeError:
            # A soft one is given up when slots are on the move or the replica lags; a killed master is back soon.
            self.t.count("failovers_given_up")
        if how == "kill":
            self.by_port[master["port"]].start()
        return (before, time.time()) if how != "soft" else None


def info_at(cluster, port, section):
    c = Conn(port, 5)
    try:
        return info(c, section)
    finally:
        c.close()


class Load:
    """The clients. What they saw is judged in the end."""

    def __init__(self, t, cluster, r):
        self.t, self.cluster = t, cluster
        self.stop, self.draining = threading.Event(), threading.Event()
        self.pushed, self.deliveries, self.acks, self.nacks = {}, [], [], {}
        self.grants, self.permits, self.threads = collections.defaultdict(list), [], []
        self.strict = not t.args.apart
        tags = [self.tag(i, r) for i in range(4)]
        self.queues, self.several = [tags[0] + "q", tags[1] + "q"], [tags[2] + "hi", tags[2] + "lo"]
        self.slots = [slot(x) for x in tags]
        a, b, c, d = tags
        self.limits = {a + "tb": (50, 100), b + "tb": (5, 20), c + "hot": (20, 50), d + "user": (20, 100), d + "tenant": (40, 150), d + "gate": (30, 120), b + "lb": (10, 50)}
        self.sems = {a + "sem": 3, b + "lock": 1}
        s = Client(cluster.ports)
        for q in self.queues + self.several:
            s.run("RQ.SET", q, "MAXDELIVERIES", 0)
        # One that is free goes with its number, unless it is pinned: where clocks differ the next one would begin below.
        for key, limit in self.sems.items() if t.args.apart else []:
            s.run("SEM.SET", key, limit)
        s.run("TB.SET", d + "user", 20, 100, 1000)
        s.run("TB.SET", d + "tenant", 40, 150, 1000)
        s.run("GATE.SET", d + "gate", "STAGE", "b", "TB", 30, 120, 1000, "STAGE", "s", "SEM", 2, "LEASE", 1000)
        s.run("HOT.SET", c + "hot", 20, 50, 1000)
        for i, q in enumerate(self.queues + self.several):
            self.go(self.producer, i, q)
        for i in range(3):
            for q in self.queues:
                self.go(self.worker, i, q)
        for _ in range(2):
            self.go(self.of_several, 0)
            self.go(self.taker, a + "tb", ["TB.TAKE", a + "tb", 50, 100, 1000])
            self.go(self.taker, b + "lb", ["LB.TAKE", b + "lb", 10, 50, 1000, "MAXWAIT", 100])
        for i in range(3):
            self.go(self.taker, b + "tb", ["TB.TAKE", b + "tb", 5, 20, 1000, "BLOCK", 1500])
            self.go(self.holder, b + "lock", 1)
            self.go(self.passer, [d + "user", d + "tenant", d + "gate"])
        for i in range(5):
            self.go(self.holder, a + "sem", 3)
        self.go(self.taker, c + "hot", ["HOT.TAKE", c + "hot", "s"])

    def tag(self, i, r):
        """A tag whose slot lies in the i-th third, so that every master has some."""
        while True:
            x = "{%s%d}" % ("abcd"[i], r.randrange(10**6))
            if slot(x) * 3 // SLOTS == i % 3:
                return x

    def go(self, what, *args):
        def again():
            while not self.stop.is_set():
                try:
                    what(Client(self.cluster.ports), *args)
                except Lost:
                    self.t.count("replies_lost")
                    time.sleep(.1)
                except Refused as e:
                    self.t.bad("refused", str(e))
                    time.sleep(.5)
                if what == self.producer and self.draining.is_set():
                    return

        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        self.threads.append(thread)

    def producer(self, c, i, q):
        n = 0
        while not self.draining.is_set():
            n += 1
            id = "p%d-%d-%d" % (i, n, time.time_ns() % 10**9)
            delay = ["DELAY", random.randint(1, 800)] if random.random() < .2 else []
            c.run("RQ.PUSH", q, id + "x" * random.choice((10, 100, 2000)), "ID", id, *delay)
            self.pushed[q, id] = time.time()
            self.t.count("pushed")
            time.sleep(random.random() * .03)

    def worker(self, c, i, q):
        while not self.stop.is_set():
            t0 = time.time()
            got = c.run("RQ.CLAIM", q, "COUNT", random.choice((1, 1, 5)), "LEASE", int(LEASE * 1000), "CONSUMER", "w%d" % i, "BLOCK", random.choice((300, 2000)))
            self.handle(c, q, got or [], t0)

    def of_several(self, c, _):
        while not self.stop.is_set():
            t0 = time.time()
            got = c.run("RQ.MCLAIM", 2, *self.several, "COUNT", 2, "LEASE", int(LEASE * 1000), "BLOCK", random.choice((300, 2000)), key=self.several[0])
            if got:
                self.handle(c, got[0].decode(), got[1], t0)

    def handle(self, c, q, messages, t0):
        t1 = time.time()
        for id, receipt, _, _ in messages:
            self.deliveries.append((q, id.decode(), receipt.decode(), t0, t1))
        for id, receipt, _, _ in messages:
            x, key = random.random(), (q, id.decode())
            if x < .07:
                continue
            if x < .11:
                self.nacks[receipt.decode()] = time.time()
                c.run("RQ.NACK", q, "DELAY", 200, "RECEIPTS", 1, receipt)
                continue
            time.sleep(random.random() * .01)
            if x < .2:
                told = c.run("RQ.EXTEND", q, int(LEASE * 1000), receipt)
                self.in_lease("extend", q, receipt, told, t0)
            sent = time.time()
            try:
                told = c.run("RQ.ACK", q, receipt)
            except Lost:
                self.acks.append((*key, sent, None, None))
                raise
            self.acks.append((*key, sent, time.time(), told[0]))
            self.in_lease("ack", q, receipt, told, t0)

    def in_lease(self, what, q, receipt, told, t0):
        if self.strict and told != [1] and time.time() < t0 + LEASE - .02 and not self.hard_near(time.time()):
            self.t.bad("lease-lost", "%s of %s in %s answers %r" % (what, receipt, q, told))

    def taker(self, c, key, words):
        while not self.stop.is_set():
            t0 = time.time()
            told = c.run(*words)
            if told[0]:
                self.grants[key].append((t0, time.time(), told[0]))
            time.sleep(random.random() * .02)

    def holder(self, c, key, limit):
        while not self.stop.is_set():
            t0 = time.time()
            told = c.run("SEM.ACQUIRE", key, limit, "LEASE", 800, "BLOCK", 1000)
            t1 = time.time()
            if not told[0]:
                continue
            if random.random() < .1:
                self.permits.append((key, told[4], t0, t1, t0 + .8))
                continue
            time.sleep(random.random() * .05)
            sent = time.time()
            self.permits.append((key, told[4], t0, t1, min(sent, t0 + .8)))
            back = c.run("SEM.RELEASE", key, told[4])
            if self.strict and back != [1] and time.time() < t0 + .78 and not self.hard_near(time.time()):
                self.t.bad("permit-lost", "%s of %s: %r" % (told[4], key, back))

    def passer(self, c, keys):
        while not self.stop.is_set():
            t0 = time.time()
            told = c.run("GATE.MPASS", len(keys), *keys, key=keys[0])
            if told[0]:
                for k in keys:
                    self.grants[k].append((t0, time.time(), told[0]))
                if told[4] is not None:
                    time.sleep(random.random() * .02)
                    c.run("GATE.LEAVE", keys[-1], told[4])
            else:
                time.sleep(.01)

    hard = []

    def hard_near(self, *instants):
        """Whether a master was killed or overridden around any of these, or between them."""
        return any(a - NEAR < max(instants) and min(instants) < b + NEAR for a, b in self.hard)

    def judge(self):
        t = self.t
        s = Client(self.cluster.ports)
        acked = {(q, i): (sent, got) for q, i, sent, got, told in self.acks if told == 1}
        unsure = {(q, i) for q, i, _, _, told in self.acks if told is None}
        if t.args.break_ == "forget":
            acked.pop(next(iter(acked)))
        if t.args.break_ == "ghost":
            self.deliveries.append(self.deliveries[0])
        for k, at in self.pushed.items():
            if k not in acked and k not in unsure and not self.hard_near(at):
                t.bad("lost", "%s, %.3f s before the end" % (k, time.time() - at))
        by_message, numbers = collections.defaultdict(list), collections.Counter()
        for d in self.deliveries:
            by_message[d[0], d[1]].append(d)
            numbers[d[0], int(d[2].rsplit("@", 1)[1])] += 1
        for (q, n), count in numbers.items():
            if count > 1:
                t.bad("number-twice", "%d of %s" % (n, q))
        for k, all_ in by_message.items():
            # In the order of their numbers. A reply may come late: what was asked for after another had come is later for sure.
            all_.sort(key=lambda d: int(d[2].rsplit("@", 1)[1]))
            for x, y in zip(all_, all_[1:]):
                if y[4] < x[3]:
                    t.bad("number-falls", "%s: %s after %s" % (k, x[2], y[2]))
                if self.strict and x[2] not in self.nacks and y[4] < x[3] + LEASE - .002 and not self.hard_near(x[4], y[4]):
                    t.bad("two-holders", "%s: %s, and %.3f s later %s" % (k, x[2], y[4] - x[3], y[2]))
            for d in all_:
                if k in acked and d[3] > acked[k][1] and not self.hard_near(acked[k][1], d[3]):
                    t.bad("resurrected", "%s was acked %.3f s before it is delivered as %s" % (k, d[3] - acked[k][1], d[2]))
        for key, limit in self.sems.items():
            mine = sorted((p for p in self.permits if p[0] == key), key=lambda p: p[3])
            if len({p[1] for p in mine}) < len(mine):
                t.bad("number-twice", "permits of %s" % key)
            for x, y in zip(mine, mine[1:]):
                if y[2] > x[3] and y[1] <= x[1]:
                    t.bad("number-falls", "%s: %s after %s" % (key, y[1], x[1]))
            held = 0
            events = sorted(e for p in mine if p[4] > p[3] for e in ((p[3], 1), (p[4], -1)))
            for at, d in events if self.strict else []:
                held += d
                if held > limit and not self.hard_near(at, at - .8):
                    t.bad("over-permits", "%s: %d held" % (key, held))
        if self.strict and not self.hard:
            for key, (capacity, per_second) in self.limits.items():
                g = self.grants[key]
                total, span = sum(x[2] for x in g), max((x[1] for x in g), default=0) - min((x[0] for x in g), default=0)
                if total > capacity + per_second * span + 1:
                    t.bad("over-limit", "%s: %d granted within %.1f s" % (key, total, span))
        for q in self.queues + self.several:
            f = pairs(s.run("RQ.INFO", q))
            came = f["total_pushed"] + f["total_moved_in"]
            went = sum(f["total_" + x] for x in ("acked", "expired", "dropped", "deleted", "replaced", "moved_out"))
            if came != went + sum(f[x] for x in ("ready", "delayed", "inflight", "dead", "followers")):
                t.bad("totals", "%s: %s" % (q, f))
        for node in self.cluster.nodes:
            panics = info_at(self.cluster, node.port, "sluice")["sluice_panics_caught"]
            if panics != "0":
                t.bad("panic", "%s at %s" % (panics, node.port))
        for name, n in (("deliveries", len(self.deliveries)), ("permits", len(self.permits)), ("grants", sum(map(len, self.grants.values())))):
            t.count(name, n)


def chaos(t):
    r = random.Random(t.args.seed)
    random.seed(t.args.seed)
    cluster = Cluster(t)
    load = Load(t, cluster, r)
    end = time.time() + t.args.seconds
    moving = threading.Event()

    def reshard():
        mine = random.Random(t.args.seed + 1)
        while not moving.is_set():
            try:
                cluster.move(mine.choice(load.slots), mine, mine.random() < .8)
            except (OSError, ConnectionError, AttributeError):
                time.sleep(.2)
            time.sleep(mine.random() * (.6 if t.args.mode == "reshard" else 1.5))

    mover = threading.Thread(target=reshard, daemon=True)
    mover.start()
    n = 0
    while time.time() < end:
        time.sleep(min(2.5, max(0, end - time.time())))
        if t.args.mode != "reshard" and time.time() < end - 4:
            how = "soft" if t.args.mode == "soft" else ("kill", "soft", "force")[n % 3]
            n += 1
            try:
                hard = cluster.change_master(r, how)
                if hard:
                    load.hard = load.hard + [hard]
            except (OSError, ConnectionError, IndexError) as e:
                t.note("no change of masters: %r" % e)
    moving.set()
    mover.join(30)
    load.draining.set()
    s = Client(cluster.ports)
    until("the queues to be empty", lambda: left(s, load) == 0, 30, .3)
    load.stop.set()
    for thread in load.threads:
        thread.join(15)
        if thread.is_alive():
            t.bad("stuck", "a client has no reply after 15 s")
    load.judge()
    t.note("seen by clients: %s" % dict(Client.seen))
    t.crashes(*cluster.nodes)


def left(s, load):
    try:
        return sum(s.run("RQ.LEN", q) for q in load.queues + load.several)
    except Lost:
        return None


def arguments(p):
    p.add_argument("--mode", default="kill", choices=["reshard", "soft", "kill"])
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--apart", type=float, default=0)


if __name__ == "__main__":
    t = Trial(__doc__, ["forget", "ghost"], arguments)
    t.run(chaos)
