#!/usr/bin/env python3
"""Plays the same random RQ.* commands to the reference model (queue_model.py) and to the product; stops at the first difference.

usage: fuzz_queue.py ORACLE_PORT PRODUCT_PORT [--seed S] [--count N] [--round R] [--jump] [--mblock] [--dump FILE]

N commands in rounds of R (default 300); each round starts from an empty keyspace at T0 with its own seed "S:round",
so `--seed S --first ROUND --count R` plays that round alone. The clock is walked to each instant at which something is
due (asked of the oracle), so that it does not matter whether the product serves waiters in the middle of a jump;
`--jump` jumps. `--mblock` also blocks on several keys at once. `--dump` writes the failing round as a case for
replay.py, with the oracle's answers. Receipts are compared up to renaming of the claim number, which has to rise
within each queue. Left open: error texts beyond the first word, INFO's bytes and next_event, cursors (pages are joined).
"""
import argparse, json, random, re, socket, sys, time

T0 = 1_900_000_000_000
OPEN_FIELDS = {"bytes", "next_event"}
RECEIPT = re.compile(rb"(.+)@([0-9]{10,20})", re.S)
KEYS = ["q0", "q0", "q0", "q1", "q1", "q2"]
GROUPS = [None, None, "a", "a", "b", "c"]
IDS = [None, None, "x", "x", "y", "z", "a@b"]
MS = [1, 2, 3, 5, 8, 13, 20, 50, 100]
STATES = ["READY", "DELAYED", "INFLIGHT", "DEAD"]


class Err(bytes):
    pass


class Conn:
    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port))
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def send(self, words):
        out = [b"*%d\r\n" % len(words)]
        for w in words:
            b = w if isinstance(w, bytes) else str(w).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(b), b))
        self.s.sendall(b"".join(out))

    def fill(self, timeout):
        self.s.settimeout(timeout)
        try:
            d = self.s.recv(1 << 20)
        except (TimeoutError, socket.timeout, BlockingIOError):
            return False
        if not d:
            raise ConnectionError("the server closed the connection")
        self.buf += d
        return True

    def need(self, n):
        while len(self.buf) < n:
            if not self.fill(10):
                raise ConnectionError("no reply within 10 s")
        d, self.buf = self.buf[:n], self.buf[n:]
        return d

    def line(self):
        while b"\r\n" not in self.buf:
            if not self.fill(10):
                raise ConnectionError("no reply within 10 s")
        d, _, self.buf = self.buf.partition(b"\r\n")
        return d

    def read(self):
        l = self.line()
        k, r = l[:1], l[1:]
        if k == b"+":
            return r
        if k == b"-":
            return Err(r)
        if k == b":":
            return int(r)
        if k == b"$":
            return None if r == b"-1" else self.need(int(r) + 2)[:-2]
        if k in b"*%~":
            return None if r == b"-1" else [self.read() for _ in range(int(r) * (2 if k == b"%" else 1))]
        if k == b"_":
            return None
        raise ValueError(l)

    def has_reply(self, timeout):
        return bool(self.buf) or self.fill(timeout)

    def call(self, *words):
        self.send(words)
        return self.read()


class Difference(Exception):
    pass


