//! A connection that speaks RESP by hand, for what a client library hides: whether a reply has come
//! yet, an error inside an array, bytes that no client would send.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A reply as the server sent it. A status and a bulk string are both `Bytes`; a map is its flat
/// array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    Error(String),
    Array(Vec<Reply>),
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reply::Nil => write!(f, "nil"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Bytes(b) => write!(f, "\"{}\"", b.escape_ascii()),
            Reply::Error(e) => write!(f, "(error) {e}"),
            Reply::Array(items) => {
                write!(f, "[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, "]")
            }
        }
    }
}

/// How long a reply may take before the test fails.
const PATIENCE: Duration = super::PATIENCE;

pub struct RawConnection {
    stream: BufReader<TcpStream>,
    /// Words that get a tag on their way to the server and lose it on their way back, so that such
    /// keys are in one slot.
    tagged: Vec<Vec<u8>>,
}

const TAG: &[u8] = b"{t}";

impl RawConnection {
    pub fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), tagged: Vec::new() })
    }

    /// From now on these keys have a tag at the server, of which whoever uses this connection sees
    /// nothing.
    pub fn tag<A: AsRef<[u8]>>(&mut self, keys: &[A]) {
        self.tagged = keys.iter().map(|key| key.as_ref().to_vec()).collect();
    }

    /// Sends a command and does not wait for its reply.
    pub fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) -> std::io::Result<()> {
        self.send_bytes(&self.encoded(words))
    }

    /// A command as it is sent.
    pub fn encoded<A: AsRef<[u8]>>(&self, words: &[A]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            let tag = if self.tagged.iter().any(|t| t == word) { TAG } else { b"" };
            out.extend_from_slice(format!("${}\r\n", tag.len() + word.len()).as_bytes());
            out.extend_from_slice(tag);
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    /// Sends bytes as they are, well-formed or not.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> std::io::Result<Reply> {
        self.send(words)?;
        self.read()
    }

    /// Whether no reply has come within `time`. A closed connection counts as a reply: `read` then
    /// says what happened.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        if !self.stream.buffer().is_empty() {
            return false;
        }
        let mut poll =
            libc::pollfd { fd: self.stream.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, on the stack for the length of the call, with a descriptor that
        // `self` keeps open.
        let ready =
            unsafe { libc::poll(&raw mut poll, 1, i32::try_from(time.as_millis()).unwrap_or(i32::MAX)) };
        ready == 0
    }

    /// The next reply, waited for.
    pub fn read(&mut self) -> std::io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        let items = |count: i64| usize::try_from(count).ok();
        match kind {
            "+" => Ok(Reply::Bytes(rest.as_bytes().to_vec())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "#" => Ok(Reply::Int(i64::from(rest == "t"))),
            "," | "(" => Ok(Reply::Bytes(rest.as_bytes().to_vec())),
            "_" => Ok(Reply::Nil),
            "$" | "=" => match items(number()?) {
                None => Ok(Reply::Nil),
                Some(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    if let Some(word) = bytes.strip_prefix(TAG)
                        && self.tagged.iter().any(|t| t == word)
                    {
                        bytes.drain(..TAG.len());
                    }
                    Ok(Reply::Bytes(bytes))
                }
            },
            "*" | "~" | ">" => match items(number()?) {
                None => Ok(Reply::Nil),
                Some(count) => (0..count).map(|_| self.read()).collect::<Result<_, _>>().map(Reply::Array),
            },
            "%" => {
                let count = items(number()?).unwrap_or(0) * 2;
                (0..count).map(|_| self.read()).collect::<Result<_, _>>().map(Reply::Array)
            }
            _ => Err(malformed(&line)),
        }
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') || line.pop() != Some(b'\r') {
            return Err(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ));
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

fn malformed(line: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("not RESP: {line:?}"))
}
