//! Requests to the cluster, whichever member answers them. A request is repeated, at the next member if need
//! be, until its time is up. Each of ours may be: it is conditional on what it finds, or names what it makes.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use super::connection::Watch;
use super::grpc::GrpcError;
use super::history::History;
use super::members::Members;
use super::proto::{
    Compare, LeaseGrantRequest, LeaseRequest, LeaseResponse, Operation, ServerMessage, TxnRequest,
    TxnResponse,
};
use crate::backends::common::backoff::Backoff;
use crate::backends::common::tls;
use crate::backends::etcd::config::Config;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::{Error, Result, Source};

/// Between a failed try and the next.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));

pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) background: BackgroundTasks,
    members: Members,
    pub(crate) history: History,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.config).finish()
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// There is no such lease.
    NoLease(Error),
    Other(Error),
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NoLease(error) | RequestError::Other(error) => error,
        }
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// An answer, and what is known about the request.
#[derive(Debug)]
pub(crate) struct Response<T> {
    pub(crate) value: T,
    pub(crate) stamp: Stamp,
    /// An earlier request for the same went unanswered, and may yet be carried out.
    pub(crate) repeated: bool,
}

/// When a request was sent, and the raft term of the member that answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) sent: Moment,
    pub(crate) raft_term: u64,
}

impl Cluster {
    pub(crate) fn new(config: Config, clock: Clock) -> Result<Self> {
        let keeper = Keeper::of(&clock)?;
        let members = Members::new(&config, keeper.runtime().clone())?;
        let (background, history) = (BackgroundTasks::default(), History::default());
        Ok(Self { config, clock, keeper, background, members, history })
    }

    pub(crate) fn unavailable(&self, source: impl Into<Source>) -> Error {
        Error::Unavailable { store: self.config.label.clone(), source: source.into() }
    }

    pub(crate) fn close(&self) {
        self.members.close();
    }

    /// How long one member has to answer: not all of the time. Where there is no other, it is the connection
    /// that may have died in silence.
    fn patience(&self) -> Duration {
        self.config.timeout / 2
    }

    async fn call<A: Message, B: ServerMessage>(
        &self,
        path: &str,
        message: &A,
        timeout: Duration,
    ) -> Result<Response<B>, RequestError> {
        let deadline = self.clock.now().plus(timeout.min(self.config.timeout));
        let patience = self.patience().min(timeout);
        let (mut repeated, mut backoff, mut distrusted) = (false, PAUSE, 0);
        let mut reason: Option<Source> = None;
        loop {
            let began = self.clock.now();
            let connection = self.members.connection();
            let mut sent = None;
            let attempt = self.clock.within(Some(deadline.min(began.plus(patience))), async {
                let connection = connection.opened().await?;
                let sent = *sent.insert(self.clock.now());
                Ok((sent, connection.call(path, message).await?))
            });
            let (why, may_be_done, leave) = match attempt.await {
                Some(Ok((sent, value))) => {
                    let stamp = Stamp { sent, raft_term: 0 };
                    return Ok(Response { value, stamp, repeated });
                }
                // Trying again does not make a certificate good; another member may have a better one.
                Some(Err(GrpcError::Distrusted(why))) if distrusted + 1 < self.config.endpoints.len() => {
                    distrusted += 1;
                    (why.into(), false, true)
                }
                Some(Err(error)) => {
                    let (why, may_be_done) = self.can_repeat(error)?;
                    (why, may_be_done, true)
                }
                // A request with little time left says nothing about a member that does not answer in it.
                None => {
                    let waited = self.clock.now().since(began);
                    let long = waited >= patience / 2;
                    let why = || format!("no answer within {}", crate::format_duration(waited)).into();
                    (reason.take().filter(|_| !long).unwrap_or_else(why), true, long)
                }
            };
            // Without a connection nothing was sent.
            repeated |= may_be_done && sent.is_some();
            if leave {
                self.members.leave(&connection);
            }
            let again = self.clock.now().plus(backoff.pause());
            if again >= deadline {
                return Err(RequestError::Other(self.unavailable(why)));
            }
            reason = Some(why);
            self.clock.sleep_until(again).await;
        }
    }

    /// Why a request is to be repeated, at another member or after a new login, and whether it may have been
    /// carried out; or the error if that would not help.
    fn can_repeat(&self, error: GrpcError) -> Result<(Source, bool), RequestError> {
        let (code, message) = match error {
            GrpcError::Broken(why) => return Ok((why.into(), true)),
            GrpcError::Distrusted(why) => {
                return Err(RequestError::Other(tls::not_trusted(&self.config.label, &why)));
            }
            GrpcError::Refused { code, message } => (code, message),
        };
        let has = |text: &str| message.contains(text);
        let advice = match code {
            _ if has("requested lease not found") => {
                return Err(RequestError::NoLease(self.unavailable("its lease ended while it was used")));
            }
            // A token that ran out, or is of before a change of users: a new connection logs in again.
            _ if has("invalid auth token") || has("auth store is old") || has("no leader") => {
                return Ok((message.into(), false));
            }
            _ if has("user name is empty") => {
                "write the user and password into the URL: `etcd://user:password@host`"
            }
            _ if has("authentication failed") => "check user and password",
            7 => {
                "give the user's role read and write rights to the range of the names \
                 (`etcdctl role grant-permission`)"
            }
            8 if has("database space exceeded") => {
                "compact and defragment the cluster, raise its quota, and disarm the alarm"
            }
            // Cancelled, deadline exceeded, too many requests, unavailable: nothing that time does not cure.
            // And unknown: what etcd has no code for, such as a proposal dropped, or a keep-alive refused,
            // while leaders change.
            1 | 2 | 4 | 8 | 14 => return Ok((message.into(), true)),
            _ => {
                let store = self.config.label.clone();
                return Err(RequestError::Other(Error::Backend { store, source: message.into() }));
            }
        };
        Err(RequestError::Other(Error::config(format!("etcd refused us ({message}); {advice}"))))
    }

