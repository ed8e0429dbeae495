//! One connection to one server. Requests are put into its buffer at once, in order; one task writes what has gathered
//! and hands out the answers, which come in the same order.
//!
//! A connection never reconnects: when it ends, everything unanswered fails, and the session decides what to do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot, watch};

use super::jute;
use super::protocol::{self, Code, Message, Reply, Request};
use super::watches::Watches;
use crate::runtime::sync::lock;

/// More unanswered requests than this mean that the server is stuck; further ones fail at once.
const MAX_UNANSWERED: usize = 1 << 18;

/// Bytes of paths in one request that sets watches. Servers refuse requests of a megabyte (`jute.maxbuffer`) by ending the
/// connection.
const MAX_WATCHES: usize = 128 << 10;

/// Bytes that are read at a time, and how often before what has gathered is written: a server that sends
/// without end does not keep us from asking.
const CHUNK: usize = 8192;
const CHUNKS_A_TURN: usize = 8;

/// The most that a connection keeps ready for what comes next.
const MOST_SPARE: usize = 1 << 16;

/// Bytes of events between two replies after which a server is not waited for any more: it talks, and does
/// not answer. Those of 50,000 locks that all end at once are 5 MB.
const MAX_EVENTS: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// There is something to write.
    wake: Notify,
    /// Why it ended.
    ended: watch::Sender<Option<Arc<str>>>,
}

#[derive(Debug, Default)]
struct Inner {
    outgoing: Vec<u8>,
    unanswered: VecDeque<(i32, oneshot::Sender<Reply>)>,
    last_xid: i32,
    ended: bool,
}

pub(super) fn garbled(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Connection {
    /// Starts driving a stream on the current runtime. Logs in and sets the watches again before anything else is sent.
    pub(super) fn start(stream: TcpStream, watches: &Arc<Watches>, login: Option<&str>) -> Self {
        let mut inner = Inner::default();
        if let Some(login) = login {
            protocol::encode_login(&mut inner.outgoing, login);
        }
        let paths = watches.all();
        let mut rest = &paths[..];
        while !rest.is_empty() {
            let (some, more) = rest.split_at(fitting(rest));
            protocol::encode_watches(&mut inner.outgoing, watches.last_zxid(), some);
            rest = more;
        }
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            wake: Notify::new(),
            ended: watch::Sender::new(None),
        });
        shared.wake.notify_one();
        tokio::spawn(drive(shared.clone(), stream, watches.clone()));
        Self { shared }
    }

    /// Puts a request into the buffer. The answer comes, or the receiver fails when the connection ends.
    pub(super) fn send(&self, request: &Request<'_>) -> Result<oneshot::Receiver<Reply>, Arc<str>> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut inner = lock(&self.shared.inner);
            if inner.ended {
                return Err(self.why_ended());
            }
            if inner.unanswered.len() >= MAX_UNANSWERED {
                return Err("too many requests are unanswered".into());
            }
            // Negative numbers have meanings of their own.
            inner.last_xid = inner.last_xid.checked_add(1).unwrap_or(1);
            let xid = inner.last_xid;
            request.encode(&mut inner.outgoing, xid);
            inner.unanswered.push_back((xid, sender));
        }
        self.shared.wake.notify_one();
        Ok(receiver)
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.shared.inner).ended
    }

    pub(super) fn why_ended(&self) -> Arc<str> {
        self.shared.ended.borrow().clone().unwrap_or_else(|| "the connection ended".into())
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        // The sender lives in `self`.
        let _ = self.shared.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// Ends it; what is unanswered fails.
    pub(super) fn close(&self, why: &str) {
        end(&self.shared, why);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close("the connection was closed");
    }
}

/// How many of these paths go into one request: at least one.
fn fitting(paths: &[String]) -> usize {
    let mut bytes = 0;
    let fit = paths.iter().take_while(|path| {
        bytes += path.len() + size_of::<i32>();
        bytes <= MAX_WATCHES
    });
    fit.count().max(1)
}

