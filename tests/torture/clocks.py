"""Steps of the wall clock under a running server, by a preloaded library: what was due by the new time happens at once, what is due later happens at its
instant, forwards and back, and no number is given twice or falls.

`--break late`: nothing is done about the clock, and what should be due at once is not.
"""

import time

from lib import AOF, Clock, Trial, Waiter, info

SOON = 1.5  # seconds


def told_within(t, what, w, seconds):
    began = time.time()
    w.join(seconds)
    if w.is_alive():
        t.bad("late", "%s: nothing within %.1f s" % (what, seconds))
        w.join(5)
        t.note("%s: %s after %.1f s" % (what, "told" if not w.is_alive() else "nothing", time.time() - began))
        return False
    return True


def waiter(server, *words):
    w = Waiter(server.port, words)
    w.start()
    time.sleep(.1)
    return w


def reaches_the_module(clock, c):
    """Whether the preloaded clock is the module's too. A server that loads modules with RTLD_DEEPBIND (Valkey 9.1) gives them the C library's own."""
    c.call("TB.TAKE", "probe", 1, 1, 3_000_000)
    clock.set(3600)
    moved = c.call("TB.PEEK", "probe", 1, 1, 3_000_000)[0] == 1
    clock.set(0)
    c.call("FLUSHALL")
    return moved


def forward(t, server, clock, c):
    c.call("RQ.PUSH", "hour", "m", "DELAY", 3_500_000)
    c.call("SEM.ACQUIRE", "sem", 1, "LEASE", 3_500_000)
    c.call("TB.TAKE", "tb", 1, 1, 3_500_000)
    c.call("RQ.PUSH", "far", "m", "DELAY", 20_000_000)
    ws = [waiter(server, "RQ.CLAIM", "hour", "BLOCK", 0), waiter(server, "SEM.ACQUIRE", "sem", 1, "BLOCK", 3_600_000),
          waiter(server, "TB.TAKE", "tb", 1, 1, 3_500_000, "BLOCK", 3_600_000)]
    time.sleep(.2)
    if t.args.break_ != "late":
        clock.set(3600)
    for w in ws:
        told_within(t, "an hour forward, %s" % w.argv[0], w, SOON)
    # What is due in half a second now is not forgotten because the timer sleeps for hours.
    c.call("TB.TAKE", "quick", 1, 1, 500)
    w = waiter(server, "TB.TAKE", "quick", 1, 1, 500, "BLOCK", 5000)
    told_within(t, "half a second after the step, TB.TAKE", w, SOON)
    w = waiter(server, "RQ.CLAIM", "soon", "BLOCK", 0)
    c.call("RQ.PUSH", "soon", "m", "DELAY", 500)
    told_within(t, "half a second after the step, RQ.CLAIM", w, SOON)
    t.count("steps")


def back(t, server, clock, c):
    clock.set(0)
    numbers = []
    for _ in range(3):
        c.call("RQ.PUSH", "q", "m")
        numbers.append(int(c.call("RQ.CLAIM", "q", "LEASE", 400)[0][1].rsplit(b"@", 1)[1]))
    clock.set(-3600)
    for _ in range(3):
        c.call("RQ.PUSH", "q", "m")
        numbers.append(int(c.call("RQ.CLAIM", "q", "LEASE", 400)[0][1].rsplit(b"@", 1)[1]))
    if numbers != sorted(set(numbers)):
        t.bad("number-falls", "over a step back: %s" % numbers)
    w = waiter(server, "RQ.CLAIM", "later", "BLOCK", 0)
    c.call("RQ.PUSH", "later", "m", "DELAY", 500)
    told_within(t, "half a second after a step back, RQ.CLAIM", w, SOON)
    server.kill9()
    server.start()
    c = server.conn()
    c.call("RQ.PUSH", "q", "m")
    n = int(c.call("RQ.CLAIM", "q", "LEASE", 400)[0][1].rsplit(b"@", 1)[1])
    if n <= numbers[-1]:
        t.bad("number-falls", "an hour back and a restart: %d after %d" % (n, numbers[-1]))
    t.count("steps")
    return c


def clocks(t):
    server = t.server("clocks", AOF)
    clock = Clock(t, server)
    server.start()
    if not reaches_the_module(clock, server.conn()):
        t.note("SKIPPED: the preloaded clock does not reach a module of this server")
        server.stop()
        return
    for n in range(t.args.rounds):
        t.rounds = n + 1
        c = server.conn()
        c.call("FLUSHALL")
        clock.set(0)
        forward(t, server, clock, c)
        c = back(t, server, clock, c)
        c.close()
    panics = info(server.conn(), "sluice")["sluice_panics_caught"]
    if panics != "0":
        t.bad("panic", panics)
    server.stop()
    t.crashes(server)


t = Trial(__doc__, ["late"], lambda p: p.add_argument("--rounds", type=int, default=2))
t.run(clocks)
