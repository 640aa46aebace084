"""What the torture programs share: real servers, connections to them, and an account of what was violated.

A program makes one `Trial`, whose command line is the same everywhere:

  --server PROGRAM --module LIBRARY   what is tested
  --seed N                            what is random follows from it
  --rounds N | --seconds S            how long, as the program says
  --break HOW                         something is broken on purpose: the program has to notice (status 1)
  --keep                              the folder with logs and data stays

Every server has a folder and a port of its own and ends with the program. The last line says what was done; status 1 if anything was
violated. Standard library only.
"""

import argparse
import collections
import ctypes
import glob
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

LOST = object()  # instead of a reply: the connection ended first
SLACK = 0.004  # what two readings of one clock may differ by (s)
YEAR = 31622400000


class Err(str):
    """An error reply."""


class Conn:
    """One RESP2 connection. Replies: bytes, int, None, list, Err."""

    def __init__(self, port, timeout=20.0):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb", 65536)

    @staticmethod
    def pack(args):
        out = [b"*%d\r\n" % len(args)]
        for a in args:
            a = a if isinstance(a, bytes) else str(a).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(a), a))
        return b"".join(out)

    def send(self, *commands):
        self.sock.sendall(b"".join(self.pack(c) for c in commands))

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Err(rest.decode("utf8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            n = int(rest)
            if n < 0:
                return None
            data = self.file.read(n + 2)
            if len(data) != n + 2:
                raise ConnectionError("closed")
            return data[:-2]
        if kind == b"*":
            n = int(rest)
            return None if n < 0 else [self.read() for _ in range(n)]
        raise ConnectionError("bad reply %r" % line)

    def call(self, *args):
        self.send(args)
        return self.read()

    def pipe(self, commands, chunk=500):
        out = []
        for i in range(0, len(commands), chunk):
            part = commands[i : i + chunk]
            self.send(*part)
            out += [self.read() for _ in part]
        return out

    def close(self):
        try:
            self.file.close()
            self.sock.close()
        except OSError:
            pass


def info(conn, section):
    text = conn.call("INFO", section)
    return dict(l.split(":", 1) for l in text.decode().split("\r\n") if ":" in l)


def pairs(flat):
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


def free_port():
    """A port nobody listens on. Below those that the system hands out by itself: a server that is down for a moment gets its own again."""
    while True:
        port = random.SystemRandom().randint(11000, 31999)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


LIBC = ctypes.CDLL(None)


def end_with_parent():
    """In a new process: the kernel ends it when the thread that made it ends."""
    LIBC.prctl(1, signal.SIGKILL)


class Server:
    """One server process in a folder of its own."""

    live = []

    def __init__(self, binary, module, folder, port, options=(), module_args=("cl-throttle", "yes")):
        self.binary, self.module, self.dir, self.port = binary, module, folder, port
        self.options, self.module_args, self.proc, self.env = list(options), list(module_args), None, None
        os.makedirs(folder, exist_ok=True)
        self.log = os.path.join(folder, "log")

    def start(self, wait=True, extra=(), preexec=None):
        argv = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir, "--save", ""]
        argv += ["--enable-debug-command", "yes", "--enable-module-command", "yes", "--daemonize", "no", "--hz", "20", "--repl-diskless-sync-delay", "0"]
        for k, v in self.options + list(extra):
            argv += ["--" + k] + (v if isinstance(v, list) else [v])
        if self.module:
            argv += ["--loadmodule", self.module] + self.module_args

        def begin():
            end_with_parent()
            if preexec:
                preexec()

        env = self.env or dict(os.environ)
        if os.environ.get("SLUICE_PRELOAD"):
            # A sanitizer's runtime has to come first.
            env = dict(env, LD_PRELOAD=" ".join(filter(None, (os.environ["SLUICE_PRELOAD"], env.get("LD_PRELOAD")))))
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, preexec_fn=begin, env=env)
        Server.live.append(self)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout=60):
        end = time.time() + timeout
        while time.time() < end:
            if self.proc.poll() is not None:
                raise RuntimeError("server on %d ended with %s: %s" % (self.port, self.proc.returncode, self.tail()))
            try:
                c = Conn(self.port)
                reply = c.call("PING")
                c.close()
                if reply == b"PONG":
                    return self
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("server on %d does not come up: %s" % (self.port, self.tail()))

    def tail(self, n=12):
        with open(self.log, errors="replace") as f:
            return " | ".join(x.strip() for x in f.readlines()[-n:])

    def conn(self, timeout=20.0):
        return Conn(self.port, timeout)

    def kill9(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()
        self.forget()

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(15)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.forget()

    def forget(self):
        if self in Server.live:
            Server.live.remove(self)

    def children(self):
        out = []
        for path in glob.glob("/proc/%d/task/*/children" % self.proc.pid):
            try:
                out += [int(x) for x in open(path).read().split()]
            except OSError:
                pass
        return out

    def aof_tail(self):
        """The last incremental AOF file."""
        files = glob.glob(os.path.join(self.dir, "appendonlydir", "*.incr.aof"))
        return max(files, key=lambda f: int(f.split(".")[-3])) if files else None

    def crashed(self):
        with open(self.log, errors="replace") as f:
            text = f.read()
        return [x for x in ("REDIS BUG REPORT", "VALKEY BUG REPORT", "panicked", "ASSERTION FAILED", "== CRITICAL ==", "AddressSanitizer") if x in text]


def role(server):
    try:
        c = server.conn(2)
        f = info(c, "replication")
        c.close()
        return f
    except (OSError, ConnectionError):
        return {}


def until(what, test, seconds=30, pause=0.02):
    end = time.time() + seconds
    while time.time() < end:
        got = test()
        if got:
            return got
        time.sleep(pause)
    raise RuntimeError("waited %d s for %s" % (seconds, what))


def caught_up(master, replicas, seconds=30):
    def equal():
        offset = role(master).get("master_repl_offset")
        fields = [role(r) for r in replicas]
        return offset and all(f.get("master_link_status") == "up" and f.get("slave_repl_offset") == offset for f in fields)

    until("offsets to agree", equal, seconds)


def digests(t, master, replicas, what):
    """With writes paused nothing moves: all keys are equal everywhere."""
    m = master.conn()
    m.call("CLIENT", "PAUSE", 20000, "WRITE")
    try:
        caught_up(master, replicas)
        keys = sorted(m.call("KEYS", "*"))
        expected = m.pipe([("DEBUG", "DIGEST-VALUE", k) for k in keys])
        for r in replicas:
            c = r.conn()
            got = c.pipe([("DEBUG", "DIGEST-VALUE", k) for k in keys])
            for k, x, y in zip(keys, expected, got):
                # A limiter that is full goes by the server's own TTL: the replica hears of it later.
                if x != y and x != [b"0" * 40] and y != [b"0" * 40]:
                    t.bad("digest", "%s: %s differs on port %d: %r %r" % (what, k, r.port, x, y))
            c.close()
    finally:
        m.call("CLIENT", "UNPAUSE")
        m.close()


def cut(server, n):
    path = server.aof_tail()
    size = os.path.getsize(path)
    os.truncate(path, max(0, size - n))
    return min(n, size)


def rewrite(conn):
    conn.call("BGREWRITEAOF")
    end = time.time() + 30
    while time.time() < end:
        f = info(conn, "persistence")
        if f["aof_rewrite_in_progress"] == "0" and f["aof_rewrite_scheduled"] == "0":
            return f["aof_last_bgrewrite_status"]
        time.sleep(0.02)
    return "timeout"


class Waiter(threading.Thread):
    """Claims from an empty queue with BLOCK 0, until it gets anything."""

    def __init__(self, port, argv=("RQ.CLAIM", "qempty", "BLOCK", 0)):
        super().__init__(daemon=True)
        self.port, self.argv, self.got, self.at = port, argv, None, None

    def run(self):
        try:
            c = Conn(self.port, 60)
            self.got = c.call(*self.argv)
        except (OSError, ConnectionError) as e:
            self.got = "closed: %s" % e
        self.at = time.time()


REPLICA = [("appendonly", "yes"), ("appendfsync", "everysec"), ("auto-aof-rewrite-percentage", "0"), ("repl-diskless-sync-delay", "0"), ("repl-backlog-size", "64mb"),
           ("repl-timeout", "10")]
AOF = [("appendonly", "yes"), ("appendfsync", "always"), ("auto-aof-rewrite-percentage", "0")]


class Trial:
    """The run of a program: its arguments, its servers, what it counted and what was violated."""

    def __init__(self, doc, breaks, arguments=None):
        p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        p.add_argument("--server", required=True)
        p.add_argument("--module", required=True)
        p.add_argument("--seed", type=int, default=1)
        p.add_argument("--show", type=int, default=5, help="violations of a kind to print")
        p.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a setting for every server, over those of the mode")
        p.add_argument("--keep", action="store_true", help="keep the folder when all went well, too")
        p.add_argument("--break", dest="break_", default=None, choices=breaks)
        if arguments:
            arguments(p)
        self.args = args = p.parse_args()
        args.server, args.module = os.path.abspath(shutil.which(args.server) or args.server), os.path.abspath(args.module)
        self.name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        self.dir = tempfile.mkdtemp(prefix="sluice-torture-")
        self.rng = random.Random("%s/%s/%s" % (args.seed, self.name, getattr(args, "mode", "")))
        self.figures = collections.Counter()
        self.violations = collections.Counter()
        self.rounds = 0
        self.lock = threading.Lock()
        self.begin = time.time()

    def bad(self, kind, text):
        with self.lock:
            self.violations[kind] += 1
            if self.violations[kind] <= self.args.show:
                print("VIOLATION round %d %s: %s" % (self.rounds, kind, text), flush=True)

    def note(self, text):
        print("note: " + text, flush=True)

    def count(self, what, n=1):
        with self.lock:
            self.figures[what] += n

    def server(self, name, options=(), binary=None, module_args=("cl-throttle", "yes")):
        options = list(options) + [tuple(o.split("=", 1)) for o in self.args.option]
        return Server(binary or self.args.server, self.args.module, os.path.join(self.dir, name), free_port(), options, module_args)

    def crashes(self, *servers):
        for s in servers:
            for x in s.crashed():
                self.bad("crash", "%s: %s: %s" % (s.dir, x, s.tail(3)))

    def run(self, body):
        """Runs the program and ends the process with its verdict."""
        try:
            body(self)
        except Exception:
            self.bad("harness", traceback.format_exc())
        finally:
            for s in list(Server.live):
                try:
                    s.proc.send_signal(signal.SIGCONT)
                except OSError:
                    pass
                s.kill9()
        total = sum(self.violations.values())
        said = dict(mode=getattr(self.args, "mode", None), server="/".join(self.args.server.split("/")[-2:]),
                    seed=self.args.seed, rounds=self.rounds, **self.figures)
        print("torture: %s %s seconds=%.0f violations=%d %s" % (
            self.name, " ".join("%s=%s" % x for x in said.items() if x[1] is not None), time.time() - self.begin, total, dict(self.violations) or ""))
        if not total and not self.args.keep:
            shutil.rmtree(self.dir, ignore_errors=True)
        else:
            print("logs and data: " + self.dir)
        sys.exit(1 if total else 0)


class Clock:
    """The wall clock of one server, off by as much as is said, by a preloaded library."""

    def __init__(self, t, server):
        library = os.path.join(t.dir, "clocks_apart.so")
        if not os.path.exists(library):
            source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clocks_apart.c")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self.path = os.path.join(t.dir, "clock-%d" % server.port)
        self.set(0)
        server.env = dict(os.environ, LD_PRELOAD=library, CLOCK_FILE=self.path)

    def set(self, seconds):
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as f:
            f.write(int(seconds * 1e6).to_bytes(8, "little", signed=True))


def rounds(default):
    """The argument of programs that go by rounds."""
    return lambda p: p.add_argument("--rounds", type=int, default=default)
