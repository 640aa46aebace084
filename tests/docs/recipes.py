"""Runs the Python of docs/recipes.md against a server: each piece with a small scene that shows it does what the page says.

usage: recipes.py PORT docs/recipes.md
"""

import socket
import sys
import threading
import types


class ConnectionError(Exception):
    pass


class ResponseError(Exception):
    pass


class Client:
    """As much of redis-py as the recipes use."""

    def __init__(self, port):
        try:
            self.stream = socket.create_connection(("127.0.0.1", port), timeout=10).makefile("rwb")
        except OSError as error:
            raise ConnectionError(error) from None

    def execute_command(self, *words):
        out = [b"*%d\r\n" % len(words)]
        for word in words:
            word = str(word).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.stream.write(b"".join(out))
        self.stream.flush()
        return self.read()

    def read(self):
        line = self.stream.readline()[:-2]
        kind, rest = line[:1], line[1:].decode()
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise ResponseError(rest)
        if int(rest) < 0:
            return None
        if kind == b"$":
            return self.stream.read(int(rest) + 2)[:-2].decode()
        return [self.read() for _ in range(int(rest))]


class Down:
    def execute_command(self, *words):
        raise ConnectionError("down")


def pieces(text):
    """The Python blocks by the heading above them."""
    found, heading, block = {}, None, None
    for line in text.splitlines():
        if block is None and line.startswith("## "):
            heading = line[3:]
        elif block is None and line == "```python":
            block = []
        elif block is not None and line == "```":
            assert heading not in found, f"two pieces below {heading}"
            found[heading], block = "\n".join(block), None
        elif block is not None:
            block.append(line)
    return found


class Done(BaseException):
    """Leaves a worker's endless loop."""


def worker_loop(r, page):
    call = r.execute_command
    call("RQ.MPUSH", "jobs", 3, "good", "bad", "lost")
    call("RQ.SET", "jobs", "MAXDELIVERIES", 1)
    other, seen = Client(port), []

    def work(payload):
        seen.append(payload)
        if payload == "last":
            raise Done
        yield
        if payload == "bad":
            raise ValueError("bad")
        if payload == "lost" and seen.count("lost") == 1:
            other.execute_command("RQ.REQUEUE", "jobs", "ALL")  # its lease is taken away in the middle
            yield
            seen.append("never gets here")

    later = threading.Timer(0.3, lambda: other.execute_command("RQ.PUSH", "jobs", "last"))
    later.start()
    try:
        page["worker"](r, "w1", work)
    except Done:
        pass
    later.join()
    assert seen == ["good", "bad", "lost", "lost", "last"], seen
    assert [call("RQ.GET", "jobs", id) for id in "13"] == [None, None]
    bad = dict(zip(*[iter(call("RQ.GET", "jobs", "2"))] * 2))
    assert (bad["state"], bad["reason"], bad["consumer"]) == ("dead", "ValueError('bad')", "w1"), bad


def api_limit(r, page):
    assert all(page["allowed"](r, 7, "acme") for _ in range(100))
    assert not page["allowed"](r, 7, "acme")
    r.execute_command("TB.BAN", "api:tenant:acme", 60000)
    level = r.execute_command("TB.PEEK", "api:user:8", 100, 10, 1000)
    assert not page["allowed"](r, 8, "acme")
    assert r.execute_command("TB.PEEK", "api:user:8", 100, 10, 1000) == level


def one_call(r, page):
    assert all(page["passes"](r, 7, "acme")[0] for _ in range(100))
    assert page["passes"](r, 7, "acme") == (False, 100, ["{api}:user:7"])
    assert r.execute_command("TTL", "{api}:user:7") > 86000
    assert r.execute_command("TTL", "{api}:tenant:acme") == -1
    r.execute_command("TB.DRAIN", "{api}:tenant:acme")
    level = r.execute_command("TB.PEEK", "{api}:all")
    assert page["passes"](r, 8, "acme") == (False, 2, ["{api}:tenant:acme"])
    assert r.execute_command("TB.PEEK", "{api}:all") == level
    assert r.execute_command("TB.PEEK", "{api}:user:8")[2] == 99
    r.execute_command("SET", "{api}:user:9", "text")
    try:
        page["passes"](r, 9, "acme")
        raise AssertionError("that is no bucket")
    except ResponseError as error:
        assert "WRONGTYPE" in str(error), error


