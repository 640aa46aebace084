#!/usr/bin/env python3
"""Random differential test of the limiter half: the same commands to the reference model (limiter_model.py) and to the product.

usage: fuzz_limiters.py ORACLE_PORT PRODUCT_PORT [-s SEED] [-n COUNT] [-r ROUNDS] [--strict] [--back] [--warm] [--cl] [--only TB,LB,SEM,GATE,HOT] [-v]

One round: an empty keyspace, then COUNT commands. SEED+round decides everything. At the first differing reply the history is
reduced (pieces are left out while a difference remains) and printed. Exit status 1 then.
  --strict  compare also what the contract leaves open (see OPEN below)
  --back    also step the clock back (never while a client waits)
  --warm    also token buckets and stages with WARMUP
  --cl      also CL.THROTTLE (load option cl-throttle yes)
The product must run with debug-clock yes. Only keys whose real TTL is long are used unpinned: periods of inline limits are seconds.
"""
import argparse, random, select, sys, time

sys.dont_write_bytecode = True
from replay import Conn, Err, T0  # noqa: E402

UNKNOWN = 9_000_000_000_000_000_000
TBK, LBK, SMK, GTK, HTK = ["t0", "t1", "t2", "t3"], ["l0", "l1"], ["s0", "s1"], ["g0", "g1"], ["h0"]
ALLK = TBK + LBK + SMK + GTK + HTK + ["str"]
NOBLOCK_TOUCH = {"DEL", "RENAME", "COPY", "SET", "TB.RESET", "LB.RESET", "TB.SET", "LB.SET", "TB.BAN", "FLUSHALL"}  # open while somebody waits on the key


class Side:
    """one server: its connections, the ids it gave, who waits there."""

    def __init__(self, port):
        self.port, self.conns, self.ids = port, {}, {}

    def conn(self, name):
        if name not in self.conns:
            self.conns[name] = Conn(self.port)
        return self.conns[name]

    def start(self):
        self.ids = {}
        m = self.conn("main")
        m.call("FLUSHALL")
        m.call("CONFIG", "RESETSTAT")
        r = m.call("SLUICE.CLOCK", "SET", T0)
        if isinstance(r, Err):
            sys.exit(f"port {self.port}: SLUICE.CLOCK: {r}")

    def end(self):
        for c in self.conns.values():
            try:
                c.close()
            except OSError:
                pass
        self.conns = {}
        time.sleep(0.01)

    def args(self, do):
        return [self.ids.get(a[1], [])[a[2]] if isinstance(a, (list, tuple)) and len(self.ids.get(a[1], [])) > a[2] else
                UNKNOWN if isinstance(a, (list, tuple)) else a for a in do]

    def normal(self, do, r):
        """the reply with ids replaced by their number of order."""
        if isinstance(r, Err):
            return "ERROR " + r.split(" ")[0]
        name = do[0].upper()
        at = {"TB.HOLD": 6, "SEM.ACQUIRE": 4, "GATE.PASS": 4, "GATE.MPASS": 4}.get(name)
        if at is not None and isinstance(r, list) and len(r) > at and r[at] is not None:
            ids = self.ids.setdefault(do[1] if name != "GATE.MPASS" else "mpass", [])
            r = list(r)
            rising = not ids or r[at] > max(ids) or name == "TB.HOLD"
            ids.append(r[at])
            r[at] = f"id#{len(ids) - 1}" + ("" if rising else " NOT RISING")
        if name == "SEM.INFO" and isinstance(r, list):
            ids = self.ids.get(do[1], [])
            m = dict(zip(r[::2], r[1::2]))
            if "holders" in m:
                m["holders"] = sorted([[ids.index(h[0]) if h[0] in ids else "?"] + h[1:] for h in m["holders"]], key=str)
            r = m
        elif name.endswith(".INFO") and isinstance(r, list):
            r = dict(zip(r[::2], r[1::2]))
        return r

    def answered(self, name, seconds):
        if seconds < 1:
            # A model that gets no processor for a moment must not look as if it had its client wait. Both sides handle one command after
            # the other: the first round trip may be handled together with what was sent before it, the second comes after that for sure.
            self.conn("main").call("PING")
            self.conn("main").call("PING")
            seconds = 0
        c = self.conn(name)
        return bool(select.select([c.s], [], [], seconds)[0])


