"""Altered payloads: real dumps of every family in many states, mutated, with their CRC made right again, are given to RESTORE. What is accepted is
used as any key is; its own dump has to load on another server with the same digest. The server has to live and no panic may be caught.

`--break lie`: the digest is expected to differ.
"""

import re
import struct
import time

import grammar
from lib import Err, Trial, caught_up, info

POLYNOMIAL = 0xad93d23594c935a9


def reflected(x, bits):
    return int(format(x, "0%db" % bits)[::-1], 2)


TABLE = []
for i in range(256):
    c = i
    for _ in range(8):
        c = (c >> 1) ^ reflected(POLYNOMIAL, 64) if c & 1 else c >> 1
    TABLE.append(c)


def crc64(data):
    c = 0
    for x in data:
        c = TABLE[(c ^ x) & 255] ^ (c >> 8)
    return c


assert crc64(b"123456789") == 0xe9c6d914c4b8d9ca


# ---- what a dump of a module's value is made of: its type's id, then numbers and strings, each with its kind


def length(b, i):
    kind = b[i] >> 6
    if kind == 0:
        return b[i] & 63, i + 1
    if kind == 1:
        return ((b[i] & 63) << 8) | b[i + 1], i + 2
    if b[i] == 0x80:
        return struct.unpack(">I", b[i + 1 : i + 5])[0], i + 5
    if b[i] == 0x81:
        return struct.unpack(">Q", b[i + 1 : i + 9])[0], i + 9
    raise ValueError("a length that begins with %x" % b[i])


def as_length(n):
    if n < 64:
        return bytes([n])
    if n < 16384:
        return bytes([0x40 | n >> 8, n & 255])
    return b"\x80" + struct.pack(">I", n) if n < 1 << 32 else b"\x81" + struct.pack(">Q", n)


def unpacked(data, n):
    """What the servers have made smaller with LZF."""
    out, i = bytearray(), 0
    while i < len(data):
        c = data[i]
        i += 1
        if c < 32:
            out += data[i : i + c + 1]
            i += c + 1
        else:
            count = c >> 5
            if count == 7:
                count += data[i]
                i += 1
            ref = len(out) - ((c & 31) << 8) - data[i] - 1
            i += 1
            for _ in range(count + 2):
                out.append(out[ref])
                ref += 1
    assert len(out) == n
    return bytes(out)


def string(b, i):
    if b[i] >> 6 == 3:
        kind = b[i] & 63
        if kind < 3:
            size = 1 << kind
            return str(int.from_bytes(b[i + 1 : i + 1 + size], "little", signed=True)).encode(), i + 1 + size
        packed, i = length(b, i + 1)
        n, i = length(b, i)
        return unpacked(b[i : i + packed], n), i + packed
    n, i = length(b, i)
    return b[i : i + n], i + n


def taken_apart(dump):
    assert dump[0] in (6, 7)
    module, i = length(dump, 1)
    items = []
    while True:
        kind, i = length(dump, i)
        if kind == 0:
            return module, items, dump[-10:-8]
        if kind == 2:
            n, i = length(dump, i)
            items.append(("number", n))
        elif kind == 5:
            s, i = string(dump, i)
            items.append(("string", s))
        else:
            raise ValueError("an item of kind %d" % kind)


def sealed(body, version):
    return body + version + struct.pack("<Q", crc64(body + version))


def put_together(module, items, version):
    b = bytearray([7]) + as_length(module)
    for kind, value in items:
        if kind == "number":
            b += b"\x02" + as_length(value)
        elif kind == "string":
            b += b"\x05" + as_length(len(value)) + value
        else:
            b += value
    return sealed(bytes(b) + b"\0", version)


# ---- mutations

