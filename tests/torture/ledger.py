"""What the clients know of a server, and all that must follow from it: the judge of crashes and failovers.

It is independent of the module: it knows what was sent, what was answered and when, and asks the server for nothing but what it holds. What is
checked is written at `class Log`.
"""

import collections
import threading
import time

from lib import LOST, SLACK, Err, info, pairs


class Msg:
    __slots__ = ("id", "queues", "pushed", "pushed_at", "safe", "due_lo", "exp_lo", "exp_hi", "gone_ok", "acked", "acked_at", "acked_safe", "ack_sent",
                 "holder", "counts", "group", "seq", "dead")

    def __init__(self, id, queue):
        self.id, self.queues = id, ({queue} if queue not in ("q0", "q1") else {"q0", "q1"})  # RQ.MOVE goes between these
        self.pushed = self.acked = self.acked_safe = self.gone_ok = self.safe = self.dead = False
        self.ack_sent = 0  # acks whose outcome is not known
        self.pushed_at = self.acked_at = None
        self.due_lo = 0.0
        self.exp_lo = self.exp_hi = None
        self.holder, self.counts, self.group, self.seq = None, set(), None, 0


class Holder:
    """A lease as the client knows it: surely held from `since` to `lo`, surely over after `hi`."""

    __slots__ = ("id", "queue", "receipt", "number", "since", "lo", "hi", "wid")

    def __init__(self, id, queue, receipt, since, lo, hi, wid):
        self.id, self.queue, self.receipt, self.since, self.lo, self.hi, self.wid = id, queue, receipt, since, lo, hi, wid
        self.number = int(receipt.rsplit("@", 1)[1])


class Permit:
    __slots__ = ("receipt", "since", "lo", "hi", "owner")

    def __init__(self, receipt, since, lo, hi, owner):
        self.receipt, self.since, self.lo, self.hi, self.owner = receipt, since, lo, hi, owner