# what the contract leaves open: (command, function making both replies comparable)
def open_points(do, r, o):
    name = do[0].upper()
    if name in ("HOT.TOP",):
        return None
    if name == "PTTL":
        return None if r is None or r == -2 or o == -2 else "none" if r == -1 else "some" if isinstance(r, int) and r >= 0 else r
    if name in ("EXISTS", "TYPE", "DEL", "RENAME", "COPY") and o in (0, "none", "ERROR ERR"):
        return None  # a key that says the same as no key may still be there
    if name == "TB.INFO" and isinstance(r, dict):
        return {k: v for k, v in r.items() if k not in ("granted", "refused")}
    if name in ("LB.INFO", "SEM.INFO", "GATE.INFO", "HOT.INFO") and isinstance(r, dict):
        return {k: v for k, v in r.items() if k in ("capacity", "tokens", "period", "pinned", "drained_after", "limit", "holders", "forgotten")}
    if isinstance(r, list):
        if name in ("LB.TAKE", "LB.PEEK") and r[0] == 0:
            return r[:4] + r[5:]
        if name == "LB.REFUND":
            return r[:4] + r[5:]
        if name in ("TB.DRAIN", "TB.SETTLE"):
            return [abs(r[0]) if name == "TB.SETTLE" and isinstance(r[0], int) else "open"] + r[1:]
        if name in ("SEM.RELEASE", "GATE.LEAVE"):
            return [x if x == 1 else "not held" for x in r]
        if name == "SEM.RENEW":
            return [x if x > 0 else "not held" for x in r]
        if name in ("GATE.PASS", "GATE.PEEK", "GATE.MPASS") and len(r) == 6 and isinstance(r[5], list):
            rows = [row[:4] + ([row[4]] if r[0] else []) + [row[5]] for row in r[5] if isinstance(row, list)]
            return [r[0], r[1] if r[0] else 0, r[2], r[3], r[4], rows]
    return r


class Diff(Exception):
    pass


class Run:
    """plays steps on both sides; raises Diff at the first difference."""

    def __init__(self, a, strict, verbose=False):
        self.a, self.b, self.strict, self.verbose = Side(a), Side(b_port), strict, verbose
        self.blocked, self.now = {}, 0

    def begin(self):
        self.blocked, self.now = {}, 0
        for x in (self.a, self.b):
            x.start()

    def finish(self):
        for x in (self.a, self.b):
            x.end()

    def compare(self, do, ra, rb, what):
        na, nb = self.a.normal(do, ra), self.b.normal(do, rb)
        ca, cb = (na, nb) if self.strict else (open_points(do, na, na), open_points(do, nb, na))
        if self.verbose:
            print(f"{self.now:>12} {' '.join(map(str, do))} -> {na}")
        if ca != cb:
            raise Diff(f"{what}: at {self.now} {show(do)}\n  oracle  {na}\n  product {nb}")

    def waiting(self):
        """answers to those who waited, in the order in which they began to wait."""
        for c in list(self.blocked):
            do = self.blocked[c]
            if self.a.answered(c, 0):
                del self.blocked[c]
                ra = self.a.conn(c).read()
                if not self.b.answered(c, 2):
                    raise Diff(f"the oracle answered waiting client {c}, the product did not: at {self.now} {show(do)}\n  oracle  {ra}")
                self.compare(do, ra, self.b.conn(c).read(), f"answer to waiting client {c}")
            elif self.b.answered(c, 0.002):
                raise Diff(f"the product answered waiting client {c}, the oracle did not: at {self.now} {show(do)}\n  product {self.b.conn(c).read()}")

    def step(self, st):
        if "close" in st:
            if st["close"] in self.blocked:
                del self.blocked[st["close"]]
                for x in (self.a, self.b):
                    x.conns.pop(st["close"]).close()
                time.sleep(0.02)
                for x in (self.a, self.b):
                    x.conn("main").call("PING")
            self.waiting()
            return
        if "clock" in st:
            if st["clock"] < self.now and self.blocked:
                return
            self.now = st["clock"]
            for x in (self.a, self.b):
                r = x.conn("main").call("SLUICE.CLOCK", "SET", T0 + self.now)
                if isinstance(r, Err):
                    raise Diff(f"SLUICE.CLOCK SET: {r}")
            self.waiting()
            return
        do, c = st["do"], st.get("client", "main")
        if c in self.blocked or do[0].upper() in NOBLOCK_TOUCH and any(k in self.keys_waited() for k in do[1:] if isinstance(k, str)):
            return
        for x in (self.a, self.b):
            x.conn(c).send(x.args(do))
        if c != "main":
            got = self.a.answered(c, 0.02)
            got_b = self.b.answered(c, 1 if got else 0.02)
            if not got and self.a.answered(c, 0):
                got, got_b = True, self.b.answered(c, 1)
            if got != got_b:
                raise Diff(f"blocking: at {self.now} {show(do)}\n  oracle  {'answered ' + str(self.a.conn(c).read()) if got else 'waits'}\n"
                           f"  product {'answered ' + str(self.b.conn(c).read()) if got_b else 'waits'}")
            if not got:
                self.blocked[c] = do
                if self.verbose:
                    print(f"{self.now:>12} {show(do)} waits as {c}")
                return
        self.compare(do, self.a.conn(c).read(), self.b.conn(c).read(), "reply")
        self.waiting()

    def keys_waited(self):
        return {do[1] for do in self.blocked.values()}


