"""Kills servers under load, in every way they can store what they hold, and judges what comes back by the clients' own ledger.

  aof       kill -9, `appendfsync always`: nothing acknowledged is lost, nothing acked comes back
  rewrite   the same while the AOF is rewritten and snapshots are made (preamble on and off); children are killed too
  toggle    the AOF is switched off and on under load, then kill -9
  rdb       snapshots only: what comes back is a whole state, numbers go on rising
  tail      kill -9, then the last bytes of the AOF are cut off: a prefix of the history comes back, EXEC batches whole or not at all

`--break`: `nofsync` (the AOF is off), `cut` (4000 bytes of the tail are cut), `forget` (one acked id is taken for not acked), `ghost` (an id is
pushed that no client knows of): all in mode aof.
"""

import os
import signal
import threading
import time

from ledger import drain, totals, verify, whole
from lib import AOF, Conn, cut, info, rewrite, rounds, until
from load import Loaded, setup


def broken(t, conn=None):
    """--break: what the checks must notice."""
    if t.args.break_ == "forget":
        m = next((m for m in t.log.msgs.values() if m.acked), None)
        if m:
            m.acked, m.ack_sent = False, 0
    if t.args.break_ == "ghost" and conn:
        conn.call("RQ.PUSH", "q0", "never|$", "ID", "never-pushed", "PRIORITY", 255)


def aof(t):
    options = AOF if t.args.break_ != "nofsync" else [("appendonly", "no")]
    s = t.server("aof", options).start()
    setup(s.conn())
    for life in range(t.args.rounds):
        t.rounds = life + 1
        ws = t.workers(life, lambda: s.port)
        time.sleep(t.rng.uniform(0.1, t.args.life))
        s.kill9()
        t.count("kills")
        t.join(ws)
        if t.args.break_ == "cut":
            cut(s, 4000)
        broken(t)
        s.start()
        c = s.conn()
        if t.args.break_ == "nofsync":
            setup(c)
        verify(t, c)
        if t.args.break_ == "ghost":
            broken(t, c)
        if life % 15 == 14:
            rewrite(c)
        c.close()
    c = s.conn()
    drain(t, c)
    s.stop()
    t.crashes(s)


def rewriting(t):
    s = t.server("rewrite", AOF).start()
    setup(s.conn())
    for life in range(t.args.rounds):
        t.rounds = life + 1
        c = s.conn()
        c.call("CONFIG", "SET", "aof-use-rdb-preamble", t.rng.choice(("yes", "no")))
        c.call("CONFIG", "SET", "rdb-key-save-delay", t.rng.choice((0, 500, 5000, 20000)))
        ws = t.workers(life, lambda: s.port)
        end = time.time() + t.rng.uniform(0.1, 2 * t.args.life)
        while time.time() < end:
            c.call(t.rng.choice(("BGREWRITEAOF", "BGREWRITEAOF", "BGSAVE")))
            time.sleep(t.rng.uniform(0.01, 0.15))
            if t.rng.random() < 0.3:
                for pid in s.children():
                    try:
                        os.kill(pid, signal.SIGKILL)
                        t.count("child_kills")
                    except OSError:
                        pass
            if t.rng.random() < 0.2:
                c.call("CONFIG", "SET", "rdb-key-save-delay", 0)
        orphans = s.children()
        s.kill9()
        t.count("kills")
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        t.join(ws)
        c.close()
        s.start()
        c = s.conn()
        verify(t, c)
        c.close()
    drain(t, s.conn())
    s.stop()
    t.crashes(s)


def toggle(t):
    """The AOF is switched off and on under load, beside snapshots: once it is whole again, nothing that is answered is lost."""
    s = t.server("toggle", AOF).start()
    setup(s.conn())
    for life in range(t.args.rounds):
        t.rounds = life + 1
        c = s.conn()
        c.call("CONFIG", "SET", "rdb-key-save-delay", t.rng.choice((0, 500, 3000)))
        ws = t.workers(life, lambda: s.port)
        for _ in range(t.rng.randint(1, 3)):
            time.sleep(t.rng.uniform(0.01, 0.15))
            c.call("CONFIG", "SET", "appendonly", "no")
            time.sleep(t.rng.uniform(0, 0.1))
            if t.rng.random() < 0.5:
                c.call("BGSAVE")
            c.call("CONFIG", "SET", "appendonly", "yes")
        if t.rng.random() < 0.5:
            c.call("CONFIG", "SET", "rdb-key-save-delay", 0)

        def whole_again():
            f = info(c, "persistence")
            return f["aof_enabled"] == "1" and f["aof_rewrite_in_progress"] == f["aof_rewrite_scheduled"] == "0" and f["aof_last_bgrewrite_status"] == "ok"

        until("the AOF to be whole", whole_again, 30, 0.01)
        time.sleep(t.rng.uniform(0, 0.2))
        s.kill9()
        t.count("kills")
        t.join(ws)
        c.close()
        s.start()
        c = s.conn()
        verify(t, c)
        c.close()
    drain(t, s.conn())
    s.stop()
    t.crashes(s)


