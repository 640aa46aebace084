"""Accidents, each a scenario of its own: disk full, failed forks, memory used up, DEBUG RELOAD and LOADAOF under load, SWAPDB, MODULE UNLOAD,
SHUTDOWN with waiting clients, a torn MULTI, bookings and numbers over failovers and restarts, a master that refuses writes.

`--only PART` runs those whose name contains it. `--break wrong` expects something wrong on purpose.
"""

import os
import re
import resource
import signal
import subprocess
import time
import traceback

from ledger import drain, verify
from lib import AOF, Err, Server, Waiter, caught_up, free_port, info, rewrite, role, until
from load import Loaded, setup


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


def expect(t, what, got, wanted):
    """`wanted`: a value, or a test of it."""
    if not (wanted(got) if callable(wanted) else got == wanted):
        t.bad("accident", "%s: %r" % (what, got))


def is_err(code):
    return lambda got: isinstance(got, Err) and got.startswith(code)


def fill(conn, key, size=1000, most=200000):
    """Pushes until it is refused: the ids that were answered, and the refusal."""
    ids, n, why = [], 0, None
    while n < most and why is None:
        batch = [("RQ.PUSH", key, "x" * size, "ID", "%s-%d" % (key, n + i)) for i in range(50)]
        for i, reply in enumerate(conn.pipe(batch)):
            # After a refusal others of the batch may be taken: what is free changes by the moment.
            if isinstance(reply, Err):
                why = why or reply
            else:
                ids.append("%s-%d" % (key, n + i))
        n += 50
    return ids, why


def there(conn, key, ids):
    return sum(x is not None for x in conn.pipe([("RQ.GET", key, i) for i in ids]))


def tmpfs(t, name, size):
    path = os.path.join(t.dir, name)
    os.makedirs(path)
    if os.geteuid() or subprocess.call(["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", path], stderr=subprocess.DEVNULL):
        t.note("no tmpfs can be mounted: no full disk")
        return None
    return path


def accident_disk_full(t):
    for fsync in ("everysec", "always"):
        path = tmpfs(t, "full-" + fsync, "3m")
        if not path:
            return
        s = Server(t.args.server, t.args.module, path, free_port(), [("appendonly", "yes"), ("appendfsync", fsync), ("auto-aof-rewrite-percentage", "0")])
        s.log = os.path.join(t.dir, "full-%s.log" % fsync)
        try:
            s.start()
            c = s.conn()
            c.call("RQ.PUSH", "held", "p")
            receipt = c.call("RQ.CLAIM", "held", "LEASE", 600)[0][1]
            c.call("RQ.PUSH", "late", "p", "DELAY", 800)
            w = Waiter(s.port, ("RQ.CLAIM", "late", "BLOCK", 3000))
            w.start()
            ids, why = [], None
            end = time.time() + 10
            while time.time() < end and why is None:
                try:
                    more, why = fill(c, "q%d" % len(ids), 2000, 100)
                    ids += [(i.rsplit("-", 1)[0], i) for i in more]
                except (OSError, ConnectionError):
                    why = "closed"
            t.note("disk full, appendfsync %s: after %d pushes: %s" % (fsync, len(ids), why))
            if fsync == "everysec":
                expect(t, "a push on a full disk", why, is_err("MISCONF"))
                expect(t, "an ack on a full disk", c.call("RQ.ACK", "held", receipt), is_err("MISCONF"))
                time.sleep(1.2)
                expect(t, "a lease ends on a full disk", c.call("RQ.LEN", "held", "READY"), 1)
                w.join(5)
                t.note("a waiter whose message came due on a full disk got %r" % (w.got,))
                c.call("CONFIG", "SET", "appendfsync", "no")
                subprocess.call(["mount", "-o", "remount,size=60m", path])
                until("writes to go on", lambda: not isinstance(c.call("RQ.PUSH", "again", "p"), Err), 10, 0.1)
                time.sleep(1.2)
            else:
                s.proc.wait(10)
                t.note("the server ended by itself with %s" % s.proc.returncode)
                subprocess.call(["mount", "-o", "remount,size=60m", path])
            s.kill9()
            t.count("kills")
            s.start()
            c = s.conn()
            lost = [i for (q, i), x in zip(ids, c.pipe([("RQ.GET", q, i) for q, i in ids])) if x is None]
            expect(t, "pushes lost after a full disk (%s)" % fsync, lost[:3], [])
            expect(t, "panics", info(c, "sluice")["sluice_panics_caught"], "0")
        finally:
            s.kill9()
            subprocess.call(["umount", "-l", path])


