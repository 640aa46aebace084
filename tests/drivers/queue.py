"""fuzz_queue.py, with events and forms; the arguments are its own and those of events.py (what befalls the product now and then, before
the whole state is compared, and with --pieces also while something is put off; nobody waits then: who did has gone) and of
forms.py."""
import os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle"))
import events
import forms
import fuzz_queue

CHOSEN = events.options()
FORM = forms.Form(forms.options(), fuzz_queue.KEYS)
PLAIN, DRESSED = fuzz_queue.Conn, FORM.connection(fuzz_queue.Conn)
MODEL = int(sys.argv[1])
PRODUCT = events.Product(DRESSED, int(sys.argv[2]), CHOSEN)
OPEN_FIELDS = fuzz_queue.OPEN_FIELDS


class Round(fuzz_queue.Round):
    def __init__(self, ports, seed, opts):
        self.luck = events.beside(seed)
        FORM.shuffle(self.luck)
        self.queued = []
        super().__init__((ports[0], PRODUCT.port), seed, opts)
        PRODUCT.clock(0)
        fuzz_queue.OPEN_FIELDS = OPEN_FIELDS

    def command(self):
        words = super().command()
        if FORM.o.pieces and self.in_multi and self.queued:
            return ["EXEC"]
        while FORM.crosses(words, self.queued if self.in_multi else []):
            words = super().command()
        if self.in_multi:
            self.queued.append(words)
        return words

    def settings(self, n=None):
        # What a push has still to drop is forgotten by a restart: the next push drops it, and until then the model is ahead.
        forgets = FORM.o.pieces and PRODUCT.chance
        return [["REJECT" if forgets and w == "DROPOLD" else w for w in p] for p in super().settings(n)]

    def garbage(self):
        words = super().garbage()
        # Which words of a command in disorder a server takes for keys is its own affair.
        while FORM.o.cluster and str(words[0]).upper() in forms.SEVERAL:
            words = super().garbage()
        return words

    def play(self, words, mutated=False):
        if words == ["MULTI"]:
            self.queued = []
            self.in_multi = True
        return super().play(words, mutated)

    def look_at_waiters(self):
        if FORM.o.pieces and not self.in_multi:
            if PRODUCT.chance and not self.waiters and PRODUCT.rest() and self.luck.random() < 1 / 3:
                self.undergo(self.luck.choice(PRODUCT.kinds))
            self.main[1].call("SLUICE.CLOCK", "SET", fuzz_queue.T0 + self.now)
        super().look_at_waiters()

    def block(self, words):
        if not FORM.crosses(words):
            super().block(words)

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


fuzz_queue.Conn = lambda port: PLAIN(port) if port == MODEL else DRESSED(port)
fuzz_queue.Round = Round
fuzz_queue.main()
PRODUCT.tell()
