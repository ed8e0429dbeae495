//! One connection to one server. Whoever asks puts the request into its buffer. The session's driver writes
//! what has gathered and hands out the answers, which come in the order of the requests.
//!
//! A connection never reconnects: when it ends, everything unanswered fails, and the session decides what to
//! do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot};

use super::jute::{garbled, read_frame};
use super::protocol::{self, ErrorCode, Message, ServerReply};
use super::requests::Request;
use super::watches::Watches;
use crate::runtime::sync::lock;

/// Paths in one request that sets watches. Servers refuse a request of a megabyte (`jute.maxbuffer`) by
/// ending the connection, and a path has 3 kB at most.
const WATCHES: usize = 100;
/// Messages that are read before others of the session have a turn.
const TURN: u64 = 16;

/// The longest message that is believed. The longest honest one names the children of a node: those of
/// 200,000 locks of usual names, or waiters, are 12 MB.
const MAX_MESSAGE: usize = 16 << 20;

/// What a request comes to: an answer, or why there is none.
pub(super) type Answer = Result<ServerReply, Arc<str>>;

#[derive(Debug)]
pub(super) struct Connection {
    requests: Mutex<Requests>,
    /// There is something to write.
    wake: Notify,
}

#[derive(Debug, Default)]
struct Requests {
    outgoing: Vec<u8>,
    unanswered: VecDeque<(i32, oneshot::Sender<Answer>)>,
    last_xid: i32,
    /// Why the connection ended.
    ended: Option<Arc<str>>,
}

impl Connection {
    /// The login and the watches go ahead of all requests.
    pub(super) fn new(watches: &Watches, login: Option<&str>) -> Arc<Self> {
        let mut requests = Requests::default();
        if let Some(login) = login {
            protocol::encode_login(&mut requests.outgoing, login);
        }
        for paths in watches.paths().chunks(WATCHES) {
            protocol::encode_watches(&mut requests.outgoing, watches.last_zxid(), paths);
        }
        Arc::new(Self { requests: Mutex::new(requests), wake: Notify::new() })
    }

    /// Puts a request into the buffer.
    pub(super) fn send<T>(&self, request: &Request<T>) -> Result<oneshot::Receiver<Answer>, Arc<str>> {
        let (sender, receiver) = oneshot::channel();
        let mut requests = lock(&self.requests);
        if let Some(why) = &requests.ended {
            return Err(why.clone());
        }
        // Negative numbers are no requests.
        let xid = requests.last_xid.checked_add(1).unwrap_or(1);
        requests.last_xid = xid;
        request.encode(&mut requests.outgoing, xid);
        requests.unanswered.push_back((xid, sender));
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Fails what is unanswered, and all later requests.
    pub(super) fn end(&self, why: &Arc<str>) {
        let mut requests = lock(&self.requests);
        requests.ended = Some(why.clone());
        for (_, sender) in requests.unanswered.drain(..) {
            let _ = sender.send(Err(why.clone()));
        }
    }

    /// Writes what gathers, until that fails.
    pub(super) async fn write(&self, mut stream: WriteHalf<'_>) -> io::Error {
        let mut outgoing = Vec::new();
        loop {
            std::mem::swap(&mut outgoing, &mut lock(&self.requests).outgoing);
            if outgoing.is_empty() {
                self.wake.notified().await;
                continue;
            }
            if let Err(error) = stream.write_all(&outgoing).await {
                return error;
            }
            outgoing.clear();
        }
    }

    /// Reads and hands out what comes, until that fails.
    pub(super) async fn read(&self, stream: ReadHalf<'_>, watches: &Watches) -> io::Error {
        let mut stream = BufReader::new(stream);
        for frames in 1u64.. {
            // A server that sends without end must not keep the session from its heartbeats.
            if frames.is_multiple_of(TURN) {
                tokio::task::yield_now().await;
            }
            let handed_out = match read_frame(&mut stream, MAX_MESSAGE).await {
                Ok(message) => self.hand_out(&message, watches),
                Err(error) => Err(error),
            };
            if let Err(error) = handed_out {
                return error;
            }
        }
        unreachable!("there are not so many frames")
    }

    fn hand_out(&self, message: &[u8], watches: &Watches) -> io::Result<()> {
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
                let asked = lock(&self.requests).unanswered.pop_front();
                let (_, sender) = asked.filter(|(xid, _)| *xid == reply.xid).ok_or_else(garbled)?;
                // Nobody may wait any more: dropped requests are answered, too.
                let _ = sender.send(Ok(reply));
            }
        }
        Ok(())
    }
}
