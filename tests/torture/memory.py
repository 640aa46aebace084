"""Memory drift: many operations of every family, with clients that wait and go away, are killed or unblocked, then FLUSHALL: used memory comes back to
where it was, and the module's own accounts to 0. The first half of the rounds may settle; the second may not grow.

`--break keep`: keys stay behind.
"""

import random
import re
import socket
import time

from lib import Conn, Trial, info, rounds, until

SLACK = 400_000  # bytes: what servers and allocators do for themselves


def batch(r, k):
    """A few commands that make and unmake much."""
    n = r.randint
    return r.choice([
        lambda: [["RQ.PUSH", k, "p" * n(0, 200), "ID", "i%d" % n(0, 10**6), "GROUP", "g%d" % n(0, 10**5), "DEDUP", 10**6],
                 ["RQ.CLAIM", k, "CONSUMER", "c%d" % n(0, 10**5), "LEASE", 10**6]],
        lambda: [["RQ.MPUSH", k, 5, *["x" * n(0, 900)] * 5, "TTL", n(1, 50)]],
        lambda: [["RQ.CLAIM", k, "COUNT", 5, "NOACK"]],
        lambda: [["RQ.PUSH", k, "p", "ID", "q", "ONDUP", "KEEPLAST"], ["RQ.PUSH", k, "p2", "ID", "q", "ONDUP", "KEEPLAST"], ["RQ.CLAIM", k, "COUNT", 3]],
        lambda: [["RQ.PAUSE", k, "GROUP", "g%d" % n(0, 10**6)], ["RQ.RESUME", k, "GROUP", "g%d" % n(0, 10**6)]],
        lambda: [["RQ.SET", k, "GROUPRATE", n(1, 9), 1000, 9], ["RQ.PURGE", k, "ALL"]],
        lambda: [["RQ.REQUEUE", k, "ALL", "COUNT", 9], ["RQ.MOVE", k, k + "m", "READY", "COUNT", 9]],
        lambda: [["TB.HOLD", "t%d" % n(0, 1000), 9, 9, 1000, "COST", 1, "TTL", n(1, 10**6)]],
        lambda: [["LB.TAKE", "l%d" % n(0, 1000), 9, 9, 1000]],
        lambda: [["SEM.ACQUIRE", "s%d" % n(0, 100), 9, "OWNER", "o%d" % n(0, 10**6), "LEASE", n(1, 1000)]],
        lambda: [["HOT.SET", "h%d" % n(0, 5), 9, 9, 10**6, "MAXSUBJECTS", 1000], ["HOT.TAKE", "h%d" % n(0, 5), "u%d" % n(0, 10**6)],
                 ["HOT.EXCEPT", "h%d" % n(0, 5), "u%d" % n(0, 10**4), n(1, 9), 5, 5]],
        lambda: [["GATE.SET", "g%d" % n(0, 9), "STAGE", "a", "SEM", n(1, 9), "STAGE", "b", "TB", 99, 99, 99], ["GATE.PASS", "g%d" % n(0, 9)]],
        lambda: [["COPY", k, k + "c", "REPLACE"], ["RENAME", k + "c", k + "d"], ["UNLINK", k + "d"]],
        lambda: [["EVAL", 'redis.call("RQ.PUSH",KEYS[1],"x"); return redis.pcall("RQ.CLAIM",KEYS[1])', 1, k]],
        lambda: [["MULTI"], ["RQ.PUSH", k, "y"], ["TB.TAKE", "tt", 9, 9, 9], ["EXEC"]],
        lambda: [["PEXPIRE", k, n(1, 20)], ["DEBUG", "DIGEST-VALUE", k], ["DUMP", k]],
        lambda: [["RESTORE", "z%d" % n(0, 99), 0, b"bad"], ["RQ.GET", k, "q"], ["RQ.LIST", k, "READY"]],
    ])()


def waiting(r, i):
    return r.choice([
        ["RQ.CLAIM", "bq%d" % (i % 50), "BLOCK", 0, "GROUP", "g%d" % i], ["RQ.MCLAIM", 3, "bq1", "bq2", "m%d" % i, "BLOCK", 0],
        ["TB.TAKE", "bt%d" % (i % 5), 1, 1, 100000, "BLOCK", 10**8], ["LB.TAKE", "bl", 1000, 1, 10**5, "BLOCK"],
        ["SEM.ACQUIRE", "bs", 1, "LEASE", 10**7, "BLOCK", 10**7], ["GATE.PASS", "bg", "BLOCK", 10**7], ["RQ.NEXT", "bq3", "RECEIPTS", 1, "a@1", "BLOCK", 0]])


def wait_and_go(t, r, server, c, how):
    """Clients wait; then their connections end, or they are killed, or unblocked, or all keys go."""
    socks = []
    for i in range(150):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(Conn.pack(waiting(r, i)))
        socks.append(s)
    time.sleep(.1)
    ids = re.findall(rb"^id=(\d+) (?=[^\n]* flags=b)", c.call("CLIENT", "LIST"), re.M)
    if how == "kill":
        c.pipe([["CLIENT", "KILL", "ID", i] for i in ids])
    elif how == "unblock":
        c.pipe([["CLIENT", "UNBLOCK", i, r.choice(["TIMEOUT", "ERROR"])] for i in ids])
        time.sleep(.05)
    elif how == "flush":
        c.call("FLUSHALL")
        time.sleep(.1)
    for s in socks:
        s.close()
    t.count("waiters", len(socks))


def memory(t):
    server = t.server("memory", [("maxclients", "5000")]).start()
    r, c, sizes = random.Random(t.args.seed), server.conn(60), []
    for n in range(t.args.rounds):
        t.rounds = n + 1
        c.pipe([["GATE.SET", "bg", "STAGE", "x", "SEM", 1], ["GATE.PASS", "bg"]])
        for b in range(t.args.batches):
            commands = []
            while len(commands) < 1000:
                commands += batch(r, "k%d" % r.randint(0, 20))
            c.pipe(commands)
            t.count("commands", len(commands))
            if b % 5 == 0:
                wait_and_go(t, r, server, c, ("close", "kill", "unblock", "flush")[b // 5 % 4])
        until("nobody to wait", lambda: info(c, "sluice")["sluice_blocked_clients"] == "0", 10)
        c.call("FLUSHALL", "SYNC")
        c.call("SCRIPT", "FLUSH")
        if t.args.break_ == "keep":
            # Far more than a buffer that one of the two rounds happens to have freed.
            c.call("RQ.MPUSH", "left", 200 * (n + 1), *["x" * 10_000] * 200 * (n + 1))
        time.sleep(.6)
        c.call("MEMORY", "PURGE")
        f = info(c, "everything")
        sizes.append(int(f["used_memory"]))
        own = {k: v for k, v in f.items() if re.fullmatch(r"sluice_\w+_(bytes|keys)|sluice_timer_objects|sluice_blocked_clients", k) and v != "0"}
        if own:
            t.bad("left", "after FLUSHALL: %s" % own)
        if f["sluice_panics_caught"] != "0":
            t.bad("panic", f["sluice_panics_caught"])
    half = (len(sizes) + 1) // 2
    settled, later = max(sizes[:half]), max(sizes[half:])
    t.note("used_memory after each round: %s" % sizes)
    if later > settled + SLACK:
        t.bad("drift", "%d bytes more after %d commands" % (later - settled, t.figures["commands"]))
    c.close()
    server.stop()
    t.crashes(server)


t = Trial(__doc__, ["keep"], lambda p: (rounds(4)(p), p.add_argument("--batches", type=int, default=100)))
t.run(memory)
