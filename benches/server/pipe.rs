//! Load: commands as raw bytes over two loopback connections, each with one batch on its way at a
//! time, so that the server has the next batch while the client reads the last. Every reply is read
//! to its end and fails the bench if there is an error anywhere in it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Commands in a batch.
pub const BATCH: u64 = 100;

/// One connection.
pub struct Pipe {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What lies before it in `buffer` was taken.
    from: usize,
}

impl Pipe {
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        Self { stream, buffer: Vec::with_capacity(1 << 16), from: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// The next reply, waited for, as it came.
    pub fn reply(&mut self) -> &[u8] {
        let end = loop {
            if let Some(end) = end_of_reply(&self.buffer, self.from) {
                break end;
            }
            self.fill();
        };
        let start = std::mem::replace(&mut self.from, end);
        &self.buffer[start..end]
    }

    fn fill(&mut self) {
        self.buffer.drain(..self.from);
        self.from = 0;
        let old = self.buffer.len();
        self.buffer.resize(old + (1 << 16), 0);
        let read = self.stream.read(&mut self.buffer[old..]).expect("the server answers");
        assert!(read > 0, "the server closed the connection");
        self.buffer.truncate(old + read);
    }

    /// Runs one command and gives its reply.
    pub fn call(&mut self, words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        words_into(&mut out, words);
        self.send(&out);
        self.reply().to_vec()
    }
}

/// Where the reply that begins at `at` ends; None: not all of it is there.
fn end_of_reply(bytes: &[u8], at: usize) -> Option<usize> {
    let line = bytes.get(at..)?.iter().position(|b| *b == b'\n')? + at;
    let text = &bytes[at..line - 1];
    let number = || {
        let digits = std::str::from_utf8(&text[1..]).expect("digits");
        digits.parse::<i64>().expect("a length")
    };
    match text[0] {
        b'-' => panic!("the server says: {}", text.escape_ascii()),
        b'$' => match usize::try_from(number()) {
            Ok(length) => Some(line + 1 + length + 2).filter(|end| *end <= bytes.len()),
            Err(_) => Some(line + 1),
        },
        b'*' => (0..number()).try_fold(line + 1, |at, _| end_of_reply(bytes, at)),
        _ => Some(line + 1),
    }
}

/// The strings in a reply, however deep.
pub fn strings(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < reply.len() {
            let line = reply[at..].iter().position(|b| *b == b'\n')? + at;
            let text = &reply[at..line - 1];
            at = line + 1;
            if text[0] == b'$'
                && let Ok(length) = std::str::from_utf8(&text[1..]).expect("digits").parse::<usize>()
            {
                let string = &reply[at..at + length];
                at += length + 2;
                return Some(string);
            }
        }
        None
    })
}

/// Appends a command.
pub fn words_into<W: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[W]) {
    head_into(out, words.len());
    for word in words {
        word_into(out, word.as_ref());
    }
}

/// Appends the head of a command of so many words.
pub fn head_into(out: &mut Vec<u8>, words: usize) {
    write!(out, "*{words}\r\n").expect("memory");
}

pub fn word_into(out: &mut Vec<u8>, word: &[u8]) {
    write!(out, "${}\r\n", word.len()).expect("memory");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// A command as bytes.
pub fn bytes_of<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut out = Vec::new();
    words_into(&mut out, words);
    out
}

/// What the two connections send and see.
pub struct Load {
    pipes: [Pipe; 2],
}

impl Load {
    pub fn open(port: u16) -> Self {
        Self { pipes: [Pipe::open(port), Pipe::open(port)] }
    }

    /// Runs one command.
    pub fn call(&mut self, words: &[&str]) -> Vec<u8> {
        self.pipes[0].call(words)
    }

    /// Sends batches in turn: `write` appends the commands of one and says how many there are,
    /// `read` is shown each reply.
    pub fn batches(
        &mut self,
        batches: u64,
        mut write: impl FnMut(usize, u64, &mut Vec<u8>) -> u64,
        mut read: impl FnMut(usize, &[u8]),
    ) {
        let mut out = Vec::new();
        let mut awaited = [0; 2];
        for batch in 0..batches + 2 {
            let lane = (batch % 2) as usize;
            for _ in 0..std::mem::take(&mut awaited[lane]) {
                read(lane, self.pipes[lane].reply());
            }
            if batch < batches {
                out.clear();
                awaited[lane] = write(lane, batch, &mut out);
                self.pipes[lane].send(&out);
            }
        }
    }

    /// Runs `n` units of `commands` each: `write` appends the commands of unit i.
    pub fn units(&mut self, n: u64, commands: u64, mut write: impl FnMut(u64, &mut Vec<u8>)) {
        let size = (BATCH / commands).max(1);
        self.batches(
            n.div_ceil(size),
            |_, batch, out| {
                let units = batch * size..((batch + 1) * size).min(n);
                let count = units.end - units.start;
                units.for_each(|i| write(i, out));
                count * commands
            },
            |_, _| {},
        );
    }

    /// Runs the same command `n` times, and has each reply begin with `expected`.
    pub fn repeat(&mut self, n: u64, command: &[u8], expected: &str) {
        let batch = command.repeat(BATCH as usize);
        self.batches(
            n.div_ceil(BATCH),
            |_, at, out| {
                let count = BATCH.min(n - at * BATCH);
                out.extend_from_slice(&batch[..command.len() * count as usize]);
                count
            },
            |_, reply| {
                assert!(
                    reply.starts_with(expected.as_bytes()),
                    "wanted {expected:?}, got {:?}",
                    reply.escape_ascii().to_string()
                );
            },
        );
    }

    /// Runs `n` units in which later commands need what earlier ones answered: `first` appends
    /// `firsts` commands of unit i, and `follow` appends commands for a reply of theirs, which go
    /// with the next batch, and says how many.
    pub fn relay(
        &mut self,
        n: u64,
        firsts: u64,
        mut first: impl FnMut(u64, &mut Vec<u8>),
        mut follow: impl FnMut(&[u8], &mut Vec<u8>) -> u64,
    ) {
        const SIZE: u64 = 40;
        let mut follows = [(0, Vec::new()), (0, Vec::new())];
        // Replies to what follows come first in a batch.
        let mut skip = [0; 2];
        let batches = n.div_ceil(SIZE);
        let cell = std::cell::RefCell::new((&mut follows, &mut skip));
        self.batches(
            batches + 2,
            |lane, batch, out| {
                let (follows, skip) = &mut *cell.borrow_mut();
                let (count, bytes) = &mut follows[lane];
                out.extend_from_slice(bytes);
                bytes.clear();
                skip[lane] = std::mem::take(count);
                let units = batch * SIZE..((batch + 1) * SIZE).min(n).max(batch * SIZE);
                let firsts = (units.end - units.start) * firsts;
                units.for_each(|i| first(i, out));
                skip[lane] + firsts
            },
            |lane, reply| {
                let (follows, skip) = &mut *cell.borrow_mut();
                if skip[lane] > 0 {
                    skip[lane] -= 1;
                    return;
                }
                let (count, bytes) = &mut follows[lane];
                *count += follow(reply, bytes);
            },
        );
    }
}