fn end(shared: &Shared, why: &str) {
    let unanswered = {
        let mut inner = lock(&shared.inner);
        inner.ended = true;
        std::mem::take(&mut inner.unanswered)
    };
    shared.ended.send_if_modified(|ended| {
        let first = ended.is_none();
        ended.get_or_insert_with(|| why.into());
        first
    });
    // Only now: who hears of it can ask why.
    drop(unanswered);
}

async fn drive(shared: Arc<Shared>, stream: TcpStream, watches: Arc<Watches>) {
    let (reader, writer) = stream.into_split();
    let mut ended = shared.ended.subscribe();
    let outcome = tokio::select! {
        biased;
        _ = ended.wait_for(Option::is_some) => return,
        error = read(&shared, reader, &watches) => error,
        error = write(&shared, writer) => error,
    };
    end(&shared, &outcome.to_string());
}

/// Writes what gathers, until that fails.
async fn write(shared: &Shared, mut stream: OwnedWriteHalf) -> io::Error {
    let mut outgoing = Vec::new();
    loop {
        std::mem::swap(&mut outgoing, &mut lock(&shared.inner).outgoing);
        if outgoing.is_empty() {
            shared.wake.notified().await;
            continue;
        }
        if let Err(error) = stream.write_all(&outgoing).await {
            return error;
        }
        outgoing.clear();
    }
}

/// Reads and hands out what comes, until that fails.
async fn read(shared: &Shared, mut stream: OwnedReadHalf, watches: &Watches) -> io::Error {
    let (mut incoming, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    let (mut chunks, mut events) = (0, 0);
    loop {
        let count = match stream.read(&mut chunk).await {
            Ok(0) => return io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"),
            Ok(count) => count,
            Err(error) => return error,
        };
        incoming.extend_from_slice(&chunk[..count]);
        let mut used = 0;
        loop {
            match jute::first_frame(&incoming[used..]) {
                Ok(None) => break,
                Ok(Some((message, length))) => {
                    used += length;
                    match hand_out(shared, message, watches) {
                        Ok(Handed::Reply) => events = 0,
                        Ok(Handed::Event) => events += length,
                        Err(error) => return error,
                    }
                }
                Err(what) => return garbled(what),
            }
        }
        incoming.drain(..used);
        if incoming.is_empty() && incoming.capacity() > MOST_SPARE {
            incoming = Vec::new();
        }
        if events > MAX_EVENTS {
            if !lock(&shared.inner).unanswered.is_empty() {
                return garbled("the server sends events without end and answers nothing");
            }
            events = 0;
        }
        chunks += 1;
        if chunks == CHUNKS_A_TURN {
            chunks = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// What a message was.
enum Handed {
    Reply,
    Event,
}

fn hand_out(shared: &Shared, message: &[u8], watches: &Watches) -> io::Result<Handed> {
    match protocol::decode(message).map_err(garbled)? {
        Message::Event { path, deleted } => {
            // Events of the session itself have no path.
            if !path.is_empty() {
                watches.tell(&path, deleted);
            }
        }
        Message::WatchesSet | Message::Login(Ok(())) => {}
        Message::Login(Err(code)) => {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the server refused the user or password ({code:?})"),
            ));
        }
        Message::Reply(reply) => {
            watches.saw(reply.zxid);
            if reply.body == Err(Code::SessionMoved) {
                return Err(io::Error::other("the session is served by another server"));
            }
            let next = lock(&shared.inner).unanswered.pop_front();
            match next {
                // Nobody may wait any more: dropped requests are answered, too.
                Some((xid, sender)) if xid == reply.xid => drop(sender.send(reply)),
                _ => return Err(garbled("a reply to no request")),
            }
            return Ok(Handed::Reply);
        }
    }
    Ok(Handed::Event)
}