def rdb(t):
    s = t.server("rdb", [("appendonly", "no")]).start()
    for life in range(t.args.rounds):
        t.rounds = life + 1
        c = s.conn()
        c.call("DEL", "q0", "q1", "qg", "qk", "qd", "qn", "qa", "qb", "sem", "gate", "tbhold", "tbslow", "hotslow")
        t.new_log()
        setup(c)
        ws = t.workers(life, lambda: s.port)
        end = time.time() + t.rng.uniform(0.05, t.args.life)
        saves = t.rng.random() < 0.7  # else all of this life is lost
        while time.time() < end:
            if saves:
                c.call(t.rng.choice(("BGSAVE", "SAVE")))
            time.sleep(t.rng.uniform(0.01, 0.1))
        s.kill9()
        t.count("kills")
        t.join(ws)
        c.close()
        s.start()
        c = s.conn()
        totals(t, c)
        whole(t, c)
        c.close()
    s.stop()
    t.crashes(s)


class Sequence(threading.Thread):
    """Pushes 1, 2, 3 ...: what is left after a loss must be 1 ... k."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.sent, self.answered = port, 0, 0

    def run(self):
        try:
            c = Conn(self.port)
            while True:
                n = self.sent + 1
                self.sent += 5
                c.send(*[("RQ.PUSH", "qs", "p", "ID", i) for i in range(n, n + 5)])
                for _ in range(5):
                    c.read()
                    self.answered += 1
                time.sleep(0.001)
        except (OSError, ConnectionError):
            pass


def tail(t):
    s = t.server("tail", AOF).start()
    for life in range(t.args.rounds):
        t.rounds = life + 1
        c = s.conn()
        c.call("DEL", "q0", "q1", "qg", "qk", "qd", "qn", "qa", "qb", "qs", "sem", "gate", "tbhold", "tbslow", "hotslow")
        t.new_log()
        before = os.path.getsize(s.aof_tail())
        setup(c)
        c.close()
        ws = t.workers(life, lambda: s.port)
        seq = Sequence(s.port)
        seq.start()
        time.sleep(t.rng.uniform(0.05, t.args.life))
        s.kill9()
        t.count("kills")
        t.join(ws)
        seq.join()
        cut(s, t.rng.choice((1, 7, 100, t.rng.randint(1, 3000), t.rng.randint(1, 20000), os.path.getsize(s.aof_tail()) - before)))
        s.start()
        c = s.conn()
        if not t.args.torn:
            # The servers leave a MULTI without its EXEC in the file when the tail ends in the middle of a command of it, and read what follows as part of it at
            # the next start (seen in Redis 7.0.15, 8.2.3 and Valkey 8.1.8). A rewrite ends that. `--torn` leaves it there.
            rewrite(c)
        totals(t, c)
        whole(t, c)
        got = c.pipe([("RQ.GET", "qs", i) for i in range(1, seq.sent + 1)])
        there = [x is not None for x in got]
        k = there.index(False) if False in there else len(there)
        if any(there[k:]):
            t.bad("not-a-prefix", "qs: %d is missing, later ones are there" % (k + 1))
        c.close()
    s.stop()
    t.crashes(s)


MODES = {"aof": aof, "rewrite": rewriting, "toggle": toggle, "rdb": rdb, "tail": tail}


def arguments(p):
    rounds(20)(p)
    p.add_argument("--mode", required=True, choices=list(MODES))
    p.add_argument("--torn", action="store_true", help="tail: do not rewrite the AOF after a cut")


t = Loaded(__doc__, ["nofsync", "cut", "forget", "ghost"], arguments)
t.run(MODES[t.args.mode])
