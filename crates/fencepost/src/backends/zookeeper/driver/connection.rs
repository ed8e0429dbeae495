//! One connection to one server. Whoever asks puts the request into its buffer, in order. One task writes what has
//! gathered and hands out the answers, which come in the same order.
//!
//! A connection never reconnects: when it ends, everything unanswered fails, and the session decides what to do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot, watch};

use super::jute::{garbled, read_frame};
use super::protocol::{self, ErrorCode, Message, Reply};
use super::requests::Request;
use super::watches::Watches;
use crate::runtime::sync::lock;

/// Paths in one request that sets watches. Servers refuse a request of a megabyte (`jute.maxbuffer`) by ending the
/// connection, and a path has 3 kB at most.
const WATCHES: usize = 100;

/// The longest message that is believed. The longest honest one names the children of a node: those of 200,000 locks
/// of usual names, or waiters, are 12 MB.
const MAX_MESSAGE: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Connection {
    requests: Mutex<Requests>,
    /// There is something to write.
    wake: Notify,
    /// Why it ended. Set before `unanswered` is emptied: whoever hears of it can ask why.
    ended: watch::Sender<Option<Arc<str>>>,
}

#[derive(Debug, Default)]
struct Requests {
    outgoing: Vec<u8>,
    unanswered: VecDeque<(i32, oneshot::Sender<Reply>)>,
    last_xid: i32,
}

impl Connection {
    /// Drives a stream on the current runtime, until `close`. The login and the watches go ahead of all requests.
    pub(super) fn start(stream: TcpStream, watches: &Arc<Watches>, login: Option<&str>) -> Arc<Self> {
        let mut requests = Requests::default();
        if let Some(login) = login {
            protocol::encode_login(&mut requests.outgoing, login);
        }
        for paths in watches.paths().chunks(WATCHES) {
            protocol::encode_watches(&mut requests.outgoing, watches.last_zxid(), paths);
        }
        let connection = Arc::new(Self {
            requests: Mutex::new(requests),
            wake: Notify::new(),
            ended: watch::Sender::new(None),
        });
        tokio::spawn(drive(connection.clone(), stream, watches.clone()));
        connection
    }

    /// Puts a request into the buffer. The receiver fails when the connection ends without an answer.
    pub(super) fn send<T>(&self, request: &Request<T>) -> Result<oneshot::Receiver<Reply>, Arc<str>> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut requests = lock(&self.requests);
            if self.has_ended() {
                return Err(self.why_ended());
            }
            // Negative numbers are no requests.
            let xid = requests.last_xid.checked_add(1).unwrap_or(1);
            requests.last_xid = xid;
            request.encode(&mut requests.outgoing, xid);
            requests.unanswered.push_back((xid, sender));
        }
        self.wake.notify_one();
        Ok(receiver)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    pub(super) fn why_ended(&self) -> Arc<str> {
        self.ended.borrow().clone().unwrap_or_else(|| "the connection ended".into())
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// Ends it; what is unanswered fails. Only the first reason counts.
    pub(super) fn close(&self, why: &str) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| why.into());
            first
        });
        lock(&self.requests).unanswered.clear();
    }
}

async fn drive(connection: Arc<Connection>, stream: TcpStream, watches: Arc<Watches>) {
    let (reader, writer) = stream.into_split();
    let error = tokio::select! {
        // In this order: a server that sends without end does not keep us from asking.
        biased;
        () = connection.ended() => return,
        error = write(&connection, writer) => error,
        error = read(&connection, reader, &watches) => error,
    };
    connection.close(&error.to_string());
}

/// Writes what gathers, until that fails.
async fn write(connection: &Connection, mut stream: OwnedWriteHalf) -> io::Error {
    let mut outgoing = Vec::new();
    loop {
        std::mem::swap(&mut outgoing, &mut lock(&connection.requests).outgoing);
        if outgoing.is_empty() {
            connection.wake.notified().await;
            continue;
        }
        if let Err(error) = stream.write_all(&outgoing).await {
            return error;
        }
        outgoing.clear();
    }
}

/// Reads and hands out what comes, until that fails.
async fn read(connection: &Connection, stream: OwnedReadHalf, watches: &Watches) -> io::Error {
    let mut stream = BufReader::new(stream);
    loop {
        let handed_out = match read_frame(&mut stream, MAX_MESSAGE).await {
            Ok(message) => hand_out(connection, &message, watches),
            Err(error) => Err(error),
        };
        if let Err(error) = handed_out {
            return error;
        }
    }
}

fn hand_out(connection: &Connection, message: &[u8], watches: &Watches) -> io::Result<()> {
    match protocol::decode(message)? {
        Message::Event { path, change } => watches.tell(&path, change),
        Message::WatchesSet | Message::Login(Ok(())) => {}
        Message::Login(Err(code)) => {
            return Err(io::Error::other(format!("the server refused the user or password ({code:?})")));
        }
        Message::Reply(reply) => {
            watches.note_zxid(reply.zxid);
            if reply.body == Err(ErrorCode::SESSION_MOVED) {
                return Err(io::Error::other("the session is served by another server"));
            }
            let asked = lock(&connection.requests).unanswered.pop_front();
            let (_, sender) = asked.filter(|(xid, _)| *xid == reply.xid).ok_or_else(garbled)?;
            // Nobody may wait any more: dropped requests are answered, too.
            drop(sender.send(reply));
        }
    }
    Ok(())
}
