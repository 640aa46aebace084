"""../shared/oracle/fuzz_limiters.py, with two corrections. SLUICE_ORACLE is the folder of driver and model; the arguments are
those of fuzz_limiters.py.

- The model lists the holders of SEM.INFO as receipt, owner, count, ms left; the contract says receipt, count, owner, ms left.
- The driver takes a client for blocked that has no answer within 20 ms, so a model that gets no processor for a moment looks
  as if it differed. Both sides handle one command after the other: here two round trips on another connection tell instead.
"""
import os, sys

sys.path.insert(0, os.environ["SLUICE_ORACLE"])
import fuzz_limiters

MODEL = int(sys.argv[1])


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


fuzz_limiters.Side = Side
fuzz_limiters.main()