def permits(r, page):
    held = lambda: r.execute_command("SEM.INFO", "reports")
    seen = []

    def work(receipt):
        for _ in range(3):
            r.execute_command("SLUICE.CLOCK", "ADVANCE", 20_000)  # longer in all than the lease
            seen.append(receipt)
            yield

    page["with_permit"](r, "w1", work)
    page["with_permit"](r, "w2", work)
    assert len(seen) == 6 and seen[0] < seen[3], seen
    assert held() is None

    def paused(receipt):
        r.execute_command("SLUICE.CLOCK", "ADVANCE", 30_000)
        yield
        raise AssertionError("never gets here")

    try:
        page["with_permit"](r, "w3", paused)
        raise AssertionError("its lease was over")
    except TimeoutError as error:
        assert "lease" in str(error), error
    r.execute_command("SEM.ACQUIRE", "reports", 8, "COUNT", 8, "LEASE", 60_000)
    later = threading.Timer(0.3, lambda: Client(port).execute_command("SLUICE.CLOCK", "ADVANCE", 10_000))
    later.start()
    try:
        page["with_permit"](r, "w4", work)
        raise AssertionError("all are taken")
    except TimeoutError as error:
        assert "all 8 permits are taken, try again in 50000 ms" in str(error), error
    later.join()


def headers(r, page):
    six = r.execute_command("TB.TAKE", "h", 10, 10, 60000, "COST", 9)
    assert page["headers"](six, 10, 60000) == {
        "RateLimit-Policy": '"default";q=10;w=60',
        "RateLimit": '"default";r=1;t=54',
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "1",
        "X-RateLimit-Reset": "54",
    }
    r.execute_command("SLUICE.CLOCK", "ADVANCE", 1)
    six = r.execute_command("TB.TAKE", "h", 10, 10, 60000, "COST", 2)
    assert page["headers"](six, 10, 60000)["Retry-After"] == "6"
    six = r.execute_command("TB.TAKE", "h", 10, 10, 60000, "COST", 11)
    assert "Retry-After" not in page["headers"](six, 10, 60000)


def smoothing(r, page):
    slept = []
    page["time"] = types.SimpleNamespace(sleep=slept.append)
    assert [page["paced"](r, lambda: "done") for _ in range(11)] == ["done"] * 11
    assert slept == [n / 5 for n in range(11)], slept
    try:
        page["paced"](r, lambda: "done")
        raise AssertionError("the twelfth would wait for 2.2 s")
    except TimeoutError as error:
        assert "200 ms" in str(error), error


def llm(r, page):
    assert page["ask"](r, "alice", "x" * 4000, lambda prompt: ("yes", 500)) == "yes"
    assert r.execute_command("TB.INFO", "llm:alice")[11] == 99_500
    try:
        page["ask"](r, "alice", "x", lambda prompt: 1 / 0)
    except ZeroDivisionError:
        pass
    assert r.execute_command("TB.INFO", "llm:alice")[11] == 99_500
    try:
        page["ask"](r, "alice", "x" * 398_000, lambda prompt: ("no", 0))
        raise AssertionError("that is more than there is")
    except TimeoutError:
        pass


def fallback(r, page):
    limit = page["Limit"](r, 5, 10, 10, 3_600_000)
    assert [limit.take("k") for _ in range(11)] == [True] * 10 + [False]
    limit.r = Down()
    assert [limit.take("k") for _ in range(3)] == [True, True, False]


SCENES = {
    "A worker loop": worker_loop,
    "An API limit for each user": api_limit,
    "User, tenant and everybody in one call": one_call,
    "Capping concurrency": permits,
    "Headers from a reply": headers,
    "Smoothing to a slow supplier": smoothing,
    "A budget of LLM tokens": llm,
    "Falling back to a local limit": fallback,
}

port = int(sys.argv[1])
found = pieces(open(sys.argv[2], encoding="utf-8").read())
assert set(found) == set(SCENES), set(found) ^ set(SCENES)
for heading, scene in SCENES.items():
    client = Client(port)
    client.execute_command("FLUSHALL")
    client.execute_command("SLUICE.CLOCK", "SET", 1_900_000_000_000)
    page = {"redis": types.SimpleNamespace(
        ConnectionError=ConnectionError, TimeoutError=TimeoutError, ResponseError=ResponseError)}
    exec(compile(found[heading], heading, "exec"), page)
    scene(client, page)
    print(heading)