class Log:
    """What the clients know, and all that must follow from it.

    messages  pushed and answered: there, until an ack was sent (or its TTL is over); acked and answered: never seen again; one that was not there after a
              restart never appears later; in one queue at a time, over MOVE; not handed out before its DELAY or after its TTL; payload intact; `deliveries` of
              two deliveries differ; order within a group with GROUPINFLIGHT 1
    leases    while surely held: no other delivery, acks and extensions are accepted, RQ.GET shows the receipt; after the deadline: refused
    numbers   of RQ, SEM, GATE and TB.HOLD: none twice, and above all that had been answered before the command was sent
    dedup     no second push of an id within its window
    at most once: a NOACK delivery of an id comes once
    limiters  what was granted within any span is at most capacity + rate x span; permits surely held are at most the limit, and are in HOLDERS with their
              deadline; slow buckets have lost what was granted, and no more than what was asked; bans refuse; open holds can be settled, once
    totals    of RQ.INFO add up
    """

    def __init__(self, t):
        self.t = t
        self.lock = threading.RLock()
        self.msgs, self.acked, self.ghosts = {}, {}, set()
        self.numbers, self.top, self.top_at = set(), 0, 0.0
        self.noack_seen, self.noack_ids = set(), {}
        self.windows = {}
        self.klast = collections.defaultdict(lambda: [0, 0, 0, 0.0])  # id -> answered, sent, delivered, when
        self.grants = collections.defaultdict(lambda: collections.deque(maxlen=800))
        self.slow = collections.defaultdict(lambda: [0, 0])  # key -> [answered, sent] since its SET
        self.permits = {"sem": {}, "gate": {}}
        self.bans = {}
        self.holds = {}
        self.held = collections.defaultdict(list)
        self.pairs = {}
        self.lossless = True

    def bad(self, kind, text):
        self.t.bad(kind, text)

    # ---- numbers
    def number(self, n, floor, what):
        if n in self.numbers:
            self.bad("number-twice", "%s was given before (%s)" % (n, what))
        elif n <= floor:
            self.bad("number-falls", "%s is not above %s, answered before the command was sent (%s)" % (n, floor, what))
        self.numbers.add(n)
        self.top = max(self.top, n)

    # ---- messages
    def delivered(self, queue, m, t0, t1, lease, wid, floor):
        id, receipt, count, payload = m[0].decode(), m[1], m[2], m[3]
        if receipt is None:
            return self.taken_noack(queue, id, payload)
        receipt = receipt.decode()
        self.number(int(receipt.rsplit("@", 1)[1]), floor, receipt + " of " + queue)
        if queue == "qk":
            k, value = self.klast[id], int(payload)
            if value > k[1]:
                self.bad("ghost", "qk %s delivers %d, never pushed" % (id, value))
            if value < k[2] and k[3] <= t0 and self.lossless:
                self.bad("keeplast-back", "qk %s delivers %d after %d" % (id, value, k[2]))
            if value > k[2]:
                k[2], k[3] = value, t1
            self.held[wid].append(Holder(id, queue, receipt, t1, t0 + lease, t1 + lease, wid))
            return None
        msg = self.msgs.get(id)
        if msg is None:
            if id in self.acked:
                self.bad("resurrected", "%s was acked and is delivered as %s from %s" % (id, receipt, queue))
            elif id in self.ghosts:
                self.bad("ghost", "%s was not there after a restart and is delivered as %s" % (id, receipt))
            else:
                self.bad("unknown", "%s from %s" % (id, queue))
            return None
        if msg.acked and msg.acked_at <= t0:
            self.bad("resurrected", "%s was acked and is delivered as %s" % (id, receipt))
        if not payload.startswith(id.encode() + b"|") or payload[-1:] != b"$":
            self.bad("payload", "%s has %r" % (id, payload[:60]))
        if t1 < msg.due_lo - SLACK:
            self.bad("early", "%s is delivered %.1f ms before it is due" % (id, 1000 * (msg.due_lo - t1)))
        if msg.exp_hi and t0 > msg.exp_hi + SLACK:
            self.bad("expired-delivered", "%s is delivered %.1f ms after its TTL" % (id, 1000 * (t0 - msg.exp_hi)))
        if count in msg.counts and self.lossless:
            self.bad("deliveries", "%s: two deliveries say %d" % (id, count))
        msg.counts.add(count)
        h = msg.holder
        if h and h.since <= t0 and t1 < h.lo - SLACK:
            self.bad("two-holders", "%s is delivered as %s while %s holds it %.1f ms more" % (id, receipt, h.receipt, 1000 * (h.lo - t1)))
        if msg.group and self.lossless:
            before = self.msgs.get("%s#%d" % (msg.group, msg.seq - 1))
            if before and before.pushed and not before.ack_sent and not before.acked and not before.gone_ok:
                self.bad("group-order", "%s is delivered before %s is done" % (id, before.id))
        new = Holder(id, queue, receipt, t1, t0 + lease, t1 + lease, wid)
        self.held[wid].append(new)
        if h is None or h.number < new.number:  # replies to two clients may be read the other way round
            msg.holder = new
        return new

    def taken_noack(self, queue, id, payload):
        if id in self.noack_seen and self.lossless:
            self.bad("noack-twice", "%s of %s" % (id, queue))
        self.noack_seen.add(id)

    def release_sent(self, h, t0):
        h.lo = min(h.lo, t0)

    def settled(self, h, reply, t0, t1, was_lo, what):
        """The reply to an ack, nack or extension of a lease that was surely held until `was_lo` when it was sent."""
        if reply in (0, -1):
            if t1 < was_lo - SLACK and h.since < t0:
                self.bad("lease-lost", "%s of %s answers %d, %.1f ms before its deadline" % (what, h.receipt, reply, 1000 * (was_lo - t1)))
        elif t0 > h.hi + SLACK:
            self.bad("lease-revived", "%s of %s answers %d, %.1f ms after its deadline" % (what, h.receipt, reply, 1000 * (t0 - h.hi)))

    # ---- limiters
    def check_meter(self, name, capacity, per_second):
        g = sorted(self.grants[name], key=lambda x: x[1])
        for start in sorted(x[0] for x in g)[:: max(1, len(g) // 60)]:
            total = 0
            for sent, got, cost in g:
                if sent < start:
                    continue
                total += cost
                allowed = capacity + per_second * (got - start + 0.002)
                if total > allowed + 1e-6:
                    self.bad("over-limit", "%s grants %d within %.1f ms; %.2f are allowed" % (name, total, 1000 * (got - start), allowed))
                    return

    def check_permits(self, key, limit):
        events = []
        for p in self.permits[key].values():
            if p.lo - SLACK > p.since:
                events += [(p.since, 1, p), (p.lo - SLACK, -1, p)]
        n = 0
        for at, d, p in sorted(events, key=lambda e: (e[0], e[1])):
            n += d
            if n > limit:
                self.bad("over-permits", "%s: %d permits surely held at once, limit %d" % (key, n, limit))
                return


# ---------------------------------------------------------------- looking at a server while nobody writes


def verify(t, conn, since=None, drop=False):
    """Judges what a server holds after a crash or failover by the log, and makes the log sure. `since`: what was answered after this instant may be lost (a
    failover without WAIT)."""
    log = t.log
    log.lossless = since is None
    text = info(conn, "sluice")
    if text.get("sluice_panics_caught") != "0":
        log.bad("panic", "sluice_panics_caught:%s" % text.get("sluice_panics_caught"))
    totals(t, conn)
    live = list(log.msgs.values())
    adopted = lost_ok = 0
    listed = {h.receipt for held in log.held.values() for h in held}
    for i in range(0, len(live), 200):
        part = live[i : i + 200]
        asked = [(m, q) for m in part for q in sorted(m.queues)]
        t0 = time.time()
        replies = conn.pipe([("RQ.GET", q, m.id) for m, q in asked])
        t1 = time.time()
        found = collections.defaultdict(list)
        for (m, q), reply in zip(asked, replies):
            if isinstance(reply, Err):
                log.bad("error", "RQ.GET %s %s: %s" % (q, m.id, reply))
            elif reply is not None:
                found[m.id].append((q, pairs(reply)))
        for m in part:
            there = found[m.id]
            if len(there) > 1:
                log.bad("in-two-queues", "%s: %s" % (m.id, [(q, f["state"]) for q, f in there]))
            if not there:
                if m.acked or m.ack_sent:
                    log.acked[m.id] = True
                elif m.exp_lo and t1 > m.exp_lo - SLACK:
                    log.ghosts.add(m.id)
                elif not m.pushed:
                    log.ghosts.add(m.id)
                elif since is not None and m.pushed_at > since and not m.safe:
                    lost_ok += 1
                    log.ghosts.add(m.id)
                else:
                    log.bad("lost", "%s was pushed %.3f s ago%s" % (m.id, t1 - m.pushed_at, ", WAIT had confirmed it" if m.safe else ""))
                del log.msgs[m.id]
                continue
            q, f = there[0]
            state = f["state"].decode()
            if m.acked:
                if since is None or m.acked_at <= since or m.acked_safe:
                    log.bad("resurrected", "%s was acked %.3f s ago and is %s in %s" % (m.id, t1 - m.acked_at, state, q))
                m.acked = False
            m.pushed, m.ack_sent = True, 0
            m.pushed_at = m.pushed_at or t1
            if not f["payload"].startswith(m.id.encode() + b"|"):
                log.bad("payload", "%s has %r" % (m.id, f["payload"][:60]))
            h = m.holder
            sure = h and h.lo - SLACK > t1 and (since is None or h.since <= since)
            receipt = f["receipt"].decode() if f["receipt"] else None
            if sure and (state != "inflight" or receipt != h.receipt):
                log.bad("lease-lost", "%s is %s (%s), but %s holds for %.0f ms more" % (m.id, state, receipt, h.receipt, 1000 * (h.lo - t1)))
            if state == "inflight":
                deadline = f["deadline"] / 1000
                if deadline < t0 - 0.05:
                    log.bad("overdue", "%s is in flight %.0f ms after its deadline" % (m.id, 1000 * (t0 - deadline)))
                if h and receipt == h.receipt:
                    if not h.lo - SLACK <= deadline <= h.hi + SLACK and (since is None or h.since <= since):
                        log.bad("deadline", "%s ends at %.3f, expected %.3f to %.3f" % (receipt, deadline, h.lo, h.hi))
                    h.lo = h.hi = deadline
                    if receipt not in listed:
                        log.held[h.wid].append(h)  # its ack was sent and did not arrive
                else:
                    number = int(receipt.rsplit("@", 1)[1])
                    if number in log.numbers and since is None:
                        log.bad("number-twice", "%s of %s has the number of another delivery" % (receipt, q))
                    log.numbers.add(number)
                    log.top = max(log.top, number)
                    m.counts.add(f["deliveries"])
                    wid = int(f["consumer"][1:])
                    m.holder = Holder(m.id, q, receipt, t1, deadline, deadline, wid)
                    log.held[wid].append(m.holder)
                    adopted += 1
            elif h:
                h.lo = min(h.lo, t1)
            if since is not None:
                m.counts.clear()
    if since is not None:
        # Leases whose claim or message was lost with the old master are nobody's.
        for held in log.held.values():
            for h in held:
                m = log.msgs.get(h.id)
                if m is None or m.holder is not h:
                    h.lo = min(h.lo, h.since)
    permits(t, conn, since)
    for key, reply in (("tbslow", pairs(conn.call("TB.INFO", "tbslow") or [])), ("hotslow", None)):
        if reply is None:
            used = 10**12 - 1 - conn.call("HOT.PEEK", "hotslow", "s")[2]
        else:
            used = 10**12 - reply["remaining"]
        low, high = log.slow[key]
        if used > high or (since is None and used < low):
            log.bad("slow-bucket", "%s has lost %d, %d were answered, %d sent" % (key, used, low, high))
        log.slow[key] = [used, used]
    for id in [i for i, h in log.holds.items() if h[2] is None or since is not None]:
        del log.holds[id]
    if since is None:
        for name, capacity, rate in METERS:
            log.check_meter(name, capacity, rate)
    else:
        log.grants.clear()
        log.bans.clear()
        log.windows.clear()
    log.check_permits("sem", 6)
    log.check_permits("gate", 6)
    batches(t, conn, since)
    t.count("lost_unconfirmed", lost_ok)
    return adopted


METERS = [("tbu", 20, 50), ("tbpin", 30, 60), ("lb", 20, 100), ("hot", 10, 20), ("clt", 10, 50), ("gate", 40, 80), ("gate", 20, 100)]


def totals(t, conn):
    for q in ("q0", "q1", "qg", "qk", "qd", "qn", "qa", "qb"):
        reply = conn.call("RQ.INFO", q)
        if reply is None:
            continue
        f = pairs(reply)
        left = f["total_pushed"] + f["total_moved_in"]
        right = sum(f["total_" + x] for x in ("acked", "expired", "dropped", "deleted", "replaced", "moved_out"))
        right += sum(f[x] for x in ("ready", "delayed", "inflight", "dead", "followers"))
        if left != right:
            t.bad("totals", "%s: %d != %d: %s" % (q, left, right, f))


def permits(t, conn, since):
    log = t.log
    t0 = time.time()
    f = pairs(conn.call("SEM.INFO", "sem", "HOLDERS") or [])
    t1 = time.time()
    holders = {h[0]: h for h in f.get("holders", [])}
    if f and f["held"] > 6:
        log.bad("over-permits", "sem: %d held" % f["held"])
    known = log.permits["sem"]
    for p in list(known.values()):
        h = holders.get(p.receipt)
        if h is None:
            if p.lo - SLACK > t1 and (since is None or p.since <= since):
                log.bad("permit-lost", "%s has %.0f ms more" % (p.receipt, 1000 * (p.lo - t1)))
            p.lo = min(p.lo, t0 if since is None else p.since)
            p.hi = min(p.hi, t1)
        else:
            low, high = 1000 * (p.lo - t1) - 4, 1000 * (p.hi - t0) + 5
            if not low <= h[3] <= high and (since is None or p.since <= since):
                log.bad("permit-deadline", "%s has %d ms left, expected %.0f to %.0f" % (p.receipt, h[3], low, high))
            p.lo, p.hi = t0 + h[3] / 1000 - 0.001, t1 + h[3] / 1000
            p.owner = p.owner or 0
            if since is not None:
                p.since = t1  # its release may have been lost: what was in between is not known
    for n, h in holders.items():
        if n not in known:
            if n in log.numbers and since is None:
                log.bad("number-twice", "the permit %s has a number given before" % n)
            log.numbers.add(n)
            log.top = max(log.top, n)
            known[n] = Permit(n, t1, t0 + h[3] / 1000, t1 + h[3] / 1000, 0)
    for key in log.permits:
        if since is not None and key == "gate":
            log.permits[key].clear()
        for n in [n for n, p in log.permits[key].items() if p.hi < t0 - 5]:
            del log.permits[key][n]


def batches(t, conn, since):
    """Each EXEC was done whole or not at all."""
    log = t.log
    ids = list(log.pairs)
    a = conn.pipe([("RQ.GET", "qa", i) for i in ids])
    b = conn.pipe([("RQ.GET", "qb", i) for i in ids])
    for i, x, y in zip(ids, a, b):
        if (x is None) != (y is None):
            log.bad("half-exec", "%s: qa %s, qb %s" % (i, x is not None, y is not None))
        at = log.pairs[i]
        if x is None and at and (since is None or at <= since):
            log.bad("lost", "the EXEC %s" % i)
    log.pairs.clear()
    conn.call("DEL", "qa", "qb")


def drain(t, conn):
    """At the end every message left is delivered and can be acked."""
    log = t.log
    end = time.time() + 20
    for q in ("q0", "q1", "qg", "qk"):
        conn.call("RQ.REQUEUE", q, "ALL")
    seen = set()
    last = {}
    while time.time() < end:
        empty = True
        for q in ("q0", "q1", "qg", "qk"):
            floor = log.top
            messages = conn.call("RQ.CLAIM", q, "COUNT", 1000, "LEASE", 60000)
            if messages:
                empty = False
                for m in messages:
                    seen.add(m[0].decode())
                    log.number(int(m[1].rsplit(b"@", 1)[1]), floor, "drain")
                    floor = log.top
                    if q == "qk":
                        last[m[0].decode()] = int(m[3])
                got = conn.call("RQ.ACK", q, *[m[1] for m in messages])
                if any(x != 1 for x in got):
                    log.bad("drain", "acks of fresh claims in %s: %r" % (q, got))
        if empty and all(conn.call("RQ.LEN", q) == 0 for q in ("q0", "q1", "qg", "qk")):
            break
        time.sleep(0.02 if empty else 0)
    else:
        log.bad("drain", "not empty: %s" % [(q, pairs(conn.call("RQ.INFO", q))) for q in ("q0", "q1", "qg", "qk") if conn.call("RQ.LEN", q)])
    now = time.time()
    for m in log.msgs.values():
        if m.pushed and not m.acked and m.id not in seen and not (m.exp_lo and now > m.exp_lo):
            f = [pairs(x) for x in (conn.call("RQ.GET", q, m.id) for q in sorted(m.queues)) if x]
            if not f or f[0]["state"] != b"dead":
                log.bad("never-delivered", "%s: %s" % (m.id, f))
        if m.acked and m.id in seen:
            log.bad("resurrected", "%s was acked and is delivered at the end" % m.id)
    for id in seen:
        if id in log.acked:
            log.bad("resurrected", "%s was acked and is delivered at the end" % id)
    for id, (answered, sent, delivered, _) in log.klast.items():
        if max(last.get(id, 0), delivered) < answered and log.lossless:
            log.bad("keeplast-lost", "%s: %d was answered, %d is the last delivered" % (id, answered, max(last.get(id, 0), delivered)))
    totals(t, conn)
    log.msgs.clear()
    log.held.clear()


def whole(t, conn):
    ids = list(t.log.pairs)
    a, b = conn.pipe([("RQ.GET", "qa", i) for i in ids]), conn.pipe([("RQ.GET", "qb", i) for i in ids])
    for i, x, y in zip(ids, a, b):
        if (x is None) != (y is None):
            t.bad("half-exec", "%s: qa %s, qb %s" % (i, x is not None, y is not None))
