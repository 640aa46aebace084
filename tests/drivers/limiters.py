"""../shared/oracle/fuzz_limiters.py, with three corrections. SLUICE_ORACLE is the folder of driver and model; the arguments are
those of fuzz_limiters.py and of events.py.

- The model lists the holders of SEM.INFO as receipt, owner, count, ms left; the contract says receipt, count, owner, ms left.
- The driver takes a client for blocked that has no answer within 20 ms, so a model that gets no processor for a moment looks
  as if it differed. Both sides handle one command after the other: here two round trips on another connection tell instead.
- The model takes the empty subject; the contract wants 1 to 512 bytes. It is not asked.

An event is a step of the history. Nobody waits then: who did has gone. Every key is looked at after it.
"""
import os, sys

sys.path.insert(0, os.environ["SLUICE_ORACLE"])
import events
import fuzz_limiters

CHOSEN = events.options()
MODEL = int(sys.argv[1])
PRODUCT = events.Product(fuzz_limiters.Conn, int(sys.argv[2]), CHOSEN)
EVENT = "(event)"
SUBJECTS = ["u1", "u2", "u3", "u4", "u5", "\udcff\u0000"]
LOOKS = [[c, k] for keys, commands in [
    (fuzz_limiters.TBK, ["TB.INFO", "TB.PEEK"]), (fuzz_limiters.LBK, ["LB.INFO", "LB.PEEK"]), (fuzz_limiters.SMK, ["SEM.PEEK"]),
    (fuzz_limiters.GTK, ["GATE.INFO", "GATE.PEEK"]), (fuzz_limiters.HTK, ["HOT.INFO"])] for k in keys for c in commands]
LOOKS += [["SEM.INFO", k, "HOLDERS"] for k in fuzz_limiters.SMK] + [["HOT.PEEK", k, s] for k in fuzz_limiters.HTK for s in SUBJECTS]


class Side(fuzz_limiters.Side):
    def answered(self, name, seconds):
        if seconds < 1:
            # The first may be handled together with what was sent before it; the second comes after that for sure.
            self.conn("main").call("PING")
            self.conn("main").call("PING")
        return super().answered(name, 0 if seconds < 1 else seconds)

    def normal(self, do, reply):
        if self.port == MODEL and do[0].upper() == "SEM.INFO" and isinstance(reply, list) and "holders" in reply:
            at = reply.index("holders") + 1
            holders = [[receipt, count, owner, left] for receipt, owner, count, left in reply[at]]
            reply = reply[:at] + [holders] + reply[at + 1:]
        return super().normal(do, reply)


class Run(fuzz_limiters.Run):
    due = None

    def begin(self):
        self.b.port = PRODUCT.port
        PRODUCT.clock(0)
        super().begin()

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


def drawn(r, o, run):
    step = history_of_all(r, o, run)
    while step.get("do", [""])[0].startswith("HOT.") and step["do"][2:3] == [""]:
        step = history_of_all(r, o, run)
    return step


history_of_all = fuzz_limiters.history
fuzz_limiters.Side, fuzz_limiters.Run, fuzz_limiters.history = Side, Run, history
fuzz_limiters.main()
PRODUCT.tell()