def accident_no_fork(t):
    """Forks fail: limits of another user's processes."""
    if os.geteuid():
        return t.note("not root: forks cannot be made to fail")
    s = t.server("nofork", [("appendonly", "yes"), ("stop-writes-on-bgsave-error", "yes")])
    os.chmod(t.dir, 0o777)
    for d in (s.dir,):
        os.chown(d, 65534, 65534)

    def nobody(n):
        def become():
            resource.setrlimit(resource.RLIMIT_NPROC, (n, n))
            os.setgid(65534)
            os.setuid(65534)

        return become

    # As many threads as the server needs, and no more.
    for n in range(2, 40):
        try:
            s.start(extra=[("save", "3600 1000000")], preexec=nobody(n))
            break
        except (RuntimeError, PermissionError):
            s.forget()
    else:
        return t.note("not run as nobody: %s" % s.tail(2)[-200:])
    c = s.conn()
    c.call("RQ.PUSH", "q", "p")
    c.call("RQ.CLAIM", "q", "LEASE", 300)
    got = [c.call("BGSAVE"), c.call("BGREWRITEAOF"), c.call("RQ.PUSH", "q", "p"), c.call("RQ.LEN", "q")]
    if isinstance(got[0], bytes):
        s.kill9()
        return t.note("forks do not fail with RLIMIT_NPROC %d" % n)
    t.note("forks fail: BGSAVE %s; BGREWRITEAOF %s; then a push: %s" % tuple(map(str, got[:3])))
    expect(t, "a push after a failed BGSAVE", got[2], is_err("MISCONF"))
    time.sleep(0.6)
    expect(t, "a lease ends while writes are stopped", c.call("RQ.LEN", "q", "READY"), 1)
    c.call("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    expect(t, "a push again", c.call("RQ.PUSH", "q", "p", "ID", "again"), b"again")
    s.kill9()
    t.count("kills")
    s.start()
    c = s.conn()
    expect(t, "the push after", c.call("RQ.LEN", "q"), 2)
    s.stop()


def accident_memory(t):
    s = t.server("memory", [("appendonly", "no")]).start()
    c = s.conn()
    for i in range(200):
        c.call("RQ.PUSH", "jobs", "y" * 500, "ID", "j%d" % i)
    receipts = [m[1] for m in c.call("RQ.CLAIM", "jobs", "COUNT", 50, "LEASE", 600000)]
    permit = c.call("SEM.ACQUIRE", "sem", 5, "LEASE", 600000)[4]
    c.call("CONFIG", "SET", "maxmemory", int(info(c, "memory")["used_memory"]) + 3000000, "maxmemory-policy", "noeviction")
    ids, why = fill(c, "q")
    expect(t, "a push when memory is used up", why, is_err("OOM"))
    expect(t, "RQ.ACK", c.call("RQ.ACK", "jobs", *receipts[:10]), [1] * 10)
    expect(t, "RQ.NACK", c.call("RQ.NACK", "jobs", "RECEIPTS", 2, *receipts[10:12]), [1, 1])
    expect(t, "RQ.EXTEND", c.call("RQ.EXTEND", "jobs", 1000, receipts[12]), [1])
    expect(t, "RQ.CLAIM", len(c.call("RQ.CLAIM", "jobs", "COUNT", 5)), 5)
    expect(t, "RQ.NEXT", c.call("RQ.NEXT", "jobs", "RECEIPTS", 1, receipts[13])[0], [1])
    expect(t, "SEM.RELEASE", c.call("SEM.RELEASE", "sem", permit), [1])
    n = 0
    while c.call("RQ.LEN", "q") and n < 100000:
        got = c.call("RQ.CLAIM", "q", "COUNT", 500)
        n += sum(c.call("RQ.ACK", "q", *[m[1] for m in got]))
    expect(t, "drained under OOM", n, len(ids))
    expect(t, "a push after that", c.call("RQ.PUSH", "q", "p", "ID", "after"), b"after")
    # Eviction: whole queues go. Who waits stays, and numbers go on rising.
    c.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    c.call("CONFIG", "SET", "notify-keyspace-events", "Ee")
    c.call("SEM.ACQUIRE", "lock", 1, "LEASE", 600000)
    last = int(c.call("RQ.CLAIM", "jobs")[0][1].rsplit(b"@")[-1])
    w = [Waiter(s.port, ("RQ.CLAIM", "q", "BLOCK", 20000)), Waiter(s.port, ("SEM.ACQUIRE", "lock", 1, "BLOCK", 20000))]
    c.call("RQ.PURGE", "q", "ALL")
    for x in w:
        x.start()
    n = 0
    while c.call("EXISTS", "jobs", "lock", "q") and n < 40000:
        c.pipe([("SET", "f%d" % (n + i), "z" * 400) for i in range(200)])
        n += 200
    t.note("allkeys-lru: jobs, lock and q are evicted after %d strings; evicted_keys %s; %s" % (n, info(c, "stats")["evicted_keys"], [x.got for x in w]))
    c.call("RQ.PUSH", "jobs", "p")
    m = c.call("RQ.CLAIM", "jobs")
    expect(t, "numbers after eviction", int(m[0][1].rsplit(b"@")[-1]) > last, True)
    expect(t, "an ack of an evicted queue", c.call("RQ.ACK", "jobs", receipts[20]), [-1])
    c.call("RQ.PUSH", "q", "p")
    w[0].join(5)
    expect(t, "a waiter of an evicted queue", w[0].got, lambda got: isinstance(got, list) and len(got) == 1)
    expect(t, "panics", info(c, "sluice")["sluice_panics_caught"], "0")
    expect(t, "the server lives", c.call("PING"), b"PONG")
    s.stop()


def under_load(t, name, options, do, life):
    """Workers at work while `do(conn)` happens; nothing is lost."""
    t.new_log(server_too=True)
    s = t.server(name, options).start()
    setup(s.conn())
    ws = t.workers(life, lambda: s.port, follow=True, tolerate=("LOADING", "EXECABORT"))
    c = s.conn()
    for _ in range(6):
        time.sleep(0.08)
        do(c)
    time.sleep(0.05)
    t.stop(ws)
    t.log.grants.pop("tbu", None)  # who waits for a bucket that is flushed is answered at once: documented
    verify(t, c)
    drain(t, c)
    s.stop()
    t.crashes(s)


def accident_reload(t):
    under_load(t, "reload", [("appendonly", "no")], lambda c: c.call("DEBUG", "RELOAD"), 901)


def accident_loadaof(t):
    under_load(t, "loadaof", AOF, lambda c: c.call("DEBUG", "LOADAOF"), 902)


def accident_swapdb(t):
    s = t.server("swapdb", AOF).start()
    c, one = s.conn(), s.conn()
    one.call("SELECT", 1)
    c.call("RQ.PUSH", "q", "p", "ID", "zero")
    c.call("RQ.CLAIM", "q", "LEASE", 200)
    one.call("RQ.PUSH", "q", "p", "ID", "one", "DELAY", 200)
    w = Waiter(s.port, ("RQ.CLAIM", "q", "BLOCK", 3000))  # of database 0
    w.start()
    time.sleep(0.05)
    c.call("SWAPDB", 0, 1)
    w.join(2)
    expect(t, "a waiter of database 0 after SWAPDB", w.got and w.got[0][0], b"one")
    expect(t, "a lease ends in the database it was swapped to", (time.sleep(0.2), one.call("RQ.LEN", "q", "READY"))[1], 1)
    s.kill9()
    t.count("kills")
    s.start()
    one = s.conn()
    one.call("SELECT", 1)
    expect(t, "after a kill", one.call("RQ.GET", "q", "zero") is not None, True)
    s.stop()


def accident_unload(t):
    s = t.server("unload", AOF).start()
    c = s.conn()
    expect(t, "MODULE UNLOAD", c.call("MODULE", "UNLOAD", "sluice"), is_err("ERR"))
    w = Waiter(s.port, ("RQ.CLAIM", "q", "BLOCK", 0))
    w.start()
    expect(t, "MODULE UNLOAD with a waiter", c.call("MODULE", "UNLOAD", "sluice"), is_err("ERR"))
    c.call("RQ.PUSH", "q", "p")
    w.join(3)
    expect(t, "the waiter", w.got, lambda g: isinstance(g, list))
    s.stop()


def accident_shutdown(t):
    s = t.server("shutdown", AOF).start()
    for how in ("TERM", "SHUTDOWN", "NOSAVE"):
        c = s.conn()
        c.call("DEL", "qsem", "qtb", "seq")
        full_ones(c)
        c.call("GATE.SET", "g", "STAGE", "s", "SEM", 1)
        c.call("GATE.PASS", "g")
        ws = waiters(s.port) + [Waiter(s.port, ("GATE.PASS", "g", "BLOCK", 60000)), Waiter(s.port, ("RQ.MCLAIM", 2, "qempty", "qempty2", "BLOCK", 0))]
        for w in ws:
            if not w.is_alive():
                w.start()
        time.sleep(0.1)
        blocked = info(c, "clients")["blocked_clients"]
        begin = time.time()
        if how == "TERM":
            s.proc.terminate()
        else:
            try:
                c.call("SHUTDOWN", *(["NOSAVE"] if how == "NOSAVE" else []))
            except (OSError, ConnectionError):
                pass
        try:
            code = s.proc.wait(10)
        except subprocess.TimeoutExpired:
            code = "still running"
        expect(t, "the exit of %s with %s blocked clients" % (how, blocked), code, 0)
        expect(t, "how long %s took" % how, time.time() - begin < 3, True)
        released(t, ws, how, lambda got: isinstance(got, str) and got.startswith("closed") or isinstance(got, Err))
        s.forget()
        s.start()
    s.stop()
    t.crashes(s)


def accident_torn(t):
    """What the torn MULTI of a cut tail does to the start after the next."""
    s = t.server("torn", AOF).start()
    c = s.conn()
    for i in range(4):
        c.call("RQ.PUSH", "a", "p")
    c.call("RQ.PUSH", "b", "p")
    c.call("RQ.MOVE", "a", "b", "READY", "COUNT", 2)
    s.kill9()
    path = s.aof_tail()
    data = open(path, "rb").read()
    # Through a transaction if there is one, else through the last command.
    os.truncate(path, (data.rindex(b"EXEC") if b"EXEC" in data else len(data)) - 20)
    s.start()
    c = s.conn()
    expect(t, "RQ.MOVE was torn: whole or not at all", [c.call("RQ.LEN", "a"), c.call("RQ.LEN", "b")], lambda g: g in ([4, 1], [2, 3]))
    c.call("RQ.MOVE", "a", "b", "READY", "COUNT", 1)
    now = [c.call("RQ.LEN", "a"), c.call("RQ.LEN", "b")]
    s.stop()
    try:
        s.start()
        c = s.conn()
        expect(t, "a clean restart after a torn tail", [c.call("RQ.LEN", "a"), c.call("RQ.LEN", "b")], now)
        s.stop()
    except RuntimeError as e:
        t.bad("torn-multi", "a clean restart after a torn tail: the server does not start: %s" % str(e)[-160:])


def accident_refund(t):
    """What a client had booked when its server was demoted is charged once: it does not come back when that server is master again."""
    a = t.server("refund-a", [("repl-diskless-sync-delay", "0")]).start()
    b = t.server("refund-b", [("repl-diskless-sync-delay", "0")]).start()
    ca, cb = a.conn(), b.conn()
    cb.call("REPLICAOF", "127.0.0.1", a.port)

    def change(m, r):
        caught_up(m, [r])
        c = m.conn()
        until("FAILOVER", lambda: c.call("FAILOVER", "TO", "127.0.0.1", r.port) == b"OK", 10)
        until("the change", lambda: role(r).get("role") == "master" and role(m).get("role") == "slave", 20)
        t.count("failovers")

    ca.call("TB.SET", "k", 1000, 1000, 10000)
    ca.call("TB.TAKE", "k", "COST", 1000)
    w = Waiter(a.port, ("TB.TAKE", "k", "COST", 200, "BLOCK", 60000))
    w.start()
    until("a waiter", lambda: info(ca, "clients")["blocked_clients"] == "1", 5)
    change(a, b)
    w.join(5)
    time.sleep(2.5)  # by now the booking is earned
    t0 = time.time()
    left = cb.call("TB.PEEK", "k")[2] + 1  # a PEEK tells what a take of one would leave
    cb.call("TB.TAKE", "k", "COST", left)
    change(b, a)
    more = ca.call("TB.TAKE", "k", "COST", 1000, "ATMOST")[0]
    allowed = 1 + 100 * (time.time() - t0)
    if more > allowed:
        t.bad("over-limit", "emptied, and %.3f s later, after a FAILOVER back, %d tokens are granted; %.0f came" % (time.time() - t0, more, allowed))
    a.stop()
    b.stop()


def accident_numbers(t):
    """Numbers rise over restarts in quick succession, also when the keys that had them are gone."""
    s = t.server("numbers", AOF).start()
    top = 0
    for life in range(8):
        c = s.conn()
        r = c.call("SEM.ACQUIRE", "lock", 1, "LEASE", 60000)[4]
        if r <= top:
            t.bad("number-falls", "start %d: %d after %d, nothing was lost" % (life, r, top))
        top = max(top, r)
        c.call("SEM.RELEASE", "lock", r)
        if life == 5:
            rewrite(c)
        s.kill9()
        t.count("kills")
        s.start()
    s.stop()


def accident_numbers_lost_tail(t):
    """Two lives whose writes are lost, in quick succession: no receipt is given twice."""
    s = t.server("numbers2", AOF).start()

    def claim():
        c = s.conn()
        c.call("RQ.PUSH", "q", "p")
        got = c.call("RQ.CLAIM", "q", "LEASE", 60000)[0][1]
        c.close()
        return got

    seen = [claim()]
    s.kill9()
    s.start()
    seen.append(claim())
    size = os.path.getsize(s.aof_tail())
    for _ in range(2):
        s.kill9()
        t.count("kills")
        os.truncate(s.aof_tail(), size)
        s.start()
        seen.append(claim())
    if len(set(seen)) < len(seen):
        t.bad("number-twice", "receipts of four lives: %s" % [x.decode() for x in seen])
    s.stop()


def accident_isolated(t):
    """A master that has no good replica left, and so refuses all writes (min-replicas-to-write): does it go on giving to those who wait?"""
    a = t.server("isolated-a", [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")]).start()
    b = t.server("isolated-b", [("repl-diskless-sync-delay", "0")]).start()
    b.conn().call("REPLICAOF", "127.0.0.1", a.port)
    caught_up(a, [b])
    c = a.conn()
    until("a good replica", lambda: not isinstance(c.call("SEM.ACQUIRE", "lock", 1, "LEASE", 4000), Err), 10)
    w = Waiter(a.port, ("SEM.ACQUIRE", "lock", 1, "BLOCK", 30000))
    w.start()
    b.proc.send_signal(signal.SIGSTOP)
    until("writes to be refused", lambda: isinstance(c.call("SEM.ACQUIRE", "lock", 1), Err), 10)
    w.join(6)
    if isinstance(w.got, list) and w.got[0]:
        t.bad("isolated", "a newcomer gets NOREPLICAS, one who waits gets the lock: %r" % (w.got,))
    b.proc.send_signal(signal.SIGCONT)
    a.stop()
    b.stop()


def accidents(t):
    for name, scenario in sorted((n, f) for n, f in globals().items() if n.startswith("accident_")):
        if any(part in name for part in t.args.only.split(",")):
            t.rounds += 1
            try:
                scenario(t)
            except Exception:
                t.bad("harness", "%s: %s" % (name, traceback.format_exc()))
            print("done: %s (%d violations)" % (name, sum(t.violations.values())), flush=True)
    if t.args.break_ == "wrong":
        s = t.server("wrong").start()
        expect(t, "wrong on purpose", s.conn().call("RQ.LEN", "q"), 1)
        s.stop()


t = Loaded(__doc__, ["wrong"], lambda p: p.add_argument("--only", default="", help="parts of names, divided by commas"))
t.run(accidents)
