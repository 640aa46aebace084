#!/usr/bin/env python3
"""Reference model of the RQ.* commands as the contract has them: a small RESP server, for tests only.

usage: queue_model.py [-p PORT]        listens on 127.0.0.1 only; plain Python, standard library only

It is written to be read and to be right, not to be fast: every message is an object in a plain list, every question
is answered by a linear scan. All times are whole milliseconds; the clock is the real one until SLUICE.CLOCK SET/ADVANCE.
"""
import argparse, copy, re, selectors, socket, time
from fractions import Fraction

MAX_INT = 1_000_000_000_000
MAX_MS = 31_622_400_000
MAX_INSTANT = 253_402_300_799_999
MAX_PAYLOAD = 512 * 1024 * 1024
FOREVER = float("inf")


class Err(Exception):
    """An error reply; raised before anything was changed."""


class Status(str):
    """A status reply (+OK)."""


OK = Status("OK")
WRONGTYPE = Err("WRONGTYPE Operation against a key holding the wrong kind of value")


# ---------------------------------------------------------------------------------------------- arguments

def integer(raw, name, low, high):
    if not re.fullmatch(rb"0|-?[1-9][0-9]*", raw):
        raise Err(f"ERR {name} must be an integer between {low} and {high}")
    n = int(raw)
    if not low <= n <= high:
        raise Err(f"ERR {name} must be between {low} and {high}")
    return n


def count(raw, name, low=1):
    return integer(raw, name, low, MAX_INT)


def duration(raw, name, low=1):
    return integer(raw, name, low, MAX_MS)


def instant(raw, name):
    return integer(raw, name, 0, MAX_INSTANT)


def label(raw, name):
    if not 1 <= len(raw) <= 512:
        raise Err(f"ERR {name} must be 1 to 512 bytes")
    return raw


def receipt(raw):
    """b'<id>@<claim>' -> (id, claim). The id may hold '@' itself: the last one divides."""
    ident, at, claim = raw.rpartition(b"@")
    if not at or not 1 <= len(ident) <= 512 or not re.fullmatch(rb"[1-9][0-9]{0,19}", claim):
        raise Err("ERR invalid receipt: expected <id>@<claim>")
    if int(claim) >= 1 << 64:
        raise Err("ERR invalid receipt: expected <id>@<claim>")
    return ident, int(claim)


class Args:
    """Cursor over the arguments after the command name."""

    def __init__(self, args):
        self.a, self.i = args, 0

    def more(self):
        return self.i < len(self.a)

    def next(self, what="an argument"):
        if not self.more():
            raise Err(f"ERR syntax error: {what} is missing")
        self.i += 1
        return self.a[self.i - 1]

    def take(self, n, what):
        if n > len(self.a) - self.i:
            raise Err(f"ERR syntax error: {n} {what} announced, {len(self.a) - self.i} given")
        self.i += n
        return self.a[self.i - n:self.i]

    def options(self, **spec):
        """Everything left, as options by name in any order, each at most once. spec: NAME -> reader(self)."""
        got = {}
        while self.more():
            name = self.next().upper().decode("latin-1")
            if name not in spec:
                raise Err(f"ERR syntax error: unknown option '{name[:64]}'")
            if name in got:
                raise Err(f"ERR syntax error: {name} given twice")
            got[name] = spec[name](self)
        return got


def flag(a):
    return True


def backoff(a):
    kind = a.next("BACKOFF").upper()
    if kind == b"NONE":
        return ("NONE",)
    if kind == b"FIXED":
        return ("FIXED", duration(a.next("BACKOFF FIXED"), "backoff"))
    if kind == b"EXP":
        base = duration(a.next("BACKOFF EXP base"), "backoff base")
        top = duration(a.next("BACKOFF EXP max"), "backoff max")
        if base > top:
            raise Err("ERR backoff base must not be above its max")
        return ("EXP", base, top)
    raise Err("ERR BACKOFF must be NONE, FIXED ms or EXP base max")


def rate(a):
    first = a.next("RATE")
    if first.upper() == b"NONE":
        return None
    return (count(first, "rate tokens"), duration(a.next("rate period"), "rate period"),
            count(a.next("rate capacity"), "rate capacity"))


def one_of(*names):
    def read(a):
        v = a.next().upper().decode("latin-1")
        if v not in names:
            raise Err("ERR expected one of " + ", ".join(names))
        return v
    return read


PUSH_OPTIONS = dict(
    DELAY=lambda a: duration(a.next("DELAY"), "delay", 0),
    AT=lambda a: instant(a.next("AT"), "at"),
    PRIORITY=lambda a: integer(a.next("PRIORITY"), "priority", 0, 255),
    GROUP=lambda a: label(a.next("GROUP"), "group"),
    TTL=lambda a: duration(a.next("TTL"), "ttl"),
    LEASE=lambda a: duration(a.next("LEASE"), "lease"),
    MAXDELIVERIES=lambda a: count(a.next("MAXDELIVERIES"), "maxdeliveries", 0),
    DEDUP=lambda a: duration(a.next("DEDUP"), "dedup"),
    ONDUP=one_of("REJECT", "REPLACE", "KEEPLAST"),
)
CLAIM_OPTIONS = dict(
    COUNT=lambda a: integer(a.next("COUNT"), "count", 1, 10000),
    LEASE=lambda a: duration(a.next("LEASE"), "lease"),
    CONSUMER=lambda a: label(a.next("CONSUMER"), "consumer"),
    GROUP=lambda a: label(a.next("GROUP"), "group"),
    MAXBYTES=lambda a: count(a.next("MAXBYTES"), "maxbytes"),
    NOACK=flag,
    BLOCK=lambda a: duration(a.next("BLOCK"), "block", 0),
)
RECEIPTS = dict(RECEIPTS=lambda a: [receipt(r) for r in a.take(count(a.next("RECEIPTS"), "receipts"), "receipts")])
SET_OPTIONS = dict(
    LEASE=lambda a: duration(a.next("LEASE"), "lease"),
    MAXDELIVERIES=lambda a: count(a.next("MAXDELIVERIES"), "maxdeliveries", 0),
    BACKOFF=backoff,
    MAXLEN=lambda a: count(a.next("MAXLEN"), "maxlen", 0),
    MAXBYTES=lambda a: count(a.next("MAXBYTES"), "maxbytes", 0),
    ONFULL=one_of("REJECT", "DROPOLD"),
    MAXINFLIGHT=lambda a: count(a.next("MAXINFLIGHT"), "maxinflight", 0),
    GROUPINFLIGHT=lambda a: count(a.next("GROUPINFLIGHT"), "groupinflight", 0),
    RATE=rate,
    GROUPRATE=rate,
    DEDUP=lambda a: duration(a.next("DEDUP"), "dedup", 0),
    MAXDEAD=lambda a: count(a.next("MAXDEAD"), "maxdead", 0),
    TTL=lambda a: duration(a.next("TTL"), "ttl", 0),
    AGING=lambda a: duration(a.next("AGING"), "aging", 0),
)
DEFAULTS = dict(LEASE=30000, MAXDELIVERIES=16, BACKOFF=("NONE",), MAXLEN=0, MAXBYTES=0, ONFULL="REJECT", MAXINFLIGHT=0,
                GROUPINFLIGHT=0, RATE=None, GROUPRATE=None, DEDUP=0, MAXDEAD=0, TTL=0, AGING=0)
