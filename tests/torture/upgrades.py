"""Files of one server loaded by another, and replicas of another server, each way between all that are given.

`--others PROGRAM …`: the other servers; `--pairs N`: only so many ways, by the seed. `--break forget`: one acked id is taken for not acked.
"""

import itertools
import os
import subprocess
import time

from ledger import drain, verify
from lib import REPLICA, caught_up, digests, rewrite
from load import Loaded, setup


# A server does not take files of a format that is newer than itself: that is its own affair, and it says so.
NEWER = "Can't handle RDB format version"


def name_of(program):
    words = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()
    return "%s-%s" % (words[0].lower(), next(w[2:] for w in words if w.startswith("v=")))


def upgrades(t):
    servers = [(name_of(p), p) for p in [t.args.server] + [os.path.abspath(p) for p in t.args.others]]
    ways = [(how, x, y) for x, y in itertools.permutations(servers, 2) for how in ("aof", "aof-rdb", "rdb", "replica")]
    t.rng.shuffle(ways)
    for how, x, y in ways[: t.args.pairs]:
        t.rounds += 1
        t.new_log(server_too=True)
        (as_replica if how == "replica" else files)(t, how, x, y)


def refused(t, what, server, why):
    """Right only for files from the future."""
    with open(server.log, errors="replace") as f:
        if NEWER in f.read():
            t.count("refused_by_the_server_itself")
        else:
            t.bad("not-loaded", "%s: %s" % (what, why))


def files(t, how, x, y):
    what = "%s of %s on %s" % (how, x[0], y[0])
    options = [("appendonly", "no" if how == "rdb" else "yes"), ("appendfsync", "always"), ("aof-use-rdb-preamble", "yes" if how == "aof-rdb" else "no")]
    s = t.server("s%d" % t.rounds, options, binary=x[1]).start()
    setup(s.conn())
    ws = t.workers(1000 + t.rounds, lambda: s.port, follow=True)
    time.sleep(0.25)
    t.stop(ws)
    c = s.conn()
    c.call("SAVE") if how == "rdb" else rewrite(c)
    s.kill9()
    t.count("kills")
    broken(t)
    other = t.server("s%d" % t.rounds, options, binary=y[1])
    other.log += "-other"
    try:
        other.start()
    except RuntimeError as e:
        return refused(t, what, other, e)
    verify(t, other.conn())
    drain(t, other.conn())
    t.count("loaded")
    other.stop()
    t.crashes(s, other)


def as_replica(t, _, x, y):
    what = "%s as replica of %s" % (y[0], x[0])
    m = t.server("m%d" % t.rounds, REPLICA, binary=x[1]).start()
    r = t.server("r%d" % t.rounds, REPLICA, binary=y[1]).start()
    setup(m.conn())
    ws = t.workers(2000 + t.rounds, lambda: m.port, follow=True)
    r.conn().call("REPLICAOF", "127.0.0.1", m.port)
    time.sleep(0.4)
    t.stop(ws)
    broken(t)
    try:
        caught_up(m, [r], 10)
    except RuntimeError as e:
        refused(t, what, r, e)
    else:
        digests(t, m, [r], what)
        c = r.conn()
        c.call("REPLICAOF", "NO", "ONE")
        t.count("failovers")
        verify(t, c)
        drain(t, c)
        t.count("promoted")
    m.stop()
    r.stop()
    t.crashes(m, r)


def broken(t):
    """--break: what the checks must notice."""
    m = next((m for m in t.log.msgs.values() if m.acked), None)
    if t.args.break_ == "forget" and m:
        m.acked, m.ack_sent = False, 0


def arguments(p):
    p.add_argument("--others", nargs="*", default=[])
    p.add_argument("--pairs", type=int, default=None)


t = Loaded(__doc__, ["forget"], arguments)
t.run(upgrades)
