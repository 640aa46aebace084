#!/usr/bin/env python3
"""Replays cases (files of commands, times and right answers) against a server that has the module.

usage: replay.py [-p PORT] [-k PATTERN] [-v] FILE.json [FILE.json ...]

The server must have been started with the module option `debug-clock yes`. Every case starts from an empty
keyspace at the instant T0. Exit status 0 when all hold. Standard library only. The format: ../cases.rs.
"""
import argparse, json, re, socket, sys, time

T0 = 1_900_000_000_000


class Err(str):
    """An error reply."""


class Conn:
    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.f = self.s.makefile("rb")

    def send(self, args):
        out = b"*%d\r\n" % len(args)
        for a in args:
            b = a if isinstance(a, bytes) else str(a).encode("utf-8", "surrogateescape")
            out += b"$%d\r\n%s\r\n" % (len(b), b)
        self.s.sendall(out)

    def read(self):
        line = self.f.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        k, rest = line[:1], line[1:-2]
        if k == b"+":
            return rest.decode()
        if k == b"-":
            return Err(rest.decode("utf-8", "surrogateescape"))
        if k in b":(":
            return int(rest)
        if k == b"_":
            return None
        if k == b",":
            return float(rest)
        if k == b"#":
            return rest == b"t"
        if k == b"$":
            n = int(rest)
            if n < 0:
                return None
            d = self.f.read(n + 2)[:-2]
            return d.decode("utf-8", "surrogateescape")
        if k in b"*~>":
            n = int(rest)
            return None if n < 0 else [self.read() for _ in range(n)]
        if k == b"%":
            return [self.read() for _ in range(2 * int(rest))]
        raise ValueError(line)

    def waiting(self, seconds):
        """True if no reply arrives within `seconds`."""
        self.s.settimeout(seconds)
        try:
            return not self.s.recv(1, socket.MSG_PEEK)
        except (TimeoutError, socket.timeout):
            return True
        finally:
            self.s.settimeout(5)

    def call(self, *args):
        self.send(args)
        return self.read()

    def close(self):
        self.f.close()
        self.s.close()


def matches(want, got, saved):
    """None if `got` is what `want` asks for, else a short reason. Patterns: ../cases.rs."""
    if isinstance(want, dict):
        if "err" in want:
            return None if isinstance(got, Err) and got.startswith(want["err"]) else f"wanted an error {want['err']}…, got {got!r}"
        if isinstance(got, Err):
            return f"unexpected error {got}"
        if "any" in want:
            if "save" in want:
                saved[want["save"]] = got
            return None
        if "save" in want:
            saved[want["save"]] = got
            return None if got is not None else "wanted a value to save, got nil"
        if "re" in want:
            return None if isinstance(got, str) and re.fullmatch(want["re"], got) else f"{got!r} does not match {want['re']}"
        if "min" in want or "max" in want:
            ok = isinstance(got, (int, float)) and want.get("min", got) <= got <= want.get("max", got)
            return None if ok else f"{got!r} is not within {want}"
        if "set" in want:  # the same elements in any order
            return None if isinstance(got, list) and sorted(map(repr, got)) == sorted(repr(subst(w, saved)) for w in want["set"]) else f"{got!r} is not {want}"
        if "len" in want:
            return None if isinstance(got, list) and len(got) == want["len"] else f"{got!r} has not {want['len']} elements"
        if "map" in want:  # named fields of a flat map
            if not isinstance(got, list) or len(got) % 2:
                return f"{got!r} is not a map"
            m = dict(zip(got[::2], got[1::2]))
            for k, v in want["map"].items():
                if k not in m:
                    return f"no field {k}"
                r = matches(v, m[k], saved)
                if r:
                    return f"{k}: {r}"
            return None
        raise ValueError(want)
    if isinstance(want, list):
        if not isinstance(got, list):
            return f"wanted {want!r}, got {got!r}"
        if len(want) != len(got):
            return f"wanted {len(want)} elements, got {got!r}"
        for i, (w, g) in enumerate(zip(want, got)):
            r = matches(w, g, saved)
            if r:
                return f"[{i}] {r}"
        return None
    want = subst(want, saved)
    return None if type(want) is type(got) and want == got else f"wanted {want!r}, got {got!r}"


def subst(a, saved):
    if isinstance(a, str) and a.startswith("$") and a[1:] in saved:
        return saved[a[1:]]
    return a


def run(case, port):
    conns, saved, blocked = {}, {}, set()
    main = Conn(port)
    try:
        main.call("FLUSHALL")
        main.call("CONFIG", "RESETSTAT")
        r = main.call("SLUICE.CLOCK", "SET", T0)
        if isinstance(r, Err):
            return f"SLUICE.CLOCK: {r}"
        now = 0
        for n, st in enumerate(case["steps"]):
            where = f"step {n} {st}"
            if "at" in st and st["at"] != now:
                now = st["at"]
                r = main.call("SLUICE.CLOCK", "SET", T0 + now)
                if isinstance(r, Err):
                    return f"{where}: SLUICE.CLOCK SET: {r}"
            c = st.get("client", "main")
            conn = main if c == "main" else conns.setdefault(c, None) or conns.__setitem__(c, Conn(port)) or conns[c]
            if "sleep" in st:
                time.sleep(st["sleep"] / 1000)
            if st.get("close"):
                conn.close()
                conns.pop(c)
                time.sleep(0.05)
                continue
            for _ in range(st.get("times", 1)):
                if "do" in st:
                    args = [T0 + int(a[1:]) if isinstance(a, str) and re.fullmatch(r"@-?\d+", a) else subst(a, saved) for a in st["do"]]
                    conn.send(args)
                    if st.get("blocks"):
                        if not conn.waiting(0.05):
                            return f"{where}: wanted it to block, got {conn.read()!r}"
                        continue
                if st.get("silent"):
                    if not conn.waiting(0.05):
                        return f"{where}: wanted no reply yet, got {conn.read()!r}"
                    continue
                if "do" in st or "is" in st:
                    try:
                        got = conn.read()
                    except (TimeoutError, socket.timeout):
                        return f"{where}: no reply within 5 s"
                    if "is" in st:
                        r = matches(st["is"], got, saved)
                        if r:
                            return f"{where}: {r}"
        return None
    except (ConnectionError, OSError) as e:
        return f"the server is gone: {e}"
    finally:
        for c in [main, *filter(None, conns.values())]:
            try:
                c.close()
            except OSError:
                pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-p", "--port", type=int, default=6379)
    p.add_argument("-k", default="")
    p.add_argument("-v", action="store_true")
    p.add_argument("files", nargs="+")
    a = p.parse_args()
    good = bad = 0
    for f in a.files:
        for case in json.load(open(f)):
            if a.k and a.k not in case["name"]:
                continue
            r = run(case, a.port)
            if r is None:
                good += 1
                if a.v:
                    print(f"ok   {case['name']}")
            else:
                bad += 1
                print(f"FAIL {case['name']}: {r}")
    print(f"{good} passed, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
