#!/usr/bin/env python3
"""Reference model ("oracle") of the limiter half of sluice: TB.* LB.* SEM.* GATE.* HOT.* CL.THROTTLE.

usage: limiter_model.py PORT            (listens on 127.0.0.1 only; RESP2; one thread; one keyspace)

Written from the contract by the most naive exact means: levels are Fractions, waits are found by definition, every key is
looked at after every command. Time is the virtual clock (SLUICE.CLOCK), whole milliseconds. Standard library only.
"""
import copy, re, selectors, socket, sys, time
from fractions import Fraction as F
from math import ceil, floor

MAXN = 1_000_000_000_000
MAXMS = 31_622_400_000


class Err(Exception):
    """An error reply."""


class Status(str):
    pass


OK = Status("OK")
BLOCKED = object()
WRONG = "WRONGTYPE Operation against a key holding the wrong kind of value"


# ---------------------------------------------------------------- arguments

def integer(b):
    s = b.decode("latin-1")
    if not re.fullmatch(r"0|-?[1-9][0-9]*", s) or not -2**63 <= int(s) < 2**63:
        return None
    return int(s)


def num(b, name, lo=1, hi=MAXN):
    n = integer(b)
    if n is None or not lo <= n <= hi:
        raise Err(f"ERR {name} must be between {lo} and {hi}")
    return n


def ms(b, name, lo=1):
    return num(b, name, lo, MAXMS)


def options(args, spec):
    """spec: NAME -> None (a flag) or a function of the value. Returns a dict."""
    out, i = {}, 0
    while i < len(args):
        name = args[i].decode("latin-1").upper()
        if name not in spec:
            raise Err(f"ERR unknown option {name[:40]!r}, expected one of {' '.join(spec)}")
        if name in out:
            raise Err(f"ERR option {name} given twice")
        if spec[name] is None:
            out[name] = True
            i += 1
        else:
            if i + 1 >= len(args):
                raise Err(f"ERR option {name} needs a value")
            out[name] = spec[name](args[i + 1])
            i += 2
    return out


COST = {"COST": lambda v: num(v, "cost")}
MAXWAIT = {"MAXWAIT": lambda v: ms(v, "maxwait", 0)}      # Q: 0 allowed
BLOCK = {"BLOCK": lambda v: ms(v, "block")}


def subject(s):
    if not 1 <= len(s) <= 512:
        raise Err("ERR a subject must have 1 to 512 bytes")
    return s


def limits3(a):
    return num(a[0], "capacity"), num(a[1], "tokens"), ms(a[2], "period")


def limits_opts(args, spec):
    """[capacity tokens period] then options."""
    if args and args[0].decode("latin-1").upper() not in spec:
        if len(args) < 3:
            raise Err("ERR syntax error: expected capacity tokens period")
        return limits3(args), options(args[3:], spec)
    return None, options(args, spec)


# ---------------------------------------------------------------- token bucket arithmetic

