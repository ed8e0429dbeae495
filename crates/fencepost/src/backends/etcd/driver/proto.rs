//! The messages of etcd's interface that we use, declared by hand so that no `protoc` is needed to build.
//! Field numbers are those of etcd's `rpc.proto`. Fields that we do not use are left out, and skipped when
//! they come.

use prost::{Message, Oneof};

/// A message that a server sends.
pub(crate) trait ServerMessage: Message + Default {
    /// Its repeated fields. An item may have two bytes on the wire and a hundred in memory, so items are
    /// counted before they are decoded.
    const REPEATED: &'static [Repeated] = &[];
}

/// The number of a repeated field, and the repeated fields inside of its items.
pub(crate) struct Repeated(pub(crate) u32, pub(crate) &'static [Repeated]);

impl ServerMessage for TxnResponse {
    // Responses, each with a range, each with keys.
    const REPEATED: &'static [Repeated] = &[Repeated(3, &[Repeated(1, &[Repeated(2, &[])])])];
}

impl ServerMessage for WatchResponse {
    const REPEATED: &'static [Repeated] = &[Repeated(11, &[])];
}

impl ServerMessage for LeaseResponse {}

impl ServerMessage for AuthenticateResponse {}

/// An answer of which we use nothing.
impl ServerMessage for () {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    /// Of the last entry that the member had applied. Of a keep-alive: before it went on to the leader.
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// Empty for one key.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    /// At most so many keys; all if zero.
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    /// Leaves the key on the lease that it is on.
    #[prost(bool, tag = "6")]
    pub(crate) ignore_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// Empty for one key.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub(crate) operation: Option<Operation>,
}

/// What a transaction does.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

impl Operation {
    pub(crate) fn read(key: &[u8]) -> Self {
        Self::Range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() })
    }

    pub(crate) fn read_range((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self::Range(RangeRequest { key, range_end, ..RangeRequest::default() })
    }

    pub(crate) fn delete(key: &[u8]) -> Self {
        Self::Delete(DeleteRequest { key: key.to_vec(), ..DeleteRequest::default() })
    }

    /// Without a lease the key stays on the one that it is on.
    pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: Option<i64>) -> Self {
        let (lease, ignore_lease) = (lease.unwrap_or(0), lease.is_none());
        Self::Put(PutRequest { key: key.to_vec(), value, lease, ignore_lease })
    }
}

impl From<Operation> for RequestOp {
    fn from(operation: Operation) -> Self {
        Self { operation: Some(operation) }
    }
}

/// The answer to one operation; we look at those of reads only.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0 is equal, 2 is less than what is given.
    #[prost(int32, tag = "1")]
    pub(crate) relation: i32,
    /// 1 is the revision that created the key, 2 the one that wrote it last.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) create_revision: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub(crate) mod_revision: Option<i64>,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) range_end: Vec<u8>,
}

impl Compare {
    /// The key was created by this revision; zero is no key at all.
    pub(crate) fn created(key: &[u8], revision: i64) -> Self {
        Self { target: 1, key: key.to_vec(), create_revision: Some(revision), ..Self::default() }
    }

    /// The key was last written by this revision.
    pub(crate) fn written(key: &[u8], revision: i64) -> Self {
        Self { target: 2, key: key.to_vec(), mod_revision: Some(revision), ..Self::default() }
    }

    /// No key of a range was created after this revision; after zero: there is none.
    pub(crate) fn none_newer((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        Self { relation: 2, range_end, ..Self::created(&key, revision + 1) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

impl TxnResponse {
    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// What the reads of the transaction found, all of them together.
    pub(crate) fn into_kvs(self) -> Vec<KeyValue> {
        self.responses.into_iter().filter_map(|op| op.range).flat_map(|range| range.kvs).collect()
    }
}

/// Begins or ends a watch; one of the two is there.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) create: Option<WatchCreate>,
    #[prost(message, optional, tag = "2")]
    pub(crate) cancel: Option<WatchCancel>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// From now on if zero.
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0 is a put, 1 a deletion.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

/// A keep-alive, a revocation, or a question for what is left of a lease.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    /// Seconds: left, or for a grant and a keep-alive all of them. Zero or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

impl LeaseResponse {
    pub(crate) fn seconds(&self) -> u64 {
        u64::try_from(self.ttl).unwrap_or(0)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}
