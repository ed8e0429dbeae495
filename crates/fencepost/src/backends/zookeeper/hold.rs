//! A lock held by a node of ours. The node is watched: when it goes, or an operator marks it, the holder learns it at
//! once. A renewal shows that the session lives and that nothing has happened to the node that we do not know of.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::claim;
use super::life::{Answer, End, Trouble};
use super::protocol::{self, Code, Request};
use super::record;
use super::session::Session;
use crate::backend::{Hold, Renewal};
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Error, Loss, Result, format_duration};

#[derive(Debug)]
pub(super) struct Held {
    node: Arc<Node>,
}

/// Our node, as the hold and the task that tends it both see it.
#[derive(Debug)]
struct Node {
    session: Arc<Session>,
    path: String,
    signal: Arc<LossSignal>,
    own: Mutex<Own>,
    /// Something has changed that the task has to look at.
    turn: tokio::sync::Notify,
}

#[derive(Debug)]
struct Own {
    sight: Sight,
    /// When the lease ends unless it is renewed.
    until: Moment,
    /// Given back, or about to be: nothing that happens to the node is a loss any more.
    given_up: bool,
    /// A request to delete it may have reached the server.
    tried: bool,
    /// It is gone.
    gone: bool,
}

/// What we know of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// As we left it, and watched.
    Clear,
    /// A request to read it is under way.
    Reading,
    /// Changed since.
    Stale,
}

impl Held {
    pub(super) fn new(session: Arc<Session>, path: String, signal: Arc<LossSignal>, sent: Moment) -> Self {
        let until = sent.plus(session.timeout());
        let own = Own { sight: Sight::Stale, until, given_up: false, tried: false, gone: false };
        let node = Arc::new(Node { session, path, signal, own: Mutex::new(own), turn: Default::default() });
        node.session.keeper().spawn(tend(node.clone()));
        Self { node }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let session = &self.node.session;
        let longest = session.timeout();
        if term.as_millis() > longest.as_millis() {
            return Err(Error::invalid(format!(
                "a lease cannot be extended to {} here: it ends with its session, whose timeout is {}; acquire the lock \
                 with the longer ttl",
                format_duration(term),
                format_duration(longest)
            )));
        }
        let sent = match session.beat().await {
            Ok(sent) => sent,
            Err(error) => return self.node.session_end().map_or(Err(error), |why| Ok(Renewal::Lost(why))),
        };
        if lock(&self.node.own).sight != Sight::Clear {
            self.node.read().await?;
        }
        let mut own = lock(&self.node.own);
        if own.gone {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        own.until = own.until.max(sent.plus(longest));
        Ok(Renewal::Renewed { sent, term: Some(longest) })
    }

    async fn release(&self) -> Result<bool> {
        let node = &self.node;
        node.give_up();
        let deadline = node.session.patience();
        loop {
            let request = Request::Delete { path: &node.path };
            let Trouble { sent, why } = match node.session.call(&request, deadline).await {
                Ok(answer) => return node.deleted(answer),
                Err(trouble) => trouble,
            };
            lock(&node.own).tried |= sent;
            if node.session_end().is_some() {
                return Ok(false);
            }
            // A connection that ended is no reason to give up: the next one is as good for this.
            if !sent || node.session.clock().now() >= deadline {
                return Err(node.session.unavailable(&why));
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
        self.node.give_up();
        if !lock(&self.node.own).gone {
            let node = self.node.clone();
            self.node.session.run_errand(async move { claim::remove(&node.session, &node.path).await });
        }
    }
}

impl Node {
    fn give_up(&self) {
        lock(&self.own).given_up = true;
        self.turn.notify_one();
    }

    /// What a request to delete it came to: `true` if it was there.
    fn deleted(&self, answer: Answer) -> Result<bool> {
        let mut own = lock(&self.own);
        match answer {
            Ok(_) => {
                own.gone = true;
                Ok(true)
            }
            Err(Code::NoNode) => {
                own.gone = true;
                // An earlier request of ours may have done it.
                Ok(own.tried)
            }
            Err(code) => Err(self.session.refusal(code, &self.path)),
        }
    }

    /// Why the lock is lost, if a server has said that the session ended.
    fn session_end(&self) -> Option<Loss> {
        self.session.end().is_some_and(End::by_server).then_some(Loss::SessionEnded)
    }

    /// The server says that the node changed, or is gone.
    fn changed(&self, gone: bool) {
        {
            let mut own = lock(&self.own);
            own.sight = Sight::Stale;
            own.gone |= gone;
            if own.given_up {
                return;
            }
        }
        if gone {
            self.signal.raise(Loss::Taken);
        }
        self.turn.notify_one();
    }

    /// Reads the node and watches it.
    async fn read(self: &Arc<Self>) -> Result<()> {
        lock(&self.own).sight = Sight::Reading;
        let weak = Arc::downgrade(self);
        self.session.watches().call(
            &self.path,
            Box::new(move |gone| {
                if let Some(node) = weak.upgrade() {
                    node.changed(gone);
                }
            }),
        );
        let answer = self.session.insist(&Request::Read { path: &self.path, watch: true }).await?;
        let data = match answer {
            Ok(body) => protocol::read(&body).map_err(|what| self.session.config().backend(what))?.0,
            Err(Code::NoNode) => {
                self.session.watches().forget(&self.path);
                self.changed(true);
                return Ok(());
            }
            Err(code) => return Err(self.session.refusal(code, &self.path)),
        };
        if let Some(reason) = record::revoked(&data) {
            self.signal.raise(Loss::ForceReleased { reason });
        }
        let mut own = lock(&self.own);
        // A change that came behind the answer has not been read.
        if own.sight == Sight::Reading {
            own.sight = Sight::Clear;
        }
        Ok(())
    }
}

/// Looks at the node whenever it changes, and removes it when its lease ends without anybody giving it back: a session
/// lives on for the sake of its other locks.
async fn tend(node: Arc<Node>) {
    loop {
        let (sight, until, over) = {
            let own = lock(&node.own);
            (own.sight, own.until, own.given_up || own.gone)
        };
        if over {
            return;
        }
        if node.session.clock().now() >= until {
            node.give_up();
            return claim::remove(&node.session, &node.path).await;
        }
        if sight == Sight::Stale
            && let Err(error) = node.read().await
        {
            tracing::debug!(%error, path = %node.path, "a held node could not be read");
        }
        tokio::select! {
            () = node.turn.notified() => {}
            () = node.session.clock().sleep_until(until) => {}
            end = node.session.ended() => {
                if end.by_server() {
                    node.signal.raise(Loss::SessionEnded);
                }
                return;
            }
        }
    }
}
