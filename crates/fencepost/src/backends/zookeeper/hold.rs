//! A lock held by a node of ours. The node is watched: when it goes, or an operator marks it, the holder
//! learns it at once. A renewal shows that the session lives and that nothing has happened to the node that
//! we do not know of.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::acquire::remove;
use super::driver::{Cause, NodeChange, NodeWatch, OpenSession, if_exists, requests};
use super::record;
use crate::backend::{Hold, Renewal};
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Error, Loss, Result, format_duration};

#[derive(Debug)]
pub(super) struct Held {
    session: Arc<OpenSession>,
    path: String,
    signal: Arc<LossSignal>,
    /// The lock is given back, or about to be: nothing that happens to the node is a loss any more.
    given_up: watch::Sender<bool>,
    known: Mutex<Known>,
}

/// What is known of the node.
#[derive(Debug)]
struct Known {
    /// From when it was last read.
    watch: Option<NodeWatch>,
    /// When the lease ends unless it is renewed.
    until: Moment,
    /// A request to delete it may have reached the server.
    delete_sent: bool,
    gone: bool,
}

impl Held {
    pub(super) fn start(
        session: Arc<OpenSession>,
        path: String,
        signal: Arc<LossSignal>,
        sent: Moment,
    ) -> Arc<Self> {
        let until = sent.plus(session.timeout);
        let known = Mutex::new(Known { watch: None, until, delete_sent: false, gone: false });
        let held = Arc::new(Self { session, path, signal, given_up: watch::Sender::new(false), known });
        let tended = tend(Arc::downgrade(&held), held.session.clone(), held.given_up.subscribe());
        held.session.keeper.spawn(tended);
        held
    }

    /// A server has said that the session ended, and the lock with it.
    fn session_was_ended(&self) -> bool {
        self.session.end().is_some_and(|end| end.by_server())
    }

    /// Reads the node if it has changed since it was last read; `None` if it is gone. Raises the loss that
    /// this shows.
    async fn look(&self) -> Result<Option<NodeWatch>> {
        let watch = lock(&self.known).watch.clone();
        match watch.map(|watch| (watch.change(), watch)) {
            Some((None, watch)) => return Ok(Some(watch)),
            Some((Some(NodeChange::Deleted), _)) => return Ok(self.is_gone()),
            Some((Some(NodeChange::Changed), _)) | None => {}
        }
        let Some((data, _, watch)) = self.session.watch(&self.path).await? else {
            return Ok(self.is_gone());
        };
        if let Some(reason) = record::revoked(&data) {
            self.signal.raise(Loss::ForceReleased { reason });
        }
        lock(&self.known).watch = Some(watch.clone());
        Ok(Some(watch))
    }

    fn is_gone(&self) -> Option<NodeWatch> {
        lock(&self.known).gone = true;
        if !*self.given_up.borrow() {
            self.signal.raise(Loss::Taken);
        }
        None
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let session = &self.session;
        let longest = session.timeout;
        if term.as_millis() > longest.as_millis() {
            return Err(Error::invalid(format!(
                "a lease cannot be extended to {} here: it ends with its session, whose timeout is {}; \
                 acquire the lock with the longer ttl",
                format_duration(term),
                format_duration(longest)
            )));
        }
        let sent = match session.heartbeat().await {
            Ok(sent) => sent,
            Err(_) if self.session_was_ended() => return Ok(Renewal::Lost(Loss::SessionEnded)),
            Err(error) => return Err(error.into()),
        };
        if self.look().await?.is_none() {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let mut known = lock(&self.known);
        known.until = known.until.max(sent.plus(longest));
        Ok(Renewal::Renewed { sent, term: Some(longest) })
    }

    async fn release(&self) -> Result<bool> {
        self.given_up.send_replace(true);
        let deadline = self.session.patience();
        loop {
            let deleted = if_exists(self.session.call(&requests::delete(&self.path), deadline).await);
            let mut known = lock(&self.known);
            match deleted {
                Ok(found) => {
                    known.gone = true;
                    // An earlier request of ours may have done it.
                    return Ok(found.is_some() || known.delete_sent);
                }
                Err(_) if self.session_was_ended() => return Ok(false),
                Err(error) => {
                    known.delete_sent |= error.is_unknown();
                    // The next connection is as good for this.
                    if !matches!(error.cause, Cause::ConnectionLost(_))
                        || self.session.clock.now() >= deadline
                    {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    async fn detach(&self, _term: Duration) -> Result<Renewal> {
        Err(super::no_detached())
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.given_up.send_replace(true);
        if !lock(&self.known).gone {
            remove(&self.session, self.path.clone());
        }
    }
}

/// Looks at the node whenever it changes, and removes it when its lease ends without anybody giving it back:
/// a session lives on for the sake of its other locks.
async fn tend(held: Weak<Held>, session: Arc<OpenSession>, mut given_up: watch::Receiver<bool>) {
    while let Some(held) = held.upgrade() {
        let until = lock(&held.known).until;
        if session.clock.now() >= until {
            held.given_up.send_replace(true);
            return remove(&session, held.path.clone());
        }
        let mut watch = match held.look().await {
            Ok(None) => return,
            Ok(watch) => watch,
            Err(error) => {
                tracing::debug!(%error, path = %held.path, "a held node could not be read");
                None
            }
        };
        let signal = held.signal.clone();
        drop(held);
        tokio::select! {
            biased;
            _ = given_up.wait_for(|given_up| *given_up) => return,
            end = session.ended() => {
                if end.by_server() {
                    signal.raise(Loss::SessionEnded);
                }
                return;
            }
            () = session.clock.sleep_until(until) => {}
            Some(_) = async { watch.as_mut()?.changed().await } => {}
        }
    }
}
