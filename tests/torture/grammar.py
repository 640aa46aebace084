"""What hostile clients send: calls of every command, mostly well-formed, with options in any order, odd numbers and odd bytes, and what an
administrator may do to the keys meanwhile. `seed` makes it repeatable; receipts that were seen go into `receipts`, `numrec` and `curs`.
"""

import random
import time

R = random.Random(1)
rnd, ri, ch = R.random, R.randint, R.choice


# Whether COPY … DB is sent: Valkey 8.1 carries it to its replicas in the wrong database when a module hears keyspace events (whichever module, whatever key).
copies_across = True
# Whether CLIENT PAUSE is sent: Redis 7.0 ends itself when CLIENT UNBLOCK names a client that a pause holds (without the module, too).
pauses = True
# Whether all is loaded anew now and then. A master forgets keys that are over by then without telling its replicas (without the module, too).
reloads = False


def seed(n):
    R.seed(n)


F = {'tb': ['tb1', 'tb2', '{a}tb3'], 'lb': ['lb1', 'lb2', '{a}lb3'], 'sem': ['se1', 'se2'], 'gate': ['ga1', 'ga2', '{a}ga3'], 'hot': ['ho1', 'ho2'], 'rq': ['rq1', 'rq2', 'rq3', '{a}rq4']}
ALL = [k for v in F.values() for k in v] + ['str1', 'list1', 'no1', 'bin\0\xff']
BIGID = 'i' * 512
WEIRD = [b'', b'\0', b'\xff\xfe', b'a\r\nb', b'-0', b'+1', b'01', b'1.5', b'1e3', b'nan', b'inf', b'9223372036854775807', b'9223372036854775808', b'-9223372036854775808', b'1000000000000', b'1000000000001', b'31622400000', b'31622400001', b'253402300799999', b'253402300800000', b'1000000000000000000', b'x' * 513, b'x' * 512, b' 1', b'1 ', b'0x10', b'NONE', b'ALL', b'BLOCK', b'COUNT', b'NOACK', b'@', b'@1', b'1@', b'a@b', b'1@1@1', b'18446744073709551615', b'1@18446744073709551615', b'1@18446744073709551616', b'0', b'-1', b'%s%n']
MEG = b'M' * (1 << 20)
def key(f):
    r = rnd()
    if r < .93: return ch(F[f])
    if r < .985: return ch(ALL)
    return ch(WEIRD)
def num(lo=1, hi=100):
    r = rnd()
    if r < .86: return ri(lo, hi)
    if r < .93: return ch([0, 1, 2, 10, 1000, 10**6, 10**9, 10**12, 31622400000, -1, 10**18])
    return ch(WEIRD)
def ms():
    r = rnd()
    if r < .5: return ri(1, 30)
    if r < .85: return ri(30, 3000)
    if r < .95: return ch([0, 1, 10**5, 10**9, 31622400000])
    return ch(WEIRD)
def unix():
    r = rnd()
    now = int(time.time() * 1000)
    if r < .8: return now + ri(-100, 500)
    return ch([0, 1, now * 1000, 253402300799999, 2**63 - 1, b'x'])
def ident():
    r = rnd()
    if r < .8: return 'i%d' % ri(0, 40)
    if r < .9: return ri(1, 300)
    if r < .93: return BIGID
    return ch(WEIRD)
def grp(): return 'g%d' % ri(0, 12) if rnd() < .93 else ch(WEIRD)
def name(): return 'c%d' % ri(0, 4) if rnd() < .95 else ch(WEIRD)
def payload():
    r = rnd()
    if r < .9: return 'p' * ri(0, 40)
    if r < .985: return b'P' * ri(0, 3000)
    if r < .9995: return ch(WEIRD)
    return MEG
receipts = [b'1@1']; numrec = [b'1']
def rec():
    r = rnd()
    if r < .9: return ch(receipts)
    return ch([b'i1@5', b'1@1', ident(), ch(WEIRD)])
def nrec(): return ch(numrec) if rnd() < .9 else num()
def lim(): return [num(1, 50), num(1, 50), num(1, 5000)]
def lim0(): return lim() if rnd() < .7 else []
def opts(*os, p=.35):
    """every option as a list (or callable); in any order, sometimes repeated or cut."""
    out = []
    for o in os:
        if rnd() < p: out.append(o() if callable(o) else o)
    R.shuffle(out)
    if out and rnd() < .03: out.append(ch(out))
    flat = [y for x in out for y in x]
    if flat and rnd() < .02: flat.pop(ri(0, len(flat) - 1))
    if rnd() < .01: flat.insert(ri(0, len(flat)), ch(WEIRD))
    return flat
