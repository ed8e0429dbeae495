//! How a connection begins, and what a server sends.

use std::io;

use super::jute::{Reader, Writer, frame, garbled};
use super::watches::NodeChange;

/// Numbers of messages that are no requests.
const XID_EVENT: i32 = -1;
const XID_AUTH: i32 = -4;
const XID_SET_WATCHES: i32 = -8;

/// The secret keeps others from taking the session over.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SessionId {
    pub(crate) number: i64,
    pub(super) secret: [u8; 16],
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {:#x}", self.number)
    }
}

/// The first message of a connection: asks for a new session, or for the one we have.
#[derive(Clone, Copy)]
pub(super) struct ConnectRequest {
    /// Zero for a new one.
    pub(super) session: SessionId,
    /// In milliseconds.
    pub(super) timeout: i32,
    /// A server that does not know this transaction yet refuses us.
    pub(super) last_zxid: i64,
}

impl ConnectRequest {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |writer| {
            writer.int(0);
            writer.long(self.last_zxid);
            writer.int(self.timeout);
            writer.long(self.session.number);
            writer.bytes(&self.session.secret);
            // Not with a server that cannot reach the others.
            writer.bool(false);
        });
    }
}

/// The answer to it: the session, and its timeout in milliseconds, which is zero if the session has expired.
pub(super) fn decode_connected(message: &[u8]) -> io::Result<(SessionId, i32)> {
    let mut reader = Reader(message);
    reader.int()?;
    let timeout = reader.int()?;
    let number = reader.long()?;
    let secret = reader.bytes()?.try_into().map_err(|_| garbled())?;
    Ok((SessionId { number, secret }, timeout))
}

pub(super) fn encode_login(out: &mut Vec<u8>, login: &str) {
    frame(out, |writer| {
        writer.int(XID_AUTH);
        writer.int(100);
        writer.int(0);
        writer.text("digest");
        writer.text(login);
    });
}

/// Watches nodes on another connection. The server tells at once what has changed since `last_zxid`.
pub(super) fn encode_watches(out: &mut Vec<u8>, last_zxid: i64, paths: &[String]) {
    frame(out, |writer: &mut Writer<'_>| {
        writer.int(XID_SET_WATCHES);
        writer.int(101);
        writer.long(last_zxid);
        writer.texts(paths);
        writer.texts::<&str>(&[]);
        writer.texts::<&str>(&[]);
    });
}

/// Why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorCode(i32);

impl ErrorCode {
    pub(crate) const UNIMPLEMENTED: Self = Self(-6);
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const NO_AUTH: Self = Self(-102);
    pub(crate) const BAD_VERSION: Self = Self(-103);
    pub(crate) const NODE_EXISTS: Self = Self(-110);
    pub(super) const SESSION_EXPIRED: Self = Self(-112);
    pub(crate) const AUTH_FAILED: Self = Self(-115);
    pub(super) const SESSION_MOVED: Self = Self(-118);

    /// Whether the leader found it. A server may refuse by itself, too: if it has too many requests, say.
    pub(super) fn by_leader(self) -> bool {
        matches!(self, Self::NO_NODE | Self::NODE_EXISTS | Self::BAD_VERSION)
    }
}

/// A message from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A watched node has changed. Events of the session itself have no path.
    Event {
        path: String,
        change: NodeChange,
    },
    /// The answer to the login.
    Login(Result<(), ErrorCode>),
    /// The answer to `encode_watches`.
    WatchesSet,
    Reply(ServerReply),
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerReply {
    pub(super) xid: i32,
    /// The last transaction that the server knew when it answered.
    pub(super) zxid: i64,
    pub(super) body: Result<Vec<u8>, ErrorCode>,
}

pub(super) fn decode(message: &[u8]) -> io::Result<Message> {
    const DELETED: i32 = 2;
    let mut reader = Reader(message);
    let (xid, zxid, error) = (reader.int()?, reader.long()?, reader.int()?);
    let outcome = if error == 0 { Ok(()) } else { Err(ErrorCode(error)) };
    Ok(match xid {
        XID_EVENT => {
            let (kind, _state) = (reader.int()?, reader.int()?);
            let change = if kind == DELETED { NodeChange::Deleted } else { NodeChange::Changed };
            Message::Event { path: reader.text()?.to_owned(), change }
        }
        XID_AUTH => Message::Login(outcome),
        XID_SET_WATCHES => Message::WatchesSet,
        _ => Message::Reply(ServerReply { xid, zxid, body: outcome.map(|()| reader.0.to_owned()) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        fill(&mut Writer(&mut out));
        out
    }

    #[test]
    fn replies_events_and_errors_are_told_apart() {
        let reply = message(|writer| {
            writer.int(7);
            writer.long(42);
            writer.int(0);
            writer.0.extend(b"body");
        });
        let Message::Reply(reply) = decode(&reply).unwrap() else { panic!("no reply") };
        assert_eq!((reply.xid, reply.zxid), (7, 42));
        assert_eq!(reply.body.unwrap(), b"body");
        let refusal = message(|writer| {
            writer.int(8);
            writer.long(42);
            writer.int(-101);
        });
        let refused = ServerReply { xid: 8, zxid: 42, body: Err(ErrorCode::NO_NODE) };
        assert_eq!(decode(&refusal).unwrap(), Message::Reply(refused));
        let event = message(|writer| {
            writer.int(-1);
            writer.long(-1);
            writer.int(0);
            writer.int(2);
            writer.int(3);
            writer.text("/x");
        });
        assert_eq!(
            decode(&event).unwrap(),
            Message::Event { path: "/x".to_owned(), change: NodeChange::Deleted }
        );
        assert!(decode(&event[..20]).is_err());
    }

    #[test]
    fn a_session_is_known_by_its_number_alone() {
        let session = SessionId { number: 0x10, secret: [7; 16] };
        assert_eq!(format!("{session:?}"), "session 0x10");
        let answer = message(|writer| {
            writer.int(0);
            writer.int(400);
            writer.long(session.number);
            writer.bytes(&session.secret);
        });
        assert_eq!(decode_connected(&answer).unwrap(), (session, 400));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = (decode(&bytes), decode_connected(&bytes));
        }
    }
}