def show(do):
    return " ".join(f"<id {a[2]} of {a[1]}>" if isinstance(a, (list, tuple)) else repr(a) if not str(a).isprintable() or a == "" else str(a) for a in do)


# ---------------------------------------------------------------- random commands

def lim(r):
    return [str(x) for x in r.choice([(1, 1, 1000), (5, 5, 5000), (10, 1, 1000), (10, 7, 30000), (3, 2, 7000), (100, 1000, 60000), (17, 17, 30000),
                                      (10**12, 10**12, 31622400000), (r.randint(1, 50), r.randint(1, 20), r.randint(1000, 20000))])]


def setlim(r):
    return [str(x) for x in r.choice([(1, 3, 1000), (1000, 5000, 1000), (2, 10**9, 1000), (7, 7, 13)])] if r.random() < .3 else lim(r)


def cost(r):
    return str(r.choice([1, 1, 1, 2, 2, 3, 4, 5, 7, 10, 11, 20, 50, 10**12]))


BADNUM = ["0", "-1", "-0", "1e3", "+5", " 5", "", "x", "0x10", "9223372036854775808", "1000000000001", "31622400001", "1.5"]


def opt(r, *pairs):
    out = [p for p in pairs if r.random() < .4]
    r.shuffle(out)
    out = [x for p in out for x in p]
    return [x.lower() if r.random() < .1 and x.isalpha() else x for x in out]


