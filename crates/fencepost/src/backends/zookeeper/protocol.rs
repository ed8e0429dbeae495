//! The requests that locks need, and how their answers read.

use super::jute::{Garbled, Reader, Writer, frame};

/// Numbers that stand for something other than a request of ours in the header of a message.
const XID_EVENT: i32 = -1;
const XID_AUTH: i32 = -4;
const XID_SET_WATCHES: i32 = -8;

/// What a node may be used for, and by whom: everything.
const ALL: i32 = 31;

/// What a session is known by. The secret keeps others from taking it over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionId {
    pub(super) number: i64,
    pub(super) secret: [u8; 16],
}

impl SessionId {
    /// Asks for a new session.
    pub(super) const NONE: Self = Self { number: 0, secret: [0; 16] };
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {:#x}", self.number)
    }
}

/// How a node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Ends with its session; the server puts a number behind its name.
    EphemeralSequential,
    /// Collected by the server some time after its last child is gone.
    Container,
}

/// A request. Paths are whole ones.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
        mode: Mode,
        /// Only for those who have logged in as we did; else for everybody.
        private: bool,
    },
    Delete {
        path: &'a str,
    },
    /// Reads a node; with `watch`, its next change is told.
    Read {
        path: &'a str,
        watch: bool,
    },
    /// Writes a node if its data still has that version.
    Write {
        path: &'a str,
        data: &'a [u8],
        version: i32,
    },
    Children {
        path: &'a str,
    },
    /// Who may do what with a node.
    Acl {
        path: &'a str,
    },
    /// Goes through the leader and comes back when our server knows all that the leader knew.
    Sync,
    CloseSession,
}

impl Request<'_> {
    fn operation(&self) -> i32 {
        match self {
            Self::Create { mode: Mode::Container, .. } => 19,
            Self::Create { .. } => 15,
            Self::Delete { .. } => 2,
            Self::Read { .. } => 4,
            Self::Write { .. } => 5,
            Self::Acl { .. } => 6,
            Self::Children { .. } => 8,
            Self::Sync => 9,
            Self::CloseSession => -11,
        }
    }

    /// Whether the leader has a part in the answer: only then does it show that the session lives.
    pub(super) fn by_leader(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Children { .. } | Self::Acl { .. })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>, xid: i32) {
        frame(out, |writer| {
            writer.int(xid);
            writer.int(self.operation());
            match *self {
                Self::Create { path, data, mode, private } => {
                    writer.text(path);
                    writer.bytes(data);
                    let (scheme, id) = if private { ("auth", "") } else { ("world", "anyone") };
                    writer.int(1);
                    writer.int(ALL);
                    writer.text(scheme);
                    writer.text(id);
                    writer.int(match mode {
                        Mode::EphemeralSequential => 3,
                        Mode::Container => 4,
                    });
                }
                Self::Delete { path } => {
                    writer.text(path);
                    // Any version: a name is never used twice.
                    writer.int(-1);
                }
                Self::Read { path, watch } => {
                    writer.text(path);
                    writer.bool(watch);
                }
                Self::Write { path, data, version } => {
                    writer.text(path);
                    writer.bytes(data);
                    writer.int(version);
                }
                Self::Children { path } => {
                    writer.text(path);
                    writer.bool(false);
                }
                Self::Acl { path } => writer.text(path),
                Self::Sync => writer.text("/"),
                Self::CloseSession => {}
            }
        });
    }
}

/// The first message of a connection: asks for a session, or for the one we have.
pub(super) fn encode_connect(out: &mut Vec<u8>, session: SessionId, timeout: i32, last_zxid: i64) {
    frame(out, |writer| {
        writer.int(0);
        writer.long(last_zxid);
        writer.int(timeout);
        writer.long(session.number);
        writer.bytes(&session.secret);
        // Not with a server that cannot reach the others.
        writer.bool(false);
    });
}

/// The answer to it: the session and its timeout in milliseconds; a session that has expired has a timeout of zero.
pub(super) fn decode_connected(message: &[u8]) -> Result<(SessionId, i32), Garbled> {
    let mut reader = Reader(message);
    reader.int()?;
    let timeout = reader.int()?;
    let number = reader.long()?;
    let secret = reader.bytes()?.try_into().map_err(|_| Garbled)?;
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

/// Sets watches again after a change of servers. What has changed since `last_zxid` is told at once.
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

/// What can be wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NodeExists,
    BadVersion,
    NoAuth,
    AuthFailed,
    Unimplemented,
    SessionExpired,
    SessionMoved,
    Other(i32),
}

impl From<i32> for Code {
    fn from(number: i32) -> Self {
        match number {
            -101 => Self::NoNode,
            -110 => Self::NodeExists,
            -103 => Self::BadVersion,
            -102 => Self::NoAuth,
            -115 => Self::AuthFailed,
            -6 => Self::Unimplemented,
            -112 => Self::SessionExpired,
            -118 => Self::SessionMoved,
            other => Self::Other(other),
        }
    }
}