R, rnd, ri, ch = grammar.R, grammar.rnd, grammar.ri, grammar.ch
FAMILIES = {"tb": ["TB", "CL"], "lb": ["LB"], "sem": ["SEM"], "gate": ["GATE"], "hot": ["HOT"], "rq": ["RQ"]}
FIRST = {
    "gate": [["GATE.SET", "ga1", "STAGE", "a", "TB", 9, 9, 1000, "STAGE", "b", "SEM", 9, "LEASE", 60000, "STAGE", "c", "LB", 10, 100, 1000]],
    "hot": [["HOT.SET", "ho1", 5, 5, 100000, "MAXSUBJECTS", 50]], "rq": [["RQ.SET", "rq1", "LEASE", 100000]],
    "tb": [["TB.SET", "tb1", 50, 5, 100000, "WARMUP", 5000]], "lb": [["LB.SET", "lb1", 50, 5, 100000]], "sem": [["SEM.SET", "se1", 10, "LEASE", 100000]],
}
EDGES = [0, 1, 2, 250, 251, 252, 253, 254, 255, 65535, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 47) - 1, 1 << 47, (1 << 47) + 1, (1 << 48) - 1,
         (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, 2**64 - 1, 10**12, 10**12 + 1, 31622400000 * 1000, 253402300799999 * 1000,
         253402300800000 * 1000]
ODD = [b"\x01\x05", b"\x03\0\0\0\0", b"\x04\0\0\0\0\0\0\0\0", b"\x05\x81\xff\xff\xff\xff\xff\xff\xff\xff", b"\x09", b"\x02\xc3\x01"]


def as_varint(n):
    if n < 251:
        return bytes([n])
    if n < 1 << 16:
        return b"\xfb" + struct.pack("<H", n)
    return b"\xfc" + struct.pack("<I", n) if n < 1 << 32 else b"\xfd" + struct.pack("<Q", n & (2**64 - 1))


def bytes_changed(s):
    s = bytearray(s)
    for _ in range(1 if rnd() < .7 else ri(1, 5)):
        if not s:
            break
        r, i = rnd(), ri(0, len(s) - 1)
        if r < .2:
            s[i] = ri(0, 255)
        elif r < .3:
            s[i] ^= 1 << ri(0, 7)
        elif r < .65:  # a number
            at = [j for j in range(2, len(s)) if s[j] in (0xfb, 0xfc, 0xfd)]
            j = ch(at) if at and rnd() < .7 else i
            s[j : j + {0xfb: 3, 0xfc: 5, 0xfd: 9, 0xfe: 17}.get(s[j], 1)] = as_varint(ch(EDGES) if rnd() < .8 else ri(0, 2**63))
        elif r < .72:
            del s[i : i + ri(1, 8)]
        elif r < .79:
            s[i:i] = R.randbytes(ri(1, 8))
        elif r < .86:
            s[i:i] = s[i : ri(i, len(s))]
        else:
            s = s[:i]
    return bytes(s)


def mutated(dump, others):
    module, items, version = dump
    items = list(items)
    r, i = rnd(), ri(0, len(items) - 1)
    if r < .72:
        at = [j for j, x in enumerate(items) if x[0] == "string"]
        heads = [j for j in at if items[j][1][:1] == b"\x01"]
        j = ch(heads if heads and rnd() < .9 else at)
        items[j] = ("string", bytes_changed(items[j][1]))
    elif r < .78:
        del items[i]
    elif r < .83:
        items.insert(i, ch(items))
    elif r < .88:
        more = ch(others)[1][1]
        items = items[:i] + list(more[ri(0, len(more)):])
    elif r < .92:
        at = [j for j, x in enumerate(items) if x[0] == "number"]
        if at:
            items[ch(at)] = ("number", ch(EDGES))
    elif r < .94:
        items = items[:-1] + items
    elif r < .96:
        items.insert(i, ("raw", ch(ODD)))
    else:
        b = bytearray(put_together(module, items, version)[:-10])
        b[ri(0, len(b) - 1)] = ri(0, 255)
        return sealed(bytes(b[: ri(1, len(b))] if rnd() < .3 else b), version)
    return put_together(ch(others)[1][0] if rnd() < .02 else module, items, version)


# ---- the program


def by_family():
    out = {}
    for _, make in grammar.G:
        out.setdefault(str(make()[0]).split(".")[0], []).append(make)
    return out


def learn(reply):
    """Receipts and numbers, for the commands to come."""
    for x in reply if isinstance(reply, list) else []:
        if isinstance(x, list):
            learn(x)
        elif isinstance(x, bytes) and re.fullmatch(rb".{1,40}@\d{10,20}", x, re.S):
            grammar.receipts.append(x)
        elif isinstance(x, int) and x > 10**14:
            grammar.numrec.append(str(x).encode())


