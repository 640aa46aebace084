"""The load under which servers are killed: workers that register with the ledger what they send before they send it."""

import random
import threading
import time
import traceback

from ledger import Holder, Log, Msg, Permit
from lib import LOST, SLACK, YEAR, Conn, Err, Trial


def arguments(p):
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--life", type=float, default=0.4, help="the longest life of a server under load (s)")
    p.add_argument("--pace", type=float, default=0.002, help="a client's pause between two batches (s)")


class Loaded(Trial):
    """A trial with workers and a ledger."""

    # Whether workers ask with WAIT what a replica has.
    waits = False

    def __init__(self, doc, breaks, more=None):
        super().__init__(doc, breaks, lambda p: (arguments(p), more and more(p)))
        self.log = Log(self)

    def workers(self, life, where, **kw):
        ws = [Worker(self, w, life, where, **kw) for w in range(self.args.workers)]
        for w in ws:
            w.start()
        return ws

    def join(self, ws):
        for w in ws:
            w.join(30)
            if w.is_alive():
                self.bad("stuck", "a client has no reply after 30 s")

    def stop(self, ws):
        for w in ws:
            w.stopping.set()
        self.join(ws)

    def new_log(self, server_too=False):
        """All is forgotten but, unless the server is another, the numbers."""
        old, self.log = self.log, Log(self)
        if not server_too:
            self.log.numbers, self.log.top = old.numbers, old.top


def setup(conn):
    """The keys of the load."""
    for c in [
        ("RQ.SET", "q0", "LEASE", 30000, "MAXDELIVERIES", 0),
        ("RQ.SET", "q1", "LEASE", 30000, "MAXDELIVERIES", 0, "BACKOFF", "EXP", 5, 100),
        ("RQ.SET", "qg", "LEASE", 30000, "MAXDELIVERIES", 0, "GROUPINFLIGHT", 1),
        ("RQ.SET", "qk", "LEASE", 300, "MAXDELIVERIES", 0),
        ("RQ.SET", "qd", "MAXDELIVERIES", 0),
        ("RQ.SET", "qn", "MAXDELIVERIES", 0),
        ("TB.SET", "tbslow", 10**12, 1, YEAR),
        ("TB.SET", "tbhold", 10**12, 1, YEAR),
        ("TB.SET", "tbpin", 30, 60, 1000),
        ("SEM.SET", "sem", 6, "LEASE", 30000),
        ("GATE.SET", "gate", "STAGE", "tb", "TB", 40, 80, 1000, "STAGE", "lb", "LB", 20, 100, 1000, "STAGE", "sem", "SEM", 6, "LEASE", 300),
        ("HOT.SET", "hotslow", 10**12, 1, YEAR),
        ("HOT.SET", "hot", 10, 20, 1000),
    ]:
        reply = conn.call(*c)
        assert reply == b"OK", (c, reply)