class Round:
    def __init__(self, ports, seed, opts):
        self.r = random.Random(seed)
        self.opts = opts
        self.ports = ports
        self.main = [Conn(p) for p in ports]
        self.waiters = {}                       # name -> pair of connections, blocked
        self.log = []                           # (client, words with receipts as of the oracle, oracle reply, product reply)
        self.steps = []                         # the same as steps of a case
        self.names = {}                         # oracle receipt -> name in the case
        self.map = {}                           # oracle receipt -> product receipt
        self.back = {}
        self.top = {}                           # key -> highest claim seen at the product
        self.known = {}                         # key -> recent oracle receipts
        self.now = 0
        self.n = 0
        self.waiter_no = 0
        self.fresh = None                       # the waiter that is just being sent
        self.in_multi = False
        for c in self.main:
            c.call("FLUSHALL")
            c.call("SLUICE.CLOCK", "SET", T0)

    # --- playing and comparing

    def translate(self, words):
        return [self.map.get(w, w) if isinstance(w, bytes) else w for w in words]

    def play(self, words, mutated=False):
        for c, w in zip(self.main, (words, self.translate(words))):
            c.send(w)
        o, p = (c.read() for c in self.main)
        self.check(None, words, o, p, mutated)
        self.look_at_waiters()
        return o

    def check(self, client, words, o, p, mutated=False):
        self.log.append((client, words, o, p))
        if "(all pages)" not in words:
            self.note(client, words, o)
        try:
            self.same(o, p, "reply", mutated)
        except Difference as e:
            raise Difference(f"{client or 'main'}: {show(words)}: {e}\n   oracle  {show(o)}\n   product {show(p)}")
        self.learn(words, o, p)

    def same(self, o, p, where, mutated=False):
        if isinstance(o, Err) or isinstance(p, Err):
            a, b = (x.split(b" ")[0] if isinstance(x, Err) else None for x in (o, p))
            if a != b and not (mutated and a and b):
                raise Difference(f"{where}: not the same error")
            return
        if type(o) is not type(p):
            raise Difference(f"{where}: {show(o)} and {show(p)}")
        if isinstance(o, list):
            if o and len(o) % 2 == 0 and o[0] in (b"id", b"lease") and len(o) > 10:
                a, b = (dict(zip(map(bytes, x[::2]), x[1::2])) for x in (o, p))
                for k in a:
                    if k.decode() not in OPEN_FIELDS:
                        if k not in b:
                            raise Difference(f"{where}: no field {k.decode()}")
                        self.same(a[k], b[k], f"{where}.{k.decode()}")
                return
            if len(o) != len(p):
                raise Difference(f"{where}: {len(o)} and {len(p)} elements")
            for i, (a, b) in enumerate(zip(o, p)):
                self.same(a, b, f"{where}[{i}]")
            return
        if isinstance(o, bytes):
            a, b = RECEIPT.fullmatch(o), RECEIPT.fullmatch(p)
            if a and b and a[1] == b[1]:
                if self.map.setdefault(o, p) != p or self.back.setdefault(p, o) != o:
                    raise Difference(f"{where}: a receipt is given twice, or another one for the same delivery")
                return
        if o != p:
            raise Difference(f"{where}: {show(o)} and {show(p)}")

    def learn(self, words, o, p):
        """Remembers the receipts handed out; the claim numbers of a queue must rise."""
        name = str(words[0]).upper()
        key, batch, theirs = str(words[1]) if len(words) > 1 else None, None, None
        if name == "RQ.CLAIM":
            batch, theirs = o, p
        elif name == "RQ.NEXT" and isinstance(o, list):
            batch, theirs = o[1], p[1]
        elif name == "RQ.MCLAIM" and isinstance(o, list):
            key, batch, theirs = o[0].decode(), o[1], p[1]
        elif name in ("RENAME", "COPY"):
            self.top.pop(str(words[2]), None)
        if not isinstance(batch, list):
            return
        for a, b in zip(batch, theirs):
            if a[1] is None:
                continue
            self.known.setdefault(key, []).append(a[1])
            del self.known[key][:-30]
            claim = int(RECEIPT.fullmatch(b[1])[2]) if RECEIPT.fullmatch(b[1]) else 0
            if claim <= self.top.get(key, 0):
                raise Difference(f"claim number {claim} on {key} after {self.top[key]}")
            self.top[key] = claim

    def look_at_waiters(self):
        if not self.waiters or self.in_multi:
            return
        for c in self.main:
            c.call("PING")
        for name, (pair, words) in list(self.waiters.items()):
            ready = [c.has_reply(0.0) for c in pair]
            if any(ready):
                late = time.monotonic() + 2
                while not all(ready) and time.monotonic() < late:
                    ready = [c.has_reply(0.02) for c in pair]
                if not all(ready):
                    raise Difference(f"{name} ({show(words)}): answered by {'the oracle' if ready[0] else 'the product'} only: "
                                     f"{show(pair[0 if ready[0] else 1].read())}")
                del self.waiters[name]
                self.check(name, words, pair[0].read(), pair[1].read())
                for c in pair:
                    c.s.close()

    def block(self, words):
        self.waiter_no += 1
        name = f"w{self.waiter_no}"
        pair = [Conn(p) for p in self.ports]
        for c, w in zip(pair, (words, self.translate(words))):
            c.send(w)
            c.has_reply(0.01)
        self.waiters[name] = (pair, words)
        self.steps.append({"at": self.now, "client": name, "do": self.case_words(words), "blocks": True})
        self.fresh = name
        self.look_at_waiters()
        self.fresh = None

    def tick(self, ms):
        target = self.now + ms
        while self.now < target:
            step = target - self.now
            if not self.opts.jump:
                nxt = self.main[0].call("ORACLE.NEXT")
                if isinstance(nxt, int) and nxt > 0:
                    step = min(step, nxt)
            self.now += step
            for c in self.main:
                r = c.call("SLUICE.CLOCK", "SET", T0 + self.now)
                if isinstance(r, Err):
                    raise Difference(f"SLUICE.CLOCK: {r}")
            self.log.append((None, ["SLUICE.CLOCK", "SET", f"T0+{self.now}"], b"OK", b"OK"))
            self.look_at_waiters()

    # --- as a case for replay.py

    def case_words(self, words):
        out = []
        for w in words:
            if isinstance(w, bytes) and w in self.names:
                out.append("$" + self.names[w])
            elif isinstance(w, bytes):
                out.append(w.decode("utf-8", "surrogateescape"))
            else:
                out.append(f"@{w - T0}" if isinstance(w, int) and w >= T0 else str(w))
        return out

    def case_reply(self, o):
        if isinstance(o, Err):
            return {"err": o.split(b" ")[0].decode()}
        if isinstance(o, list):
            if o and o[0] in (b"id", b"lease") and len(o) > 10:
                return {"map": {k.decode(): self.case_reply(v) for k, v in zip(o[::2], o[1::2]) if k.decode() not in OPEN_FIELDS}}
            return [self.case_reply(x) for x in o]
        if isinstance(o, bytes):
            if RECEIPT.fullmatch(o):
                if o in self.names:
                    return "$" + self.names[o]
                self.names[o] = f"r{len(self.names) + 1}"
                return {"save": self.names[o]}
            return o.decode("utf-8", "surrogateescape")
        return o

    def note(self, client, words, o):
        if client is not None:                  # a waiter: its command was noted when it was sent
            if client == self.fresh:            # answered at once: it did not block
                del self.steps[-1]["blocks"]
                self.steps[-1]["is"] = self.case_reply(o)
                return
            self.steps.append({"at": self.now, "client": client, "is": self.case_reply(o)})
        else:
            self.steps.append({"at": self.now, "do": self.case_words(words), "is": self.case_reply(o)})

    # --- inventing

    def key(self):
        return self.r.choice(KEYS)

    def maybe(self, p, *words):
        return [str(w) if not isinstance(w, (int, bytes)) else w for w in words] if self.r.random() < p else []

    def ms(self):
        return self.r.choice(MS)

    def shuffled(self, *parts):
        parts = [p for p in parts if p]
        self.r.shuffle(parts)
        return [w for p in parts for w in p]

    def group(self):
        return self.r.choice(GROUPS[2:])

    def receipts(self, key):
        pool = self.known.get(key, [])
        out = []
        for _ in range(self.r.choice([1, 1, 1, 2, 3])):
            x = self.r.random()
            if pool and x < 0.9:
                out.append(pool[-1 - min(int(self.r.expovariate(0.4)), len(pool) - 1)])
            elif x < 0.94:
                out.append(self.r.choice(self.known.get(self.key(), []) or [b"1@1"]))
            else:
                out.append(self.r.choice([b"1@1", b"x@5", b"nope@7", b"a@b@9"]))
        return out

    def push_options(self):
        r = self.r
        due = self.maybe(0.2, "DELAY", r.choice([0] + MS)) or self.maybe(0.05, "AT", T0 + self.now + r.choice([-5, 0, 5, 20]))
        g = r.choice(GROUPS)
        return [due, ["GROUP", g] if g else [], self.maybe(0.2, "PRIORITY", r.choice([1, 2, 5])), self.maybe(0.2, "TTL", r.choice(MS)),
                self.maybe(0.1, "LEASE", self.ms()), self.maybe(0.08, "MAXDELIVERIES", r.choice([0, 1, 2, 3])), self.maybe(0.2, "DEDUP", r.choice([5, 50, 200, 1000])),
                self.maybe(0.4, "ONDUP", r.choice(["REJECT", "REPLACE", "REPLACE", "KEEPLAST", "KEEPLAST"]))]

    def payload(self):
        self.n += 1
        return self.r.choice([f"p{self.n}"] * 8 + ["", "long" * 5])

    def claim_options(self):
        r = self.r
        return [self.maybe(0.4, "COUNT", r.choice([1, 2, 3, 10])), self.maybe(0.35, "LEASE", self.ms()), self.maybe(0.4, "CONSUMER", r.choice(["w1", "w2"])),
                self.maybe(0.12, "GROUP", self.group()), self.maybe(0.1, "MAXBYTES", r.choice([1, 5, 10, 25])), self.maybe(0.1, "NOACK")]

    def rate(self):
        return self.r.choice([["NONE"], ["NONE"], [1, 10, 1], [1, 10, 2], [2, 20, 3], [3, 50, 2], [1, 3, 1]])

    def settings(self, n=None):
        r = self.r
        all_ = {"LEASE": [r.choice([5, 10, 20, 50, 1000])], "MAXDELIVERIES": [r.choice([0, 1, 2, 2, 3, 16])],
                "BACKOFF": r.choice([["NONE"], ["FIXED", 5], ["EXP", 2, 9], ["EXP", 3, 100]]), "MAXLEN": [r.choice([0, 0, 3, 6, 10])],
                "MAXBYTES": [r.choice([0, 0, 10, 25, 40])], "ONFULL": [r.choice(["REJECT", "DROPOLD"])], "MAXINFLIGHT": [r.choice([0, 0, 1, 2, 4])],
                "GROUPINFLIGHT": [r.choice([0, 1, 1, 2])], "RATE": self.rate(), "GROUPRATE": self.rate(), "DEDUP": [r.choice([0, 0, 40, 500])],
                "MAXDEAD": [r.choice([0, 0, 1, 3])], "TTL": [r.choice([0, 0, 0, 30, 100])], "AGING": [r.choice([0, 0, 1, 5, 20])]}
        out = []
        for k in r.sample(sorted(all_), n or r.choice([1, 1, 2, 3])):
            out.append([k, *all_[k]])
        return out

    def command(self):
        r, k = self.r, self.key()
        kind = r.choices(["push", "mpush", "claim", "mclaim", "ack", "nack", "extend", "next", "requeue", "redrive", "del", "purge", "set",
                          "pause", "resume", "move", "get", "len", "info", "list", "delkey", "other", "rename", "exec"],
                         [24, 4, 20, 3, 9, 11, 4, 4, 3, 5, 2, 0.7, 4, 1.5, 3, 1.5, 3, 2, 3, 3, 0.4, 0.3, 0.4, 1])[0]
        if kind == "push":
            i = r.choice(IDS)
            return ["RQ.PUSH", k, self.payload(), *self.shuffled(["ID", i] if i else [], *self.push_options())]
        if kind == "mpush":
            n = r.choice([1, 2, 3, 5])
            return ["RQ.MPUSH", k, n, *[self.payload() for _ in range(n)], *self.shuffled(*self.push_options())]
        if kind == "claim":
            return ["RQ.CLAIM", k, *self.shuffled(*self.claim_options())]
        if kind == "mclaim":
            ks = [self.key() for _ in range(r.choice([1, 2, 3]))]
            return ["RQ.MCLAIM", len(ks), *ks, *self.shuffled(*self.claim_options())]
        if kind == "ack":
            return ["RQ.ACK", k, *self.receipts(k)]
        if kind == "nack":
            rs = self.receipts(k)
            how = self.shuffled(["DEAD"], self.maybe(0.5, "REASON", "broken")) if r.random() < 0.15 else \
                self.shuffled(self.maybe(0.4, "DELAY", r.choice([0] + MS)), self.maybe(0.2, "BACK"), self.maybe(0.2, "NOCOUNT"), self.maybe(0.2, "REASON", "why"))
            return ["RQ.NACK", k, *how, "RECEIPTS", len(rs), *rs]
        if kind == "extend":
            return ["RQ.EXTEND", k, self.ms(), *self.receipts(k)]
        if kind == "next":
            rs = self.receipts(k)
            return ["RQ.NEXT", k, *self.shuffled(["RECEIPTS", len(rs), *rs], *self.claim_options())]
        if kind == "requeue":
            return ["RQ.REQUEUE", k, *self.shuffled(r.choice([["ALL"], ["STALE", self.ms()], ["CONSUMER", r.choice(["w1", "w2"])], []]), self.maybe(0.3, "COUNT", r.choice([1, 2])))]
        if kind == "redrive":
            ids = [r.choice(["x", "y", "z", "1", "2", "3", "nope"]) for _ in range(r.choice([1, 2]))]
            return ["RQ.REDRIVE", k, *self.shuffled(["IDS", len(ids), *ids] if r.random() < 0.3 else [], self.maybe(0.3, "COUNT", r.choice([1, 2])), self.maybe(0.3, "DELAY", r.choice([0] + MS)))]
        if kind == "del":
            return ["RQ.DEL", k, *[r.choice(["x", "y", "z", "a@b", "1", "2", str(r.randrange(1, 40))]) for _ in range(r.choice([1, 2]))]]
        if kind == "purge":
            return ["RQ.PURGE", k, r.choice(["READY", "DELAYED", "DEAD", "ALL"]), *self.maybe(0.5, "COUNT", r.choice([1, 2, 3]))]
        if kind == "set":
            return ["RQ.SET", k, *[w for p in self.settings() for w in p]]
        if kind == "pause":
            return ["RQ.PAUSE", k, *self.shuffled(r.choice([["PUSH"], ["CLAIM"], ["CLAIM"], []]), self.maybe(0.5, "GROUP", self.group()), self.maybe(0.8, "UNTIL", T0 + self.now + r.choice([-1, 0, 1, 5, 20])))]
        if kind == "resume":
            return ["RQ.RESUME", k, *self.maybe(0.5, "GROUP", self.group())]
        if kind == "move":
            return ["RQ.MOVE", k, self.key(), r.choice(["READY", "DEAD"]), *self.maybe(0.5, "COUNT", r.choice([1, 2]))]
        if kind == "get":
            return ["RQ.GET", k, r.choice(["x", "y", "z", "a@b", str(r.randrange(1, 40))])]
        if kind == "len":
            return ["RQ.LEN", k, *self.maybe(0.7, r.choice(STATES))]
        if kind == "info":
            return ["RQ.INFO", k]
        if kind == "list":
            return ["RQ.LIST", k, r.choice(STATES), *self.maybe(0.3, "GROUP", self.group()), *self.maybe(0.2, "NOPAYLOAD"), "COUNT", 10000]
        if kind == "delkey":
            return ["DEL", k]
        if kind == "other":
            return ["SET", "q2", "string"]
        if kind == "rename":
            return [r.choice(["RENAME", "COPY"]), k, "q2"]
        return ["EXEC"]

    def garbage(self):
        w = self.command()
        if w[0] in ("EXEC", "DEL", "SET", "RENAME", "COPY"):
            return ["RQ.NOPE", "q0"]
        i = self.r.randrange(1, len(w) + 1)
        x = self.r.random()
        junk = self.r.choice(["", "-1", "0", "x", "1.5", "+1", "99999999999999999999", "DELAY", "COUNT", "GROUP", "NOACK", "READY", "10001", "256", "\u00e9"])
        if x < 0.3:
            w = w[:i] + w[i + 1:]
        elif x < 0.6:
            w.insert(i, junk)
        elif x < 0.8 and i < len(w):
            w[i] = junk
        else:
            w = w + w[-2:]
        return w

    def whole_state(self):
        for k in ("q0", "q1", "q2"):
            if self.play(["TYPE", k]) != b"sluice-rq":
                continue
            info = self.play(["RQ.INFO", k])
            self.adds_up(k, info)
            for s in STATES:
                self.play(["RQ.LIST", k, s, "COUNT", 10000])

    def adds_up(self, k, info):
        m = {a.decode(): b for a, b in zip(info[::2], info[1::2])}
        came = m["total_pushed"] + m["total_moved_in"]
        went = sum(m["total_" + x] for x in ("acked", "expired", "dropped", "deleted", "replaced", "moved_out"))
        here = sum(m[x] for x in ("ready", "delayed", "inflight", "dead", "followers"))
        if came != went + here:
            raise Difference(f"{k}: totals do not add up: {came} came, {went} went, {here} are here: {m}")

    def pages(self):
        k, s, n = self.key(), self.r.choice(STATES), self.r.choice([1, 2, 3])
        if self.main[0].call("TYPE", k) != b"sluice-rq":
            return
        all_ = []
        for c in self.main:
            items, cur, rounds = [], b"0", 0
            while True:
                cur, page = c.call("RQ.LIST", k, s, "COUNT", n, "CURSOR", cur)
                items += page
                rounds += 1
                if cur == b"0" or rounds > 1000:
                    break
            all_.append(items)
        self.check(None, ["RQ.LIST", k, s, "COUNT", n, "(all pages)"], *all_)

    def run(self, count):
        # a small random configuration to begin with
        for k in ("q0", "q1"):
            for p in self.settings(self.r.choice([2, 5, 8])):
                self.play(["RQ.SET", k, *p])
        for i in range(count):
            x = self.r.random()
            if x < 0.2:
                self.tick(self.r.choice(MS))
            elif x < 0.25 and len(self.waiters) < 4:
                k, rs = self.key(), None
                o = self.shuffled(*self.claim_options(), ["BLOCK", 0])
                y = self.r.random()
                if y < 0.2:
                    rs = self.receipts(k)
                    self.block(["RQ.NEXT", k, "RECEIPTS", len(rs), *rs, *o])
                elif y < 0.4 and self.opts.mblock:
                    self.block(["RQ.MCLAIM", 2, "q0", "q1", *o])
                elif y < 0.4:
                    self.block(["RQ.MCLAIM", 1, k, *o])
                else:
                    self.block(["RQ.CLAIM", k, *o])
            elif x < 0.26 and self.waiters:
                name = self.r.choice(sorted(self.waiters))
                pair, words = self.waiters.pop(name)
                for c in pair:
                    c.s.close()
                self.log.append((name, ["(closes)"], None, None))
                self.steps.append({"client": name, "close": True})
                time.sleep(0.01)
            elif x < 0.28:
                self.play(self.garbage(), mutated=True)
            elif x < 0.29:
                self.pages()
            else:
                w = self.command()
                if w == ["EXEC"]:
                    self.play(["MULTI"])
                    self.in_multi = True
                    for _ in range(self.r.choice([1, 2, 3])):
                        w = self.command()
                        if w != ["EXEC"]:
                            self.play(w + (["BLOCK", 0] if w[0] == "RQ.CLAIM" else []))
                    self.in_multi = False
                    self.play(["EXEC"])
                else:
                    self.play(w)
            if i % 10 == 9:
                self.whole_state()
        self.whole_state()

    def close(self):
        for pair, _ in self.waiters.values():
            for c in pair:
                c.s.close()
        for c in self.main:
            c.s.close()
        time.sleep(0.01)


