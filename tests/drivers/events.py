"""What befalls the product in the middle of a random history. After each of these it has to be what it was before:

  RELOAD    it saves its data set and loads it again (DEBUG RELOAD)
  LOADAOF   it throws its data set away and has it again from its AOF (DEBUG LOADAOF)
  REWRITE   the same, after the AOF was written anew, with or without an RDB as its preamble
  RESTART   its process ends at once and starts again, from the AOF if there is one, else from an RDB saved before
  CONTINUE  its replica, which has followed all along, is promoted and takes its place; what was the master is the replica from then on
  RESYNC    the same, but the replica begins with a whole copy

What can be seen from outside is compared by the drivers; here every key's digest and end are, as well.
"""
import argparse, random, sys, time

T0 = 1_900_000_000_000
KEEPER = "keeper of numbers"
WITH_AOF = ["LOADAOF", "REWRITE yes", "REWRITE no"]
WITH_REPLICA = ["CONTINUE", "CONTINUE", "RESYNC"]


class Broken(Exception):
    """The product is not what it was before."""


def options():
    """Takes the options about events out of the command line: for the drivers' own parser they are not there."""
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument("--events", type=float, default=0, help="how probable one is, where there may be one")
    p.add_argument("--replica", type=int, help="the port of a second server of the product")
    p.add_argument("--restarts", action="store_true", help="also restart the process (not with --back: what is loaded while the clock "
                   "runs goes by the server's TTL, not by the test clock)")
    mine, rest = p.parse_known_args(sys.argv[1:])
    sys.argv[1:] = rest
    return mine