def command(r, o, side):
    """(client or None, do)"""
    fam = r.choice(o.families)
    wrong = r.random() < .01
    inline = lim(r) if r.random() < .75 else []
    ids = lambda k: ["ref", k, r.randint(max(0, len(side.ids.get(k, [])) - 6), max(0, len(side.ids.get(k, []))))]
    block = None
    if fam == "TB":
        k = r.choice(TBK if not wrong else ALLK)
        x = r.random()
        if x < .42:
            do = ["TB.TAKE", k] + inline + opt(r, ["COST", cost(r)])
            y = r.random()
            if y < .2:
                do.insert(r.choice([len(do), 2 + len(inline)]), "ATMOST")
            elif y < .35:
                do.append("FORCE")
            elif y < .5:
                do += ["BLOCK", str(r.choice([1, 500, 1000, 3000, 10000, 60000]))]
                block = True
        elif x < .55:
            do = ["TB.PEEK", k] + inline + opt(r, ["COST", cost(r)])
        elif x < .63:
            do = ["TB.REFUND", k, cost(r)]
        elif x < .71:
            do = ["TB.SET", k] + setlim(r) + opt(r, ["LEVEL", r.choice(["KEEP", "ADD", "SCALE", "FULL"])])
            if o.warm and r.random() < .5:
                do += ["WARMUP", str(r.choice([0, 1, 1000, 3333, 20000]))]
        elif x < .74:
            do = ["TB.RESET", k]
        elif x < .77:
            do = ["TB.DRAIN", k] + inline
        elif x < .81:
            do = ["TB.BAN", k, str(r.choice([0, 0, 1, 700, 5000]))]
        elif x < .88:
            do = ["TB.HOLD", k] + inline + ["COST", cost(r), "TTL", str(r.choice([1, 1000, 2500, 9000]))] + opt(r, ["ONEXPIRE", r.choice(["KEEP", "REFUND"])])
        elif x < .94:
            do = ["TB.SETTLE", k, ids(k), str(r.choice([0, 1, 2, 3, 5, 8, 20, 30]))]
        elif o.cl and x < .97:
            do = ["CL.THROTTLE", k, str(r.choice([0, 2, 9])), str(r.choice([1, 5, 30])), str(r.choice([1, 10, 60]))] + ([str(r.choice([0, 1, 2, 5]))] if r.random() < .4 else [])
        else:
            do = ["TB.INFO", k]
    elif fam == "LB":
        k = r.choice(LBK if not wrong else ALLK)
        x = r.random()
        if x < .5:
            do = ["LB.TAKE", k] + inline + opt(r, ["COST", cost(r)], ["MAXWAIT", str(r.choice([1, 500, 1000, 4000, 30000]))])
            if r.random() < .15:
                do.append("BLOCK")
                block = True
        elif x < .68:
            do = ["LB.PEEK", k] + inline + opt(r, ["COST", cost(r)])
        elif x < .8:
            do = ["LB.REFUND", k, cost(r)]
        elif x < .88:
            do = ["LB.SET", k] + setlim(r)
        elif x < .92:
            do = ["LB.RESET", k]
        else:
            do = ["LB.INFO", k]
    elif fam == "SEM":
        k = r.choice(SMK if not wrong else ALLK)
        x = r.random()
        n = [str(r.choice([1, 2, 3, 5]))] if r.random() < .75 else []
        if x < .42:
            do = ["SEM.ACQUIRE", k] + n + opt(r, ["COUNT", str(r.choice([1, 1, 2, 3]))], ["LEASE", str(r.choice([1000, 2500, 7000, 20000]))], ["OWNER", r.choice(["me", "you"])])
            if r.random() < .2:
                do += ["BLOCK", str(r.choice([1, 1000, 5000, 20000]))]
                block = True
        elif x < .6:
            do = ["SEM.RELEASE", k] + [ids(k) for _ in range(r.choice([1, 1, 2, 3]))]
        elif x < .72:
            do = ["SEM.RENEW", k, str(r.choice([1, 1000, 5000]))] + [ids(k) for _ in range(r.choice([1, 1, 2]))]
        elif x < .85:
            do = ["SEM.PEEK", k] + n + opt(r, ["COUNT", str(r.choice([1, 2, 3]))])
        elif x < .92:
            do = ["SEM.SET", k, str(r.choice([1, 2, 4]))] + opt(r, ["LEASE", str(r.choice([1000, 8000]))])
        else:
            do = ["SEM.INFO", k] + opt(r, ["HOLDERS"])
    elif fam == "GATE":
        k = r.choice(GTK if not wrong else ALLK)
        x = r.random()
        if x < .12:
            do, sem = ["GATE.SET", k], False
            for name in r.sample(["a", "b", "c"], r.randint(1, 3)):
                kind = r.choice(["TB", "LB", "SEM"])
                if kind == "SEM" and not sem:
                    sem = True
                    do += ["STAGE", name, "SEM", str(r.choice([1, 2, 3]))] + opt(r, ["LEASE", str(r.choice([1000, 5000]))])
                else:
                    kind = "TB" if kind == "SEM" else kind
                    do += ["STAGE", name, kind] + setlim(r) + (["WARMUP", "3000"] if kind == "TB" and o.warm and r.random() < .3 else [])
        elif x < .55:
            do = ["GATE.PASS", k] + opt(r, ["COST", cost(r)], ["MAXWAIT", str(r.choice([1, 1000, 4000]))])
            if r.random() < .1 and k not in o.waited():  # one waiter per gate: how others fare then is open
                do += ["BLOCK", str(r.choice([1000, 5000]))]
                block = True
        elif x < .68:
            do = ["GATE.PEEK", k] + opt(r, ["COST", cost(r)])
        elif x < .82:
            do = ["GATE.LEAVE", k] + [ids(k) for _ in range(r.choice([1, 2]))]
        elif x < .97:
            ks = r.sample(TBK + LBK + GTK, r.randint(1, 3))
            do = ["GATE.MPASS", str(len(ks))] + ks + opt(r, ["COST", cost(r)], ["MAXWAIT", "3000"])
        else:
            do = ["GATE.INFO", k]
        if do[0] in ("GATE.PASS", "GATE.MPASS", "GATE.SET") and any(g in o.waited() for g in do[1:]):
            do = ["GATE.PEEK", k]
            block = None
    else:
        k = r.choice(HTK if not wrong else ALLK)
        sub = r.choice(["u1", "u2", "u3", "u4", "u5", "\udcff\u0000"])
        x = r.random()
        if x < .1:
            do = ["HOT.SET", k] + setlim(r) + opt(r, ["MAXSUBJECTS", str(r.choice([3, 4, 10]))])
        elif x < .65:
            do = ["HOT.TAKE", k, sub] + opt(r, ["COST", cost(r)], ["ATMOST"])
        elif x < .83:
            do = ["HOT.PEEK", k, sub] + opt(r, ["COST", cost(r)])
        elif x < .9:
            do = ["HOT.EXCEPT", k, sub] + (["DEL"] if r.random() < .4 else setlim(r))
        elif x < .95:
            do = ["HOT.TOP", k]
        else:
            do = ["HOT.INFO", k]
    if r.random() < .02:  # spoil it
        i = r.randrange(1, len(do)) if len(do) > 2 else 1
        do = r.choice([do[:i], do + [r.choice(["FOO", "COST", "5", ""])], do[:2] + [r.choice(BADNUM)] + do[3:]])
        block = None
        if any(isinstance(a, str) and a.upper() == "BLOCK" for a in do):
            block = True
    return block, do


