//! Locks on one Redis server.
//!
//! A lock is the key `lock:NAME`, set if absent and with an expiry, in the form other lock clients use. Its token
//! comes from a counter that the same script raises. Waiters stand in a queue on the server; a release hands the
//! lock to the first of them and pushes it the token. What the server loses, locks lose: choose Redlock where a
//! restart must not break exclusion. Tokens stay in order through restarts, as long as the server's clock does.

mod claim;
mod cohort;
pub(in crate::backends) mod config;
pub(in crate::backends) mod connection;
pub(in crate::backends) mod dial;
pub(in crate::backends) mod fitness;
mod hold;
pub(in crate::backends) mod inbox;
pub(crate) mod keys;
mod node;
pub(in crate::backends) mod pool;
pub(in crate::backends) mod record;
pub(crate) mod resp;
mod row;
pub(crate) mod scripted;
mod seat;
#[cfg(test)]
mod tests;
pub(in crate::backends) mod turn;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use self::claim::{Claim, Said};
use self::cohort::Cohorts;
use self::config::Config;
use self::hold::{Giving, Held, Renewals};
use self::inbox::Inbox;
use self::keys::Keys;
use self::node::{Node, On, Script};
use self::resp::Value;
use crate::backend::{Attempt, Backend, Capabilities, Grant, Request, Revoked};
use crate::clock::Clock;
use crate::errands::Errands;
use crate::keeper::Keeper;
use crate::url::StoreUrl;
use crate::{Error, FencingToken, Handle, Holder, Loss, Name, Result};

/// How long a lock that was handed over by push stays with a waiter that does not react.
struct Term {
    duration: Duration,
    text: &'static str,
}

const GRANT_TERM: Term = Term { duration: Duration::from_secs(1), text: "1000" };

/// A duration as the scripts take it.
pub(in crate::backends) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

#[derive(Debug)]
struct Store {
    node: Arc<Node>,
    inbox: Arc<Inbox>,
    renewals: Arc<Renewals>,
    cohorts: Arc<Cohorts>,
    clock: Clock,
    keeper: Arc<Keeper>,
    errands: Errands,
    /// The keeper has been told to connect.
    warm: AtomicBool,
}

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let config = Config::from_url(url)?;
    let clock = Clock::system();
    let inbox = Arc::<Inbox>::default();
    let node = Arc::new(Node::new(config, inbox.clone(), clock.clone())?);
    node.link(clock.now().plus(node.config().timeout)).await?;
    let keeper = Keeper::of(&clock)?;
    let renewals = Arc::new(Renewals::new(keeper.clone()));
    let cohorts = Arc::default();
    let (errands, warm) = (Errands::default(), AtomicBool::new(false));
    Ok(Arc::new(Store { node, inbox, renewals, cohorts, clock, keeper, errands, warm }))
}

impl Store {
    /// Lets the keeper connect before its first renewal, which may be a hasty one.
    fn warm_up(&self) {
        if !self.warm.load(Ordering::Relaxed) && !self.warm.swap(true, Ordering::Relaxed) {
            let (node, deadline) = (self.node.clone(), self.clock.now().plus(self.node.config().timeout));
            self.keeper.spawn(async move {
                if let Err(error) = node.link(deadline).await {
                    tracing::debug!(%error, "the keeper could not connect yet");
                }
            });
        }
    }

