//! The raw limits: a bare socket, and bare system calls.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const OPS: &str = include_str!("../../crates/fencepost/src/backends/redis/scripts/ops.lua");

/// What a lock client without a token does: set if absent, compare and delete.
const TRIVIAL_ACQUIRE: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const TRIVIAL_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) fn command(out: &mut Vec<u8>, words: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// A pair of scripts and the commands that run them, ready to be sent.
pub(crate) struct Scripts {
    acquire: String,
    release: String,
    ours: bool,
}

impl Scripts {
    /// Fencepost's own.
    pub(crate) fn ours(addr: SocketAddr) -> Self {
        let ops = load(addr, OPS);
        Self { acquire: ops.clone(), release: ops, ours: true }
    }

    /// The shortest that could be called a lock.
    pub(crate) fn trivial(addr: SocketAddr) -> Self {
        Self { acquire: load(addr, TRIVIAL_ACQUIRE), release: load(addr, TRIVIAL_RELEASE), ours: false }
    }

    /// The bytes of an acquire and of a release of all names, each in one call, with the lines of their
    /// replies.
    pub(crate) fn calls(&self, names: &[String]) -> [(Vec<u8>, usize); 2] {
        let keys: Vec<_> = names.iter().flat_map(|name| keys(name)).collect();
        let (count, value) = (keys.len().to_string(), value());
        [("wait", "30000", 2), ("leave", "", 1)].map(|(verb, ttl, lines)| {
            let mut words = vec!["EVALSHA", &self.acquire, &count];
            words.extend(keys.iter().map(String::as_str));
            names.iter().for_each(|_| words.extend([verb, &value, ttl]));
            let mut out = Vec::new();
            command(&mut out, &words);
            (out, 1 + lines * names.len())
        })
    }

    /// The lines of the reply to one acquire. That to a release has one.
    pub(crate) fn granted_lines(&self) -> usize {
        if self.ours { 2 } else { 1 }
    }

    /// The bytes of an acquire and of a release of each name.
    pub(crate) fn commands(&self, names: &[String]) -> (Vec<u8>, Vec<u8>) {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        let value = value();
        for name in names {
            let [lock, fence, queue] = &keys(name);
            if self.ours {
                let [a, b, c] = [lock, fence, queue];
                command(&mut acquires, &["EVALSHA", &self.acquire, "3", a, b, c, "wait", &value, "30000"]);
                // By the entry: the token is not known when these bytes are made.
                command(&mut releases, &["EVALSHA", &self.release, "3", a, b, c, "leave", &value, ""]);
            } else {
                command(&mut acquires, &["EVALSHA", &self.acquire, "1", lock, &value, "30000"]);
                command(&mut releases, &["EVALSHA", &self.release, "1", lock, &value]);
            }
        }
        (acquires, releases)
    }
}

/// The keys of a lock.
fn keys(name: &str) -> [String; 3] {
    [format!("lock:{name}"), format!("{{lock:{name}}}:fence"), format!("{{lock:{name}}}:waiting")]
}

/// What a waiter is known by.
fn value() -> String {
    format!("{:036} {:016} {{\"host\":\"bench\",\"pid\":12345,\"since\":1234567890123}}", 1, 2)
}

/// Loads a script and returns its hash.
pub(crate) fn load(addr: SocketAddr, script: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("the server");
    let mut out = Vec::new();
    command(&mut out, &["SCRIPT", "LOAD", script]);
    stream.write_all(&out).expect("a write");
    let mut reply = [0u8; 256];
    let count = stream.read(&mut reply).expect("a reply");
    let text = String::from_utf8_lossy(&reply[..count]);
    text.lines().nth(1).unwrap_or_default().to_owned()
}

/// A bare asynchronous socket: the same runtime and the same system calls, and no lock library. And the lines
/// that have come and were not waited for yet.
pub(crate) struct Bare(tokio::net::TcpStream, usize);

impl Bare {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(addr).await.expect("the server");
        stream.set_nodelay(true).expect("a socket option");
        Self(stream, 0)
    }

    /// Sends commands and waits for so many lines.
    pub(crate) async fn exchange(&mut self, commands: &[u8], lines: usize) {
        self.send(commands).await;
        self.hear(lines).await;
    }

    pub(crate) async fn send(&mut self, commands: &[u8]) {
        self.0.write_all(commands).await.expect("a write");
    }

    /// Waits for so many lines.
    pub(crate) async fn hear(&mut self, lines: usize) {
        let mut buffer = [0u8; 16384];
        let mut seen = std::mem::take(&mut self.1);
        while seen < lines {
            let count = self.0.read(&mut buffer).await.expect("replies");
            assert!(count > 0, "the server closed the connection");
            assert!(buffer[0] != b'-', "{}", String::from_utf8_lossy(&buffer[..count]));
            seen += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
        }
        // What was sent ahead may be answered, too.
        self.1 = seen - lines;
    }
}

