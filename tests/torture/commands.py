"""Hostile clients: many connections send what `grammar.py` makes up, in pipelines, transactions, scripts and functions, wait, go away and are
killed, while the keys are renamed, swapped, flushed and evicted under them. The server has to live, no panic may be caught, and a replica has to
hold the same in the end.

`--clock`: the test clock is moved, too. `--reload`: all is loaded anew now and then, and there is no replica. `--break apart`: a key is changed on the replica alone.
"""

import re
import selectors
import socket
import time

import grammar
from grammar import ALL, ch, group, ri, rnd
from lib import Conn, Trial, info, role, until

ASK = Conn.pack
# What to learn from replies: receipts of messages, numbers of permits and holds, cursors.
RECEIPT = re.compile(rb'\n([^\r\n@]{1,40}@\d{10,20})\r')
NUMBER = re.compile(rb':(1\d{15})\r')
CURSOR = re.compile(rb'\*2\r\n\$\d+\r\n([0-9a-zA-Z]{4,60})\r\n\*')


class Client:
    """One hostile client. `want` ends its batch's replies, if nothing in it waits."""

    def __init__(self, t, port, sel):
        self.t, self.sel = t, sel
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.out, self.tail, self.want, self.n = b"", b"", None, 0
        self.since, self.dead = time.time(), False
        sel.register(self.sock, selectors.EVENT_READ, self)

    def close(self):
        if not self.dead:
            self.sel.unregister(self.sock)
            self.sock.close()
            self.dead = True

    def batch(self):
        parts, n = [], ri(5, 60)
        while n > 0:
            commands = group()
            n -= len(commands)
            self.t.count("commands", len(commands))
            parts += [ASK(c) for c in commands]
        if rnd() < .01:
            parts.append(ASK(["RESET"]))
        self.n += 1
        self.want = b"zz%dzz" % self.n
        parts.append(ASK(["ECHO", self.want]))
        self.out += b"".join(parts)
        self.since = time.time()
        self.sel.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def ready(self, mask):
        if mask & selectors.EVENT_WRITE:
            self.out = self.out[self.sock.send(self.out):]
            if not self.out:
                self.sel.modify(self.sock, selectors.EVENT_READ, self)
        if mask & selectors.EVENT_READ:
            data = self.sock.recv(1 << 18)
            if not data:
                return self.close()
            seen, self.tail = self.tail + data, (self.tail + data)[-64:]
            if b"ERR internal" in data:
                i = data.find(b"ERR internal")
                self.t.bad("internal", "%r" % data[max(0, i - 20):i + 120])
            if len(data) < 200000:
                for pattern, pool, most in ((RECEIPT, grammar.receipts, 400), (NUMBER, grammar.numrec, 200), (CURSOR, grammar.curs, 50)):
                    pool += pattern.findall(seen)[:50]
                    if len(pool) > most:
                        del pool[: len(pool) - most // 2]
            if self.want and self.want in seen:
                self.want = None


def patient(conn_of, *words):
    """A command of the control connection, which is killed and whose server is paused like anybody's."""
    end = time.time() + 20
    while time.time() < end:
        try:
            c = conn_of.conn(10)
            try:
                return c.call(*words)
            finally:
                c.close()
        except (OSError, ConnectionError):
            if conn_of.proc.poll() is not None:
                break
            time.sleep(.1)
    what = "is gone" if conn_of.proc.poll() is not None else "does not answer %s" % words[0]
    raise RuntimeError("the server %s: %s" % (what, conn_of.tail(20)))


def attack(t):
    options = [("notify-keyspace-events", "KEA"), ("repl-backlog-size", "64mb")]
    arguments = ["cl-throttle", "yes"] + (["debug-clock", "yes"] if t.args.clock else [])
    server = t.server("master", options, module_args=arguments).start()
    replica = None if t.args.reload else t.server("replica", options, module_args=arguments).start()
    grammar.seed("%s/%s" % (t.args.seed, t.args.clock))
    of = info_of(server, "server")
    grammar.copies_across = not of.get("valkey_version", "").startswith("8.1.")
    grammar.pauses = not of["redis_version"].startswith("7.0.")
    grammar.reloads = t.args.reload
    if replica:
        patient(replica, "REPLICAOF", "127.0.0.1", server.port)
    patient(server, "FUNCTION", "LOAD", "REPLACE", grammar.LIBRARY)
    grammar.lo_id[:] = [patient(server, "CLIENT", "ID")]
    sel, clients, looked, end = selectors.DefaultSelector(), [], 0.0, time.time() + t.args.seconds
    while time.time() < end:
        clients = [c for c in clients if not c.dead]
        while len(clients) < t.args.clients:
            try:
                clients.append(Client(t, server.port, sel))
            except OSError:
                if server.proc.poll() is not None:
                    raise RuntimeError("the server is gone: %s" % server.tail(20)) from None
                time.sleep(.01)
        now = time.time()
        if now - looked > .5:
            looked = now
            listed = patient(server, "CLIENT", "LIST")
            if isinstance(listed, bytes):
                grammar.lo_id[:] = [int(x) for x in re.findall(rb"^id=(\d+) (?!.* flags=S)", listed, re.M)] or [1]
        for c in clients:
            if c.want is None and not c.out:
                c.batch()
            elif now - c.since > 1 and rnd() < .02:
                c.close()
        for k, mask in sel.select(.02):
            try:
                k.data.ready(mask)
            except (ConnectionError, BlockingIOError, OSError):
                k.data.close()
    for c in clients:
        c.close()
    for words in (["CLIENT", "UNPAUSE"], ["CONFIG", "SET", "maxmemory", 0, "maxmemory-policy", "noeviction"], *([["SLUICE.CLOCK", "REAL"]] if t.args.clock else [])):
        patient(server, *words)
    until("the clients to be gone", lambda: info_of(server, "sluice")["sluice_blocked_clients"] == "0", 20)
    if info_of(server, "sluice")["sluice_panics_caught"] != "0":
        t.bad("panic", "sluice_panics_caught:%s" % info_of(server, "sluice")["sluice_panics_caught"])
    if t.args.break_ == "apart":
        patient(replica, "CONFIG", "SET", "replica-read-only", "no")
        patient(replica, "RQ.SET", "nobody", "LEASE", 5)
    if replica:
        compare(t, server, replica)
        t.crashes(replica)
    t.crashes(server)


def info_of(server, section):
    c = server.conn()
    try:
        return info(c, section)
    finally:
        c.close()


def compare(t, server, replica):
    """With writes paused and all applied, the digests are equal; else which keys differ is said."""
    digests = None
    for _ in range(20):
        patient(server, "CLIENT", "PAUSE", 3000, "WRITE")
        try:
            until("the replica to catch up", lambda: role(server).get("master_repl_offset") == role(replica).get("slave_repl_offset"), 2, .05)
            digests = patient(server, "DEBUG", "DIGEST"), patient(replica, "DEBUG", "DIGEST")
        except RuntimeError:
            pass
        patient(server, "CLIENT", "UNPAUSE")
        if digests and digests[0] == digests[1]:
            return
        time.sleep(.2)
    a, b, said = server.conn(), replica.conn(), False
    for db in range(3):
        for c in (a, b):
            c.call("SELECT", db)
        for k in sorted(set(ALL) | {k.decode("latin1") for c in (a, b) for k in c.call("KEYS", "*")[:200]}):
            x, y = a.call("DEBUG", "DIGEST-VALUE", k), b.call("DEBUG", "DIGEST-VALUE", k)
            if x != y:
                said = True
                t.bad("digest", "database %d: %s (%s, %s): %r %r, PTTL %s %s" % (
                    db, k, a.call("TYPE", k), b.call("TYPE", k), x, y, a.call("PTTL", k), b.call("PTTL", k)))
    if not said:
        t.bad("digest", "the replica does not catch up or differs: %r" % (digests,))


def arguments(p):
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--clients", type=int, default=40)
    p.add_argument("--clock", action="store_true")
    p.add_argument("--reload", action="store_true")


t = Trial(__doc__, ["apart"], arguments)
t.run(attack)
