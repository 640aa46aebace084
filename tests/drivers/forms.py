"""The product in another form than a server of its own with one database: the drivers and their models do not notice.

  --cluster   one node that has every slot. Keys get a tag on their way to the server and lose it on the way back; the tags change from history to
              history, so that keys are sometimes in one slot and sometimes in several. Commands over keys of different slots are drawn again.
  --db N      every connection works in that database
  --user U    every connection is that user's, whose password is its name
  --pieces    it puts off what it can: that is done after each command, by the test clock, before anything is compared

A driver's own parser does not see these options.
"""
import argparse, sys

# Commands with several keys: where among the words their keys begin, and whether a number of keys comes before them.
SEVERAL = {"RQ.MCLAIM": True, "GATE.MPASS": True, "RQ.MOVE": False, "RENAME": False, "COPY": False}


def options():
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument("--cluster", action="store_true")
    p.add_argument("--db", type=int)
    p.add_argument("--user")
    p.add_argument("--pieces", action="store_true")
    mine, rest = p.parse_known_args(sys.argv[1:])
    sys.argv[1:] = rest
    return mine


class Form:
    def __init__(self, o, keys):
        self.o, self.keys = o, sorted(set(keys))
        self.there, self.back = {}, {}

    def shuffle(self, r):
        """Other tags, for the history that begins now. A third of the histories has all keys in one slot."""
        if self.o.cluster:
            one = r.random() < 1 / 3
            self.there = {k: "{%s}%s" % ("a" if one else r.choice("abc"), k) for k in self.keys}
            self.back = {v: k for k, v in self.there.items()}

    def connection(self, plain):
        """The drivers' class of connections, for this form: bytes or text, whatever it gives."""
        form = self

        class Dressed(plain):
            def __init__(self, port):
                super().__init__(port)
                for words in ([["AUTH", form.o.user, form.o.user]] if form.o.user else []) + ([["SELECT", form.o.db]] if form.o.db else []):
                    if self.call(*words) not in ("OK", b"OK"):
                        raise ConnectionError(f"{words} is refused")

            def send(self, words):
                super().send([form.there.get(text(w), w) for w in words])

            def read(self):
                r = super().read()
                if type(r) is bytes:
                    return form.named(text(r)).encode("utf-8", "surrogateescape")
                return form.named(r) if type(r) is str else r

        return Dressed

    def named(self, word):
        """A key, or a stage of the key of a gate, as the driver knows it."""
        key, slash, stage = word.partition("/")
        return self.back[key] + slash + stage if key in self.back else word

    def tags(self, words):
        """Where the keys of a command are; None if it would be hard to tell what a server takes for its keys."""
        words = [text(w) for w in words]
        name = str(words[0]).upper()
        if name not in SEVERAL:
            at = [w for w in words[1:2] if w in self.there]
        elif SEVERAL[name]:
            n = int(words[1]) if len(words) > 1 and str(words[1]).isdigit() else 0
            at = words[2:2 + n] if 0 < n < 20 else []
            if not at or len(at) < n or set(at) - set(self.there):
                return None
        else:
            at = words[1:3]
            if len(at) < 2 or set(at) - set(self.there):
                return None
        return {self.there[k][:3] for k in at}

    def crosses(self, words, others=()):
        """Whether this command's keys, with those of others of the same transaction, are not in one slot."""
        if not self.o.cluster:
            return False
        tags = self.tags(words)
        return tags is None or len(tags.union(*(self.tags(w) or set() for w in others))) > 1


def text(x):
    return x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else x
