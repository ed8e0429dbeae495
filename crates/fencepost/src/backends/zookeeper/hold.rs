//! A lock held by a node of ours. The node is watched: when it goes, or an operator marks it, the holder learns it at
//! once. A renewal shows that the session lives and that nothing has happened to the node that we do not know of.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
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
    node: Arc<HeldNode>,
}

/// Our node, as the hold and the task that tends it both see it.
#[derive(Debug)]
struct HeldNode {
    session: Arc<OpenSession>,
    path: String,
    signal: Arc<LossSignal>,
    /// The lock is given back, or about to be: nothing that happens to the node is a loss any more.
    given_up: watch::Sender<bool>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// From when the node was last read.
    watch: Option<NodeWatch>,
    /// When the lease ends unless it is renewed.
    until: Moment,
    /// A request to delete the node may have reached the server.
    delete_sent: bool,
    /// The node is gone.
    gone: bool,
}

impl Held {
    pub(super) fn new(
        session: Arc<OpenSession>,
        path: String,
        signal: Arc<LossSignal>,
        sent: Moment,
    ) -> Self {
        let until = sent.plus(session.timeout);
        let known = Mutex::new(Known { watch: None, until, delete_sent: false, gone: false });
        let node = Arc::new(HeldNode { session, path, signal, given_up: watch::Sender::new(false), known });
        node.session.keeper.spawn(tend(node.clone()));
        Self { node }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let session = &self.node.session;
        let longest = session.timeout;
        if term.as_millis() > longest.as_millis() {
            return Err(Error::invalid(format!(
                "a lease cannot be extended to {} here: it ends with its session, whose timeout is {}; acquire the lock \
                 with the longer ttl",
                format_duration(term),
                format_duration(longest)
            )));
        }
        let sent = match session.heartbeat().await {
            Ok(sent) => sent,
            Err(_) if self.node.session_was_ended() => return Ok(Renewal::Lost(Loss::SessionEnded)),
            Err(error) => return Err(error.into()),
        };
        if self.node.look().await?.is_none() {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let mut known = lock(&self.node.known);
        known.until = known.until.max(sent.plus(longest));
        Ok(Renewal::Renewed { sent, term: Some(longest) })
    }

    async fn release(&self) -> Result<bool> {
        let HeldNode { session, path, known, given_up, .. } = &*self.node;
        given_up.send_replace(true);
        let deadline = session.patience();
        loop {
            let deleted = if_exists(session.call(&requests::delete(path), deadline).await);
            let mut known = lock(known);
            match deleted {
                Ok(found) => {
                    known.gone = true;
                    // An earlier request of ours may have done it.
                    return Ok(found.is_some() || known.delete_sent);
                }
                Err(_) if self.node.session_was_ended() => return Ok(false),
                Err(error) => {
                    known.delete_sent |= !matches!(error.cause, Cause::NotSent(_));
                    // The next connection is as good for this.
                    if !matches!(error.cause, Cause::ConnectionLost(_)) || session.clock.now() >= deadline {
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
        self.node.given_up.send_replace(true);
        if !lock(&self.node.known).gone {
            remove(&self.node.session, self.node.path.clone());
        }
    }
}

impl HeldNode {
    /// A server has said that the session ended, and the lock with it.
    fn session_was_ended(&self) -> bool {
        self.session.end().is_some_and(|end| end.by_server())
    }

    /// Reads the node if it has changed since it was last read; `None` if it is gone. Raises the loss that this shows.
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

/// Looks at the node whenever it changes, and removes it when its lease ends without anybody giving it back: a session
/// lives on for the sake of its other locks.
async fn tend(node: Arc<HeldNode>) {
    let (session, mut given_up) = (&node.session, node.given_up.subscribe());
    loop {
        let until = lock(&node.known).until;
        if session.clock.now() >= until {
            node.given_up.send_replace(true);
            return remove(session, node.path.clone());
        }
        let watch = match node.look().await {
            Ok(None) => return,
            Ok(watch) => watch,
            Err(error) => {
                tracing::debug!(%error, path = %node.path, "a held node could not be read");
                None
            }
        };
        tokio::select! {
            biased;
            _ = given_up.wait_for(|given_up| *given_up) => return,
            end = session.ended() => {
                if end.by_server() {
                    node.signal.raise(Loss::SessionEnded);
                }
                return;
            }
            () = session.clock.sleep_until(until) => {}
            () = changed(watch) => {}
        }
    }
}

/// Waits for a change of what is watched.
async fn changed(watch: Option<NodeWatch>) {
    match watch {
        Some(mut watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