    /// A transaction. With nothing but reads it is a read of one moment, as the majority sees it.
    pub(crate) async fn txn(
        &self,
        compare: Vec<Compare>,
        success: Vec<Operation>,
        failure: Vec<Operation>,
    ) -> Result<Response<TxnResponse>, RequestError> {
        self.txn_within(self.config.timeout, compare, success, failure).await
    }

    /// Reads, all of one moment.
    pub(crate) async fn read(&self, reads: Vec<Operation>) -> Result<Response<TxnResponse>, RequestError> {
        self.txn(vec![], reads, vec![]).await
    }

    /// A transaction that has less time.
    pub(crate) async fn txn_within(
        &self,
        timeout: Duration,
        compare: Vec<Compare>,
        success: Vec<Operation>,
        failure: Vec<Operation>,
    ) -> Result<Response<TxnResponse>, RequestError> {
        let ops = |operations: Vec<Operation>| operations.into_iter().map(Into::into).collect();
        let request = TxnRequest { compare, success: ops(success), failure: ops(failure) };
        let before = self.history.revision();
        let mut answer = self.call::<_, TxnResponse>("KV/Txn", &request, timeout).await?;
        if let Some(header) = &answer.value.header {
            self.history.check(header, before, &self.config.label).map_err(Error::config)?;
            answer.stamp.raft_term = header.raft_term;
        }
        Ok(answer)
    }

    /// Watches a key: from a revision of the past, or from now on if that is zero. `None` without a
    /// connection.
    pub(crate) async fn watch(&self, key: &[u8], from: i64) -> Option<Watch> {
        let deadline = self.clock.now().plus(self.patience());
        let connection = self.members.connection();
        match self.clock.within(Some(deadline), connection.opened()).await {
            Some(Ok(opened)) => Some(opened.watch(key, from)),
            _ => {
                self.members.leave(&connection);
                None
            }
        }
    }

    /// Makes a lease with an id of the caller's choice, so that a repeated request does not make a second
    /// one. Returns its seconds, and when it was asked for.
    pub(crate) async fn grant_lease(&self, id: i64, seconds: u64) -> Result<(u64, Moment), RequestError> {
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id };
        let began = self.clock.now();
        let granted = self.call::<_, LeaseResponse>("Lease/LeaseGrant", &request, self.config.timeout).await;
        match granted {
            Ok(granted) => Ok((granted.value.seconds(), granted.stamp.sent)),
            // By an earlier request of this call, sent after we began.
            Err(RequestError::Other(Error::Backend { source, .. }))
                if source.to_string().contains("already exists") =>
            {
                Ok((seconds, began))
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for a lease to live for all of its seconds again; returns them. Whether the answer counts is
    /// another matter.
    pub(crate) async fn keep_alive(&self, id: i64, timeout: Duration) -> Result<(u64, Stamp), RequestError> {
        let request = LeaseRequest { id };
        let answer = self.call::<_, LeaseResponse>("Lease/LeaseKeepAlive", &request, timeout).await?;
        if answer.value.ttl <= 0 {
            return Err(RequestError::NoLease(self.unavailable("its lease has ended")));
        }
        let raft_term = answer.value.header.as_ref().map_or(0, |header| header.raft_term);
        Ok((answer.value.seconds(), Stamp { raft_term, ..answer.stamp }))
    }

    /// Ends a lease and deletes its keys.
    pub(crate) async fn revoke_lease(&self, id: i64) -> Result<(), RequestError> {
        match self.call::<_, ()>("Lease/LeaseRevoke", &LeaseRequest { id }, self.config.timeout).await {
            Ok(_) | Err(RequestError::NoLease(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The time that a lease has left.
    pub(crate) async fn time_to_live(&self, id: i64) -> Result<Duration, RequestError> {
        let request = LeaseRequest { id };
        let answer = self.call::<_, LeaseResponse>("Lease/LeaseTimeToLive", &request, self.config.timeout);
        Ok(Duration::from_secs(answer.await?.value.seconds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    fn cluster(url: &str) -> Cluster {
        Cluster::new(Config::from_url(StoreUrl::parse(url).unwrap()).unwrap(), Clock::system()).unwrap()
    }

    #[test]
    fn what_is_said_while_leaders_change_is_asked_again_and_may_have_been_done() {
        let cluster = cluster("etcd://a,b");
        for message in ["raft proposal dropped", "not a primary lessor", "something new"] {
            let repeat = cluster.can_repeat(GrpcError::Refused { code: 2, message: message.to_owned() });
            assert!(matches!(repeat, Ok((_, true))), "{message}");
        }
        let refused = GrpcError::Refused { code: 3, message: "etcdserver: key is not provided".to_owned() };
        let failed = cluster.can_repeat(refused).unwrap_err();
        assert!(matches!(failed, RequestError::Other(Error::Backend { .. })));
    }
}
