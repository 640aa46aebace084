"""../shared/oracle/fuzz_queue.py, but it never copies a key onto itself: every server answers that with an error, whatever
the key holds, and the model does not. SLUICE_ORACLE is the folder of both; the arguments are those of fuzz_queue.py and of
events.py: what befalls the product now and then, before the whole state is compared. Nobody waits then: who did has gone."""
import os, sys, time

sys.path.insert(0, os.environ["SLUICE_ORACLE"])
import events
import fuzz_queue

CHOSEN = events.options()
PRODUCT = events.Product(fuzz_queue.Conn, int(sys.argv[2]), CHOSEN)
OPEN_FIELDS = fuzz_queue.OPEN_FIELDS


class Round(fuzz_queue.Round):
    def __init__(self, ports, seed, opts):
        super().__init__((ports[0], PRODUCT.port), seed, opts)
        self.luck = events.beside(seed)
        PRODUCT.clock(0)
        fuzz_queue.OPEN_FIELDS = OPEN_FIELDS

    def command(self):
        words = super().command()
        while words[0] == "COPY" and words[1] == words[2]:
            words = super().command()
        return words

    def tick(self, ms):
        PRODUCT.clock(self.now + ms)
        super().tick(ms)

    def whole_state(self):
        event = PRODUCT.draw(self.luck)
        if event:
            self.undergo(event)
        super().whole_state()

    def undergo(self, event):
        for name, (pair, _) in self.waiters.items():
            for c in pair:
                c.s.close()
            self.log.append((name, ["(closes)"], None, None))
        if self.waiters:
            self.waiters = {}
            time.sleep(0.01)
        self.log.append((None, [f"({event})"], None, None))
        try:
            PRODUCT.undergo(event, self.now)
        except events.Broken as e:
            raise fuzz_queue.Difference(str(e)) from e
        self.ports = (self.ports[0], PRODUCT.port)
        self.main[1].s.close()
        self.main[1] = fuzz_queue.Conn(PRODUCT.port)
        # Counted on each server for itself, since it has the queue.
        fuzz_queue.OPEN_FIELDS = OPEN_FIELDS | {"total_rejected"}


fuzz_queue.Round = Round
fuzz_queue.main()
PRODUCT.tell()