impl Code {
    /// Whether the leader found it. A server may refuse a request without asking the leader, too: if it has too many, say.
    pub(super) fn by_leader(self) -> bool {
        matches!(self, Self::NoNode | Self::NodeExists | Self::BadVersion)
    }
}

/// A message from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A watched node has changed, or is gone.
    Event {
        path: String,
        deleted: bool,
    },
    /// The answer to the login.
    Login(Result<(), Code>),
    /// The answer to setting watches again.
    WatchesSet,
    Reply(Reply),
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) xid: i32,
    /// The last transaction that the server knew when it answered.
    pub(super) zxid: i64,
    pub(super) body: Result<Vec<u8>, Code>,
}

pub(super) fn decode(message: &[u8]) -> Result<Message, Garbled> {
    const DELETED: i32 = 2;
    let mut reader = Reader(message);
    let (xid, zxid, error) = (reader.int()?, reader.long()?, reader.int()?);
    let outcome = if error == 0 { Ok(()) } else { Err(Code::from(error)) };
    Ok(match xid {
        XID_EVENT => {
            let (kind, _state) = (reader.int()?, reader.int()?);
            Message::Event { path: reader.text()?.to_owned(), deleted: kind == DELETED }
        }
        XID_AUTH => Message::Login(outcome),
        XID_SET_WATCHES => Message::WatchesSet,
        _ => Message::Reply(Reply { xid, zxid, body: outcome.map(|()| reader.0.to_owned()) }),
    })
}

/// What the server knows about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The transaction that created it.
    pub(super) czxid: i64,
    /// When that was, in milliseconds by the server's clock.
    pub(super) created: i64,
    pub(super) version: i32,
    /// The session that it ends with.
    pub(super) ephemeral_owner: i64,
}

fn stat(reader: &mut Reader<'_>) -> Result<Stat, Garbled> {
    let (czxid, _mzxid) = (reader.long()?, reader.long()?);
    let (created, _modified) = (reader.long()?, reader.long()?);
    let (version, _cversion, _aversion) = (reader.int()?, reader.int()?, reader.int()?);
    Ok(Stat { czxid, created, version, ephemeral_owner: reader.long()? })
}

/// The answer to a create: the node's path.
pub(super) fn created(body: &[u8]) -> Result<(String, Stat), Garbled> {
    let mut reader = Reader(body);
    Ok((reader.text()?.to_owned(), stat(&mut reader)?))
}

/// The answer to a read.
pub(super) fn read(body: &[u8]) -> Result<(Vec<u8>, Stat), Garbled> {
    let mut reader = Reader(body);
    Ok((reader.bytes()?.to_owned(), stat(&mut reader)?))
}

/// What somebody may do with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    /// A bit for each: read, write, create, delete, change permissions.
    pub(super) rights: i32,
    pub(super) scheme: String,
    pub(super) id: String,
}

/// The answer to a request for a node's permissions.
pub(super) fn acl(body: &[u8]) -> Result<Vec<Permission>, Garbled> {
    let mut reader = Reader(body);
    let one = |reader: &mut Reader<'_>| {
        let rights = reader.int()?;
        Ok(Permission { rights, scheme: reader.text()?.to_owned(), id: reader.text()?.to_owned() })
    };
    (0..reader.int()?.max(0)).map(|_| one(&mut reader)).collect()
}

/// The answer to a request for children: their names.
pub(super) fn children(body: &[u8]) -> Result<Vec<String>, Garbled> {
    Reader(body).texts()
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
            writer.texts(&["a", "b"]);
        });
        let Ok(Message::Reply(reply)) = decode(&reply) else { panic!("no reply") };
        assert_eq!((reply.xid, reply.zxid), (7, 42));
        assert_eq!(children(&reply.body.unwrap()), Ok(vec!["a".to_owned(), "b".to_owned()]));
        let refusal = message(|writer| {
            writer.int(8);
            writer.long(42);
            writer.int(-101);
        });
        let refused = Reply { xid: 8, zxid: 42, body: Err(Code::NoNode) };
        assert_eq!(decode(&refusal), Ok(Message::Reply(refused)));
        let event = message(|writer| {
            writer.int(-1);
            writer.long(-1);
            writer.int(0);
            writer.int(2);
            writer.int(3);
            writer.text("/x");
        });
        assert_eq!(decode(&event), Ok(Message::Event { path: "/x".to_owned(), deleted: true }));
        assert_eq!(decode(&event[..20]), Err(Garbled));
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
        assert_eq!(decode_connected(&answer), Ok((session, 400)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = (decode(&bytes), decode_connected(&bytes));
            let _ = (created(&bytes), read(&bytes), children(&bytes), acl(&bytes));
        }
    }
}