def blk(zero=False):
    return lambda: ['BLOCK', (ri(1, 60) if rnd() < .8 else ch([0, 200, 1000, 31622400000])) if not zero else ch([0, 5, 20, 60, 200, 500])]
def pushopts():
    return opts(lambda: ['DELAY', ms()] if rnd() < .7 else ['AT', unix()], lambda: ['PRIORITY', num(0, 255)], lambda: ['GROUP', grp()], lambda: ['TTL', ms()], lambda: ['LEASE', ms()], lambda: ['MAXDELIVERIES', num(0, 4)], lambda: ['DEDUP', ms()], lambda: ['ONDUP', ch(['REJECT', 'REPLACE', 'KEEPLAST', 'x'] if rnd() < .1 else ['REJECT', 'REPLACE', 'KEEPLAST'])], p=.22)
def claimopts(b=True):
    l = [lambda: ['COUNT', num(1, 20)], lambda: ['LEASE', ms()], lambda: ['CONSUMER', name()], lambda: ['GROUP', grp()], ['NOACK']]
    if b: l.append(blk(True))
    return opts(*l, p=.25)
def keys(f, n=None):
    n = n or ri(1, 4); ks = [key(f) for _ in range(n)]
    if rnd() < .7: ks = list(dict.fromkeys(ks))
    return [len(ks) if rnd() < .97 else num(0, 5)] + ks
RATE = lambda: ['NONE'] if rnd() < .3 else [num(1, 20), num(1, 1000), num(1, 20)]
def rq_set():
    o = opts(lambda: ['LEASE', ms()], lambda: ['MAXDELIVERIES', num(0, 5)], lambda: ['BACKOFF'] + ch([['NONE'], ['FIXED', ms()], ['EXP', ms(), ms()], ['EXP', 1, 100]]), lambda: ['MAXLEN', num(0, 300)], lambda: ['MAXBYTES', num(0, 30000)], lambda: ['ONFULL', ch(['REJECT', 'DROPOLD'])], lambda: ['MAXINFLIGHT', num(0, 50)], lambda: ['GROUPINFLIGHT', num(0, 3)], lambda: ['RATE'] + RATE(), lambda: ['GROUPRATE'] + RATE(), lambda: ['DEDUP', ms()], lambda: ['MAXDEAD', num(0, 30)], lambda: ['TTL', ms()], lambda: ['AGING', ms()], p=.15)
    if rnd() < .3: o = ['RATE', 'NONE', 'GROUPRATE', 'NONE', 'MAXINFLIGHT', 0, 'MAXLEN', 0, 'MAXBYTES', 0, 'TTL', 0]
    return ['RQ.SET', key('rq')] + o
ST = ['READY', 'DELAYED', 'INFLIGHT', 'DEAD']
curs = [b'0']
def nrecs(f=rec):
    n = ri(1, 8); l = [f() for _ in range(n)]
    return [n if rnd() < .97 else num(0, 9)] + l
def gate_set():
    out = []
    for i in range(ri(1, 4) if rnd() < .97 else 40):
        k = ch(['TB', 'LB', 'SEM'])
        out += ['STAGE', ('s%d' % i) if rnd() < .9 else ch(['s0', ident()]), k] + ([num(1, 5)] if k == 'SEM' else lim())
        if rnd() < .4: out += ['WARMUP', ms()] if k == 'TB' else ['LEASE', ms()]
    return ['GATE.SET', key('gate')] + out