class Worker(threading.Thread):
    """Sends pipelined batches until its connection ends, or, when it follows the master, until it is told to stop."""

    def __init__(self, t, wid, life, where, follow=False, tolerate=()):
        super().__init__(daemon=True)
        self.t, self.log, self.wid, self.life, self.where = t, t.log, wid, life, where
        self.follow, self.tolerate = follow, tolerate
        self.rng = random.Random("%s/%s/%s" % (t.args.seed, wid, life))
        self.stopping = threading.Event()
        self.n = 0
        self.batch, self.commands, self.unsure = [], 0, set()
        self.unsafe = []  # (message, what becomes true) that WAIT has not yet confirmed on this connection
        self.gseq = 0

    def run(self):
        while not self.stopping.is_set():
            conn = None
            try:
                port = self.where()
                if port is None:
                    raise ConnectionError("no master")
                conn = Conn(port, 10)
                self.unsafe = []
                while not self.stopping.is_set():
                    if self.turn(conn) == "again":
                        break
                    if self.t.args.pace:
                        time.sleep(self.t.args.pace)
            except (OSError, ConnectionError):
                pass
            except Exception:
                self.log.bad("harness", traceback.format_exc())
            finally:
                if conn:
                    conn.close()
            if not self.follow:
                return
            time.sleep(0.02)

    def add(self, argv, handle):
        self.batch.append((argv, handle))

    def turn(self, conn):
        self.batch, self.unsure, self.extending = [], set(), []
        r, log = self.rng, self.log
        with log.lock:
            for _ in range(r.randint(3, 14)):
                self.one(r)
            if self.t.waits and r.random() < 0.5:
                self.wait_for_replica()
            elif r.random() < 0.1:
                self.blocking(r)
        batch = self.batch
        with log.lock:
            floor = [log.top]
        t0 = time.time()
        again = False
        done = 0
        try:
            conn.send(*[a for a, _ in batch])
            for argv, handle in batch:
                reply = conn.read()
                t1 = time.time()
                done += 1
                self.commands += 1
                with log.lock:
                    if isinstance(reply, Err):
                        code = reply.split(" ", 1)[0]
                        if code in self.tolerate:
                            again = True
                            handle(LOST if code in ("UNBLOCKED", "NOREPLICAS") else None, t0, t1, floor, code)
                            continue
                        log.bad("error", "%r answers %s" % (argv[:6], reply))
                        handle(LOST, t0, t1, floor, code)
                        continue
                    handle(reply, t0, t1, floor, None)
        finally:
            t1 = time.time()
            with log.lock:
                for argv, handle in batch[done:]:
                    handle(LOST, t0, t1, floor, "lost")
                self.t.count("commands", done)
        return "again" if again else None

    # Each op registers what it sends before it is sent. Handlers get (reply, t0, t1, floor, code): reply is LOST when it may or may not have been done, None
    # with a code when it surely was not.

    def one(self, r):
        ops = self.OPS
        r.choices([o for o, _ in ops], [w for _, w in ops])[0](self, r)

    def op_push(self, r):
        log, q = self.log, r.choice(("q0", "q0", "q1"))
        self.n += 1
        id = "%s.%s.%d" % (self.wid, self.life, self.n)
        msg = Msg(id, q)
        argv = ["RQ.PUSH", q, id + "|" + "x" * r.randint(0, 200) + "$", "ID", id, "PRIORITY", r.randint(0, 3)]
        delay = ttl = 0
        if r.random() < 0.2:
            delay = r.randint(10, 300)
            argv += ["DELAY", delay]
        if r.random() < 0.05:
            ttl = r.randint(50, 400)
            argv += ["TTL", ttl]
        log.msgs[id] = msg
        if delay:
            msg.due_lo = time.time() + delay / 1000
        if ttl:
            msg.exp_lo = time.time() + ttl / 1000

        def handle(reply, t0, t1, floor, code):
            if reply is LOST:
                if ttl:
                    msg.exp_hi = t1 + ttl / 1000 + 5
                return
            if code:
                log.msgs.pop(id, None)
                log.ghosts.add(id)
                return
            if reply != id.encode():
                log.bad("push", "a new id %s: %r" % (id, reply))
                return
            msg.pushed, msg.pushed_at = True, t1
            self.unsafe.append((msg, "safe"))
            if ttl:
                msg.exp_hi = t1 + ttl / 1000

        self.add(argv, handle)

    def op_push_group(self, r):
        log = self.log
        g = "g%s.%s" % (self.wid, self.life)
        self.gseq += 1
        id = "%s#%d" % (g, self.gseq)
        msg = Msg(id, "qg")
        msg.group, msg.seq = g, self.gseq
        log.msgs[id] = msg

        def handle(reply, t0, t1, floor, code):
            if reply is LOST:
                return
            if code:
                log.msgs.pop(id, None)
                log.ghosts.add(id)
            elif reply != id.encode():
                log.bad("push", "a new id %s: %r" % (id, reply))
            else:
                msg.pushed, msg.pushed_at = True, t1

        self.add(["RQ.PUSH", "qg", id + "|$", "ID", id, "GROUP", g], handle)

    def claimed(self, queue, messages, t0, t1, lease, floor):
        for m in messages:
            h = self.log.delivered(queue, m, t0, t1, lease, self.wid, floor[0])
            if h and queue in self.unsure:
                h.lo = h.since
            if m[1] is not None:
                floor[0] = max(floor[0], int(m[1].rsplit(b"@", 1)[1]))

    def lease(self, r):
        return r.choice((40, 150, 400, 1500, 600000))

    def op_claim(self, r, block=None):
        q = r.choice(("q0", "q0", "q1", "qg", "qk"))
        lease = self.lease(r) if q != "qk" else 200
        argv = ["RQ.CLAIM", q, "COUNT", r.randint(1, 8), "LEASE", lease, "CONSUMER", "c%s" % self.wid]
        if block:
            argv += ["BLOCK", block]

        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None:
                # A blocked claim is served at any time up to its reply: its lease begins after it was sent and ends after that.
                self.claimed(q, reply, t0, t1, lease / 1000, floor)

        self.add(argv, handle)

    def op_mclaim(self, r):
        lease = self.lease(r)

        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None:
                self.claimed(reply[0].decode(), reply[1], t0, t1, lease / 1000, floor)

        self.add(["RQ.MCLAIM", 2, "q1", "q0", "COUNT", r.randint(1, 5), "LEASE", lease, "CONSUMER", "c%s" % self.wid], handle)

    def pick(self, r, n, queue=None):
        """Some of what this worker holds, of one queue. They are taken out of its list."""
        held = self.log.held[self.wid]
        if not held:
            return []
        queue = queue or r.choice(held).queue
        out = [h for h in held if h.queue == queue][:n]
        for h in out:
            held.remove(h)
        return out

    def op_ack(self, r, claim=False):
        log, some = self.log, self.pick(r, r.randint(1, 8))
        if not some:
            return
        before = [h.lo for h in some]
        msgs = [log.msgs.get(h.id) if h.queue != "qk" else None for h in some]
        now = time.time()
        for h, m in zip(some, msgs):
            log.release_sent(h, now)
            if m:
                m.ack_sent += 1

        def acks(reply, t0, t1):
            for h, m, lo, one in zip(some, msgs, before, reply):
                log.settled(h, one, t0, t1, lo, "ack")
                if m:
                    m.ack_sent -= 1
                if one == 1 and m:
                    if m.acked:
                        log.bad("acked-twice", "%s by %s" % (m.id, h.receipt))
                    m.acked, m.acked_at = True, t1
                    self.unsafe.append((m, "acked_safe"))

        lease = self.lease(r)

        def handle(reply, t0, t1, floor, code):
            if reply is LOST:
                return
            if code:
                for h, m, lo in zip(some, msgs, before):
                    h.lo = lo
                    log.held[self.wid].append(h)
                    if m:
                        m.ack_sent -= 1
                return
            if claim:
                acks(reply[0], t0, t1)
                if reply[1] is not None:
                    self.claimed(some[0].queue, reply[1], t0, t1, lease / 1000 if some[0].queue != "qk" else 0.2, floor)
            else:
                acks(reply, t0, t1)

        receipts = [h.receipt for h in some]
        if claim:
            ms = lease if some[0].queue != "qk" else 200
            self.add(["RQ.NEXT", some[0].queue, "RECEIPTS", len(some), *receipts, "COUNT", r.randint(1, 6), "LEASE", ms, "CONSUMER", "c%s" % self.wid], handle)
        else:
            self.add(["RQ.ACK", some[0].queue, *receipts], handle)

    def op_next(self, r):
        self.op_ack(r, claim=True)

    def op_nack(self, r):
        log, some = self.log, self.pick(r, r.randint(1, 4))
        if not some:
            return
        before = [h.lo for h in some]
        now = time.time()
        for h in some:
            log.release_sent(h, now)
        kind = r.choice(("delay", "back", "plain", "nocount", "dead"))
        if some[0].queue in ("qg", "qk") and kind in ("dead", "back"):
            kind = "plain"
        delay = r.randint(5, 200)
        opts = {"delay": ["DELAY", delay], "back": ["DELAY", 0, "BACK"], "plain": [], "nocount": ["NOCOUNT"], "dead": ["DEAD", "REASON", "why"]}[kind]

        def handle(reply, t0, t1, floor, code):
            if reply is LOST:
                return
            if code:
                for h, lo in zip(some, before):
                    h.lo = lo
                    log.held[self.wid].append(h)
                return
            for h, lo, one in zip(some, before, reply):
                log.settled(h, one, t0, t1, lo, "nack")
                m = log.msgs.get(h.id) if h.queue != "qk" else None
                if one in (1, 2) and m and (one == 2) != (kind == "dead") and not (m.exp_hi and t1 > m.exp_lo):
                    log.bad("nack", "%s %s answers %s" % (kind, h.receipt, one))
                if m and one == 1 and kind == "delay" and m.holder is h:
                    m.due_lo = max(m.due_lo, t0 + delay / 1000)
                if m and one == 2:
                    m.dead = True

        self.add(["RQ.NACK", some[0].queue, *opts, "RECEIPTS", len(some), *[h.receipt for h in some]], handle)

    def op_extend(self, r):
        log = self.log
        held = log.held[self.wid]
        if not held:
            return
        h = r.choice(held)
        lo, hi, ms = h.lo, h.hi, r.choice((50, 300, 2000))
        t_reg = time.time()
        h.lo, h.hi = min(lo, t_reg + ms / 1000), max(hi, t_reg + ms / 1000 + 60)

        def handle(reply, t0, t1, floor, code):
            if code and reply is None:
                h.lo, h.hi = lo, hi
                return
            if reply is LOST:
                h.hi = max(hi, t1 + ms / 1000)
                return
            log_hi = h.hi
            h.hi = hi
            log.settled(h, reply[0], t0, t1, lo, "extend")
            if reply[0] == 1:
                h.lo, h.hi = t0 + ms / 1000, t1 + ms / 1000
                if h.lo > log_hi:
                    h.hi = log_hi
                if h.queue in self.unsure:
                    h.lo = min(h.lo, h.since)
                m = log.msgs.get(h.id)
                if m and m.holder is h and m.acked:
                    log.bad("resurrected", "%s is acked and its lease is extended" % h.id)
            else:
                h.lo, h.hi = min(lo, t1), hi

        # An extension of a lease that another command in this batch may end is not judged: only of what is still in the list.
        held.remove(h)
        self.extending.append(h)
        self.add(["RQ.EXTEND", h.queue, ms, h.receipt], lambda *a: (handle(*a), held.append(h)))

    def op_requeue(self, r):
        log, q = self.log, r.choice(("q0", "q1"))
        now = time.time()
        mine = [h for h in log.held[self.wid] + self.extending if h.queue == q]
        sure = [(h, h.lo) for h in mine]
        # What is claimed or extended earlier in this batch is released too: nothing sure may come of it.
        self.unsure.add(q)
        for h in mine:
            log.release_sent(h, now)

        def handle(reply, t0, t1, floor, code):
            if code and reply is None:
                for h, lo in sure:
                    h.lo = lo

        self.add(["RQ.REQUEUE", q, "CONSUMER", "c%s" % self.wid], handle)

    def op_move(self, r):
        a, b = r.choice((("q0", "q1"), ("q1", "q0")))
        self.add(["RQ.MOVE", a, b, "READY", "COUNT", r.randint(1, 5)], lambda *a: None)

    def op_keeplast(self, r):
        log, id = self.log, "k%s" % self.wid
        log.klast[id][1] += 1
        value = log.klast[id][1]

        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and not code:
                if reply != id.encode():
                    log.bad("keeplast", "answers %r" % (reply,))
                log.klast[id][0] = value

        self.add(["RQ.PUSH", "qk", value, "ID", id, "ONDUP", "KEEPLAST"], handle)

    def op_dedup(self, r):
        log, id = self.log, "d%d" % r.randint(0, 5)
        window = 400

        def handle(reply, t0, t1, floor, code):
            if reply is LOST or reply is None:
                return
            until = log.windows.get(id, (0, 0))
            if until[1] <= t0 and t1 < until[0] - SLACK:
                log.bad("dedup", "%s is pushed anew %.1f ms before its window ends" % (id, 1000 * (until[0] - t1)))
            log.windows[id] = max(until, (t0 + window / 1000, t1))

        self.add(["RQ.PUSH", "qd", "p", "ID", id, "DEDUP", window], handle)
        self.add(["RQ.CLAIM", "qd", "COUNT", 10, "NOACK"], lambda *a: None)

    def op_noack(self, r):
        self.n += 1
        id = "n%s.%s.%d" % (self.wid, self.life, self.n)
        self.add(["RQ.PUSH", "qn", "p", "ID", id], lambda *a: None)

        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None:
                self.claimed("qn", reply, t0, t1, 0, floor)

        self.add(["RQ.CLAIM", "qn", "COUNT", r.randint(1, 3), "NOACK"], handle)

    def op_exec(self, r):
        log = self.log
        self.n += 1
        id = "%s.%s.%d" % (self.wid, self.life, self.n)
        log.pairs[id] = None
        log.slow["tbslow"][1] += 1
        drop = lambda *a: None
        self.add(["MULTI"], drop)
        self.add(["RQ.PUSH", "qa", id, "ID", id], drop)
        self.add(["TB.TAKE", "tbslow"], drop)
        self.add(["RQ.PUSH", "qb", id, "ID", id], drop)

        def handle(reply, t0, t1, floor, code):
            if reply is LOST:
                return
            if code or reply is None:
                log.slow["tbslow"][1] -= 1
                log.pairs.pop(id, None)
                return
            log.pairs[id] = t1
            log.slow["tbslow"][0] += 1

        self.add(["EXEC"], handle)

    def take(self, name, argv, cost=1):
        log = self.log

        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None and reply[0] > 0:
                log.grants[name].append((t0, t1, reply[0]))

        self.add(argv, handle)

    def op_take(self, r):
        which = r.randint(0, 5)
        cost = r.randint(1, 3)
        if which == 0:
            self.take("tbu", ["TB.TAKE", "tbu", 20, 50, 1000, "COST", cost])
        elif which == 1:
            self.take("tbpin", ["TB.TAKE", "tbpin", "COST", cost, *(["ATMOST"] if r.random() < 0.5 else [])])
        elif which == 2:
            self.take("lb", ["LB.TAKE", "lb", 20, 100, 1000, "COST", cost])
        elif which == 3:
            self.take("hot", ["HOT.TAKE", "hot", "s", "COST", cost])
        elif which == 4:
            self.add(["CL.THROTTLE", "clt", 9, 50, 1], lambda reply, t0, t1, floor, code: reply not in (LOST, None) and reply[0] == 0
                     and self.log.grants["clt"].append((t0, t1, 1)))
        else:
            self.slow(r, cost)

    def slow(self, r, cost):
        key, argv = r.choice((("tbslow", ["TB.TAKE", "tbslow", "COST", cost]), ("hotslow", ["HOT.TAKE", "hotslow", "s", "COST", cost])))
        s = self.log.slow[key]
        s[1] += cost

        def handle(reply, t0, t1, floor, code):
            if code and reply is None:
                s[1] -= cost
            elif reply is not LOST:
                s[0] += cost

        self.add(argv, handle)

    def op_ban(self, r):
        log, key = self.log, "tbban%s" % self.wid
        ms = r.randint(100, 600)

        def banned(reply, t0, t1, floor, code):
            log.bans[key] = t0 + ms / 1000 if reply is not LOST and not code else 0

        def taken(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None and reply[0] and t1 < log.bans.get(key, 0) - SLACK:
                log.bad("ban", "%s grants %.1f ms before its ban ends" % (key, 1000 * (log.bans[key] - t1)))

        if r.random() < 0.2:
            self.add(["TB.BAN", key, ms], banned)
        else:
            self.add(["TB.TAKE", key, 10, 10, 1000], taken)

    def op_hold(self, r):
        log = self.log
        mine = [h for h in log.holds.values() if h[0] == self.wid and h[2] is not None]
        if len(mine) > 4 or (mine and r.random() < 0.4):
            hold = r.choice(mine)
            actual = r.randint(0, 20)
            hold[2] = None

            def settled(reply, t0, t1, floor, code):
                # Judged by hand: an error is read in `turn`. Settled by a kill: unknown.
                if reply is LOST and code == "ERR":
                    log.bad("hold-lost", "hold %s cannot be settled" % hold[1])
                if code and reply is None:
                    hold[2] = True
                else:
                    log.holds.pop(hold[1], None)

            self.add(["TB.SETTLE", "tbhold", hold[1], actual], settled)
            return

        def held(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None:
                if reply[6] is None:
                    return log.bad("hold", "refused: %r" % (reply,))
                log.number(reply[6], floor[0], "a hold")
                floor[0] = max(floor[0], reply[6])
                log.holds[reply[6]] = [self.wid, reply[6], True]

        self.add(["TB.HOLD", "tbhold", "COST", 10, "TTL", 3600000, "ONEXPIRE", r.choice(("KEEP", "REFUND"))], held)

    def op_sem(self, r, block=None):
        log, permits = self.log, self.log.permits["sem"]
        mine = [p for p in permits.values() if p.owner == self.wid]
        if mine and r.random() < 0.6 and not block:
            p = r.choice(mine)
            if r.random() < 0.4:
                ms, lo, hi = r.choice((100, 600, 3000)), p.lo, p.hi
                now = time.time()
                p.lo, p.hi, p.owner = min(lo, now + ms / 1000), now + 3600, None

                def renewed(reply, t0, t1, floor, code):
                    p.owner = self.wid
                    if code and reply is None:
                        p.lo, p.hi = lo, hi
                    elif reply is LOST:
                        p.hi = max(hi, t1 + ms / 1000)
                    elif reply[0]:
                        if t0 > hi + SLACK:
                            log.bad("permit-revived", "%s, %.1f ms after its end" % (p.receipt, 1000 * (t0 - hi)))
                        p.lo, p.hi = t0 + ms / 1000, t1 + ms / 1000
                    else:
                        if t1 < lo - SLACK and p.since < t0:
                            log.bad("permit-lost", "RENEW of %s answers 0, %.1f ms before its end" % (p.receipt, 1000 * (lo - t1)))
                        p.hi = min(hi, t1)

                self.add(["SEM.RENEW", "sem", ms, p.receipt], renewed)
                return
            lo, hi = p.lo, p.hi
            p.lo, p.owner = min(lo, time.time()), None

            def released(reply, t0, t1, floor, code):
                if code and reply is None:
                    p.lo, p.owner = lo, self.wid
                elif reply is not LOST:
                    if reply[0] == 0 and t1 < lo - SLACK and p.since < t0:
                        log.bad("permit-lost", "RELEASE of %s answers 0, %.1f ms before its end" % (p.receipt, 1000 * (lo - t1)))
                    p.hi = min(hi, t1)

            self.add(["SEM.RELEASE", "sem", p.receipt], released)
            return
        lease = r.choice((60, 200, 800, 60000))
        argv = ["SEM.ACQUIRE", "sem", 6, "LEASE", lease, "OWNER", "w%s" % self.wid]
        if block:
            argv += ["BLOCK", block]

        def acquired(reply, t0, t1, floor, code):
            if reply is LOST or reply is None or not reply[0]:
                return
            log.number(reply[4], floor[0], "a permit")
            floor[0] = max(floor[0], reply[4])
            permits[reply[4]] = Permit(reply[4], t1, t0 + lease / 1000, t1 + lease / 1000, self.wid)

        self.add(argv, acquired)

    def op_gate(self, r, block=None):
        log, permits = self.log, self.log.permits["gate"]
        mine = [p for p in permits.values() if p.owner == self.wid]
        if mine and r.random() < 0.5 and not block:
            p = r.choice(mine)
            lo, hi = p.lo, p.hi
            p.lo, p.owner = min(lo, time.time()), None

            def left(reply, t0, t1, floor, code):
                if code and reply is None:
                    p.lo, p.owner = lo, self.wid
                elif reply is not LOST:
                    if reply[0] == 0 and t1 < lo - SLACK and p.since < t0:
                        log.bad("permit-lost", "LEAVE of %s answers 0, %.1f ms before its end" % (p.receipt, 1000 * (lo - t1)))
                    p.hi = min(hi, t1)

            self.add(["GATE.LEAVE", "gate", p.receipt], left)
            return

        def passed(reply, t0, t1, floor, code):
            if reply is LOST or reply is None or not reply[0]:
                return
            log.number(reply[4], floor[0], "a permit of a gate")
            floor[0] = max(floor[0], reply[4])
            log.grants["gate"].append((t0, t1, reply[0]))
            permits[reply[4]] = Permit(reply[4], t1, t0 + 0.3 + reply[1] / 1000, t1 + 0.3 + reply[1] / 1000, self.wid)

        self.add(["GATE.PASS", "gate", *(["BLOCK", block] if block else [])], passed)

    def wait_for_replica(self):
        def handle(reply, t0, t1, floor, code):
            if reply is not LOST and reply is not None and reply >= 1:
                for msg, name in self.unsafe:
                    setattr(msg, name, True)
                self.unsafe = []

        self.add(["WAIT", 1, 300], handle)

    def blocking(self, r):
        which = r.randint(0, 3)
        ms = r.randint(10, 60)
        if which == 0:
            self.op_claim(r, block=ms)
        elif which == 1:
            self.op_sem(r, block=ms)
        elif which == 2:
            self.op_gate(r, block=ms)
        else:
            self.take("tbu", ["TB.TAKE", "tbu", 20, 50, 1000, "BLOCK", ms])

    OPS = [(op_push, 26), (op_push_group, 6), (op_claim, 16), (op_mclaim, 3), (op_ack, 16), (op_next, 5), (op_nack, 6), (op_extend, 4), (op_requeue, 1),
           (op_move, 2), (op_keeplast, 3), (op_dedup, 3), (op_noack, 3), (op_exec, 3), (op_take, 12), (op_ban, 3), (op_hold, 4), (op_sem, 5), (op_gate, 4)]
