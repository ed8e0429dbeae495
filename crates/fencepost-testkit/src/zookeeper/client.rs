//! A plain blocking client: one request at a time, as much of the protocol as tests need.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::LIMIT;

/// How a node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stays until it is deleted.
    Persistent = 0,
    /// Ends with its session.
    Ephemeral = 1,
    /// Ends with its session, and has a number behind its name.
    EphemeralSequential = 3,
}

const NO_NODE: i32 = -101;
const EVENT: i32 = -1;

/// A session. Dropping it closes the session, and its nodes go.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// What was told of watched nodes while an answer was waited for.
    events: VecDeque<String>,
}

/// The body of a request or an answer.
#[derive(Debug, Default)]
struct Body(Vec<u8>);

impl Body {
    fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn bytes(self, value: &[u8]) -> Self {
        let mut out = self.int(i32::try_from(value.len()).expect("a short text"));
        out.0.extend(value);
        out
    }

    fn take_int(&mut self) -> i32 {
        let rest = self.0.split_off(4);
        let head = std::mem::replace(&mut self.0, rest);
        i32::from_be_bytes(head.try_into().expect("four bytes"))
    }

    fn take_bytes(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.take_int()).unwrap_or(0);
        let rest = self.0.split_off(length);
        std::mem::replace(&mut self.0, rest)
    }

    fn take_text(&mut self) -> String {
        String::from_utf8(self.take_bytes()).expect("a path is text")
    }
}

impl Client {
    /// Opens a session.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_for(addr, Duration::from_secs(30))
    }

    /// Opens a session that lasts for so long without a request.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn connect_for(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let timeout = i32::try_from(timeout.as_millis()).map_err(io::Error::other)?;
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut client = Self { stream, events: VecDeque::new() };
        // Version, last transaction seen, timeout, no session yet, no password, not read-only.
        client.write(Body::default().int(0).long(0).int(timeout).long(0).bytes(&[0; 16]).byte(0))?;
        client.read()?;
        Ok(client)
    }

    /// Creates a node and returns its path.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn create(&mut self, path: &str, data: &[u8], mode: Mode) -> io::Result<String> {
        // Everybody may do everything with it.
        self.create_as(path, data, mode, &[(31, "world", "anyone")])
    }

    /// Creates a lasting node with its own permissions: bits, scheme and identity of each.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn create_for(&mut self, path: &str, acl: &[(i32, &str, &str)]) -> io::Result<String> {
        self.create_as(path, b"", Mode::Persistent, acl)
    }

    fn create_as(
        &mut self,
        path: &str,
        data: &[u8],
        mode: Mode,
        acl: &[(i32, &str, &str)],
    ) -> io::Result<String> {
        let body = Body::default().bytes(path.as_bytes()).bytes(data);
        let body =
            acl.iter().fold(body.int(i32::try_from(acl.len()).unwrap_or(0)), |body, (bits, scheme, id)| {
                body.int(*bits).bytes(scheme.as_bytes()).bytes(id.as_bytes())
            });
        let body = body.int(mode as i32);
        match self.call(1, body)? {
            Ok(mut answer) => Ok(answer.take_text()),
            Err(code) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }

    /// Deletes a node; `false` if there is none.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn delete(&mut self, path: &str) -> io::Result<bool> {
        match self.call(2, Body::default().bytes(path.as_bytes()).int(-1))? {
            Ok(_) => Ok(true),
            Err(NO_NODE) => Ok(false),
            Err(code) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }

    /// What a node holds; `None` if there is no such node.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn data(&mut self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.read_node(path, false)
    }

    /// The same, and its next change is told.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn watch(&mut self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.read_node(path, true)
    }

    /// Waits until a watched node has changed, and says which.
    ///
    /// # Errors
    /// If the server does not tell in time.
    pub fn event(&mut self) -> io::Result<String> {
        loop {
            if let Some(path) = self.events.pop_front() {
                return Ok(path);
            }
            let message = self.read()?;
            self.note_event(message);
        }
    }

    fn read_node(&mut self, path: &str, watch: bool) -> io::Result<Option<Vec<u8>>> {
        match self.call(4, Body::default().bytes(path.as_bytes()).byte(watch.into()))? {
            Ok(mut answer) => Ok(Some(answer.take_bytes())),
            Err(NO_NODE) => Ok(None),
            Err(code) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }

    /// The names of a node's children, sorted; none if there is no such node.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        match self.call(8, Body::default().bytes(path.as_bytes()).byte(0))? {
            Ok(mut answer) => {
                let mut names: Vec<_> = (0..answer.take_int()).map(|_| answer.take_text()).collect();
                names.sort_unstable();
                Ok(names)
            }
            Err(NO_NODE) => Ok(Vec::new()),
            Err(code) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }

    /// All nodes below a path, the server's own ones left out.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn tree(&mut self, path: &str) -> Vec<String> {
        let mut out = Vec::new();
        for name in self.children(path).unwrap_or_else(|error| panic!("{path}: {error}")) {
            let child = format!("{}/{name}", path.trim_end_matches('/'));
            if child != "/zookeeper" {
                out.push(child.clone());
                out.extend(self.tree(&child));
            }
        }
        out
    }

    /// Sends a request and returns the body of the answer, or its error code.
    fn call(&mut self, operation: i32, body: Body) -> io::Result<Result<Body, i32>> {
        let mut request = Body::default().int(1).int(operation);
        request.0.extend(body.0);
        self.write(request)?;
        let mut answer = loop {
            let mut message = self.read()?;
            if message.0.starts_with(&EVENT.to_be_bytes()) {
                self.note_event(message);
                continue;
            }
            message.take_int();
            break message;
        };
        answer.0.drain(..8);
        Ok(match answer.take_int() {
            0 => Ok(answer),
            code => Err(code),
        })
    }

    /// A header, the kind of the event, the state of the session, and the path.
    fn note_event(&mut self, mut message: Body) {
        message.0.drain(..4 + 8 + 4 + 4 + 4);
        self.events.push_back(message.take_text());
    }

    fn write(&mut self, body: Body) -> io::Result<()> {
        self.stream.write_all(&Body::default().bytes(&body.0).0)
    }

    fn read(&mut self) -> io::Result<Body> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Body(body))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        const CLOSE_SESSION: i32 = -11;
        // Answered when the session's nodes are gone. A server that is down ends the session by itself.
        let _ = self.call(CLOSE_SESSION, Body::default());
    }
}