G = [
 (12, lambda: ['RQ.PUSH', key('rq'), payload()] + (['ID', ident()] if rnd() < .5 else []) + pushopts()),
 (4, lambda: (lambda n: ['RQ.MPUSH', key('rq'), n if rnd() < .96 else num(), *[payload() for _ in range(n)]] + pushopts())(ri(1, 10))),
 (9, lambda: ['RQ.CLAIM', key('rq')] + claimopts()),
 (3, lambda: ['RQ.MCLAIM'] + keys('rq') + claimopts()),
 (7, lambda: ['RQ.ACK', key('rq')] + [rec() for _ in range(ri(1, 6))]),
 (4, lambda: ['RQ.NACK', key('rq')] + opts(lambda: ['DELAY', ms()], ['BACK'], ['NOCOUNT'], ['DEAD'], lambda: ['REASON', payload()], p=.25) + ['RECEIPTS'] + nrecs()),
 (2, lambda: ['RQ.EXTEND', key('rq'), ms()] + [rec() for _ in range(ri(1, 5))]),
 (4, lambda: ['RQ.NEXT', key('rq'), 'RECEIPTS'] + nrecs() + claimopts()),
 (1, lambda: ['RQ.REQUEUE', key('rq')] + opts(lambda: ch([['STALE', ms()], ['CONSUMER', name()], ['ALL']]), lambda: ['COUNT', num()])),
 (1, lambda: ['RQ.REDRIVE', key('rq')] + opts(lambda: ['IDS'] + nrecs(ident), lambda: ['COUNT', num()], lambda: ['DELAY', ms()])),
 (1, lambda: ['RQ.DEL', key('rq')] + [ident() for _ in range(ri(1, 6))]),
 (.4, lambda: ['RQ.PURGE', key('rq'), ch(['READY', 'DELAYED', 'DEAD', 'ALL', 'INFLIGHT'])]),
 (1, lambda: ['RQ.GET', key('rq'), ident()]),
 (1, lambda: ['RQ.LIST', key('rq'), ch(ST)] + opts(lambda: ['GROUP', grp()], lambda: ['CURSOR', ch(curs) if rnd() < .8 else ch(WEIRD)], lambda: ['COUNT', num()])),
 (1, lambda: ['RQ.LEN', key('rq')] + ([ch(ST)] if rnd() < .6 else [])),
 (1, lambda: ['RQ.INFO', key('rq')]),
 (2, rq_set),
 (.5, lambda: ['RQ.PAUSE', key('rq')] + opts([ch(['PUSH', 'CLAIM'])], lambda: ['GROUP', grp()], lambda: ['UNTIL', unix()])),
 (1, lambda: ['RQ.RESUME', key('rq')] + opts(lambda: ['GROUP', grp()])),
 (1, lambda: ['RQ.MOVE', key('rq'), key('rq'), ch(['READY', 'DEAD', 'DELAYED'])] + opts(lambda: ['COUNT', num()])),
 (5, lambda: ['TB.TAKE', key('tb')] + lim0() + opts(lambda: ['COST', num(1, 20)], lambda: ch([['ATMOST'], ['FORCE'], blk()()]))),
 (1, lambda: ['TB.PEEK', key('tb')] + lim0() + opts(lambda: ['COST', num(1, 20)])),
 (1, lambda: ['TB.REFUND', key('tb'), num()]),
 (2, lambda: ['TB.SET', key('tb')] + lim() + opts(lambda: ['WARMUP', ms()], lambda: ['LEVEL', ch(['KEEP', 'ADD', 'SCALE', 'FULL', 'x'])])),
 (.5, lambda: ['TB.RESET', key('tb')]), (.5, lambda: ['TB.DRAIN', key('tb')] + lim0()), (.5, lambda: ['TB.BAN', key('tb'), ms()]),
 (2, lambda: ['TB.HOLD', key('tb')] + lim0() + opts(lambda: ['COST', num(1, 20)], lambda: ['TTL', ms()], p=.97) + opts(lambda: ['ONEXPIRE', ch(['KEEP', 'REFUND'])])),
 (2, lambda: ['TB.SETTLE', key('tb'), nrec(), num(0, 30)]), (.7, lambda: ['TB.INFO', key('tb')]),
 (3, lambda: ['LB.TAKE', key('lb')] + lim0() + opts(lambda: ['COST', num(1, 20)], lambda: ['MAXWAIT', ms()], ['BLOCK'], p=.3)),
 (.7, lambda: ['LB.PEEK', key('lb')] + lim0() + opts(lambda: ['COST', num(1, 20)], lambda: ['MAXWAIT', ms()])),
 (.7, lambda: ['LB.REFUND', key('lb'), num()]), (.7, lambda: ['LB.SET', key('lb')] + lim()), (.3, lambda: ['LB.RESET', key('lb')]), (.5, lambda: ['LB.INFO', key('lb')]),
 (4, lambda: ['SEM.ACQUIRE', key('sem')] + ([num(1, 12)] if rnd() < .7 else []) + opts(lambda: ['COUNT', num(1, 5)], lambda: ['LEASE', ms()], lambda: ['OWNER', name()], blk())),
 (3, lambda: ['SEM.RELEASE', key('sem')] + [nrec() for _ in range(ri(1, 4))]), (1, lambda: ['SEM.RENEW', key('sem'), ms()] + [nrec() for _ in range(ri(1, 4))]),
 (.6, lambda: ['SEM.PEEK', key('sem')] + ([num()] if rnd() < .7 else []) + opts(lambda: ['COUNT', num(1, 5)])), (1, lambda: ['SEM.SET', key('sem'), num(1, 20)] + opts(lambda: ['LEASE', ms()])),
 (.6, lambda: ['SEM.INFO', key('sem')] + opts(['HOLDERS'])),
 (.6, lambda: ['SEM.HOLDERS', key('sem')] + opts(lambda: ['OWNER', name()], lambda: ['CURSOR', nrec()], lambda: ['COUNT', num()])),
 (2, gate_set), (5, lambda: ['GATE.PASS', key('gate')] + opts(lambda: ['COST', num(1, 10)], lambda: ['MAXWAIT', ms()], blk())),
 (2, lambda: ['GATE.MPASS'] + keys(ch(['gate', 'tb', 'lb'])) + opts(lambda: ['COST', num(1, 10)], lambda: ['MAXWAIT', ms()])),
 (1.5, lambda: ['GATE.MPASS', 3, key('gate'), key('tb'), key('lb')] + opts(lambda: ['COST', num(1, 10)], lambda: ['MAXWAIT', ms()])),
 (2, lambda: ['GATE.LEAVE', key('gate')] + [nrec() for _ in range(ri(1, 4))]), (.5, lambda: ['GATE.PEEK', key('gate')] + opts(lambda: ['COST', num(1, 10)], lambda: ['MAXWAIT', ms()])), (.5, lambda: ['GATE.INFO', key('gate')]),
 (1, lambda: ['HOT.SET', key('hot')] + lim() + opts(lambda: ['MAXSUBJECTS', num(1, 60)])), (6, lambda: ['HOT.TAKE', key('hot'), ident()] + opts(lambda: ['COST', num(1, 20)], ['ATMOST'])),
 (.6, lambda: ['HOT.PEEK', key('hot'), ident()] + opts(lambda: ['COST', num(1, 20)])), (1, lambda: ['HOT.EXCEPT', key('hot'), ident()] + (lim() if rnd() < .6 else ['DEL'])), (.5, lambda: ['HOT.TOP', key('hot')] + opts(lambda: ['COUNT', num()])), (.5, lambda: ['HOT.INFO', key('hot')]),
 (.5, lambda: ['GATE.SET', ch(F['gate']), 'STAGE','a','TB',ri(1,20),ri(1,20),ri(1,300),'STAGE','b','SEM',ri(1,4),'LEASE',ri(1,100),'STAGE','c','LB',ri(1,20),100,1000]), (.5, lambda: ['HOT.SET', ch(F['hot']), ri(1,9), ri(1,9), ri(1, 3000), 'MAXSUBJECTS', ri(1, 30)]), (.4, lambda: ['TB.SET', ch(F['tb']), ri(1,30), ri(1,30), ri(1,500)]), (.3, lambda: ['LB.SET', ch(F['lb']), ri(1,30), ri(1,30), ri(1,500)]),
 (1, lambda: ['CL.THROTTLE', key('tb'), num(0, 30), num(1, 20), num(1, 60)] + ([num(0, 5)] if rnd() < .5 else [])),
 (.2, lambda: ['SLUICE.VERSION']),
 (.5, lambda: ['SLUICE.APPLY', ch(ALL), ch([0, -1, unix()]), bytes([ch([1, 1, 1, 2, 0]), ri(0, 7)]) + R.randbytes(ri(0, 30))] + [payload() for _ in range(ri(0, 3))]),
 (.5, lambda: ['OBJECT', ch(['ENCODING', 'FREQ', 'IDLETIME', 'REFCOUNT']), ch(ALL)]), (.5, lambda: ['MEMORY', 'USAGE', ch(ALL)]), (.5, lambda: ['DUMP', ch(ALL)]), (.5, lambda: ['TYPE', ch(ALL)]),
]
lo_id = [1]
anyk = lambda: ch(ALL)
ADM = [
 (2, lambda: ['RENAME', anyk(), anyk()]), (1, lambda: ['RENAMENX', anyk(), anyk()]), (2, lambda: ['COPY', anyk(), anyk()] + opts(['REPLACE'], *([lambda: ['DB', ri(0, 2)]] if copies_across else []))), (1, lambda: ['MOVE', anyk(), ri(0, 2)]),
 (2, lambda: ['DEL', anyk()]), (1, lambda: ['UNLINK', anyk(), anyk()]), (1, lambda: ['PEXPIRE', anyk(), ri(1, 100)]), (1, lambda: ['PERSIST', anyk()]), (.5, lambda: ['PEXPIREAT', anyk(), unix()]), (.5, lambda: ['SET', anyk(), 'x']), (.5, lambda: ['LPUSH', 'list1', 'x']), (.3, lambda: ['SORT', anyk()]),
 (.5, lambda: ['SWAPDB', ri(0, 2), ri(0, 2)]), (.3, lambda: ['SELECT', ch([0, 0, 0, 1])]), (.05, lambda: ['FLUSHALL'] + ch([[], ['ASYNC'], ['SYNC']])), (.05, lambda: ['FLUSHDB'] + ch([[], ['ASYNC']])),
 (.5, lambda: ['DEBUG', 'DIGEST-VALUE', anyk()]), (.2, lambda: ['DEBUG', 'OBJECT', anyk()]),
 (1, lambda: ['CLIENT', 'KILL', 'ID', ch(lo_id)]), (2, lambda: ['CLIENT', 'UNBLOCK', ch(lo_id), ch(['TIMEOUT', 'ERROR'])]), (.15, lambda: ['CLIENT', 'PAUSE', ri(1, 30), ch(['WRITE', 'ALL'])] if pauses else ['PING']), (.15, lambda: ['CLIENT', 'UNPAUSE']),
 (.3, lambda: ['CONFIG', 'SET', 'sluice.tick-budget-us', num(50, 2000)]), (.1, lambda: ['CONFIG', 'SET', 'sluice.max-payload', ch([100, 4000, 536870912])]), (.2, lambda: ['CONFIG', 'GET', 'sluice.*']), (.1, lambda: ['CONFIG', 'SET', 'notify-keyspace-events', ch(['', 'KEA', 'Kd', 'KEAd'])]), (.1, lambda: ['CONFIG', 'SET', 'maxmemory', ch([0, 0, 10**6, 10**9])]), (.3, lambda: ['CONFIG', 'SET', 'maxmemory', 0]), (.1, lambda: ['CONFIG', 'SET', 'maxmemory-policy', ch(['noeviction', 'allkeys-lru', 'volatile-ttl', 'allkeys-random'])]),
 (.1, lambda: ['SCRIPT', 'KILL']), (.2, lambda: ['INFO', 'sluice']), (.3, lambda: ['INFO', 'everything']), (.1, lambda: ['COMMAND', 'DOCS']), (.2, lambda: ['SCAN', 0, 'TYPE', 'sluice-rq']), (.1, lambda: ['HELLO', ch([2, 3])]), (.1, lambda: ['RESET']), (.1, lambda: ['CLIENT', 'NO-EVICT', 'on']), (.2, lambda: ['CLIENT', 'REPLY', 'SKIP']), (.3, lambda: ['CLIENT', 'TRACKING', ch(['ON', 'OFF'])]),
]
# With a test clock, and now and then all is loaded anew: see `reloads`.
ADM += [(1, lambda: ['SLUICE.CLOCK'] + ch([['ADVANCE', num(1, 2000)], ['SET', unix()], ['REAL'], ['ADVANCE', ri(1, 30)], ['ADVANCE', ri(1, 30)]])), (.004, lambda: ['DEBUG', 'RELOAD'] if reloads else ['PING'])]
LIBRARY = "#!lua name=fz\nredis.register_function{function_name='any',callback=function(k,v) return redis.pcall(unpack(v)) end}"

