//! The raw limit of a majority: the same scripts with the same arguments, written to bare sockets and read
//! until a majority has answered. One thread, `poll`, no runtime; what the slower nodes answer is read along
//! with the next round.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use fencepost_testkit::redis::{Nodes, Server};
use rustix::event::{PollFd, PollFlags, poll};

use crate::raw::{command, load};
use crate::rounds::{Slice, slice};

const TURN: &str = include_str!("../../../crates/fencepost/src/backends/redlock/scripts/ops.lua");

/// Stand for the times that every request has anew, in microseconds.
const PROPOSAL: &str = "1000000000000001";
const NOT_AFTER: &str = "1000000000000002";

pub(crate) struct Fanout(Vec<Socket>);

struct Socket {
    stream: TcpStream,
    acquire: Vec<u8>,
    proposal: usize,
    not_after: usize,
    release: Vec<u8>,
    unanswered: usize,
    /// The last read ended within a line.
    in_line: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Acquire,
    Release,
}

impl Fanout {
    pub(crate) fn connect(nodes: &Nodes) -> Self {
        Self(nodes.iter().map(Socket::connect).collect())
    }

    /// Acquires and releases for one slice.
    pub(crate) fn cycles(&mut self) -> Slice {
        let out = slice(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let now = now.as_micros();
            for socket in &mut self.0 {
                socket.stamp(now, now + 1_000_000);
            }
            self.exchange(What::Acquire);
            self.exchange(What::Release);
        });
        // Whatever is measured next shall not meet what is left over.
        self.read_until(self.0.len());
        out
    }

    fn exchange(&mut self, what: What) {
        for socket in &mut self.0 {
            let bytes = if what == What::Acquire { &socket.acquire } else { &socket.release };
            socket.stream.write_all(bytes).expect("a write");
            socket.unanswered += 1;
        }
        self.read_until(self.0.len() / 2 + 1);
    }

    /// Reads until so many nodes have answered everything.
    fn read_until(&mut self, enough: usize) {
        while self.0.iter().filter(|socket| socket.unanswered == 0).count() < enough {
            let mut waiting: Vec<_> =
                self.0.iter().map(|socket| PollFd::new(&socket.stream, PollFlags::IN)).collect();
            poll(&mut waiting, None).expect("poll");
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (socket, _) in self.0.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
                socket.read();
            }
        }
    }
}

impl Socket {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.addr()).expect("the server");
        stream.set_nodelay(true).expect("a socket option");
        stream.set_nonblocking(true).expect("a socket option");
        let (acquire, release) = Self::commands(server);
        let find = |word: &str| {
            let found = acquire.windows(word.len()).position(|window| window == word.as_bytes());
            found.expect("the word in the command")
        };
        let (proposal, not_after) = (find(PROPOSAL), find(NOT_AFTER));
        Self { stream, proposal, not_after, acquire, release, unanswered: 0, in_line: false }
    }

    fn commands(server: &Server) -> (Vec<u8>, Vec<u8>) {
        let votes = server.cli(&["GET", "{fencepost}:node"]);
        let (lock, fence, queue) = ("lock:raw:one", "{lock:raw:one}:fence", "{lock:raw:one}:waiters");
        let about = "{\"host\":\"bench\",\"pid\":12345,\"since\":1234567890123}";
        let value = format!("{:036} {:016} {about}", 1, 2);
        let turn = load(server.addr(), TURN);
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        let keys = ["EVALSHA", &turn, "3", lock, fence, "{fencepost}:node"];
        let arguments = ["30000", &value, PROPOSAL, NOT_AFTER, &votes, "5000000"];
        command(&mut acquires, &[&keys[..], &arguments].concat());
        command(&mut releases, &["EVALSHA", &turn, "2", lock, queue, "free", &value]);
        (acquires, releases)
    }

    fn stamp(&mut self, proposal: u128, not_after: u128) {
        for (at, number) in [(self.proposal, proposal), (self.not_after, not_after)] {
            let room = &mut self.acquire[at..at + PROPOSAL.len()];
            write!(&mut room[..], "{number}").expect("16 digits");
        }
    }

    fn read(&mut self) {
        let mut buffer = [0u8; 4096];
        let count = match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("a reply: {error}"),
        };
        assert!(count > 0, "the server closed the connection");
        // Both scripts answer a number if all is well: the counter, and 1.
        let text = String::from_utf8_lossy(&buffer[..count]);
        for line in text.split_inclusive('\n') {
            assert!(self.in_line || line.starts_with(':') && line != ":0\r\n", "{text}");
            self.in_line = !line.ends_with('\n');
            self.unanswered -= usize::from(!self.in_line);
        }
    }
}