/// Blocking pop and push of one token, for the hand-over between two processes.
pub(crate) struct Token(TcpStream);

impl Token {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).expect("the server");
        stream.set_nodelay(true).expect("a socket option");
        Self(stream)
    }

    pub(crate) fn pop(&mut self, list: &str) {
        self.exchange(&["BLPOP", list, "20"], 5);
    }

    pub(crate) fn push(&mut self, list: &str) {
        self.exchange(&["RPUSH", list, "t"], 1);
    }

    fn exchange(&mut self, words: &[&str], lines: usize) {
        let mut out = Vec::new();
        command(&mut out, words);
        self.0.write_all(&out).expect("a write");
        let (mut seen, mut buffer) = (0, [0u8; 256]);
        while seen < lines {
            let count = self.0.read(&mut buffer).expect("a reply");
            assert!(count > 0 && &buffer[..2] != b"*-", "no token came");
            seen += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
        }
    }
}

/// Our own script over a bare socket that blocks: what waking another process takes with a token and a lease.
pub(crate) struct Pushed {
    stream: TcpStream,
    script: String,
    keys: [String; 3],
    entry: String,
    heard: Vec<u8>,
}

impl Pushed {
    pub(crate) fn connect(addr: SocketAddr, name: &str) -> Self {
        let script = load(addr, OPS);
        let stream = TcpStream::connect(addr).expect("the server");
        stream.set_nodelay(true).expect("a socket option");
        let keys = keys(name);
        let (process, channel) = (std::process::id(), format!("{:016x}", std::process::id()));
        let entry = format!("{process:036} {channel} {{\"host\":\"bench\",\"pid\":{process}}}");
        let mut pushed = Self { stream, script, keys, entry, heard: Vec::new() };
        pushed.say(&["HELLO", "3"]);
        pushed.say(&["SUBSCRIBE", &channel]);
        // It ends with the number of subscriptions.
        pushed.hear(|heard| heard.ends_with(b":1\r\n").then_some(()));
        pushed
    }

    /// Waits for the lock; returns its token.
    pub(crate) fn acquire(&mut self) -> u64 {
        let mut out = Vec::new();
        command(&mut out, &self.call("wait", &self.entry, "30000"));
        self.stream.write_all(&out).expect("a write");
        let granted = format!("granted {} ", &self.entry[..36]);
        self.hear(|heard| {
            let text = std::str::from_utf8(heard).expect("text").strip_suffix("\r\n")?;
            match text.starts_with('$') {
                true => text.rsplit("\r\n").next()?.parse().ok(),
                false => text.rsplit_once(&granted)?.1.parse().ok(),
            }
        })
    }

    pub(crate) fn release(&mut self, token: u64) {
        let grant = format!("{} {token}", &self.entry[..36]);
        let mut out = Vec::new();
        // As the client does it: the push to the next one is then written before the reply to this.
        command(&mut out, &["PING"]);
        command(&mut out, &self.call("free", &grant, ""));
        self.stream.write_all(&out).expect("a write");
        self.hear(|heard| heard.ends_with(b":1\r\n").then_some(()));
    }

    fn call<'a>(&'a self, verb: &'a str, who: &'a str, ttl: &'a str) -> [&'a str; 9] {
        let [lock, fence, queue] = &self.keys;
        ["EVALSHA", &self.script, "3", lock, fence, queue, verb, who, ttl]
    }

    fn say(&mut self, words: &[&str]) {
        let mut out = Vec::new();
        command(&mut out, words);
        self.stream.write_all(&out).expect("a write");
    }

    /// Reads until there is something in what was heard, and forgets it.
    fn hear<T>(&mut self, find: impl Fn(&[u8]) -> Option<T>) -> T {
        let mut buffer = [0u8; 4096];
        loop {
            let count = self.stream.read(&mut buffer).expect("a reply");
            assert!(count > 0, "the server closed the connection");
            self.heard.extend_from_slice(&buffer[..count]);
            if let Some(found) = find(&self.heard) {
                self.heard.clear();
                return found;
            }
        }
    }
}

/// Opens a lock file.
pub(crate) fn open(path: &Path) -> OwnedFd {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).expect("a lock file")
}

/// One raw cycle on a file: open, flock, read, write, unlock, close.
pub(crate) fn file_cycle(path: &Path) {
    let file = open(path);
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("a lock");
    let mut record = [0u8; 256];
    let count = rustix::io::pread(&file, &mut record, 0).expect("a read");
    record[0] = record[0].wrapping_add(1);
    rustix::io::pwrite(&file, &record[..count.max(200)], 0).expect("a write");
    rustix::fs::flock(&file, FlockOperation::Unlock).expect("an unlock");
}
