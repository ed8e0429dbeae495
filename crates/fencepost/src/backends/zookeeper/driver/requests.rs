//! The requests of ZooKeeper that are needed here, and how their answers read. Paths are whole ones.

use std::io;

use super::jute::{Reader, Writer, frame};

pub(super) type Decode<T> = fn(&mut Reader<'_>) -> io::Result<T>;

/// A request whose answer is a `T`.
pub(crate) struct Request<T> {
    operation: i32,
    pub(super) path: String,
    rest: Vec<u8>,
    /// The leader has a part in the answer: only then does it show that the session lives.
    pub(super) by_leader: bool,
    pub(super) decode: Decode<T>,
}

impl<T> Request<T> {
    fn new(operation: i32, path: &str, rest: impl FnOnce(&mut Writer<'_>), decode: Decode<T>) -> Self {
        let mut bytes = Vec::new();
        rest(&mut Writer(&mut bytes));
        // Other reads are answered by any server from what it knows.
        let by_leader = !matches!(operation, READ | ACL | CHILDREN);
        Self { operation, path: path.to_owned(), rest: bytes, by_leader, decode }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>, xid: i32) {
        frame(out, |writer| {
            writer.int(xid);
            writer.int(self.operation);
            if self.operation != CLOSE_SESSION {
                writer.text(&self.path);
            }
            writer.0.extend_from_slice(&self.rest);
        });
    }
}

const DELETE: i32 = 2;
const READ: i32 = 4;
const WRITE: i32 = 5;
const ACL: i32 = 6;
const CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const CLOSE_SESSION: i32 = -11;

/// Creates a node that ends with the session. The server appends a number to the path, and answers with the
/// whole. A private node is for clients with our login alone; others are for everybody.
pub(crate) fn create_node(path: &str, data: &[u8], private: bool) -> Request<(String, Stat)> {
    const EPHEMERAL_SEQUENTIAL: i32 = 3;
    Request::new(CREATE, path, new_node(data, private, EPHEMERAL_SEQUENTIAL), |reader| {
        Ok((reader.text()?.to_owned(), stat(reader)?))
    })
}

/// Creates a node that the server collects some time after its last child is gone.
pub(crate) fn create_folder(path: &str, private: bool) -> Request<()> {
    const CONTAINER: i32 = 4;
    Request::new(CREATE_CONTAINER, path, new_node(b"", private, CONTAINER), |_| Ok(()))
}

fn new_node(data: &[u8], private: bool, mode: i32) -> impl FnOnce(&mut Writer<'_>) {
    const ALL_RIGHTS: i32 = 31;
    let (scheme, id) = if private { ("auth", "") } else { ("world", "anyone") };
    move |writer| {
        writer.bytes(data);
        writer.int(1);
        writer.int(ALL_RIGHTS);
        writer.text(scheme);
        writer.text(id);
        writer.int(mode);
    }
}

pub(crate) fn delete(path: &str) -> Request<()> {
    const ANY_VERSION: i32 = -1;
    Request::new(DELETE, path, |writer| writer.int(ANY_VERSION), |_| Ok(()))
}

pub(crate) fn read(path: &str) -> Request<(Vec<u8>, Stat)> {
    read_node(path, false)
}

/// Reads a node; the server tells its next change.
pub(super) fn read_and_watch(path: &str) -> Request<(Vec<u8>, Stat)> {
    read_node(path, true)
}

fn read_node(path: &str, watch: bool) -> Request<(Vec<u8>, Stat)> {
    let decode = |reader: &mut Reader<'_>| Ok((reader.bytes()?.to_owned(), stat(reader)?));
    Request::new(READ, path, |writer| writer.bool(watch), decode)
}

/// Writes a node if its data still has that version.
pub(crate) fn write(path: &str, data: &[u8], version: i32) -> Request<()> {
    let rest = |writer: &mut Writer<'_>| {
        writer.bytes(data);
        writer.int(version);
    };
    Request::new(WRITE, path, rest, |_| Ok(()))
}

/// Who may do what with a node.
pub(crate) fn acl(path: &str) -> Request<Vec<Permission>> {
    let decode = |reader: &mut Reader<'_>| (0..reader.int()?.max(0)).map(|_| permission(reader)).collect();
    Request::new(ACL, path, |_| {}, decode)
}

/// The names of a node's children.
pub(crate) fn children(path: &str) -> Request<Vec<String>> {
    Request::new(CHILDREN, path, |writer| writer.bool(false), |reader| reader.texts())
}

/// Goes through the leader, and is answered when our server knows all that the leader knew.
pub(crate) fn sync() -> Request<()> {
    Request::new(SYNC, "/", |_| {}, |_| Ok(()))
}

pub(super) fn close_session() -> Request<()> {
    Request::new(CLOSE_SESSION, "", |_| {}, |_| Ok(()))
}

/// What the server knows about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that created it.
    pub(crate) czxid: i64,
    /// When that was, in milliseconds by the server's clock.
    pub(crate) created: i64,
    pub(crate) version: i32,
    /// The session that it ends with.
    pub(crate) ephemeral_owner: i64,
}

fn stat(reader: &mut Reader<'_>) -> io::Result<Stat> {
    let (czxid, _mzxid) = (reader.long()?, reader.long()?);
    let (created, _modified) = (reader.long()?, reader.long()?);
    let (version, _cversion, _aversion) = (reader.int()?, reader.int()?, reader.int()?);
    Ok(Stat { czxid, created, version, ephemeral_owner: reader.long()? })
}

/// What somebody may do with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permission {
    /// A bit for each: read, write, create, delete, change permissions.
    pub(crate) rights: i32,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

fn permission(reader: &mut Reader<'_>) -> io::Result<Permission> {
    let rights = reader.int()?;
    Ok(Permission { rights, scheme: reader.text()?.to_owned(), id: reader.text()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let reader = || Reader(&bytes);
            let _ = (create_node("/x", b"", true).decode)(&mut reader());
            let _ = (read("/x").decode)(&mut reader());
            let _ = (children("/x").decode)(&mut reader());
            let _ = (acl("/x").decode)(&mut reader());
        }
    }
}
