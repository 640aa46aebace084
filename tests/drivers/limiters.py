"""fuzz_limiters.py, with events and forms; the arguments are its own and those of events.py and forms.py.

An event is a step of the history. Nobody waits then: who did has gone. Every key is looked at after it.

With --pieces all that is put off is done after each step; with --only HOT some histories do it never, until the clock is moved. In those no subject has to
make room: who that is may lag.
"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle"))
import events
import forms
import fuzz_limiters

CHOSEN = events.options()
FORM = forms.Form(forms.options(), fuzz_limiters.ALLK)
MODEL = int(sys.argv[1])
DRESSED = FORM.connection(fuzz_limiters.Conn)
PRODUCT = events.Product(DRESSED, int(sys.argv[2]), CHOSEN)
EVENT = "(event)"
SUBJECTS = ["u1", "u2", "u3", "u4", "u5", "\udcff\u0000"]
LOOKS = [[c, k] for keys, commands in [
    (fuzz_limiters.TBK, ["TB.INFO", "TB.PEEK"]), (fuzz_limiters.LBK, ["LB.INFO", "LB.PEEK"]), (fuzz_limiters.SMK, ["SEM.PEEK"]),
    (fuzz_limiters.GTK, ["GATE.INFO", "GATE.PEEK"]), (fuzz_limiters.HTK, ["HOT.INFO"])] for k in keys for c in commands]
LOOKS += [["SEM.INFO", k, "HOLDERS"] for k in fuzz_limiters.SMK] + [["HOT.PEEK", k, s] for k in fuzz_limiters.HTK for s in SUBJECTS]


class Side(fuzz_limiters.Side):
    def conn(self, name):
        if name not in self.conns and self.port != MODEL:
            self.conns[name] = DRESSED(self.port)
        return super().conn(name)


class Run(fuzz_limiters.Run):
    due = None

    def begin(self):
        self.b.port = PRODUCT.port
        PRODUCT.clock(0)
        super().begin()

    def waiting(self):
        if SETTLES:
            self.b.conn("main").call("SLUICE.CLOCK", "SET", fuzz_limiters.T0 + self.now)
        super().waiting()

    def step(self, step):
        do = step.get("do", [None])
        if "clock" in step and not (step["clock"] < self.now and self.blocked):
            PRODUCT.clock(step["clock"])
        if do[0] != EVENT:
            super().step(step)
        elif not self.blocked:
            self.b.end()
            try:
                PRODUCT.undergo(do[1], self.now)
            except events.Broken as e:
                raise fuzz_limiters.Diff(str(e)) from e
            self.b.port = PRODUCT.port
            for look in LOOKS:
                self.step({"do": look})


def history(r, o, run):
    if run.due is None:
        run.due = PRODUCT.draw(r)
    if run.due is None:
        return drawn(r, o, run)
    if run.blocked:
        return {"close": sorted(run.blocked)[0]}
    event, run.due = run.due, None
    return {"do": [EVENT, event]}


TAGGED_FOR = None
SETTLES = False


def drawn(r, o, run):
    global TAGGED_FOR, SETTLES
    if TAGGED_FOR is not run:
        # A history begins. That it is played again and again while it is reduced changes no tag.
        TAGGED_FOR = run
        FORM.shuffle(r)
        SETTLES = FORM.o.pieces and (set(o.families) != {"HOT"} or r.random() < .5)
    step = history_of_all(r, o, run)
    while "do" in step and FORM.crosses(step["do"]):
        step = history_of_all(r, o, run)
    if FORM.o.pieces and not SETTLES and step.get("do", [None])[0] == "HOT.SET":
        step["do"] = step["do"][:5]
    return step


history_of_all = fuzz_limiters.history
fuzz_limiters.Side, fuzz_limiters.Run, fuzz_limiters.history = Side, Run, history
fuzz_limiters.main()
PRODUCT.tell()