class Bucket:
    """level (Fraction) at instant t; virgin = full since ever; u = start of the warm-up ramp, None = warm."""

    def __init__(self, cap, tok, per, warm=0):
        self.cap, self.tok, self.per, self.warm = cap, tok, per, warm
        self.level, self.t, self.u, self.virgin = F(cap), 0, None, True

    def limits(self):
        return self.cap, self.tok, self.per

    def rate(self):
        return F(self.tok, self.per)

    def gain(self, a, b):
        """tokens gained from a to b (a <= b)."""
        r = self.rate()
        if not self.warm or self.u is None:
            return r * (b - a)

        def total(x):  # integral of the gain from u to x, negative before u
            s, w = F(x - self.u), self.warm
            if s <= 0:
                return r * s
            if s <= w:
                return r * (s / 3 + s * s / (3 * w))
            return r * (F(2, 3) * w + (s - w))
        return total(b) - total(a)

    def raw(self, now):
        """the level at now, without cooling."""
        if self.virgin:
            return F(self.cap)
        if now >= self.t:
            return min(F(self.cap), self.level + self.gain(self.t, now))
        if self.level >= self.cap:
            return F(self.cap)
        return max(self.level - self.gain(now, self.t), min(F(0), self.level))

    def full(self, now):
        return self.raw(now) >= self.cap

    def cold(self, now):
        if not self.warm:
            return False
        if self.virgin:
            return True
        a = now - self.warm
        return a >= self.t and self.level + self.gain(self.t, a) >= self.cap

    def ahead(self, now):
        """True if a step back of the clock has put the state further ahead than one full drain."""
        return not self.virgin and now < self.t and self.level < self.cap and \
            self.level - self.gain(now, self.t) < min(F(0), self.level)

    def bring(self, now):
        """make the state one of instant now (no visible change, except that a cold bucket starts its warm-up)."""
        if self.cold(now):
            self.level, self.u = F(-(-self.cap // 3)), now
        else:
            self.level = self.raw(now)
            if self.u is not None and now - self.u >= self.warm:
                self.u = None
        self.t, self.virgin = now, False
        return self

    def at(self, now):
        return copy.copy(self).bring(now)

    def until(self, target):
        """after bring(): whole ms until the level is target."""
        need = target - self.level
        if need <= 0:
            return 0
        hi = ceil(need / self.rate()) if not self.warm or self.u is None else ceil(3 * need / self.rate())
        lo = 0
        while lo < hi:  # the smallest k with level + gain >= target
            k = (lo + hi) // 2
            if self.gain(self.t, self.t + k) >= need:
                hi = k
            else:
                lo = k + 1
        return lo

    def remaining(self):
        return max(0, floor(self.level))

    def next_after(self):
        return 0 if self.level >= self.cap else self.until(self.remaining() + 1)

    def reset_after(self):
        return self.until(self.cap)

    def six(self, granted, retry):
        return [granted, self.cap, self.remaining(), retry, self.next_after(), self.reset_after()]

    def full_instant(self, now):
        """the first whole ms at which it was full (it is full now)."""
        if self.level >= self.cap or now < self.t:
            return self.t
        lo, hi = self.t, now
        while lo < hi:
            k = (lo + hi) // 2
            if self.level + self.gain(self.t, k) >= self.cap:
                hi = k
            else:
                lo = k + 1
        return lo

    def changed(self, now, lim, warm=0, policy="KEEP"):
        """a copy with other limits."""
        n = Bucket(*lim, warm)
        if policy == "FULL":
            n.virgin, n.t = False, now
        elif self.full(now):
            if not self.virgin:
                n.virgin, n.t = False, self.full_instant(now)
        else:
            lv = self.raw(now)
            if policy == "ADD" and n.cap > self.cap:
                lv += n.cap - self.cap
            if policy == "SCALE":
                lv = lv * n.cap / self.cap
            grain = 1000 * n.per
            n.level, n.t, n.virgin = F(floor(min(lv, F(n.cap)) * grain), grain), now, False
            if warm and self.warm and self.u is not None and now - self.u < warm:
                n.u = self.u
        return n


class Waiter:
    def __init__(self, conn, **kw):
        self.conn = conn
        self.__dict__.update(kw)


class TB:
    kind = "sluice-tb"

    def __init__(self):
        self.b, self.pinned, self.ban, self.holds, self.waiters = None, False, 0, {}, []
        self.granted = self.refused = 0

    def forgets(self, now):
        """unpinned, full, no holds: its limits say the same as no limits (full is the same as absent)."""
        return self.b is None or (not self.pinned and not self.holds and self.b.full(now))

    def gone(self, now):
        return self.forgets(now) and self.ban <= now and not self.waiters

    def ends(self, now):
        """the instant until which an unpinned key must live."""
        e = [self.ban, now] + [h[1] for h in self.holds.values()]
        if self.b is not None:
            e.append(now + self.b.at(now).reset_after())
        return max(e)

    def bring(self, b, now):
        """bring bucket b (ours, or a copy about to replace it) to now, our waiters' own levels with it."""
        for w in self.waiters:
            if now >= self.b.t:
                w.v += self.b.gain(self.b.t, now)
        if b is not self.b:
            self.b.bring(now)
        b.bring(now)
        return b

    def due(self, now):
        """holds whose time is over, in order, each at its own instant."""
        for i, (n, end, onexpire) in sorted(self.holds.items(), key=lambda x: (x[1][1], x[0])):
            if end <= now:
                del self.holds[i]
                if onexpire == "REFUND" and not self.b.full(end):
                    self.bring(self.b, end)
                    self.put(n)

    def put(self, n):
        """put n tokens back (after bring); returns the whole tokens put back."""
        back = min(F(n), self.b.cap - self.b.level)
        self.b.level += back
        for w in self.waiters:
            w.v += n
        return floor(back)


# ---------------------------------------------------------------- leaky bucket

class Leaky:
    def __init__(self, cap, tok, per):
        self.cap, self.tok, self.per = cap, tok, per
        self.inside, self.t = F(0), 0

    def limits(self):
        return self.cap, self.tok, self.per

    def rate(self):
        return F(self.tok, self.per)

    def at(self, now):
        return copy.copy(self).bring(now)

    def raw(self, now):
        if now >= self.t:
            return max(F(0), self.inside - self.rate() * (now - self.t))
        if self.inside == 0:
            return F(0)
        return min(self.inside + self.rate() * (self.t - now), max(F(self.cap), self.inside))

    def ahead(self, now):
        return now < self.t and self.inside > 0 and \
            self.inside + self.rate() * (self.t - now) > max(F(self.cap), self.inside)

    def bring(self, now):
        self.inside, self.t = self.raw(now), now
        return self

    def wait(self):
        return ceil(self.inside / self.rate())

    def free(self):
        return max(0, floor(self.cap - self.inside))

    def retry(self, cost, maxwait):
        """after bring(): 0 = would be admitted, -1 never."""
        if cost > self.cap:
            return -1
        need = self.inside + cost - self.cap
        k = ceil(need / self.rate()) if need > 0 else 0
        if maxwait is not None:
            k = max(k, ceil(self.inside / self.rate() - maxwait))
        return k

    def changed(self, now, lim):
        n = Leaky(*lim)
        grain = 1000 * n.per
        n.inside, n.t = F(ceil(self.raw(now) * grain), grain), now
        return n


class LB:
    kind = "sluice-lb"

    def __init__(self):
        self.b, self.pinned, self.waiters, self.granted, self.refused = None, False, [], 0, 0

    def forgets(self, now):
        return self.b is None or (not self.pinned and self.b.raw(now) == 0)

    def gone(self, now):
        return self.forgets(now) and not self.waiters

    def ends(self, now):
        return now + self.b.at(now).wait()

    def due(self, now):
        pass


# ---------------------------------------------------------------- semaphore

class SEM:
    kind = "sluice-sm"

    def __init__(self):
        self.limit, self.lease, self.pinned, self.held, self.ended = None, 30000, False, {}, set()

    def due(self, now):
        for r in [r for r, h in self.held.items() if h[1] <= now]:
            del self.held[r]
            self.ended.add(r)

    def used(self):
        return sum(h[0] for h in self.held.values())

    def gone(self, now):
        return not self.pinned and not self.held

    def ends(self, now):
        return max([now] + [h[1] for h in self.held.values()])

    def release(self, r):
        if r in self.held:
            del self.held[r]
            return 1
        return 0

    def renew(self, r, now, n):
        if r in self.held:
            c, _, o = self.held[r]
            self.held[r] = (c, now + n, o)
            return n
        return 0


def sem_retry(held, line, count, limit, now, pinned_limit):
    """ms until a newcomer at the end of the line would get count permits by lease ends alone; -1 never."""
    if count > limit:
        return -1
    ends = [(h[1], h[0]) for h in held.values()]
    line = [(w.count, w.lease, w.until, w.limit) for w in line]
    t = now
    while True:
        ends = [e for e in ends if e[0] > t]
        while line:
            c, lease, until, lim = line[0]
            lim = pinned_limit or lim or limit
            if sum(e[1] for e in ends) + c <= lim:
                ends.append((t + lease, c))
                line.pop(0)
            elif until <= t:
                line.pop(0)
            else:
                break
        line = [w for w in line if w[2] > t]
        if not line and sum(e[1] for e in ends) + count <= limit:
            return t - now
        t = min([e[0] for e in ends] + [w[2] for w in line])


# ---------------------------------------------------------------- gate, hot

class GATE:
    kind = "sluice-gt"

    def __init__(self):
        self.stages = []  # [name, kind, object]
        self.granted = self.refused = 0

    def due(self, now):
        for _, k, o in self.stages:
            if k == "SEM":
                o.due(now)

    def gone(self, now):
        return False

    def sem(self):
        return next((o for _, k, o in self.stages if k == "SEM"), None)


class HOT:
    kind = "sluice-ht"

    def __init__(self):
        self.rule, self.maxsubjects, self.subjects, self.except_, self.forgotten, self.stats = None, 1000000, {}, {}, 0, {}

    def due(self, now):
        pass

    def live(self, now):
        """a subject that is full again is forgotten."""
        return {s: b for s, b in self.subjects.items() if not b.full(now)}

    def gone(self, now):
        return False


class Plain:
    def __init__(self, kind, value):
        self.kind, self.value = kind, value

    def due(self, now):
        pass

    def gone(self, now):
        return False


# ---------------------------------------------------------------- the server

class Server:
    def __init__(self):
        self.db, self.frozen, self.number = {}, None, 10**15
        self.line = {}  # key -> waiters for a semaphore or gate, first come first
        self.cmds = {k[3:].replace("_", "."): getattr(self, k) for k in dir(self) if k.startswith("do_")}

    @property
    def now(self):
        return self.frozen if self.frozen is not None else int(time.time() * 1000)

    # --- keys
    def get(self, key, cls=None):
        o = self.db.get(key)
        if o is None:
            return None
        if cls is not None and not isinstance(o, cls):
            raise Err(WRONG)
        o.due(self.now)
        return o

    def exists(self, key):
        o = self.get(key)
        return o is not None and not o.gone(self.now)

    def drop(self, key):
        o = self.db.pop(key, None)
        if isinstance(o, (TB, LB)):
            for w in o.waiters:  # what they booked is theirs: a missing key is full
                c = w.cap
                w.conn.answer([w.cost, c, c, 0, 0, 0])
            o.waiters = []

    def new_number(self):
        self.number += 1
        return self.number

    def settle_all(self):
        """what is due on every key, then whoever waits and can be served."""
        now = self.now
        for key in list(self.db):
            o = self.db[key]
            o.due(now)
            if isinstance(o, TB) and o.waiters:
                if o.b.ahead(now):
                    o.bring(o.b, now)
                for w in list(o.waiters):
                    v = w.v + (o.b.gain(o.b.t, now) if now >= o.b.t else 0)
                    if v >= 0 and w.not_before <= now:
                        o.waiters.remove(w)
                        w.conn.answer(o.b.at(now).six(w.cost, 0))
            if isinstance(o, LB):
                for w in list(o.waiters):
                    if w.at <= now:
                        o.waiters.remove(w)
                        b = o.b.at(now)
                        w.conn.answer([w.cost, b.cap, b.free(), 0, 0, b.wait()])
            if o.gone(now):
                del self.db[key]
        for key in list(self.line):
            again = True
            while again:
                again = False
                while self.line.get(key):  # strictly in order
                    w = self.line[key][0]
                    r = w.attempt(now)
                    if r is None:
                        break
                    self.line[key].pop(0)
                    w.conn.answer(r)
                for w in list(self.line.get(key, [])):
                    if w.until <= now:
                        r = w.refusal(now)
                        self.line[key].remove(w)
                        w.conn.answer(r)
                        again = True  # those behind it may go now
                        break
            if not self.line.get(key):
                self.line.pop(key, None)

    def leave(self, conn):
        """a client went away while it waited."""
        for o in self.db.values():
            if isinstance(o, TB):
                for i, w in enumerate(o.waiters):
                    if w.conn is conn:
                        o.bring(o.b, self.now)
                        o.waiters.pop(i)
                        o.b.level = min(F(o.b.cap), o.b.level + w.cost)
                        for later in o.waiters[i:]:
                            later.v += w.cost
                        break
            if isinstance(o, LB):
                for w in o.waiters:
                    if w.conn is conn:
                        o.waiters.remove(w)
                        o.b.bring(self.now)
                        o.b.inside = max(F(0), o.b.inside - w.cost)
                        break
        for q in self.line.values():
            q[:] = [w for w in q if w.conn is not conn]

    # --- TB
    def tb_open(self, key, limits):
        """(object or None, a copy of the bucket this call is about)."""
        o, now = self.get(key, TB), self.now
        if o is not None and (o.pinned or not o.forgets(now)):
            b = copy.copy(o.b)
            if not o.pinned and limits is not None and limits != b.limits():
                b = b.changed(now, limits)
            return o, b
        if limits is None:
            raise Err("ERR no limits: give capacity tokens period, or TB.SET the key first")
        return o, Bucket(*limits)

    def tb_store(self, key, o, b):
        if o is None or self.db.get(key) is not o:
            o = self.db[key] = TB()
        o.b = b
        return o

    def tb_decide(self, o, b, cost, mode=None):
        """b is brought to now; returns (granted, retry); does not charge."""
        banned = max(0, o.ban - self.now) if o is not None else 0
        if banned:
            if mode == "FORCE":
                return 0, -1 if cost > 2 * b.cap else max(banned, b.until(cost - b.cap))
            if cost > b.cap:
                return 0, -1
            return 0, max(banned, b.until(cost))
        if mode == "FORCE":
            if b.level - cost >= -b.cap:
                return cost, 0
            return 0, -1 if cost > 2 * b.cap else b.until(cost - b.cap)
        if b.level >= cost:
            return cost, 0
        retry = -1 if cost > b.cap else b.until(cost)
        if mode == "ATMOST" and b.remaining() > 0:
            return b.remaining(), retry  # the retry is recomputed after the charge
        return 0, retry

    def tb_take(self, key, limits, cost, mode=None, block=None, peek=False, conn=None):
        """returns (reply, granted); stores unless peek."""
        now = self.now
        o, b = self.tb_open(key, limits)
        was_cold, was_ahead, before = b.cold(now), b.ahead(now), b
        b = b.at(now)
        granted, retry = self.tb_decide(o, b, cost, mode)
        if not peek and o is not None and o.pinned:
            if granted or (block is not None and 0 < retry <= block):
                o.granted += 1
            else:
                o.refused += 1
        book = block is not None and not granted and 0 < retry <= block and not peek
        if granted or book:
            if not peek and o is not None and o.b is not None:
                o.bring(o.b, now)
            b.level -= granted or cost
            if not peek:
                o = self.tb_store(key, o, b)
            if book:
                o.waiters.append(Waiter(conn, cost=cost, v=b.level, cap=b.cap, not_before=max(now, o.ban)))
                return BLOCKED, 0
            if 0 < granted < cost:
                retry = -1 if cost > b.cap else b.until(cost)
        elif not peek and o is not None and o.b is not None:
            # refused: nothing changes, but for two repairs
            if o.b.ahead(now):
                o.bring(o.b, now)
            if o.pinned and was_cold and retry != -1 and o.ban <= now:
                o.bring(o.b, now)
        return b.six(granted, retry), granted

    TAKE = {**COST, "ATMOST": None, "FORCE": None, **BLOCK}

    def do_TB_TAKE(self, a, conn):
        limits, op = limits_opts(a[1:], self.TAKE)
        if ("ATMOST" in op) + ("FORCE" in op) + ("BLOCK" in op) > 1:
            raise Err("ERR ATMOST, FORCE and BLOCK exclude each other")
        mode = "ATMOST" if "ATMOST" in op else "FORCE" if "FORCE" in op else None
        return self.tb_take(a[0], limits, op.get("COST", 1), mode, None if conn.in_multi else op.get("BLOCK"), conn=conn)[0]

    def do_TB_PEEK(self, a, conn):
        limits, op = limits_opts(a[1:], COST)
        return self.tb_take(a[0], limits, op.get("COST", 1), peek=True)[0]

    def do_TB_REFUND(self, a, conn):
        n = num(a[1], "tokens")
        o, now = self.get(a[0], TB), self.now
        if o is None or o.forgets(now):
            return [0, 0, 0, 0, 0, 0]
        if o.b.full(now):
            return o.b.at(now).six(0, 0)
        o.bring(o.b, now)
        back = o.put(n)
        return o.b.six(back, 0)

    def do_TB_SET(self, a, conn):
        lim = limits3(a[1:])

        def level(v):
            v = v.decode("latin-1").upper()
            if v not in ("KEEP", "ADD", "SCALE", "FULL"):
                raise Err("ERR LEVEL must be KEEP, ADD, SCALE or FULL")
            return v
        op = options(a[4:], {"WARMUP": lambda v: ms(v, "warmup", 0), "LEVEL": level})
        o, now, warm, policy = self.get(a[0], TB), self.now, op.get("WARMUP", 0), op.get("LEVEL", "KEEP")
        if o is None:
            o = self.db[a[0]] = TB()
        old = o.b if o.b is not None and not o.forgets(now) or o.pinned else None
        if old is None:
            b = Bucket(*lim, warm)
            if policy == "FULL":
                b.virgin, b.t = False, now
        elif policy == "KEEP" and old.limits() == lim and old.warm == warm:
            b = old
        else:
            if not old.full(now):
                o.bring(old, now)
            b = old.changed(now, lim, warm, policy)
            for w in o.waiters:
                if policy == "FULL":
                    w.v = F(0)
                elif policy == "ADD" and b.cap > old.cap:
                    w.v += b.cap - old.cap
                elif policy == "SCALE":
                    w.v = w.v * b.cap / old.cap
                grain = 1000 * b.per
                w.v = F(floor(w.v * grain), grain)
        o.b, o.pinned = b, True
        return OK

    def do_TB_RESET(self, a, conn):
        o, now = self.get(a[0], TB), self.now
        if o is None:
            return OK
        if not o.pinned:
            self.drop(a[0])
            return OK
        b = o.b
        o.b = Bucket(b.cap, b.tok, b.per, b.warm)
        o.b.virgin, o.b.t = False, now
        o.ban, o.holds = 0, {}
        for w in o.waiters:
            w.v, w.not_before = F(0), now
        return OK

    def do_TB_DRAIN(self, a, conn):
        limits, _ = limits_opts(a[1:], {})
        o, b = self.tb_open(a[0], limits)
        now = self.now
        b = b.at(now)
        out = b.remaining()
        if o is not None and o.b is not None:
            o.bring(o.b, now)
        b.level = min(b.level, F(0))
        self.tb_store(a[0], o, b)
        return b.six(out, 0)

    def do_TB_BAN(self, a, conn):
        n = ms(a[1], "ban", 0)
        o, now = self.get(a[0], TB), self.now
        if o is None:
            if n == 0:
                return OK
            o = self.db[a[0]] = TB()
        o.ban = now + n if n else 0
        for w in o.waiters:
            w.not_before = min(w.not_before, max(now, o.ban))
        return OK

    def do_TB_HOLD(self, a, conn):
        def onexpire(v):
            v = v.decode("latin-1").upper()
            if v not in ("KEEP", "REFUND"):
                raise Err("ERR ONEXPIRE must be KEEP or REFUND")
            return v
        limits, op = limits_opts(a[1:], {**COST, "TTL": lambda v: ms(v, "ttl"), "ONEXPIRE": onexpire})
        if "COST" not in op or "TTL" not in op:
            raise Err("ERR TB.HOLD needs COST n and TTL ms")
        reply, granted = self.tb_take(a[0], limits, op["COST"])
        if not granted:
            return reply + [None]
        i = self.new_number()
        self.db[a[0]].holds[i] = (op["COST"], self.now + op["TTL"], op.get("ONEXPIRE", "KEEP"))
        return reply + [i]

    def do_TB_SETTLE(self, a, conn):
        actual = num(a[2], "actual", 0)
        o, now = self.get(a[0], TB), self.now
        i = integer(a[1])
        if o is None or i not in o.holds:
            raise Err("ERR no such hold")
        n = o.holds.pop(i)[0]
        if actual < n:
            if o.b.full(now):
                return o.b.at(now).six(0, 0)
            o.bring(o.b, now)
            return o.b.six(o.put(n - actual), 0)
        if actual == n:
            return o.b.at(now).six(0, 0)
        o.bring(o.b, now)
        charge = min(F(actual - n), max(F(0), o.b.level + o.b.cap))
        o.b.level -= charge
        return o.b.six(floor(charge), 0)

    def do_TB_INFO(self, a, conn):
        o, now = self.get(a[0], TB), self.now
        if o is None or o.gone(now):
            return None
        if o.forgets(now):
            z = [0, 0, 0, 0, 0, 0, 0, 0, 0]
        else:
            b = o.b.at(now)
            z = [b.cap, b.tok, b.per, b.warm, int(o.pinned), b.remaining(), max(0, ceil(-b.level)), b.next_after(), b.reset_after()]
        z += [max(0, o.ban - now), len(o.holds), o.granted, o.refused]
        names = "capacity tokens period warmup pinned remaining debt next_after reset_after banned_for holds granted refused".split()
        return [x for p in zip(names, z) for x in p]

    def do_CL_THROTTLE(self, a, conn):
        lim = (num(a[1], "max_burst", 0, MAXN - 1) + 1, num(a[2], "count"), num(a[3], "period", 1, MAXMS // 1000) * 1000)
        q = num(a[4], "quantity", 0) if len(a) > 4 else 1
        if q == 0:
            o, b = self.tb_open(a[0], lim)
            r = b.at(self.now).six(0, 0)
            return [0, r[1], r[2], -1, -(-r[5] // 1000)]
        r, granted = self.tb_take(a[0], lim, q)
        return [int(not granted), r[1], r[2], -1 if granted or r[3] < 0 else -(-r[3] // 1000), -(-r[5] // 1000)]

    # --- LB
    def lb_open(self, key, limits):
        o, now = self.get(key, LB), self.now
        if o is not None and (o.pinned or not o.forgets(now)):
            b = copy.copy(o.b)
            if not o.pinned and limits is not None and limits != b.limits():
                b = b.changed(now, limits)
            return o, b
        if limits is None:
            raise Err("ERR no limits: give capacity tokens period, or LB.SET the key first")
        return o, Leaky(*limits)

    def lb_take(self, key, limits, cost, maxwait, block=False, peek=False, conn=None):
        now = self.now
        o, b = self.lb_open(key, limits)
        b = b.at(now)
        retry, wait = b.retry(cost, maxwait), b.wait()
        if o is not None and o.pinned and not peek:
            o.granted, o.refused = o.granted + (retry == 0), o.refused + (retry != 0)
        if retry == 0:
            b.inside += cost
            if not peek:
                if o is None:
                    o = self.db[key] = LB()
                o.b = b
                if block and wait > 0:
                    o.waiters.append(Waiter(conn, cost=cost, at=now + wait, cap=b.cap))
                    return BLOCKED
        elif not peek and o is not None and o.b.ahead(now):
            o.b.bring(now)
        return [cost if retry == 0 else 0, b.cap, b.free(), retry, wait, b.wait()]

    def do_LB_TAKE(self, a, conn):
        limits, op = limits_opts(a[1:], {**COST, **MAXWAIT, "BLOCK": None})
        return self.lb_take(a[0], limits, op.get("COST", 1), op.get("MAXWAIT"), "BLOCK" in op and not conn.in_multi, conn=conn)

    def do_LB_PEEK(self, a, conn):
        limits, op = limits_opts(a[1:], {**COST, **MAXWAIT})
        return self.lb_take(a[0], limits, op.get("COST", 1), op.get("MAXWAIT"), peek=True)

    def do_LB_REFUND(self, a, conn):
        n = num(a[1], "tokens")
        o, now = self.get(a[0], LB), self.now
        if o is None or o.forgets(now):
            return [0, 0, 0, 0, 0, 0]
        b = o.b.bring(now) if o.b.raw(now) else o.b.at(now)
        back = min(F(n), b.inside)
        b.inside -= back
        return [floor(back), b.cap, b.free(), 0, b.wait(), b.wait()]

    def do_LB_SET(self, a, conn):
        lim = limits3(a[1:])
        if len(a) > 4:
            raise Err("ERR syntax error: LB.SET takes no options")
        o, now = self.get(a[0], LB), self.now
        if o is None:
            o = self.db[a[0]] = LB()
        if o.b is None:
            o.b = Leaky(*lim)
        elif o.b.limits() != lim:
            o.b = o.b.changed(now, lim)
        o.pinned = True
        return OK

    def do_LB_RESET(self, a, conn):
        o = self.get(a[0], LB)
        if o is not None and o.pinned:
            o.b = Leaky(*o.b.limits())
            for w in o.waiters:
                w.at = self.now
        elif o is not None:
            self.drop(a[0])
        return OK

    def do_LB_INFO(self, a, conn):
        o, now = self.get(a[0], LB), self.now
        if o is None or o.gone(now):
            return None
        b = o.b.at(now)
        return ["capacity", b.cap, "tokens", b.tok, "period", b.per, "pinned", int(o.pinned), "free", b.free(), "inside", ceil(b.inside),
                "drained_after", b.wait(), "granted", o.granted, "refused", o.refused]

    # --- SEM
    def sem_limit(self, o, limit):
        if o is not None and o.pinned:
            return o.limit
        if limit is not None:
            return limit
        if o is None or o.gone(self.now):
            raise Err("ERR no limits: give a limit, or SEM.SET the key first")
        return o.limit

    def sem_try(self, key, limit, count, lease, owner, peek=False, line=None):
        """the reply now; stores a grant unless peek. line = those who wait before it (default: all who wait)."""
        now = self.now
        o = self.get(key, SEM)
        lim = self.sem_limit(o, limit)
        line = self.line.get(key, []) if line is None else line
        used = o.used() if o is not None else 0
        if not line and used + count <= lim:
            receipt = None
            if not peek:
                if o is None:
                    o = self.db[key] = SEM()
                if not o.pinned:
                    o.limit = lim
                receipt = self.new_number()
                o.held[receipt] = (count, now + (lease or o.lease), owner)
            return [count, lim, lim - used - count, 0, receipt]
        held = o.held if o is not None else {}
        retry = sem_retry(held, line, count, lim, now, o.limit if o is not None and o.pinned else None)
        return [0, lim, 0 if line else max(0, lim - used), retry, None]

    def sem_args(self, a, spec):
        if a and a[0].decode("latin-1").upper() not in spec:
            return num(a[0], "limit"), options(a[1:], spec)
        return None, options(a, spec)

    def do_SEM_ACQUIRE(self, a, conn):
        key = a[0]
        limit, op = self.sem_args(a[1:], {"COUNT": lambda v: num(v, "count"), "LEASE": lambda v: ms(v, "lease"), "OWNER": lambda v: v, **BLOCK})
        count, lease, owner = op.get("COUNT", 1), op.get("LEASE"), op.get("OWNER", b"")
        r = self.sem_try(key, limit, count, lease, owner)
        if r[0] or r[3] == -1 or "BLOCK" not in op or conn.in_multi:
            return r

        def attempt(now):
            try:
                r = self.sem_try(key, limit, count, lease, owner, line=[])
            except Err as e:
                return e
            return r if r[0] or r[3] == -1 else None

        def refusal(now):
            try:
                q = self.line[key]
                return self.sem_try(key, limit, count, lease, owner, peek=True, line=q[:[w.refusal for w in q].index(refusal)])
            except Err as e:
                return e
        o = self.db.get(key)
        self.line.setdefault(key, []).append(Waiter(conn, attempt=attempt, refusal=refusal, until=self.now + op["BLOCK"], count=count,
                                                    lease=lease or (o.lease if o else 30000), limit=limit))
        return BLOCKED

    def do_SEM_PEEK(self, a, conn):
        limit, op = self.sem_args(a[1:], {"COUNT": lambda v: num(v, "count")})
        return self.sem_try(a[0], limit, op.get("COUNT", 1), None, b"", peek=True)

    def do_SEM_RELEASE(self, a, conn):
        rs = [num(r, "receipt", 1, 2**63 - 1) for r in a[1:]]
        o = self.get(a[0], SEM)
        return [o.release(r) if o is not None else 0 for r in rs]

    def do_SEM_RENEW(self, a, conn):
        n = ms(a[1], "ms")
        rs = [num(r, "receipt", 1, 2**63 - 1) for r in a[2:]]
        o = self.get(a[0], SEM)
        return [o.renew(r, self.now, n) if o is not None else 0 for r in rs]

    def do_SEM_SET(self, a, conn):
        limit = num(a[1], "limit")
        op = options(a[2:], {"LEASE": lambda v: ms(v, "lease")})
        o = self.get(a[0], SEM)
        if o is None:
            o = self.db[a[0]] = SEM()
        o.limit, o.lease, o.pinned = limit, op.get("LEASE", 30000), True
        return OK

    def do_SEM_INFO(self, a, conn):
        op = options(a[1:], {"HOLDERS": None})
        o, now = self.get(a[0], SEM), self.now
        if o is None or o.gone(now):
            return None
        r = ["limit", o.limit, "lease", o.lease, "pinned", int(o.pinned), "held", o.used(), "free", max(0, o.limit - o.used()),
             "waiting", len(self.line.get(a[0], []))]
        if op:
            r += ["holders", [[i, h[0], h[2], h[1] - now] for i, h in sorted(o.held.items())]]
        return r

    # --- GATE
    def do_GATE_SET(self, a, conn):
        key, a, i, new = a[0], a[1:], 0, []
        while i < len(a):
            if a[i].upper() != b"STAGE" or i + 2 >= len(a):
                raise Err("ERR syntax error: expected STAGE name TB|LB|SEM ...")
            name, kind = a[i + 1], a[i + 2].decode("latin-1").upper()
            j = i + 3
            while j < len(a) and a[j].upper() != b"STAGE":
                j += 1
            rest = a[i + 3:j]
            if not name or len(name) > 512:
                raise Err("ERR a stage name must have 1 to 512 bytes")
            if name in [s[0] for s in new]:
                raise Err("ERR stage name given twice")
            if kind in ("TB", "LB"):
                if len(rest) < 3:
                    raise Err("ERR syntax error: expected capacity tokens period")
                lim = limits3(rest)
                op = options(rest[3:], {"WARMUP": lambda v: ms(v, "warmup", 0)} if kind == "TB" else {})
                new.append([name, kind, lim, op.get("WARMUP", 0)])
            elif kind == "SEM":
                if not rest:
                    raise Err("ERR syntax error: expected limit")
                if "SEM" in [s[1] for s in new]:
                    raise Err("ERR at most one SEM stage")
                new.append([name, kind, num(rest[0], "limit"), options(rest[1:], {"LEASE": lambda v: ms(v, "lease")}).get("LEASE", 30000)])
            else:
                raise Err("ERR a stage must be TB, LB or SEM")
            i = j
        if not 1 <= len(new) <= 16:
            raise Err("ERR stages must be between 1 and 16")
        o, now = self.get(key, GATE), self.now
        if o is None:
            o = self.db[key] = GATE()
        old = {(s[0], s[1]): s[2] for s in o.stages}
        out = []
        for name, kind, lim, extra in new:
            p = old.get((name, kind))
            if kind == "TB":
                b = Bucket(*lim, extra) if p is None else p if p.limits() == lim and p.warm == extra else p.changed(now, lim, extra)
            elif kind == "LB":
                b = Leaky(*lim) if p is None else p if p.limits() == lim else p.changed(now, lim)
            else:
                b = p or SEM()
                b.limit, b.lease, b.pinned = lim, extra, True
            out.append([name, kind, b])
        o.stages = out
        return OK

    def stage_row(self, name, kind, b, cost, maxwait, o=None):
        """(would pass, retry, wait, row if refused, row if granted)."""
        now = self.now
        if kind == "TB":
            b = b.at(now)
            granted, retry = self.tb_decide(o, b, cost)
            after = copy.copy(b)
            after.level -= cost
            return granted > 0, retry, 0, [name, b.cap, b.remaining(), retry, 0, b.reset_after()], \
                [name, b.cap, after.remaining(), 0, 0, after.reset_after()]
        if kind == "LB":
            b = b.at(now)
            retry, wait = b.retry(cost, maxwait), b.wait()
            after = copy.copy(b)
            after.inside += cost
            return retry == 0, retry, wait, [name, b.cap, b.free(), retry, wait, wait], [name, b.cap, after.free(), 0, wait, after.wait()]
        used = b.used()
        retry = sem_retry(b.held, [], 1, b.limit, now, b.limit)
        end = max([0] + [h[1] - now for h in b.held.values()])
        return retry == 0, retry, 0, [name, b.limit, max(0, b.limit - used), retry, 0, end], \
            [name, b.limit, b.limit - used - 1, 0, 0, end]  # reset_after of a granted SEM stage is completed in pass_

    def pass_(self, targets, cost, maxwait, peek, ahead_of=None):
        """targets: (name, kind, bucket, TB object or None). All or none."""
        now = self.now
        rows = [self.stage_row(n, k, b, cost, maxwait, o) for n, k, b, o in targets]
        wait = max(r[2] for r in rows)
        by = [t[0] for t, r in zip(targets, rows) if not r[0]]
        retries = [r[1] for r in rows]
        if by:
            retry = -1 if -1 in retries else max(retries)
            if not peek:
                for (n, k, b, o), r in zip(targets, rows):
                    if k != "SEM" and b.ahead(now):
                        o.bring(b, now) if o is not None else b.bring(now)
                    if k == "TB" and not r[0] and r[1] != -1 and b.cold(now) and (o is None or o.ban <= now):
                        o.bring(b, now) if o is not None else b.bring(now)
            return [0, wait, retry, by, None, [r[3] for r in rows]]
        receipt = None
        out = []
        for (n, k, b, o), r in zip(targets, rows):
            row = r[4]
            if k == "SEM":
                if not peek and receipt is None:
                    receipt = self.new_number()
                row[5] = max(row[5], wait + b.lease)
                if not peek:
                    b.held[receipt] = (1, now + wait + b.lease, b"")
            elif not peek:
                o.bring(b, now) if isinstance(o, TB) else b.bring(now)
                if k == "TB":
                    b.level -= cost
                else:
                    b.inside += cost
            out.append(row)
        return [cost, wait, 0, [], receipt, out]

    def gate(self, key):
        o = self.get(key, GATE)
        if o is None:
            raise Err("ERR no such gate: GATE.SET the key first")
        return o

    def gate_targets(self, o):
        return [(n, k, b, None) for n, k, b in o.stages]

    def do_GATE_PASS(self, a, conn):
        key = a[0]
        op = options(a[1:], {**COST, **MAXWAIT, **BLOCK})
        cost, maxwait = op.get("COST", 1), op.get("MAXWAIT")
        o = self.gate(key)
        block = None if conn.in_multi else op.get("BLOCK")

        def behind(now, head):
            """the refusal of one who stands in line behind head."""
            h = head.refusal(now)
            t = self.gate_targets(self.gate(key))
            r = self.pass_(t, cost, maxwait, True)
            if r[0]:
                return [0, r[1], h[2], h[3], None, self.pass_(t, MAXN, maxwait, True)[5]]
            r[2] = -1 if r[2] == -1 else max(r[2], h[2])
            return r
        if self.line.get(key):  # nobody overtakes those who wait
            r = behind(self.now, self.line[key][0])
        else:
            r = self.pass_(self.gate_targets(o), cost, maxwait, False)
        if r[0]:
            o.granted += 1
        else:
            o.refused += 1
        if r[0] or block is None or r[2] == -1:
            return r
        fixed = [row[3] for row, s in zip(r[5], o.stages) if s[1] != "SEM"]
        if fixed and max(fixed) > block:
            return r

        def refusal(now):
            try:
                head = self.line[key][0]
                if head.refusal is not refusal:
                    return behind(now, head)
                return self.pass_(self.gate_targets(self.gate(key)), cost, maxwait, True)
            except Err as e:
                return e

        def attempt(now):
            try:
                r = self.pass_(self.gate_targets(self.gate(key)), cost, maxwait, True)
                if r[2] == -1:
                    return r
                return self.pass_(self.gate_targets(self.gate(key)), cost, maxwait, False) if r[0] else None
            except Err as e:
                return e
        self.line.setdefault(key, []).append(Waiter(conn, attempt=attempt, refusal=refusal, until=self.now + block))
        return BLOCKED

    def do_GATE_PEEK(self, a, conn):
        op = options(a[1:], {**COST, **MAXWAIT})
        return self.pass_(self.gate_targets(self.gate(a[0])), op.get("COST", 1), op.get("MAXWAIT"), True)

    def do_GATE_MPASS(self, a, conn):
        n = num(a[0], "numkeys")
        if len(a) < 1 + n:
            raise Err("ERR numkeys is more than the number of keys given")
        keys = a[1:1 + n]
        op = options(a[1 + n:], {**COST, **MAXWAIT})
        if len(set(keys)) != n:
            raise Err("ERR a key is given twice")
        t = []
        for k in keys:
            o = self.get(k)
            if o is None or isinstance(o, (TB, LB)) and not o.pinned:
                raise Err("ERR no limits: SET the key first")
            if isinstance(o, TB):
                t.append((k, "TB", o.b, o))
            elif isinstance(o, LB):
                t.append((k, "LB", o.b, None))
            elif isinstance(o, GATE):
                t += [(k + b"/" + s[0], s[1], s[2], None) for s in o.stages]
            else:
                raise Err(WRONG)
        return self.pass_(t, op.get("COST", 1), op.get("MAXWAIT"), False)

    def do_GATE_LEAVE(self, a, conn):
        rs = [num(r, "receipt", 1, 2**63 - 1) for r in a[1:]]
        o = self.get(a[0], GATE)
        s = o.sem() if o is not None else None
        return [s.release(r) if s is not None else 0 for r in rs]

    def do_GATE_INFO(self, a, conn):
        o = self.get(a[0], GATE)
        if o is None:
            return None
        return ["stages", self.pass_(self.gate_targets(o), MAXN, None, True)[5], "waiting", len(self.line.get(a[0], [])),
                "granted", o.granted, "refused", o.refused]

    # --- HOT
    def hot(self, key):
        o = self.get(key, HOT)
        if o is None:
            raise Err("ERR no such rule: HOT.SET the key first")
        return o

    def do_HOT_SET(self, a, conn):
        lim = limits3(a[1:])
        op = options(a[4:], {"MAXSUBJECTS": lambda v: num(v, "maxsubjects")})
        o, now = self.get(a[0], HOT), self.now
        if o is None:
            o = self.db[a[0]] = HOT()
        o.rule, o.maxsubjects = lim, op.get("MAXSUBJECTS", 1000000)
        o.subjects = o.live(now)
        for s, b in o.subjects.items():
            if s not in o.except_ and b.limits() != lim:
                o.subjects[s] = b.changed(now, lim)
        self.hot_room(o, o.maxsubjects)
        return OK

    def hot_room(self, o, most):
        """drop those nearest to full until at most `most` remain."""
        o.subjects = o.live(self.now)
        while len(o.subjects) > most:
            s = min(o.subjects, key=lambda s: (o.subjects[s].at(self.now).reset_after(), s))
            del o.subjects[s]
            o.forgotten += 1

    def do_HOT_EXCEPT(self, a, conn):
        key, s = a[0], subject(a[1])
        if len(a) == 3 and a[2].upper() == b"DEL":
            o = self.hot(key)
            lim, out = o.rule, int(o.except_.pop(s, None) is not None)
        elif len(a) == 5:
            lim = limits3(a[2:])
            o = self.hot(key)
            o.except_[s], out = lim, OK
        else:
            raise Err("ERR syntax error: expected capacity tokens period, or DEL")
        b = o.subjects.get(s)
        if b is not None and b.limits() != lim:
            o.subjects[s] = b.changed(self.now, lim)
        return out

    def hot_take(self, key, s, cost, mode, peek):
        o, now = self.hot(key), self.now
        lim = o.except_.get(s, o.rule)
        known = s in o.live(now)
        stored = o.subjects[s] if known else None
        b = (stored if known else Bucket(*lim)).at(now)
        granted, retry = self.tb_decide(None, b, cost, mode)
        if not peek:
            st = o.stats.setdefault(s, [0, 0])
            st[0 if granted else 1] += 1
        if granted:
            b.level -= granted
            if granted < cost:
                retry = -1 if cost > b.cap else b.until(cost)
            if not peek:
                if not known:
                    o.subjects.pop(s, None)
                    self.hot_room(o, o.maxsubjects - 1)
                o.subjects[s] = b
        elif not peek and known and stored.ahead(now):
            stored.bring(now)
        return b.six(granted, retry)

    def do_HOT_TAKE(self, a, conn):
        subject(a[1])
        op = options(a[2:], {**COST, "ATMOST": None})
        return self.hot_take(a[0], a[1], op.get("COST", 1), "ATMOST" if "ATMOST" in op else None, False)

    def do_HOT_PEEK(self, a, conn):
        subject(a[1])
        op = options(a[2:], COST)
        return self.hot_take(a[0], a[1], op.get("COST", 1), None, True)

    def do_HOT_TOP(self, a, conn):
        op = options(a[1:], {"COUNT": lambda v: num(v, "count")})
        o = self.hot(a[0])
        top = sorted(o.stats.items(), key=lambda x: (-sum(x[1]), x[0]))[:op.get("COUNT", 10)]
        return [[s, g, r] for s, (g, r) in top]

    def do_HOT_INFO(self, a, conn):
        o = self.get(a[0], HOT)
        if o is None:
            return None
        return ["capacity", o.rule[0], "tokens", o.rule[1], "period", o.rule[2], "maxsubjects", o.maxsubjects, "subjects", len(o.live(self.now)),
                "exceptions", len(o.except_), "forgotten", o.forgotten]

    # --- the module, and just enough of Redis
    def do_SLUICE_VERSION(self, a, conn):
        return "0.0.0-oracle"

    def do_SLUICE_CLOCK(self, a, conn):
        if not a:
            return self.now
        w = a[0].upper()
        if w == b"SET" and len(a) == 2:
            self.move(num(a[1], "ms", 0, 2**53))
        elif w == b"ADVANCE" and len(a) == 2:
            self.move(self.now + ms(a[1], "ms"))
        elif w == b"REAL" and len(a) == 1:
            self.frozen = None
        else:
            raise Err("ERR syntax error: expected SET ms, ADVANCE ms or REAL")
        return OK

    def move(self, to):
        """freeze the clock at `to`, stopping on the way at each instant at which something is due."""
        while self.frozen is not None:
            t = self.next_instant()
            if t is None or t >= to:
                break
            self.frozen = t
            self.settle_all()
        self.frozen = to

    def next_instant(self):
        """the next instant after now at which a lease or hold ends or a waiter may be served; None if there is none."""
        now, c = self.now, []
        for o in self.db.values():
            if isinstance(o, TB):
                c += [h[1] for h in o.holds.values()]
                for w in o.waiters:
                    v = w.v + (o.b.gain(o.b.t, now) if now >= o.b.t else 0)
                    b = o.b.at(now)
                    b.level = v
                    c.append(max(now + b.until(0), w.not_before))
            elif isinstance(o, LB):
                c += [w.at for w in o.waiters]
            elif isinstance(o, SEM):
                c += [h[1] for h in o.held.values()]
            elif isinstance(o, GATE) and o.sem():
                c += [h[1] for h in o.sem().held.values()]
        for q in self.line.values():
            for w in q:
                r = w.refusal(now)
                c += [w.until] + [now + x for x in (r[2], r[3]) if type(x) is int and x > 0]
        return min((t for t in c if t > now), default=None)

    def do_PING(self, a, conn):
        return Status("PONG")

    def do_FLUSHALL(self, a, conn):
        for k in list(self.db):
            self.drop(k)
        return OK

    def do_CONFIG(self, a, conn):
        if a[0].upper() == b"RESETSTAT":
            return OK
        raise Err("ERR unsupported")

    def do_DEL(self, a, conn):
        n = 0
        for k in a:
            n += self.exists(k)
            self.drop(k)
        return n

    def do_EXISTS(self, a, conn):
        return sum(self.exists(k) for k in a)

    def do_TYPE(self, a, conn):
        return Status(self.db[a[0]].kind if self.exists(a[0]) else "none")

    def do_PTTL(self, a, conn):
        if not self.exists(a[0]):
            return -2
        o = self.db[a[0]]
        if isinstance(o, (TB, LB, SEM)) and not o.pinned:
            return o.ends(self.now) - self.now + 1000
        return -1

    def do_SET(self, a, conn):
        self.drop(a[0])
        self.db[a[0]] = Plain("string", a[1])
        return OK

    def do_GET(self, a, conn):
        o = self.get(a[0])
        if o is None:
            return None
        if o.kind != "string":
            raise Err(WRONG)
        return o.value

    def do_LPUSH(self, a, conn):
        o = self.get(a[0])
        if o is None:
            o = self.db[a[0]] = Plain("list", [])
        if o.kind != "list":
            raise Err(WRONG)
        o.value.extend(a[1:])
        return len(o.value)

    def do_RENAME(self, a, conn):
        if not self.exists(a[0]):
            raise Err("ERR no such key")
        o = self.db.pop(a[0])
        self.drop(a[1])
        self.db[a[1]] = o
        return OK

    def do_COPY(self, a, conn):
        replace = len(a) == 3 and a[2].upper() == b"REPLACE"
        if not self.exists(a[0]) or self.exists(a[1]) and not replace:
            return 0
        o = self.db[a[0]]
        waiters, o2 = getattr(o, "waiters", None), None
        if waiters is not None:
            o.waiters = []
        o2 = copy.deepcopy(o)
        if waiters is not None:
            o.waiters = waiters
        self.drop(a[1])
        self.db[a[1]] = o2
        return 1

    ARITY = {  # like Redis: exact, or -(at least), the command's name counted
        "TB.TAKE": -2, "TB.PEEK": -2, "TB.REFUND": 3, "TB.SET": -5, "TB.RESET": 2, "TB.DRAIN": -2, "TB.BAN": 3, "TB.HOLD": -6, "TB.SETTLE": 4,
        "TB.INFO": 2, "CL.THROTTLE": -5, "LB.TAKE": -2, "LB.PEEK": -2, "LB.REFUND": 3, "LB.SET": 5, "LB.RESET": 2, "LB.INFO": 2,
        "SEM.ACQUIRE": -2, "SEM.RELEASE": -3, "SEM.RENEW": -4, "SEM.PEEK": -2, "SEM.SET": -3, "SEM.INFO": -2, "GATE.SET": -5, "GATE.PASS": -2,
        "GATE.MPASS": -3, "GATE.LEAVE": -3, "GATE.PEEK": -2, "GATE.INFO": 2, "HOT.SET": -5, "HOT.EXCEPT": -4, "HOT.TAKE": -3, "HOT.PEEK": -3,
        "HOT.TOP": -2, "HOT.INFO": 2, "SLUICE.VERSION": 1, "SLUICE.CLOCK": -1, "PING": -1, "FLUSHALL": -1, "CONFIG": -2, "DEL": -2, "EXISTS": -2,
        "TYPE": 2, "PTTL": 2, "SET": 3, "GET": 2, "LPUSH": -3, "RENAME": 3, "COPY": -3}

    def run(self, argv, conn):
        name = argv[0].decode("latin-1").upper()
        f = self.cmds.get(name)
        try:
            if f is None:
                raise Err(f"ERR unknown command '{name[:40]}'")
            n = self.ARITY[name]
            if len(argv) != n if n > 0 else len(argv) < -n:
                raise Err(f"ERR wrong number of arguments for '{name.lower()}' command")
            if name == "CL.THROTTLE" and len(argv) > 6:
                raise Err("ERR wrong number of arguments for 'cl.throttle' command")
            return f(argv[1:], conn)
        except Err as e:
            return e

    def command(self, argv, conn):
        name = argv[0].upper()
        if name == b"MULTI":
            conn.queue = []
            return OK
        if name == b"EXEC":
            if conn.queue is None:
                return Err("ERR EXEC without MULTI")
            q, conn.queue, conn.in_multi = conn.queue, None, True
            out = []
            for c in q:
                self.settle_all()
                out.append(self.run(c, conn))
            conn.in_multi = False
            self.settle_all()
            return out
        if name == b"DISCARD":
            conn.queue = None
            return OK
        if conn.queue is not None:
            conn.queue.append(argv)
            return Status("QUEUED")
        self.settle_all()
        r = self.run(argv, conn)
        if r is BLOCKED:
            conn.blocked = True
        self.settle_all()
        return r


# ---------------------------------------------------------------- RESP

def encode(x):
    if isinstance(x, Status):
        return b"+" + x.encode() + b"\r\n"
    if isinstance(x, Err):
        return b"-" + str(x).encode("latin-1", "replace").replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"
    if x is None:
        return b"$-1\r\n"
    if isinstance(x, bool):
        x = int(x)
    if isinstance(x, int):
        return b":%d\r\n" % min(x, 2**63 - 1)  # a wait beyond 64 bits is cut
    if isinstance(x, str):
        x = x.encode()
    if isinstance(x, bytes):
        return b"$%d\r\n%s\r\n" % (len(x), x)
    return b"*%d\r\n" % len(x) + b"".join(encode(y) for y in x)


class Conn:
    def __init__(self, sock, server):
        self.sock, self.server, self.buf, self.blocked, self.queue, self.in_multi = sock, server, b"", False, None, False

    def answer(self, r):
        """the reply a waiting client gets."""
        self.blocked = False
        self.send(r)
        self.server.woken.append(self)

    def send(self, r):
        try:
            self.sock.setblocking(True)
            self.sock.sendall(encode(r))
        except OSError:
            pass
        finally:
            try:
                self.sock.setblocking(False)
            except OSError:
                pass

    def parse(self):
        """one command from the buffer, or None."""
        buf = self.buf
        if b"\r\n" not in buf:
            return None
        line, rest = buf.split(b"\r\n", 1)
        if not line.startswith(b"*"):
            self.buf = rest
            return line.split()
        out = []
        for _ in range(int(line[1:])):
            if b"\r\n" not in rest:
                return None
            head, rest = rest.split(b"\r\n", 1)
            n = int(head[1:])
            if len(rest) < n + 2:
                return None
            out.append(rest[:n])
            rest = rest[n + 2:]
        self.buf = rest
        return out

    def work(self):
        while not self.blocked:
            c = self.parse()
            if c is None:
                return
            if c:
                r = self.server.command(c, self)
                if r is not BLOCKED:
                    self.send(r)


def main():
    port = int(sys.argv[1])
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    s.listen(128)
    sel = selectors.DefaultSelector()
    sel.register(s, selectors.EVENT_READ)
    server = Server()
    server.woken = []
    while True:
        for k, _ in sel.select(0.05 if server.frozen is None else None):
            if k.fileobj is s:
                c, _ = s.accept()
                c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                c.setblocking(False)
                sel.register(c, selectors.EVENT_READ, Conn(c, server))
                continue
            conn = k.data
            try:
                d = conn.sock.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                d = b""
            if not d:
                sel.unregister(conn.sock)
                conn.sock.close()
                server.leave(conn)
                server.settle_all()
            else:
                conn.buf += d
                conn.work()
            while server.woken:
                server.woken.pop().work()
        if server.frozen is None:
            server.settle_all()


if __name__ == "__main__":
    main()
