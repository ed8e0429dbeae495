//! Requests to the cluster, whichever member answers them. A request is repeated, at the next member if need be, until
//! its time is up: every one of ours may be, since each is conditional on what it finds or names what it makes.
//!
//! All of this runs on the keeper's runtime.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;

use super::beat::Stamp;
use super::config::Config;
use super::grpc::Trouble;
use super::link::Watch;
use super::members::Members;
use super::proto::{Compare, Header, LeaseResponse, Reply, Request, TxnRequest, TxnResponse};
use crate::runtime::clock::{Clock, Moment};
use crate::{Error, Result, Source};

/// Between a failed try and the next.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What etcd says when it takes no more data.
pub(super) const FULL: &str = "database space exceeded";

#[derive(Debug)]
pub(super) struct Client {
    pub(super) config: Config,
    pub(super) clock: Clock,
    members: Members,
    /// The latest revision that a transaction was answered with.
    revision: AtomicI64,
    /// Which cluster it was; zero before the first answer.
    cluster: AtomicU64,
    /// Why it is another one now, or has another history. Nothing that it says concerns our locks any more.
    stranger: OnceLock<String>,
}

/// What came of a request instead of its answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is no such lease.
    NoLease,
    Error(Error),
}

impl Fault {
    /// As an error of the whole, for who did not ask for a lease.
    pub(super) fn into_error(self, client: &Client) -> Error {
        match self {
            Self::NoLease => client.unavailable("its lease ended while it was used"),
            Self::Error(error) => error,
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// When the request that it answers was sent.
    pub(super) sent: Moment,
    /// An earlier request for the same went unanswered, and may yet be carried out.
    pub(super) unknown: bool,
}

impl Answer<TxnResponse> {
    pub(super) fn stamp(&self) -> Stamp {
        Stamp::new(self.sent, self.value.header.as_ref())
    }
}

impl Answer<LeaseResponse> {
    pub(super) fn stamp(&self) -> Stamp {
        Stamp::new(self.sent, self.value.header.as_ref())
    }
}

/// What to do about trouble.
enum Cure {
    /// Ask again: somewhere else, or after a new login. What was asked for may have been done, or be done later.
    Again {
        why: Source,
        done: bool,
    },
    Give(Fault),
}

impl Client {
    pub(super) fn new(config: Config, clock: Clock) -> Result<Self> {
        let members = Members::new(&config)?;
        Ok(Self {
            config,
            clock,
            members,
            revision: AtomicI64::new(0),
            cluster: AtomicU64::new(0),
            stranger: OnceLock::new(),
        })
    }

    pub(super) fn unavailable(&self, source: impl Into<Source>) -> Error {
        Error::Unavailable { store: self.config.label.clone(), source: source.into() }
    }

    pub(super) fn close(&self) {
        self.members.close();
    }

    /// How long one member has to answer: not all of the time. Where there is no other, it is the connection that may have
    /// died in silence.
    fn patience(&self) -> Duration {
        self.config.timeout / 2
    }

    pub(super) async fn call<A: Message, B: Reply>(
        &self,
        path: &str,
        message: &A,
        timeout: Duration,
    ) -> Result<Answer<B>, Fault> {
        let deadline = self.clock.now().plus(timeout.min(self.config.timeout));
        let patience = self.patience().min(timeout);
        let (mut unknown, mut pause, mut distrusted) = (false, PAUSE, 0);
        let mut reason: Option<Source> = None;
        loop {
            let began = self.clock.now();
            let connection = self.members.connection();
            let mut sent = None;
            let attempt = self.clock.within(Some(deadline.min(began.plus(patience))), async {
                let link = connection.link().await?;
                let sent = *sent.insert(self.clock.now());
                Ok((sent, link.call(path, message).await?))
            });
            let waited = || self.clock.now().since(began);
            let (why, done, left) = match attempt.await {
                Some(Ok((sent, value))) => return Ok(Answer { value, sent, unknown }),
                // Trying again does not make a certificate good; another member may have a better one.
                Some(Err(Trouble::Distrusted(why))) => {
                    distrusted += 1;
                    if distrusted >= self.config.endpoints.len() {
                        return Err(Fault::Error(self.distrust(&why)));
                    }
                    (why.into(), false, true)
                }
                Some(Err(trouble)) => match self.cure(trouble) {
                    Cure::Again { why, done } => (why, done, true),
                    Cure::Give(fault) => return Err(fault),
                },
                // Whoever has little time left says nothing about a member that does not answer in it.
                None => {
                    let long = waited() >= patience / 2;
                    let why = || format!("no answer within {}", crate::format_duration(waited())).into();
                    (reason.take().filter(|_| !long).unwrap_or_else(why), true, long)
                }
            };
            // Without a connection nothing was sent.
            unknown |= done && sent.is_some();
            if left {
                self.members.leave(&connection);
            }
            let again = self.clock.now().plus(pause);
            if again >= deadline {
                return Err(Fault::Error(self.unavailable(why)));
            }
            reason = Some(why);
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.clock.sleep_until(again).await;
        }
    }

    fn distrust(&self, why: &str) -> Error {
        Error::config(format!(
            "{} shows a certificate that is not to be trusted ({why}); renew it, or name its authority with `ca`",
            self.config.label
        ))
    }

    /// What a refusal means.
    fn cure(&self, trouble: Trouble) -> Cure {
        let (code, message) = match trouble {
            Trouble::Broken(why) => return Cure::Again { why: why.into(), done: true },
            Trouble::Distrusted(why) => return Cure::Give(Fault::Error(self.distrust(&why))),
            Trouble::Refused { code, message } => (code, message),
        };
        let config = |advice: &str| {
            Cure::Give(Fault::Error(Error::config(format!("etcd refused us ({message}); {advice}"))))
        };
        let has = |text: &str| message.contains(text);
        match code {
            _ if has("requested lease not found") => Cure::Give(Fault::NoLease),
            // A token that ran out, or is of before a change of users: a new connection logs in again.
            _ if has("invalid auth token") || has("auth store is old") || has("no leader") => {
                Cure::Again { why: message.into(), done: false }
            }
            _ if has("user name is empty") => {
                config("write the user and password into the URL: `etcd://user:password@host`")
            }
            _ if has("authentication failed") => config("check user and password"),
            7 => config(
                "give the user's role read and write rights to the range of the names (`etcdctl role grant-permission`)",
            ),
            8 if has(FULL) => {
                config("compact and defragment the cluster, raise its quota, and disarm the alarm")
            }
            // Cancelled, deadline exceeded, too many requests, unavailable: nothing that time does not cure. And unknown:
            // what etcd has no code for, such as a proposal dropped, or a keep-alive refused, while leaders change.
            1 | 2 | 4 | 8 | 14 => Cure::Again { why: message.into(), done: true },
            _ => {
                let (store, source) = (self.config.label.clone(), message.into());
                Cure::Give(Fault::Error(Error::Backend { store, source }))
            }
        }
    }

    /// A transaction. With nothing but reads it is a read of one moment, as the majority sees it.
    pub(super) async fn txn(
        &self,
        compare: Vec<Compare>,
        success: Vec<Request>,
        failure: Vec<Request>,
    ) -> Result<Answer<TxnResponse>, Fault> {
        self.txn_within(self.config.timeout, compare, success, failure).await
    }

    /// The same, with less time.
    pub(super) async fn txn_within(
        &self,
        timeout: Duration,
        compare: Vec<Compare>,
        success: Vec<Request>,
        failure: Vec<Request>,
    ) -> Result<Answer<TxnResponse>, Fault> {
        let ops = |requests: Vec<Request>| requests.into_iter().map(Into::into).collect();
        let request = TxnRequest { compare, success: ops(success), failure: ops(failure) };
        let before = self.revision.load(Ordering::Relaxed);
        let answer = self.call::<_, TxnResponse>("KV/Txn", &request, timeout).await?;
        self.recognise(answer.value.header.as_ref(), before);
        match self.stranger.get() {
            Some(why) => Err(Fault::Error(Error::config(why))),
            None => Ok(answer),
        }
    }

    /// Sees whether an answer is of the cluster that we know, as it was before the request was sent.
    fn recognise(&self, header: Option<&Header>, before: i64) {
        let Some(header) = header else { return };
        let (id, revision) = (header.cluster_id, header.revision);
        let known = self.cluster.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        let known = known.unwrap_or_else(|known| known);
        if known != 0 && known != id {
            self.refuse(format!(
                "the answers are of two clusters, {known:x} and {id:x}: either it was restored from a snapshot, and its \
                 tokens may repeat, or the URL names members of both; name those of one, make sure that nobody relies \
                 on old tokens, and connect anew"
            ));
        } else if revision < before {
            self.refuse(format!(
                "the cluster went back from revision {before} to {revision}: it was restored from an old snapshot, and its \
                 tokens would repeat; restore it with `--bump-revision` and `--mark-compacted`, or make sure that nobody \
                 relies on old tokens and connect anew"
            ));
        }
        self.revision.fetch_max(revision, Ordering::Relaxed);
    }

    fn refuse(&self, why: String) {
        if self.stranger.set(why.clone()).is_ok() {
            tracing::warn!(store = self.config.label, why, "this is not the cluster that granted our locks");
        }
    }

    /// Whether the cluster is not the one any more that granted our locks.
    pub(super) fn is_stranger(&self) -> bool {
        self.stranger.get().is_some()
    }

    /// Watches a key: from now on, or from a revision of the past.
    pub(super) async fn watch(&self, key: &[u8], from: i64) -> Option<Watch> {
        let deadline = self.clock.now().plus(self.patience());
        let connection = self.members.connection();
        match self.clock.within(Some(deadline), connection.link()).await {
            Some(Ok(link)) => Some(link.watch(key, from)),
            _ => {
                self.members.leave(&connection);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    fn client(url: &str) -> Client {
        Client::new(Config::from_url(StoreUrl::parse(url).unwrap()).unwrap(), Clock::system()).unwrap()
    }

    #[test]
    fn what_is_said_while_leaders_change_is_asked_again_and_may_have_been_done() {
        let client = client("etcd://a,b");
        for message in ["raft proposal dropped", "not a primary lessor", "something new"] {
            let cure = client.cure(Trouble::Refused { code: 2, message: message.to_owned() });
            assert!(matches!(cure, Cure::Again { done: true, .. }), "{message}");
        }
        let refused = Trouble::Refused { code: 3, message: "etcdserver: key is not provided".to_owned() };
        assert!(matches!(client.cure(refused), Cure::Give(Fault::Error(Error::Backend { .. }))));
    }
}