TOTALS = ("pushed delivered acked nacked timed_out requeued dead redriven rejected dropped expired deleted replaced "
          "moved_in moved_out").split()


# ---------------------------------------------------------------------------------------------- the model

class Bucket:
    """A token bucket with an exact level. Full when new."""

    def __init__(self, limits, now):
        self.tokens, self.period, self.capacity = limits
        self.level, self.at = Fraction(self.capacity), now

    def move(self, now):
        if now > self.at:
            self.level = min(Fraction(self.capacity), self.level + Fraction((now - self.at) * self.tokens, self.period))
            self.at = now

    def change(self, limits, now):
        """Other limits: the tokens there are kept, cut to the new capacity; a full bucket stays full."""
        self.move(now)
        full = self.level == self.capacity
        self.tokens, self.period, self.capacity = limits
        self.level = Fraction(self.capacity) if full else min(self.level, Fraction(self.capacity))

    def one_at(self):
        """The first whole millisecond at which a token is there."""
        if self.level >= 1:
            return self.at
        wait = (1 - self.level) * self.period / self.tokens
        return self.at + -(-wait.numerator // wait.denominator)


class Message:
    def __init__(self, uid, ident, payload, o, now):
        self.uid = uid                  # tells apart messages that have (had) the same id
        self.id, self.payload = ident, payload
        self.priority, self.group = o.get("PRIORITY", 0), o.get("GROUP")
        self.own_ttl, self.own_lease, self.own_max = o.get("TTL"), o.get("LEASE"), o.get("MAXDELIVERIES")
        self.pushed_at = self.ttl_base = now
        self.state = None               # "ready" "delayed" "inflight" "dead"
        self.ready_at = None            # its place: when it first became ready …
        self.seq = None                 # … then in the order in which places were given
        self.due = None                 # delayed: until when
        self.retry = False              # delayed: because it came back (not because it was pushed so)
        self.claim = self.claimed_at = self.deadline = None
        self.consumer = self.reason = self.died_at = None
        self.deliveries = self.failures = self.timeouts = 0
        self.follower = None            # KEEPLAST: what is to follow when this one is gone


class Queue:
    def __init__(self, server):
        self.server = server
        self.now = server.now
        self.cfg = dict(DEFAULTS)
        self.live = []                  # ready, delayed, in flight
        self.dead = []                  # oldest death first
        self.next_id = 1
        self.counter = 0                # uids, places and turns
        self.turns = {}                 # group (None: the lane without group) -> when last served, or began to exist
        self.windows = {}               # id -> (until, uid of the message that owns it)
        self.bucket = None
        self.group_buckets = {}
        self.pauses = {}                # (group or None, "PUSH"/"CLAIM") -> until
        self.totals = dict.fromkeys(TOTALS, 0)

    def tick_counter(self):
        self.counter += 1
        return self.counter

    def count(self, what, n=1):
        self.totals[what] += n

    # --- looking

    def in_state(self, state):
        return list(self.dead) if state == "dead" else [m for m in self.live if m.state == state]

    def live_by_id(self, ident):
        return next((m for m in self.live if m.id == ident), None)

    def by_id(self, ident):
        """The live one, else the one that died last."""
        m = self.live_by_id(ident)
        if m is None:
            m = next((d for d in reversed(self.dead) if d.id == ident), None)
        return m

    def bytes(self):
        return sum(len(m.payload) + (len(m.follower.payload) if m.follower else 0) for m in self.live)

    def expires(self, m):
        ttl = m.own_ttl or self.cfg["TTL"]
        return m.ttl_base + ttl if ttl else FOREVER

    def limit(self, m):
        return self.cfg["MAXDELIVERIES"] if m.own_max is None else m.own_max

    def paused(self, group, what):
        return self.pauses.get((None, what), 0) > self.now or \
            (group is not None and self.pauses.get((group, what), 0) > self.now)

    def busy(self, group):
        """Members in flight or waiting for their retry."""
        return sum(1 for m in self.live if m.group == group and (m.state == "inflight" or m.state == "delayed" and m.retry))

    def order(self, m):
        """Smallest goes first."""
        if self.cfg["AGING"]:
            return (m.ready_at - m.priority * self.cfg["AGING"], -m.priority, m.seq)
        return (-m.priority, m.ready_at, m.seq)

    # --- changing

    def enter(self, m, due=None, new_place=True, retry=False):
        """Makes m wait until `due` (delayed) or ready now. A new place counts from when it becomes ready."""
        if m.group not in self.turns:
            self.turns[m.group] = self.tick_counter()
        when = max(self.now, due) if due is not None else self.now
        if new_place:
            m.ready_at, m.seq = when, self.tick_counter()
        m.claim = m.claimed_at = m.deadline = None
        if when > self.now:
            m.state, m.due, m.retry = "delayed", when, retry
        else:
            m.state, m.due, m.retry = "ready", None, False

    def leave(self, m, release=True):
        """m is live no more. Its follower (KEEPLAST) takes its turn, or goes with it (then 1, else 0)."""
        self.live.remove(m)
        f, m.follower = m.follower, None
        m.claim = m.claimed_at = m.deadline = m.due = None
        m.retry = False
        if f is not None:
            if not release:
                return 1
            if self.expires(f) <= self.now:
                self.count("expired")
            else:
                self.live.append(f)
                self.enter(f, f.due)
        return 0

    def forget_groups(self):
        for g in list(self.turns):
            if not any(m.group == g for m in self.live):
                del self.turns[g]

    def die(self, m, reason):
        self.leave(m)
        m.state, m.reason, m.died_at = "dead", reason, self.now
        self.dead.append(m)
        self.count("dead")
        self.trim_dead()

    def trim_dead(self):
        while self.cfg["MAXDEAD"] and len(self.dead) > self.cfg["MAXDEAD"]:
            self.dead.pop(0)
            self.count("dropped")

    def expire(self, m):
        self.leave(m)
        self.count("expired")

    def backoff(self, m):
        b = self.cfg["BACKOFF"]
        n = m.failures + m.timeouts
        if b[0] == "NONE":
            return 0
        if b[0] == "FIXED":
            return b[1]
        return min(b[2], b[1] << min(n - 1, 60))

    def come_back(self, m, counted, delay, back, reason):
        """m, in flight, is given back (NACK, lease end, REQUEUE). True if it died of it."""
        if reason is not None:
            m.reason = reason
        if counted and self.limit(m) and m.failures + m.timeouts >= self.limit(m):
            self.die(m, m.reason)
            return True
        if self.expires(m) <= self.now:
            self.expire(m)
            return False
        self.enter(m, self.now + delay if delay else None, new_place=back, retry=True)
        return False

    # --- time

    def events(self):
        """Instants at which something is due, in any order."""
        for m in self.live:
            if m.state == "inflight":
                yield m.deadline
            else:
                if m.state == "delayed":
                    yield m.due
                if self.expires(m) != FOREVER:
                    yield self.expires(m)
        for until in self.pauses.values():
            if until != FOREVER:
                yield until

    def token_events(self):
        """Instants at which a claim that is refused for want of a token would be served."""
        for b in [self.bucket, *self.group_buckets.values()]:
            if b is not None:
                b.move(self.now)
                if b.level < 1:
                    yield b.one_at()

    def advance(self, to):
        """Applies all that is due until `to`, each thing at its own instant, in time order."""
        while True:
            t = min(self.events(), default=FOREVER)
            if t > to:
                break
            self.now = max(self.now, t)
            for m in sorted(self.in_state("inflight"), key=lambda m: m.claim):
                if m.deadline <= self.now:
                    m.timeouts += 1
                    self.count("timed_out")
                    self.come_back(m, True, self.backoff(m), False, b"timeout")
            for m in self.in_state("delayed"):
                if m.due <= self.now:
                    m.state, m.due, m.retry = "ready", None, False
            for m in list(self.live):
                if m.state in ("ready", "delayed") and self.expires(m) <= self.now:
                    self.expire(m)
            self.pauses = {k: u for k, u in self.pauses.items() if u > self.now}
            self.forget_groups()
        self.now = max(self.now, to)

    # --- pushing

    def push(self, payloads, ident, o):
        """The ids, or None (duplicate); raises QFULL/PAUSED. All or none."""
        if self.paused(o.get("GROUP"), "PUSH"):
            self.count("rejected", len(payloads))
            raise Err("PAUSED pushing is paused")
        mode = o.get("ONDUP", "REJECT")
        old = self.live_by_id(ident) if ident is not None else None
        follow = replace = False
        if ident is not None:
            if old is None:
                taken = self.windows.get(ident, (0, 0))[0] > self.now
            elif old.state == "inflight":
                follow, taken = mode == "KEEPLAST", mode != "KEEPLAST"
            else:
                replace, taken = mode != "REJECT", mode == "REJECT"
            if taken:
                self.count("rejected", len(payloads))
                return None
        more = 0 if old else len(payloads)
        size = sum(map(len, payloads))
        if replace:
            size -= len(old.payload) + (len(old.follower.payload) if old.follower else 0)
        elif follow and old.follower:
            size -= len(old.follower.payload)
        self.make_room(more, size, old, len(payloads))
        due = o.get("AT")
        if "DELAY" in o:
            due = self.now + o["DELAY"]
        ids = []
        for p in payloads:
            name = ident
            if name is None:
                while True:
                    name = b"%d" % self.next_id
                    self.next_id += 1
                    if self.by_id(name) is None and self.windows.get(name, (0, 0))[0] <= self.now:
                        break
            m = Message(self.tick_counter(), name, p, o, self.now)
            if follow:
                if old.follower:
                    self.count("replaced")
                m.due = due
                old.follower = m
            elif replace:
                self.count("replaced", 2 if old.follower else 1)
                self.live[self.live.index(old)] = m
                if old.state == "ready" and (due is None or due <= self.now):
                    m.ready_at, m.seq = old.ready_at, old.seq
                    self.enter(m, None, new_place=False)
                else:
                    self.enter(m, due)
            else:
                self.live.append(m)
                self.enter(m, due)
            window = o.get("DEDUP", self.cfg["DEDUP"])
            if ident is not None:
                if window:
                    self.windows[name] = (self.now + window, m.uid)
                elif name in self.windows:
                    self.windows[name] = (self.windows[name][0], m.uid)
            self.count("pushed")
            ids.append(name)
        self.forget_groups()
        return ids

    def make_room(self, more, size, keep, asked):
        """Drops (DROPOLD) or refuses (QFULL) when `more` messages and `size` bytes would pass a bound."""
        def fits(n, b):
            return (more <= 0 or not self.cfg["MAXLEN"] or n + more <= self.cfg["MAXLEN"]) and \
                (size <= 0 or not self.cfg["MAXBYTES"] or b + size <= self.cfg["MAXBYTES"])
        n, b, victims = len(self.live), self.bytes(), []
        if self.cfg["ONFULL"] == "DROPOLD":
            olds = sorted((m for m in self.live if m.state == "ready" and m is not keep), key=lambda m: (m.ready_at, m.seq))
            while not fits(n, b) and olds:
                v = olds.pop(0)
                victims.append(v)
                n -= 1
                b -= len(v.payload) + (len(v.follower.payload) if v.follower else 0)
        if not fits(n, b):
            self.count("rejected", asked)
            raise Err("QFULL the queue is full")
        for v in victims:
            self.count("dropped", 1 + self.leave(v, release=False))
        self.forget_groups()

    def room_for(self, m):
        return (not self.cfg["MAXLEN"] or len(self.live) + 1 <= self.cfg["MAXLEN"]) and \
            (not self.cfg["MAXBYTES"] or not m.payload or self.bytes() + len(m.payload) <= self.cfg["MAXBYTES"])

    # --- claiming

    def pick(self, group):
        """The message to hand out next, or None."""
        c = self.cfg
        if self.pauses.get((None, "CLAIM"), 0) > self.now:
            return None
        if c["MAXINFLIGHT"] and len(self.in_state("inflight")) >= c["MAXINFLIGHT"]:
            return None
        if self.bucket:
            self.bucket.move(self.now)
            if self.bucket.level < 1:
                return None
        lanes = []
        for g in self.turns:
            if group is not None and g != group:
                continue
            if not any(m.group == g and m.state == "ready" for m in self.live):
                continue
            busy = self.busy(g)
            if g is not None:
                if self.paused(g, "CLAIM") or c["GROUPINFLIGHT"] and busy >= c["GROUPINFLIGHT"]:
                    continue
                b = self.group_buckets.get(g)
                if b:
                    b.move(self.now)
                    if b.level < 1:
                        continue
            lanes.append((busy, self.turns[g], g))
        if not lanes:
            return None
        lane = min(lanes, key=lambda x: x[:2])[2]
        return min((m for m in self.live if m.group == lane and m.state == "ready"), key=self.order)

    def claim(self, o):
        out, size = [], 0
        while len(out) < o.get("COUNT", 1):
            m = self.pick(o.get("GROUP"))
            if m is None:
                break
            size += len(m.payload)
            if out and size > o.get("MAXBYTES", 32 << 20):
                break
            self.turns[m.group] = self.tick_counter()
            if self.bucket:
                self.bucket.level -= 1
            if m.group is not None and self.cfg["GROUPRATE"]:
                b = self.group_buckets.setdefault(m.group, Bucket(self.cfg["GROUPRATE"], self.now))
                b.move(self.now)
                b.level -= 1
            m.deliveries += 1
            m.consumer = o.get("CONSUMER")
            self.count("delivered")
            if "NOACK" in o:
                self.leave(m)
                self.count("acked")
                out.append([m.id, None, m.deliveries, m.payload])
            else:
                m.state, m.claim, m.claimed_at = "inflight", self.server.new_claim(), self.now
                m.deadline = self.now + (o.get("LEASE") or m.own_lease or self.cfg["LEASE"])
                out.append([m.id, b"%s@%d" % (m.id, m.claim), m.deliveries, m.payload])
        self.forget_groups()
        return out

    def held(self, rec):
        """(message, None) when the receipt holds, else (None, 0 or -1)."""
        ident, claim = rec
        m = self.live_by_id(ident)
        if m is not None and m.state == "inflight" and m.claim == claim:
            return m, None
        return None, 0 if self.by_id(ident) is not None else -1

    def ack(self, receipts):
        out = []
        for r in receipts:
            m, no = self.held(r)
            if m:
                self.leave(m)
                self.count("acked")
            out.append(1 if m else no)
        self.forget_groups()
        return out

    def nack(self, o):
        out = []
        for r in o["RECEIPTS"]:
            m, no = self.held(r)
            if not m:
                out.append(no)
                continue
            self.count("nacked")
            reason = o.get("REASON", b"nack")[:512]
            if "DEAD" in o:
                m.failures += 1
                self.die(m, reason)
                out.append(2)
                continue
            counted = "NOCOUNT" not in o
            if counted:
                m.failures += 1
            delay = o["DELAY"] if "DELAY" in o else self.backoff(m) if counted else 0
            out.append(2 if self.come_back(m, counted, delay, "BACK" in o, reason) else 1)
        self.forget_groups()
        return out

    # --- telling

    def describe(self, m):
        live, e = m.state != "dead", self.expires(m)
        return [b"id", m.id, b"state", m.state.encode(), b"payload", m.payload, b"priority", m.priority, b"group", m.group,
                b"deliveries", m.deliveries, b"failures", m.failures, b"timeouts", m.timeouts,
                b"pushed_at", m.pushed_at, b"due_at", m.due if live else None, b"expires_at", e if live and e != FOREVER else None,
                b"receipt", b"%s@%d" % (m.id, m.claim) if m.claim else None, b"consumer", m.consumer,
                b"claimed_at", m.claimed_at, b"deadline", m.deadline, b"reason", m.reason, b"died_at", m.died_at]

    def info(self, waiting):
        out = []

        def put(k, v):
            out.extend([k.encode(), v.encode() if isinstance(v, str) else v])
        for k in DEFAULTS:
            v = self.cfg[k]
            if k in ("RATE", "GROUPRATE"):
                v = " ".join(map(str, v)) if v else "NONE"
            elif k == "BACKOFF":
                v = " ".join(map(str, v))
            put(k.lower(), v)
        for what in ("PUSH", "CLAIM"):
            u = self.pauses.get((None, what), 0)
            put("paused_" + what.lower(), 0 if u <= self.now else -1 if u == FOREVER else u)
        for s in ("ready", "delayed", "inflight", "dead"):
            put(s, len(self.in_state(s)))
        put("followers", sum(1 for m in self.live if m.follower))
        put("groups", sum(1 for g in self.turns if g is not None))
        put("waiting", waiting)
        put("bytes", self.bytes())
        ages = [self.now - m.ready_at for m in self.in_state("ready")]
        put("oldest_ready_age", max(ages) if ages else -1)
        nxt = [t for t in self.events() if t > self.now]
        put("next_event", min(nxt) - self.now if nxt else -1)
        for t in TOTALS:
            put("total_" + t, self.totals[t])
        return out


# ---------------------------------------------------------------------------------------------- the server

class Client:
    def __init__(self, sock):
        self.sock, self.buf, self.multi, self.waiter = sock, b"", None, None


class Waiter:
    def __init__(self, client, kind, keys, o, acks, ends):
        self.client, self.kind, self.keys, self.o, self.acks, self.ends = client, kind, keys, o, acks, ends


class Server:
    def __init__(self, port):
        self.frozen = None
        self.now = self.real()
        self.last_claim = 0
        self.keys = {}
        self.waiters = []               # in order of arrival
        self.was_queue = set()          # keys that were queues when last looked at
        self.client = None
        self.sel = selectors.DefaultSelector()
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", port))
        self.sock.listen(128)
        self.sel.register(self.sock, selectors.EVENT_READ, None)

    @staticmethod
    def real():
        return time.time_ns() // 1_000_000

    def new_claim(self):
        """Ever rising, one for the whole server: over queues, DEL, re-creation, clock steps."""
        self.last_claim = max(self.last_claim + 1, self.now * 1000)
        return self.last_claim

    # --- time

    def move_clock(self, to):
        """Walks to `to`, stopping at each instant at which something is due: it happens, then waiters are served."""
        while True:
            stops = [t for q in self.queues() for t in (*q.events(), *q.token_events()) if self.now < t <= to]
            if not stops:
                break
            self.now = min(stops)
            self.settle()
        self.now = to
        self.settle()

    def queues(self):
        return [q for q in self.keys.values() if isinstance(q, Queue)]

    def settle(self):
        """Applies what is due now; serves whoever can be served, first come first."""
        for q in self.queues():
            q.advance(self.now)
        for k in list(self.was_queue):
            if k in self.keys and not isinstance(self.keys[k], Queue):
                for w in [w for w in self.waiters if k in w.keys]:
                    self.answer(w, WRONGTYPE)
        self.was_queue = {k for k, v in self.keys.items() if isinstance(v, Queue)}
        served = True
        while served:
            served = False
            for w in list(self.waiters):
                got = self.try_claim(w.kind, w.keys, w.o, w.acks)
                if got is not None:
                    self.answer(w, got)
                    served = True

    def try_claim(self, kind, keys, o, acks):
        """The whole reply if there is a message for it, else None."""
        for k in keys:
            q = self.keys.get(k)
            got = q.claim(o) if isinstance(q, Queue) else []
            if got:
                return got if kind == "claim" else [k, got] if kind == "mclaim" else [acks, got]
        return None

    def answer(self, w, reply):
        self.waiters.remove(w)
        w.client.waiter = None
        self.send(w.client, reply)

    # --- commands

    def queue(self, key, create=False):
        v = self.keys.get(key)
        if v is None:
            if create:
                v = self.keys[key] = Queue(self)
            return v
        if not isinstance(v, Queue):
            raise WRONGTYPE
        return v

    def rq_push(self, a):
        key, payload = a.next(), a.next()
        o = a.options(ID=lambda a: label(a.next("ID"), "id"), **PUSH_OPTIONS)
        if "AT" in o and "DELAY" in o:
            raise Err("ERR syntax error: DELAY and AT exclude each other")
        if len(payload) > MAX_PAYLOAD:
            raise Err("ERR payload too large")
        self.queue(key)
        ids = self.queue(key, True).push([payload], o.get("ID"), o)
        return ids[0] if ids else None

    def rq_mpush(self, a):
        key = a.next()
        payloads = a.take(count(a.next(), "n"), "payloads")
        o = a.options(**PUSH_OPTIONS)
        if "AT" in o and "DELAY" in o:
            raise Err("ERR syntax error: DELAY and AT exclude each other")
        self.queue(key)
        return self.queue(key, True).push(payloads, None, o)

    def claiming(self, kind, keys, o, acks=None):
        for k in keys:
            self.queue(k)
        got = self.try_claim(kind, keys, o, acks)
        if got is not None:
            return got
        nothing = {"claim": None, "mclaim": None, "next": [acks, None]}[kind]
        if "BLOCK" not in o:
            return {"claim": [], "mclaim": None, "next": [acks, []]}[kind]
        if self.in_exec:
            return nothing
        w = Waiter(self.client, kind, keys, o, acks, time.monotonic() + o["BLOCK"] / 1000 if o["BLOCK"] else FOREVER)
        self.client.waiter = w
        self.waiters.append(w)
        return w

    def rq_claim(self, a):
        key = a.next()
        return self.claiming("claim", [key], a.options(**CLAIM_OPTIONS))

    def rq_mclaim(self, a):
        keys = a.take(count(a.next(), "numkeys"), "keys")
        return self.claiming("mclaim", keys, a.options(**CLAIM_OPTIONS))

    def rq_next(self, a):
        key = a.next()
        o = a.options(**RECEIPTS, **CLAIM_OPTIONS)
        if "RECEIPTS" not in o:
            raise Err("ERR syntax error: RECEIPTS is missing")
        q = self.queue(key)
        acks = q.ack(o["RECEIPTS"]) if q else [-1] * len(o["RECEIPTS"])
        return self.claiming("next", [key], o, acks)

    def rq_ack(self, a):
        key = a.next()
        rs = [receipt(r) for r in a.a[1:]]
        q = self.queue(key)
        return q.ack(rs) if q else [-1] * len(rs)

    def rq_nack(self, a):
        key = a.next()
        o = a.options(DELAY=lambda a: duration(a.next("DELAY"), "delay", 0), BACK=flag, NOCOUNT=flag, DEAD=flag,
                      REASON=lambda a: a.next("REASON"), **RECEIPTS)
        if "RECEIPTS" not in o:
            raise Err("ERR syntax error: RECEIPTS is missing")
        if "DEAD" in o and ("NOCOUNT" in o or "DELAY" in o or "BACK" in o):
            raise Err("ERR syntax error: DEAD excludes NOCOUNT, DELAY and BACK")
        q = self.queue(key)
        return q.nack(o) if q else [-1] * len(o["RECEIPTS"])

    def rq_extend(self, a):
        key, ms = a.next(), duration(a.next(), "ms")
        rs = [receipt(r) for r in a.a[2:]]
        q = self.queue(key)
        out = []
        for r in rs:
            m, no = q.held(r) if q else (None, -1)
            if m:
                m.deadline = q.now + ms
            out.append(1 if m else no)
        return out

    def rq_requeue(self, a):
        key = a.next()
        o = a.options(STALE=lambda a: duration(a.next("STALE"), "stale"), CONSUMER=lambda a: label(a.next("CONSUMER"), "consumer"),
                      ALL=flag, COUNT=lambda a: count(a.next("COUNT"), "count"))
        if ("STALE" in o) + ("CONSUMER" in o) + ("ALL" in o) > 1:
            raise Err("ERR syntax error: STALE, CONSUMER and ALL exclude each other")
        q = self.queue(key)
        n = 0
        for m in sorted(q.in_state("inflight"), key=lambda m: m.claim) if q else []:
            if n < o.get("COUNT", MAX_INT) and ("ALL" in o or "STALE" in o and q.now - m.claimed_at >= o["STALE"]
                                                or "CONSUMER" in o and m.consumer == o["CONSUMER"]):
                q.come_back(m, False, 0, False, None)
                q.count("requeued")
                n += 1
        if q:
            q.forget_groups()
        return n

    def rq_redrive(self, a):
        key = a.next()
        o = a.options(IDS=lambda a: a.take(count(a.next("IDS"), "ids"), "ids"), COUNT=lambda a: count(a.next("COUNT"), "count"),
                      DELAY=lambda a: duration(a.next("DELAY"), "delay", 0))
        q = self.queue(key)
        if not q:
            return 0
        if "IDS" in o:
            # by id: the live one is meant, else the one that died last
            wanted = []
            for i in o["IDS"]:
                m = q.by_id(i)
                if m is not None and m.state == "dead" and m not in wanted:
                    wanted.append(m)
        else:
            wanted = list(q.dead)
        n = 0
        for m in wanted:
            if n >= o.get("COUNT", MAX_INT):
                break
            if q.live_by_id(m.id):
                continue
            if not q.room_for(m):
                break
            q.dead.remove(m)
            q.live.append(m)
            m.deliveries = m.failures = m.timeouts = 0
            m.reason = m.consumer = m.died_at = None
            m.ttl_base = q.now
            q.enter(m, q.now + o["DELAY"] if o.get("DELAY") else None)
            q.count("redriven")
            n += 1
        return n

    def rq_del(self, a):
        key, ids = a.next(), a.a[1:]
        q = self.queue(key)
        n = 0
        for i in ids if q else []:
            m = q.by_id(i)
            if m is not None:
                if m.state == "dead":
                    q.dead.remove(m)
                    q.count("deleted")
                else:
                    q.count("deleted", 1 + q.leave(m, release=False))
                n += 1
            q.windows.pop(i, None)
        if q:
            q.forget_groups()
        return n

    def rq_purge(self, a):
        key, what = a.next(), one_of("READY", "DELAYED", "DEAD", "ALL")(a)
        o = a.options(COUNT=lambda a: count(a.next("COUNT"), "count"))
        q = self.queue(key)
        n = 0
        sort = {"ready": lambda m: q.order(m), "delayed": lambda m: (m.due, m.seq), "dead": lambda m: 0}
        for s in ("dead", "delayed", "ready") if what == "ALL" else (what.lower(),):
            for m in sorted(q.in_state(s), key=sort[s]) if q else []:
                if n == o.get("COUNT"):
                    break
                f = m.follower
                if s == "dead":
                    q.dead.remove(m)
                    q.count("deleted")
                else:
                    q.count("deleted", 1 + q.leave(m, release=False))
                n += 1
                if q.windows.get(m.id, (0, 0))[1] in (m.uid, f.uid if f else None):
                    del q.windows[m.id]
        if q:
            q.forget_groups()
        return n

    def rq_get(self, a):
        key, ident = a.next(), a.next()
        a.options()
        q = self.queue(key)
        m = q.by_id(ident) if q else None
        return q.describe(m) if m else None

    def rq_list(self, a):
        key, state = a.next(), one_of("READY", "DELAYED", "INFLIGHT", "DEAD")(a).lower()
        o = a.options(NOPAYLOAD=flag, GROUP=lambda a: label(a.next("GROUP"), "group"), CURSOR=lambda a: a.next("CURSOR"),
                      COUNT=lambda a: integer(a.next("COUNT"), "count", 1, 10000))
        cur = o.get("CURSOR", b"0")
        if not re.fullmatch(rb"0|-?[0-9]+(:-?[0-9]+)+", cur):
            raise Err("ERR invalid cursor")
        q = self.queue(key)
        if not q:
            return [b"0", []]
        sort = {"ready": lambda m: q.order(m), "delayed": lambda m: (m.due, m.seq), "inflight": lambda m: (m.deadline, m.claim),
                "dead": lambda m: (m.died_at, q.dead.index(m))}[state]
        if state == "dead":     # a position that survives removals: the uid; deaths are listed oldest first
            items = [m for m in q.dead if "GROUP" not in o or m.group == o["GROUP"]]
            place = lambda m: (m.died_at, m.uid)
            start = 0 if cur == b"0" else next((i for i, m in enumerate(items) if m.died_at > int(cur.split(b":")[0])), len(items))
            if cur != b"0":
                same = [i for i, m in enumerate(items) if place(m) == tuple(map(int, cur.split(b":")))]
                start = same[0] + 1 if same else start
        else:
            items = sorted((m for m in q.in_state(state) if "GROUP" not in o or m.group == o["GROUP"]), key=sort)
            place = sort
            start = 0 if cur == b"0" else sum(1 for m in items if sort(m) <= tuple(map(int, cur.split(b":"))))
        page = items[start:start + o.get("COUNT", 10)]
        more = start + len(page) < len(items)
        nxt = ":".join(map(str, place(page[-1]))).encode() if more else b"0"
        maps = [q.describe(m) for m in page]
        if "NOPAYLOAD" in o:
            for m in maps:
                m[5] = None
        return [nxt, maps]

    def rq_len(self, a):
        key = a.next()
        state = one_of("READY", "DELAYED", "INFLIGHT", "DEAD")(a).lower() if a.more() else None
        a.options()
        q = self.queue(key)
        return 0 if not q else len(q.in_state(state)) if state else len(q.live)

    def rq_info(self, a):
        key = a.next()
        q = self.queue(key)
        return q.info(sum(1 for w in self.waiters if key in w.keys)) if q else None

    def rq_set(self, a):
        key = a.next()
        o = a.options(**SET_OPTIONS)
        self.queue(key)
        q = self.queue(key, True)
        q.cfg.update(o)
        if "RATE" in o:
            if o["RATE"] is None:
                q.bucket = None
            elif q.bucket:
                q.bucket.change(o["RATE"], q.now)
            else:
                q.bucket = Bucket(o["RATE"], q.now)
        if "GROUPRATE" in o:
            if o["GROUPRATE"] is None:
                q.group_buckets = {}
            for b in q.group_buckets.values():
                b.change(o["GROUPRATE"], q.now)
        q.trim_dead()
        q.advance(q.now)
        return OK

    def rq_pause(self, a):
        key = a.next()
        o = a.options(PUSH=flag, CLAIM=flag, GROUP=lambda a: label(a.next("GROUP"), "group"),
                      UNTIL=lambda a: instant(a.next("UNTIL"), "until"))
        if "PUSH" in o and "CLAIM" in o:
            raise Err("ERR syntax error: PUSH and CLAIM exclude each other; leave both out to pause both")
        until = o.get("UNTIL", FOREVER)
        q = self.queue(key)
        if q is None and until <= self.now:
            return OK
        q = self.queue(key, True)
        for what in ("PUSH", "CLAIM"):
            if what in o or not ("PUSH" in o or "CLAIM" in o):
                q.pauses.pop((o.get("GROUP"), what), None)
                if until > q.now:
                    q.pauses[(o.get("GROUP"), what)] = until
        return OK

    def rq_resume(self, a):
        key = a.next()
        o = a.options(GROUP=lambda a: label(a.next("GROUP"), "group"))
        q = self.queue(key)
        if q:
            for what in ("PUSH", "CLAIM"):
                q.pauses.pop((o.get("GROUP"), what), None)
        return OK

    def rq_move(self, a):
        sk, dk, what = a.next(), a.next(), one_of("READY", "DEAD")(a).lower()
        o = a.options(COUNT=lambda a: count(a.next("COUNT"), "count"))
        if sk == dk:
            raise Err("ERR source and destination are the same key")
        src, dst = self.queue(sk), self.queue(dk)
        if not src:
            return 0
        n = 0
        items = list(src.dead) if what == "dead" else sorted(src.in_state("ready"), key=src.order)
        for m in items:
            if n >= o.get("COUNT", MAX_INT):
                break
            if what == "ready" and dst:
                if dst.live_by_id(m.id):
                    continue
                if not dst.room_for(m):
                    break
            dst = dst or self.queue(dk, True)
            if what == "dead":
                src.dead.remove(m)
            else:
                src.leave(m)
            src.count("moved_out")
            m.uid = dst.tick_counter()
            dst.count("moved_in")
            if what == "dead":
                dst.dead.append(m)
                dst.trim_dead()
            else:
                dst.live.append(m)
                dst.enter(m)
            n += 1
        src.forget_groups()
        if dst:
            dst.advance(dst.now)
        return n

    # --- the rest of the server, as far as the cases need it

    def sluice_clock(self, a):
        if not a.more():
            return self.now
        sub = a.next().upper()
        if sub == b"REAL":
            a.options()
            self.frozen = None
            self.now = self.real()
            return OK
        if sub not in (b"SET", b"ADVANCE"):
            raise Err("ERR SLUICE.CLOCK takes SET ms, ADVANCE ms or REAL")
        ms = instant(a.next(), "ms")
        a.options()
        self.frozen = ms if sub == b"SET" else self.now + ms
        self.move_clock(self.frozen)
        return OK

    def oracle_next(self, a):
        """Oracle only: ms until anything is due on any key, -1 for never (lets the fuzzer walk the clock)."""
        stops = [t for q in self.queues() for t in (*q.events(), *q.token_events()) if t > self.now]
        return min(stops) - self.now if stops else -1

    def ping(self, a):
        return a.next() if a.more() else Status("PONG")

    def flushall(self, a):
        self.keys.clear()
        return OK

    def config(self, a):
        return OK

    def delete(self, a):
        return sum(1 for k in a.a if self.keys.pop(k, None) is not None)

    def exists(self, a):
        return sum(1 for k in a.a if k in self.keys)

    def type(self, a):
        v = self.keys.get(a.next())
        return Status("none" if v is None else "string" if isinstance(v, bytes) else "list" if isinstance(v, list) else "sluice-rq")

    def set(self, a):
        key, value = a.next(), a.next()
        self.keys[key] = value
        return OK

    def get(self, a):
        v = self.keys.get(a.next())
        if v is not None and not isinstance(v, bytes):
            raise WRONGTYPE
        return v

    def lpush(self, a):
        v = self.keys.get(a.next(), [])
        if not isinstance(v, list):
            raise WRONGTYPE
        self.keys[a.a[0]] = a.a[:0:-1] + v
        return len(self.keys[a.a[0]])

    def rename(self, a):
        src, dst = a.next(), a.next()
        if src not in self.keys:
            raise Err("ERR no such key")
        self.keys[dst] = self.keys.pop(src)
        return OK

    def copy(self, a):
        src, dst = a.next(), a.next()
        o = a.options(REPLACE=flag)
        if src == dst:
            raise Err("ERR source and destination objects are the same")
        if src not in self.keys or dst in self.keys and "REPLACE" not in o:
            return 0
        v = self.keys[src]
        if isinstance(v, Queue):
            v = copy.deepcopy(v, {id(self): self})
        self.keys[dst] = v
        return 1

    COMMANDS = {    # name: (method, least arguments, most arguments)
        b"RQ.PUSH": (rq_push, 2, None), b"RQ.MPUSH": (rq_mpush, 3, None), b"RQ.CLAIM": (rq_claim, 1, None),
        b"RQ.MCLAIM": (rq_mclaim, 2, None), b"RQ.ACK": (rq_ack, 2, None), b"RQ.NACK": (rq_nack, 4, None),
        b"RQ.EXTEND": (rq_extend, 3, None), b"RQ.NEXT": (rq_next, 4, None), b"RQ.REQUEUE": (rq_requeue, 1, None),
        b"RQ.REDRIVE": (rq_redrive, 1, None), b"RQ.DEL": (rq_del, 2, None), b"RQ.PURGE": (rq_purge, 2, None),
        b"RQ.GET": (rq_get, 2, 2), b"RQ.LIST": (rq_list, 2, None), b"RQ.LEN": (rq_len, 1, 2), b"RQ.INFO": (rq_info, 1, 1),
        b"RQ.SET": (rq_set, 3, None), b"RQ.PAUSE": (rq_pause, 1, None), b"RQ.RESUME": (rq_resume, 1, None),
        b"RQ.MOVE": (rq_move, 3, None),
        b"SLUICE.CLOCK": (sluice_clock, 0, 2), b"ORACLE.NEXT": (oracle_next, 0, 0), b"PING": (ping, 0, 1),
        b"FLUSHALL": (flushall, 0, None), b"CONFIG": (config, 1, None), b"DEL": (delete, 1, None), b"UNLINK": (delete, 1, None),
        b"EXISTS": (exists, 1, None), b"TYPE": (type, 1, 1), b"SET": (set, 2, 2), b"GET": (get, 1, 1),
        b"LPUSH": (lpush, 2, None), b"RENAME": (rename, 2, 2), b"COPY": (copy, 2, None),
    }
    in_exec = False

    def lookup(self, words):
        name = words[0].upper()
        if name not in self.COMMANDS:
            raise Err(f"ERR unknown command '{words[0].decode('latin-1')[:64]}'")
        method, least, most = self.COMMANDS[name]
        if len(words) - 1 < least or most is not None and len(words) - 1 > most:
            raise Err(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        return method

    def execute(self, words):
        try:
            return self.lookup(words)(self, Args(words[1:]))
        except Err as e:
            return e

    def command(self, client, words):
        self.client = client
        if self.frozen is None:
            self.move_clock(max(self.now, self.real()))
        name = words[0].upper()
        if name == b"MULTI":
            if client.multi is not None:
                return Err("ERR MULTI calls can not be nested")
            client.multi = []
            return OK
        if name in (b"EXEC", b"DISCARD"):
            if client.multi is None:
                return Err(f"ERR {name.decode()} without MULTI")
            queued, client.multi = client.multi, None
            if name == b"DISCARD":
                return OK
            if None in queued:
                return Err("EXECABORT Transaction discarded because of previous errors.")
            self.in_exec = True
            out = [self.execute(q) for q in queued]
            self.in_exec = False
            return out
        if client.multi is not None:
            try:
                self.lookup(words)
            except Err as e:
                client.multi.append(None)
                return e
            client.multi.append(words)
            return Status("QUEUED")
        return self.execute(words)

    # --- wire

    def encode(self, r):
        if isinstance(r, Err):
            return b"-" + str(r).encode() + b"\r\n"
        if isinstance(r, Status):
            return b"+" + r.encode() + b"\r\n"
        if r is None:
            return b"$-1\r\n"
        if isinstance(r, int):
            return b":%d\r\n" % r
        if isinstance(r, bytes):
            return b"$%d\r\n%s\r\n" % (len(r), r)
        return b"*%d\r\n" % len(r) + b"".join(map(self.encode, r))

    def send(self, client, reply):
        try:
            client.sock.setblocking(True)
            client.sock.sendall(self.encode(reply))
            client.sock.setblocking(False)
        except OSError:
            pass

    @staticmethod
    def parse(buf):
        """(words, rest) or (None, buf) when the command is not complete."""
        if buf[:1] != b"*":
            line, nl, rest = buf.partition(b"\r\n")
            return (line.split(), rest) if nl else (None, buf)
        pos, words = buf.find(b"\r\n"), []
        if pos < 0:
            return None, buf
        n, pos = int(buf[1:pos]), pos + 2
        for _ in range(n):
            end = buf.find(b"\r\n", pos)
            if end < 0:
                return None, buf
            size = int(buf[pos + 1:end])
            if len(buf) < end + 2 + size + 2:
                return None, buf
            words.append(buf[end + 2:end + 2 + size])
            pos = end + 2 + size + 2
        return words, buf[pos:]

    def drain(self, client):
        while client.waiter is None:
            words, client.buf = self.parse(client.buf)
            if words is None:
                return
            if not words:
                continue
            reply = self.command(client, words)
            if not isinstance(reply, Waiter):
                self.send(client, reply)
            self.settle()

    def drop(self, client):
        if client.waiter:
            self.waiters.remove(client.waiter)
        self.sel.unregister(client.sock)
        client.sock.close()

    def serve(self):
        while True:
            ends = [w.ends - time.monotonic() for w in self.waiters]
            timeout = max(0, min(ends + [0.01 if self.frozen is None else 5]))
            for key, _ in self.sel.select(timeout):
                if key.data is None:
                    s, _ = self.sock.accept()
                    s.setblocking(False)
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.sel.register(s, selectors.EVENT_READ, Client(s))
                    continue
                c = key.data
                try:
                    data = c.sock.recv(1 << 20)
                except OSError:
                    data = b""
                if not data:
                    self.drop(c)
                    continue
                c.buf += data
                self.drain(c)
            if self.frozen is None:
                self.move_clock(max(self.now, self.real()))
            for w in list(self.waiters):
                if w.ends <= time.monotonic():
                    self.answer(w, [w.acks, None] if w.kind == "next" else None)
            for key in list(self.sel.get_map().values()):   # those that were waiting may have sent more meanwhile
                if key.data is not None and key.data.buf:
                    self.drain(key.data)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("-p", "--port", type=int, default=7911)
    Server(p.parse_args().port).serve()