class Product:
    """The servers of the product: the one that is the master now, and its replica if there is one."""

    def __init__(self, connect, port, o):
        self.connect, self.port, self.replica, self.chance = connect, port, o.replica, o.events
        self.happened, self.amid = {}, 0
        if not o.events:
            return
        self.aof = self.info(self.call(port, "INFO", "persistence"))["aof_enabled"] == "1"
        self.kinds = ["RELOAD"] + WITH_AOF * self.aof + WITH_REPLICA * bool(o.replica) + ["RESTART"] * o.restarts
        if o.replica:
            self.call(port, "REPLICAOF", "NO", "ONE")
            self.call(o.replica, "REPLICAOF", "127.0.0.1", port)

    def draw(self, r):
        """An event or, mostly, none."""
        return r.choice(self.kinds) if self.chance and r.random() < self.chance else None

    def undergo(self, event, now):
        """Lets it happen, at this instant of the test clock. Connections to the product may be gone then; nobody may wait there."""
        kind, *how = event.split()
        self.happened[kind] = self.happened.get(kind, 0) + 1
        before = self.held(self.port)
        # What is put off is done once a process or master begins: then it is the model that says what has to be.
        rest = self.rest()
        self.amid += rest
        self.clock(now)
        self.quiet()
        # The number of a message in flight, the highest there is, goes where the data set goes. Elsewhere the clock sees to it that a new
        # process or master begins with higher numbers than were given; here it stands still, or goes back by years.
        self.done("RQ.PUSH", KEEPER, "", "ID", "x", "LEASE", 31_622_400_000, answer="x")
        self.call(self.port, "RQ.CLAIM", KEEPER)
        if kind == "RELOAD":
            self.done("DEBUG", "RELOAD")
        elif kind == "LOADAOF":
            self.done("DEBUG", "LOADAOF")
        elif kind == "REWRITE":
            self.done("CONFIG", "SET", "aof-use-rdb-preamble", how[0])
            self.call(self.port, "BGREWRITEAOF")
            self.quiet()
            self.done("DEBUG", "LOADAOF")
        elif kind == "RESTART":
            self.restart(now)
        else:
            self.promote(kind == "RESYNC", now, before)
        self.done("DEL", KEEPER, answer=1)
        # A limiter that is full and not pinned may be there or not: the timer has it go when it happens to look.
        if not rest:
            self.same(before, self.held(self.port), event, may_go=True)

    def rest(self):
        """Whether something is put off."""
        return self.info(self.call(self.port, "INFO", "sluice"))["sluice_work_pending"] != "0"

    def clock(self, now):
        """Sets the replica's clock, before the master's: nothing that comes from there may seem to be long over."""
        if self.replica:
            self.call(self.replica, "SLUICE.CLOCK", "SET", T0 + now)

    def restart(self, now):
        if not self.aof:
            self.done("SAVE")
        process = self.info(self.call(self.port, "INFO", "server"))
        try:
            raise Broken(f"DEBUG CRASH-AND-RECOVER: {self.call(self.port, 'DEBUG', 'CRASH-AND-RECOVER')}")
        except OSError:
            pass  # The process ended instead of answering.

        def answers():
            try:
                server = self.info(self.call(self.port, "INFO", "server"))
                return server.get("run_id", process["run_id"]) != process["run_id"] and self.text(self.call(self.port, "PING")) == "PONG"
            except OSError:
                return False

        self.until(answers, "the restarted server")
        # The new process begins with the running clock, years before. A master would walk from there past instants that the queues have long
        # left behind, and cut their rates as after any step back; a replica's clock is only put.
        self.call(self.port, "REPLICAOF", "127.0.0.1", 1)
        self.done("SLUICE.CLOCK", "SET", T0 + now)
        self.done("REPLICAOF", "NO", "ONE")

    def promote(self, resync, now, before):
        if resync:
            # As a master for a moment it has a history of its own, which nobody can continue from.
            self.call(self.replica, "REPLICAOF", "NO", "ONE")
            self.call(self.replica, "REPLICAOF", "127.0.0.1", self.port)
        self.until(self.equal, "the replica to catch up")
        self.same(before, self.held(self.replica), "at the replica")
        self.clock(now)
        self.call(self.replica, "REPLICAOF", "NO", "ONE")
        self.port, self.replica = self.replica, self.port
        self.call(self.replica, "REPLICAOF", "127.0.0.1", self.port)

    def equal(self):
        """Whether the replica has applied everything."""
        m, r = (self.info(self.call(p, "INFO", "replication")) for p in (self.port, self.replica))
        return (r.get("master_link_status"), r["master_replid"], r.get("slave_repl_offset")) == \
            ("up", m["master_replid"], m["master_repl_offset"])

    def quiet(self):
        """Waits until the AOF is whole: a server that was a replica begins a new one."""
        def done():
            p = self.info(self.call(self.port, "INFO", "persistence"))
            return p["aof_rewrite_in_progress"] == "0" and p["aof_rewrite_scheduled"] == "0"

        self.until(done, "the AOF to be whole")

    def held(self, port):
        """Of every key: type, digest and the instant of its end."""
        keys = sorted(set(map(self.text, self.call(port, "KEYS", "*"))) - {KEEPER})
        return {k: [self.text(self.call(port, *c, k)) for c in (["TYPE"], ["DEBUG", "DIGEST-VALUE"], ["PEXPIRETIME"])] for k in keys}

    def same(self, before, after, what, may_go=False):
        for k in sorted(before | after):
            if before.get(k) != after.get(k) and not (may_go and k not in after and before[k][2] != -1):
                raise Broken(f"{what}: {k} was {before.get(k)} and is {after.get(k)}")

    # --- talking

    def call(self, port, *words):
        c = self.connect(port)
        try:
            return c.call(*words)
        finally:
            (c.close if hasattr(c, "close") else c.s.close)()

    def done(self, *words, answer="OK"):
        r = self.call(self.port, *words)
        if self.text(r) != answer:
            raise Broken(f"{' '.join(map(str, words))}: {r!r}")

    def text(self, x):
        return x.decode() if isinstance(x, bytes) else self.text(x[0]) if isinstance(x, list) else x

    def info(self, reply):
        return dict(line.split(":", 1) for line in self.text(reply).splitlines() if ":" in line)

    def until(self, holds, what, seconds=30):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise Broken(f"waited in vain for {what}")
            time.sleep(0.003)

    def tell(self):
        """One line about what happened."""
        if self.chance:
            print("events: " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.happened.items())) + (f"; {self.amid} while something was put off" if self.amid else ""))


def beside(seed):
    """Random numbers that leave those of the history alone."""
    return random.Random(f"events {seed}")