gw, gf = zip(*G); aw, af = zip(*ADM)
def one():
    if rnd() < .88: c = R.choices(gf, gw)[0]()
    else: c = R.choices(af, aw)[0]()
    if rnd() < .01: c = c[:ri(1, len(c))]
    if c[:2] != ['CLIENT', 'PAUSE'] and rnd() < .005: c.insert(ri(1, len(c)), ch(WEIRD))
    return c
def data():
    while True:
        c = R.choices(gf, gw)[0]()
        return c
def group():
    """a list of commands to be sent in a row"""
    r = rnd()
    if r < .93: return [one()]
    if r < .96:
        out = []
        if rnd() < .4: out.append(['WATCH', anyk(), anyk()])
        out.append(['MULTI']); out += [one() for _ in range(ri(1, 6))]
        out.append(['EXEC'] if rnd() < .9 else ['DISCARD']); return out
    if r < .985:
        c = [data() for _ in range(ri(1, 3))]
        s = 'local r={};' + ''.join('r[#r+1]=redis.%s(unpack(ARGV,%d,%d));' % (ch(['pcall', 'call']), 1 + sum(len(x) for x in c[:i]), sum(len(x) for x in c[:i + 1])) for i in range(len(c))) + 'return r'
        return [['EVAL', s, 0] + [y for x in c for y in x]]
    return [['FCALL', 'any', 0] + data()]