def history(r, o, run):
    """the next random step."""
    x = r.random()
    if x < .22:
        d = r.choice([0, 1, 1, 2, 10, 100, 499, 500, 1000, 1000, 1001, 3000, 7000, 60000]) if r.random() < .97 else r.choice([10**7, 31622400000])
        if o.back and r.random() < .12 and not run.blocked:
            d = -r.choice([1, 500, 1000, 5000, 100000])
        return {"clock": max(0, run.now + d)}
    if x < .24 and run.blocked:
        return {"close": r.choice(sorted(run.blocked))}
    if x < .27:
        k = r.choice(ALLK)
        return {"do": r.choice([["EXISTS", k], ["PTTL", k], ["TYPE", k], ["DEL", k], ["SET", "str", "v"], ["DEL", k]])}
    if x < .275:
        a, b = r.sample(r.choice([TBK, LBK, SMK, GTK]), 2)
        return {"do": r.choice([["RENAME", a, b], ["COPY", a, b, "REPLACE"]])}
    block, do = command(r, o, run.a)
    st = {"do": do}
    if block:
        free = [c for c in ("c0", "c1", "c2", "c3") if c not in run.blocked]
        if not free:
            return {"do": ["PING"]}
        st["client"] = free[0]
    return st


def play(steps, a):
    """the difference that these steps show, or None."""
    run = Run(a.oracle, a.strict)
    try:
        run.begin()
        for st in steps:
            run.step(st)
        return None
    except Diff as e:
        return str(e)
    except (ConnectionError, OSError) as e:
        return f"connection: {e!r}"
    finally:
        run.finish()


def reduce(steps, a, seconds=40):
    stop, size = time.time() + seconds, max(1, len(steps) // 2)
    while time.time() < stop:
        i, smaller = 0, False
        while i < len(steps) and time.time() < stop:
            t = steps[:i] + steps[i + size:]
            if t and play(t, a):
                steps, smaller = t, True
            else:
                i += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return steps


def main():
    global b_port
    p = argparse.ArgumentParser()
    p.add_argument("oracle", type=int)
    p.add_argument("product", type=int)
    p.add_argument("-s", "--seed", type=int, default=1)
    p.add_argument("-n", "--count", type=int, default=300)
    p.add_argument("-r", "--rounds", type=int, default=10)
    p.add_argument("--strict", action="store_true")
    p.add_argument("--back", action="store_true")
    p.add_argument("--warm", action="store_true")
    p.add_argument("--cl", action="store_true")
    p.add_argument("--only", default="TB,TB,LB,SEM,GATE,HOT")
    p.add_argument("-v", action="store_true")
    a = p.parse_args()
    b_port = a.product
    a.families = a.only.split(",")
    total = 0
    for k in range(a.rounds):
        r = random.Random(a.seed + k)
        run = Run(a.oracle, a.strict, a.v)
        a.waited = run.keys_waited
        steps = []
        try:
            run.begin()
            for _ in range(a.count):
                st = history(r, a, run)
                steps.append(st)
                run.step(st)
                total += 1
        except (Diff, ConnectionError, OSError) as e:
            run.finish()
            print(f"seed {a.seed + k}, step {len(steps)}: {e}\nreducing ...")
            small = reduce(steps, a)
            print(f"{len(small)} steps (seed {a.seed + k}):")
            for st in small:
                print("  clock", st["clock"]) if "clock" in st else print("  close", st["close"]) if "close" in st else print(f"  {st.get('client', '')} {show(st['do'])}")
            print(play(small, a) or "(not shown again)")
            sys.exit(1)
        run.finish()
    print(f"{a.rounds} rounds, {total} steps from seed {a.seed}: no difference")


if __name__ == "__main__":
    main()