    /// The holders of some locks, with their values, which a key of another type has not; names that are free are left
    /// out.
    async fn look(&self, names: &[Name]) -> Result<Vec<(Holder, Option<String>)>> {
        let link = self.node.link(self.clock.now().plus(self.node.config().timeout)).await?;
        let keys: Vec<_> =
            names.iter().map(|name| Keys::new(&self.node.config().start, name.as_str())).collect();
        let fences: Vec<_> = keys.iter().map(|keys| link.fence(keys)).collect();
        let mut commands: Vec<[&str; 2]> = Vec::with_capacity(names.len() * 3);
        for (keys, fence) in keys.iter().zip(&fences) {
            commands.extend([["GET", keys.lock()], ["PTTL", keys.lock()], ["GET", fence]]);
        }
        let commands: Vec<&[&str]> = commands.iter().map(|words| &words[..]).collect();
        let values = self.node.ask(&commands).await?;
        let mut holders = Vec::new();
        for (name, answers) in names.iter().zip(values.chunks_exact(3)) {
            let ttl = answers[1].as_int().unwrap_or(-1);
            let counter = answers[2].as_text().and_then(|text| text.parse().ok());
            match &answers[0] {
                Value::Nil => {}
                Value::Text(text) => {
                    let value = String::from_utf8_lossy(text).into_owned();
                    holders.push((record::holder(name, &value, ttl, counter), Some(value)));
                }
                // A key of another type.
                _ => {
                    let mut holder = Holder::unknown(name.clone());
                    holder.expires_in = u64::try_from(ttl).ok().map(Duration::from_millis);
                    holders.push((holder, None));
                }
            }
        }
        Ok(holders)
    }
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.node.config().label.clone(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        keys::check(&self.node.config().start, &request.name)?;
        Ok(match Claim::new(self, request).ask(false).await? {
            Said::Granted(grant) => Attempt::Granted(grant),
            Said::Busy { holder, .. } => Attempt::Busy(Some(holder)),
            // Nobody hands anything to one that does not wait.
            Said::AskAgain => Attempt::Busy(None),
        })
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        keys::check(&self.node.config().start, &request.name)?;
        Claim::new(self, request).wait().await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        let name = handle.name();
        let keys = Arc::new(Keys::new(&self.node.config().start, name.as_str()));
        let (owner, ttl) = (handle.owner().to_string(), milliseconds(request.ttl));
        let letters = self.inbox.open(handle.owner(), request.signal.clone());
        let timeout = self.node.config().timeout.min(request.ttl);
        let lock = [keys.lock()];
        let answer =
            self.node.run(Script::Attach, On::Locks(&lock), &[&owner, &ttl], timeout, |_| {}).await?;
        let value: Arc<str> = match &answer.value {
            Value::Text(value) => String::from_utf8_lossy(value).into(),
            found => {
                let found = found.as_list().and_then(|items| items.first()).and_then(Value::as_text);
                let why = match found.map(|found| (record::revoked(found), record::identity(found))) {
                    Some((Some(reason), Some(owner))) if owner == handle.owner() => {
                        Loss::ForceReleased { reason: reason.to_owned() }
                    }
                    _ if found.is_some_and(|found| !found.is_empty()) => Loss::Taken,
                    _ => Loss::Expired,
                };
                return Err(Error::lost(name, why));
            }
        };
        let hold = Held {
            node: self.node.clone(),
            keeper: self.keeper.clone(),
            renewals: self.renewals.clone(),
            cohorts: self.cohorts.clone(),
            inbox: self.inbox.clone(),
            name: name.clone(),
            owner: handle.owner(),
            token: handle.token(),
            keys,
            value,
            _line: self.node.line(),
            handed: 0,
            row: None,
            pushed: false,
            giving: Giving::new(handle.owner()),
            _heir: None,
            _letters: letters,
        };
        Ok(Grant {
            owner: handle.owner(),
            token: handle.token(),
            sent: answer.sent,
            term: Some(request.ttl),
            pushed: false,
            hold: Arc::new(hold),
        })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Holder>> {
        let pattern = keys::pattern(&self.node.config().start, prefix);
        let mut names = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let page = self.node.ask(&[&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]]).await?;
            let Some(next) = keys::names(page.first(), &self.node.config().start, &mut names) else { break };
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        let names: Vec<Name> = names.into_iter().collect();
        let mut holders = Vec::new();
        for page in names.chunks(500) {
            holders.extend(self.look(page).await?.into_iter().map(|(holder, _)| holder));
        }
        Ok(holders)
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        Ok(self.look(std::slice::from_ref(name)).await?.pop().map(|(holder, _)| holder))
    }

    async fn force_release(&self, name: &Name, reason: &str, now: bool) -> Result<Option<Revoked>> {
        let keys = Keys::new(&self.node.config().start, name.as_str());
        // The holder may change between the look and the script; then look again.
        for _ in 0..8 {
            let Some((mut holder, value)) = self.look(std::slice::from_ref(name)).await?.pop() else {
                return Ok(None);
            };
            let Some(value) = value else {
                return Err(Error::unsupported(
                    format!("force-releasing lock `{name}`, whose key is of another type,"),
                    format!("look at the key `{}` and delete it by hand if it is safe to", keys.lock()),
                ));
            };
            if holder.owner.is_none() && !now {
                return Err(Error::unsupported(
                    format!("asking the foreign holder of lock `{name}` to let go"),
                    "only freeing it at once works (`--now`); make sure that it does not work any more",
                ));
            }
            // What a foreign client wrote may be no text at all; the script then only sees that it is not one of ours.
            let seen = record::identity(&value).map(|identity| identity.to_string()).unwrap_or_default();
            let arguments = [seen.as_str(), reason, if now { "now" } else { "ask" }, GRANT_TERM.text];
            let timeout = self.node.config().timeout;
            let answer = self.node.run(Script::Revoke, On::One(&keys), &arguments, timeout, |_| {}).await?;
            let Some([token, Value::Text(found)]) = answer.value.as_list() else { continue };
            let token = token.as_int().and_then(|token| u64::try_from(token).ok());
            if let Some(token) = token.and_then(FencingToken::new) {
                // A row may have gone on since the look.
                if found != value.as_bytes() {
                    let expires_in = holder.expires_in;
                    holder = record::holder(name, &String::from_utf8_lossy(found), -1, None);
                    holder.expires_in = expires_in;
                }
                return Ok(Some(Revoked::new(holder, token, now)));
            }
        }
        Err(self.node.unavailable(format!("lock `{name}` changed hands all the time; try again")))
    }

    async fn check(&self) -> Result<()> {
        self.node.ask(&[&["PING"]]).await.map(drop)
    }

    async fn settle(&self) {
        self.errands.done().await;
    }

    async fn close(&self) {
        self.node.close();
    }
}