def show(x):
    if isinstance(x, list):
        return "[" + " ".join(map(show, x)) + "]"
    if isinstance(x, Err):
        return "-" + x.decode("utf-8", "replace")
    if isinstance(x, bytes):
        return x.decode("utf-8", "backslashreplace") or '""'
    return "nil" if x is None else str(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("oracle", type=int)
    p.add_argument("product", type=int)
    p.add_argument("--seed", default="1")
    p.add_argument("--count", type=int, default=3000)
    p.add_argument("--round", type=int, default=300)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--jump", action="store_true")
    p.add_argument("--mblock", action="store_true")
    p.add_argument("--dump")
    p.add_argument("--tail", type=int, default=10 ** 9, help="print only the last so many commands of the history")
    a = p.parse_args()
    done, n = 0, a.first
    while done < a.count:
        r = Round((a.oracle, a.product), f"{a.seed}:{n}", a)
        try:
            r.run(min(a.round, a.count - done))
        except (Difference, ConnectionError, OSError) as e:
            print(f"round {n} (seed {a.seed}:{n}), instant {r.now}, history:")
            for client, words, o, q in r.log[-a.tail:]:
                print(f"  {client + ': ' if client else ''}{show(words)[1:-1]}  ->  {show(o)}" + ("" if type(o) is type(q) and (o == q or isinstance(o, list)) else f"   | {show(q)}"))
            print(f"DIFFERENCE: {type(e).__name__} {e}")
            if a.dump:
                json.dump([{"name": f"fuzz-{a.seed}-{n}", "about": str(e).split("\n")[0], "steps": r.steps}], open(a.dump, "w"), indent=1)
                print(f"written as a case: {a.dump}")
            sys.exit(1)
        finally:
            r.close()
        done += a.round
        n += 1
    print(f"no difference in {done} commands, {n - a.first} rounds")


if __name__ == "__main__":
    main()
