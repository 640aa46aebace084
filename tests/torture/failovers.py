"""Makes replicas masters under load, and judges what they hold by the clients' own ledger.

  replica   master -> replica -> replica: kill -9 of the master, promotion by hand, the others follow; digests are compared
  failover  FAILOVER to and fro: nothing acknowledged is lost, waiting clients are released
  sentinel  three sentinels, kill -9 of the master, clients ask the sentinels

`--break`: `forget` (one acked id is taken for not acked), `apart` (a key is changed on the replica alone).
"""

import os
import signal
import subprocess
import time

from ledger import drain, verify
from lib import REPLICA, Conn, Err, Waiter, caught_up, digests, end_with_parent, free_port, info, pairs, role, rounds, until
from load import Loaded, setup

FOLLOW = ("READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "EXECABORT", "NOREPLICAS")


def waiters(port, n=3):
    ws = [Waiter(port) for _ in range(n)]
    ws += [Waiter(port, ("SEM.ACQUIRE", "qsem", 1, "BLOCK", 60000)), Waiter(port, ("TB.TAKE", "qtb", 1, 1, 600000, "BLOCK", 600000))]
    for w in ws:
        w.start()
    return ws


def full_ones(conn):
    conn.call("SEM.ACQUIRE", "qsem", 1, "LEASE", 600000)
    conn.call("TB.TAKE", "qtb", 1, 1, 600000)


def released(t, ws, what, wanted):
    for w in ws:
        w.join(10)
        if w.is_alive():
            t.bad("waiter-stuck", "%s: %s gets nothing within 10 s" % (what, w.argv))
        elif not wanted(w.got):
            t.bad("waiter", "%s: %s got %r" % (what, w.argv, w.got))


def broken(t, master, replica):
    """--break: what the checks must notice."""
    if t.args.break_ == "forget":
        m = next((m for m in t.log.msgs.values() if m.acked), None)
        if m:
            m.acked, m.ack_sent = False, 0
    if t.args.break_ == "apart":
        c = replica.conn()
        c.call("CONFIG", "SET", "replica-read-only", "no")
        c.call("RQ.SET", "qd", "MAXLEN", 123456)


def replica(t):
    t.waits = True
    chain = [t.server("r%d" % i, REPLICA).start() for i in range(3)]
    for a, b in zip(chain, chain[1:]):
        b.conn().call("REPLICAOF", "127.0.0.1", a.port)
    setup(chain[0].conn())
    for life in range(t.args.rounds):
        t.rounds = life + 1
        m, a, b = chain
        caught_up(m, [a, b])
        c = m.conn()
        c.call("DEL", "qsem", "qtb")
        full_ones(c)
        c.close()
        waiting = waiters(m.port)
        ws = t.workers(life, lambda: m.port, tolerate=FOLLOW)
        time.sleep(t.rng.uniform(0.2, 2 * t.args.life))
        if life % 2:
            # A replica dies too, and is back in time.
            victim, above = t.rng.choice(((a, m), (b, a)))
            victim.kill9()
            t.count("kills")
            victim.start(extra=[("replicaof", ["127.0.0.1", str(above.port)])])
            until("the replicas' links", lambda: all(role(r).get("master_link_status") == "up" for r in (a, b)), 30)
            time.sleep(1.7)
        killed = time.time()
        m.kill9()
        t.count("kills")
        t.join(ws)
        released(t, waiting, "kill", lambda got: isinstance(got, str) and got.startswith("closed"))
        far = life % 3 == 2
        new, other = (b, a) if far else (a, b)
        if far:
            for x in t.log.msgs.values():
                x.safe = x.acked_safe = False  # WAIT speaks of the direct replica only
        c = new.conn()
        c.call("REPLICAOF", "NO", "ONE")
        t.count("failovers")
        if far:
            other.conn().call("REPLICAOF", "127.0.0.1", new.port)
        m.start(extra=[("replicaof", ["127.0.0.1", str(other.port)])])
        verify(t, c, since=killed - 1.5)
        # A waiter on the new master is served, and a lease ends there by itself.
        w = Waiter(new.port)
        w.start()
        until("a waiter to wait", lambda: info(c, "clients")["blocked_clients"] != "0", 5)
        c.call("RQ.PUSH", "qempty", "p")
        w.join(5)
        if not isinstance(w.got, list):
            t.bad("waiter", "on the new master: %r" % (w.got,))
        c.call("DEL", "qempty", "qlease")
        c.call("RQ.PUSH", "qlease", "p")
        c.call("RQ.CLAIM", "qlease", "LEASE", 50)
        time.sleep(0.1)
        if c.call("RQ.LEN", "qlease", "READY") != 1:
            t.bad("lease-stands", "a lease does not end on the new master")
        chain = [new, other, m]
        caught_up(new, [other, m])
        digests(t, new, [other, m], "after promotion")
        c.close()
    t.log.lossless = False
    drain(t, chain[0].conn())
    for s in chain:
        s.stop()
        t.crashes(s)


def failover(t):
    two = [t.server("f%d" % i, REPLICA).start() for i in range(2)]
    two[1].conn().call("REPLICAOF", "127.0.0.1", two[0].port)
    setup(two[0].conn())

    def where():
        for s in two:
            if role(s).get("role") == "master":
                return s.port
        return None

    for life in range(t.args.rounds):
        t.rounds = life + 1
        m, a = two
        caught_up(m, [a])
        c = m.conn()
        c.call("DEL", "qsem", "qtb")
        full_ones(c)
        waiting = waiters(m.port)
        ws = t.workers(life, where, follow=True, tolerate=FOLLOW)
        time.sleep(t.rng.uniform(0.1, t.args.life))
        if life % 5 == 3:
            # The replica stands still: the failover gives up, and all goes on.
            a.proc.send_signal(signal.SIGSTOP)
            time.sleep(0.05)
            c.call("FAILOVER", "TIMEOUT", 200)
            time.sleep(0.5)
            a.proc.send_signal(signal.SIGCONT)
            until("the failover to be given up", lambda: role(m).get("master_failover_state") == "no-failover", 10)
            if role(m).get("role") != "master":
                t.bad("failover", "it should have been given up")
        until("FAILOVER to be accepted", lambda: c.call("FAILOVER", "TO", "127.0.0.1", a.port, "TIMEOUT", 10000) == b"OK", 10)
        until("the replica to take over", lambda: role(a).get("role") == "master" and role(m).get("role") == "slave", 20)
        t.count("failovers")
        released(t, waiting, "failover", lambda got: isinstance(got, Err) and got.startswith("UNBLOCKED"))
        time.sleep(t.rng.uniform(0.1, t.args.life))
        t.stop(ws)
        n = a.conn()
        broken(t, n, m)
        verify(t, n)
        caught_up(a, [m])
        digests(t, a, [m], "after FAILOVER")
        n.close()
        c.close()
        two = [a, m]
    drain(t, two[0].conn())
    for s in two:
        s.stop()
        t.crashes(s)


def sentinel(t):
    t.waits = True
    nodes = [t.server("n%d" % i, REPLICA).start() for i in range(3)]
    by_port = {n.port: n for n in nodes}
    for n in nodes[1:]:
        n.conn().call("REPLICAOF", "127.0.0.1", nodes[0].port)
    setup(nodes[0].conn())
    caught_up(nodes[0], nodes[1:])
    sentinels = []
    for i in range(3):
        folder = os.path.join(t.dir, "s%d" % i)
        os.makedirs(folder, exist_ok=True)
        port = free_port()
        conf = os.path.join(folder, "sentinel.conf")
        with open(conf, "w") as f:
            f.write("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor m 127.0.0.1 %d 2\nsentinel down-after-milliseconds m 700\n"
                    "sentinel failover-timeout m 4000\nsentinel parallel-syncs m 1\n" % (port, folder, nodes[0].port))
        p = subprocess.Popen([t.args.server, conf, "--sentinel"], stdout=open(os.path.join(folder, "log"), "ab"), stderr=subprocess.STDOUT,
                             preexec_fn=end_with_parent)
        sentinels.append((port, p))

    def where():
        for port, _ in sentinels:
            try:
                c = Conn(port, 2)
                got = c.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m")
                c.close()
                if isinstance(got, list):
                    return int(got[1])
            except (OSError, ConnectionError):
                pass
        return None

    def seen_all():
        try:
            c = Conn(sentinels[0][0], 2)
            f = pairs(c.call("SENTINEL", "MASTER", "m"))
            c.close()
            return f["num-slaves"] == b"2" and f["num-other-sentinels"] == b"2" and f["flags"] == b"master"
        except (OSError, ConnectionError, KeyError, TypeError, AttributeError, IndexError):
            return False

    try:
        for life in range(t.args.rounds):
            t.rounds = life + 1
            until("sentinels to know all", seen_all, 60)
            time.sleep(1)
            old = by_port[where()]
            caught_up(old, [n for n in nodes if n is not old])
            ws = t.workers(life, where, follow=True, tolerate=FOLLOW)
            time.sleep(t.rng.uniform(0.2, 1))
            killed = time.time()
            old.kill9()
            t.count("kills")
            until("another master", lambda: where() not in (None, old.port) and role(by_port[where()]).get("role") == "master", 60, 0.1)
            new = by_port[where()]
            t.count("failovers")
            time.sleep(0.7)
            t.stop(ws)
            for x in t.log.msgs.values():
                x.safe = x.acked_safe = False  # WAIT 1: any of two replicas
            # What came after the failover is sure: only the time around the kill is not.
            c = new.conn()
            verify(t, c, since=killed - 1.5)
            c.close()
            old.start()
            others = [n for n in nodes if n is not new]
            until("the old master to follow", lambda: all(role(n).get("role") == "slave" and role(n).get("master_port") == str(new.port) for n in others), 60, 0.1)
            caught_up(new, others)
            digests(t, new, others, "after sentinel's failover")
            t.note("sentinel failover %d took %.1f s" % (life, time.time() - killed))
        drain(t, by_port[where()].conn())
    finally:
        for _, p in sentinels:
            p.terminate()
            p.wait()
    for s in nodes:
        s.stop()
        t.crashes(s)


MODES = {"replica": replica, "failover": failover, "sentinel": sentinel}


def arguments(p):
    rounds(10)(p)
    p.add_argument("--mode", required=True, choices=list(MODES))


t = Loaded(__doc__, ["forget", "apart"], arguments)
t.run(MODES[t.args.mode])