def dumps(c, makers):
    """Dumps of keys that a while of commands has made."""
    out = []
    for family, names in FAMILIES.items():
        key = grammar.F[family][0]
        for _ in range(14):
            commands = list(FIRST[family]) if rnd() < .7 else []
            while len(commands) < ri(2, 120):
                words = ch(makers[ch(names)])()
                # One key, and nobody waits.
                if "BLOCK" not in words and words[0] not in ("RQ.MCLAIM", "GATE.MPASS", "RQ.MOVE") and len(words) > 1:
                    commands.append([words[0], key, *words[2:]])
            c.call("DEL", key)
            for words in commands:
                learn(c.call(*words))
            dump = c.call("DUMP", key)
            if isinstance(dump, bytes):
                out.append((family, taken_apart(dump)))
    return out


def uses(key, family, makers):
    out = []
    for name in FAMILIES[family]:
        for make in makers[name] * 2:
            words, other = make(), "m%d" % ri(0, 60)
            if "BLOCK" in words or len(words) < 2:
                continue
            if words[0] == "RQ.MOVE":
                words[1:3] = ch([(key, other), (other, key)])
            elif words[0] in ("RQ.MCLAIM", "GATE.MPASS"):
                words = [words[0], 2, key, other]
            else:
                words[1] = key
            out.append(words)
    R.shuffle(out)
    return out[:40] + [["MEMORY", "USAGE", key], ["COPY", key, "cp", "REPLACE"], ["RENAME", "cp", "cp2"], ["DEBUG", "DIGEST-VALUE", key]]


def alter(t):
    grammar.seed(t.args.seed)
    makers = by_family()
    one, other, replica = (t.server(name).start() for name in ("one", "other", "replica"))
    replica.conn().call("REPLICAOF", "127.0.0.1", one.port)
    c, o = one.conn(), other.conn()
    originals = dumps(c, makers)
    t.count("originals", len(originals))
    end = time.time() + t.args.seconds
    while time.time() < end:
        batch = [(family, mutated(dump, originals)) for family, dump in (ch(originals) for _ in range(60))]
        replies = c.pipe([("RESTORE", "m%d" % i, 0, d, "REPLACE") for i, (_, d) in enumerate(batch)])
        t.count("payloads", len(batch))
        taken = [(i, *batch[i]) for i, r in enumerate(replies) if not isinstance(r, Err)]
        t.count("accepted", len(taken))
        for i, family, payload in R.sample(taken, min(12, len(taken))):
            key = "m%d" % i
            commands = uses(key, family, makers)
            replies = c.pipe(commands)
            t.count("commands", len(commands))
            for words, reply in zip(commands, replies):
                if isinstance(reply, Err) and "internal" in reply:
                    t.bad("internal", "%r: %s after %s" % (words[:6], reply, payload.hex()[:400]))
            # A lease may end between the two looks: what differs then is the same when both look again. The server's digest tells whether there is a TTL.
            for last in (False, False, True):
                dump, digest, ttl = c.pipe([["MULTI"], ["DUMP", key], ["DEBUG", "DIGEST-VALUE", key], ["PTTL", key], ["EXEC"]])[-1]
                if not isinstance(dump, bytes):
                    break
                restore = ["RESTORE", "x", max(ttl, 0), dump, "REPLACE"]
                restored, again = o.pipe([["MULTI"], restore, ["DEBUG", "DIGEST-VALUE", "x"], ["EXEC"]])[-1]
                if isinstance(restored, Err):
                    t.bad("own-dump-refused", "%s %s: payload %s" % (family, restored, payload.hex()[:600]))
                    break
                if (again == digest) != (t.args.break_ == "lie"):
                    break
                if last:
                    t.bad("digest-differs", "%s: payload %s, dump %s" % (family, payload.hex()[:600], dump.hex()[:600]))
    caught_up(one, [replica])
    for s in (one, other, replica):
        panics = info(s.conn(), "sluice")["sluice_panics_caught"]
        if panics != "0":
            t.bad("panic", "sluice_panics_caught:%s" % panics)
    # All that it has come to hold has to load.
    if t.args.load:
        for s in (one, other):
            s.conn().call("SAVE")
            s.kill9()
            try:
                s.start()
            except RuntimeError as e:
                t.bad("not-loaded", str(e))
    t.crashes(one, other, replica)


def arguments(p):
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--load", action="store_true", help="in the end both servers save and start again")


t = Trial(__doc__, ["lie"], arguments)
t.run(alter)
