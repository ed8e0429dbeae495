//! One attempt to acquire: a node in the queue of a name, from before its first byte is sent until it is a
//! hold. Dropped before that, it is taken out of the queue in the background.

use std::sync::Arc;
use std::time::Duration;

use super::driver::{
    CallError, Cause, ErrorCode, NodeWatch, OpenSession, Pending, Stat, if_exists, requests,
};
use super::hold::Held;
use super::keys::{self, Contender};
use super::sessions::Sessions;
use super::{folders, record};
use crate::backend::{Grant, Request, TryOutcome};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::wait::PATIENCE;
use crate::{Error, Holder, Name, Owner, Result};

/// How often a folder may vanish while we enter it.
const TRIES: usize = 10;

/// How long a broken connection may still deliver a request.
const LATE: Duration = Duration::from_secs(60);

/// Takes the lock if it is free.
pub(super) async fn try_acquire(sessions: &Sessions, request: &Request) -> Result<TryOutcome> {
    let Sessions { config, clock, .. } = sessions;
    // A session may have to be opened first, which has a limit of its own.
    let deadline = clock.now().plus(config.timeout * 2);
    let tried = clock.within(Some(deadline), async {
        let session = sessions.of(request.ttl, config.timeout).await?;
        contend(&session, request, false).await
    });
    tried.await.unwrap_or_else(|| Err(config.unavailable("no answer in time")))
}

/// Queues until the lock is free.
pub(super) async fn acquire(sessions: &Sessions, request: &Request) -> Result<Grant> {
    // This process may be busy.
    let session = sessions.of(request.ttl, PATIENCE.max(sessions.config.timeout)).await?;
    let error = match contend(&session, request, true).await {
        Ok(TryOutcome::Granted(grant)) => return Ok(grant),
        Ok(TryOutcome::Busy(_)) => session.config.unavailable("the wait ended without the lock"),
        Err(error) => error,
    };
    // Servers have granted a session: if it or its connection was lost, the caller waits on.
    if let Error::Unavailable { source, .. } | Error::Uncertain { source, .. } = &error {
        request.seen.obstacle(Some(source.to_string().into()));
    }
    Err(error)
}

/// Takes the lock if it is free; with `wait`, queues until it is.
async fn contend(session: &Arc<OpenSession>, request: &Request, wait: bool) -> Result<TryOutcome> {
    let (acquire, mut children) = Acquire::enter(session, request).await?;
    request.seen.answered();
    let mut waited = false;
    loop {
        let queue = keys::queue(&children);
        if keys::is_used_up(&queue) {
            return Err(folders::used_up(session, &request.name, &acquire.folder));
        }
        match queue.iter().position(|contender| contender.owner() == Some(acquire.owner)) {
            None => return Err(session.config.unavailable("our place in the queue was taken away")),
            Some(0) => {
                // After a long silence the lock counts from the next connection, so there must be one.
                let deadline = if wait { Moment::NEVER } else { session.patience() };
                session.connected(deadline).await?;
                return acquire.granted(request, waited).map(TryOutcome::Granted);
            }
            Some(_) if !wait => {
                if let Some(holder) = acquire.holder(&queue[0]).await? {
                    return Ok(TryOutcome::Busy(Some(holder)));
                }
            }
            Some(place) => {
                // In this order: the watch sees whatever happens while we look for the holder.
                if let Some(mut ahead) = acquire.watch(&queue[place - 1]).await?
                    && let Some(holder) = acquire.holder(&queue[0]).await?
                {
                    request.seen.note(holder);
                    waited = true;
                    tokio::select! {
                        _ = ahead.changed() => {}
                        end = session.ended() => return Err(session.config.unavailable(end.text())),
                    }
                }
            }
        }
        // The queue has changed, or may have.
        children = session.insist(&requests::children(&acquire.folder)).await?;
    }
}

struct Acquire {
    session: Arc<OpenSession>,
    name: Name,
    owner: Owner,
    folder: String,
    /// The request for our node, until it is answered.
    requested: Option<Pending<(String, Stat)>>,
    /// Our node.
    node: Option<(String, Stat)>,
}

impl Acquire {
    /// Enters the queue; also returns the children of its folder.
    async fn enter(session: &Arc<OpenSession>, request: &Request) -> Result<(Self, Vec<String>)> {
        let (session, name, owner) = (session.clone(), request.name.clone(), request.owner());
        let folder = keys::folder(&session.config.base, &name);
        let mut acquire = Self { session, name, owner, folder, requested: None, node: None };
        for _ in 0..TRIES {
            if let Some(children) = acquire.create_node(&request.note).await? {
                return Ok((acquire, children));
            }
            folders::create(&acquire.session, &acquire.folder).await?;
        }
        Err(acquire.session.config.unavailable("the folder of the lock vanished again and again; try again"))
    }

    /// Creates our node and reads the children of its folder, in one round trip; `None` if there is no
    /// folder.
    async fn create_node(&mut self, note: &str) -> Result<Option<Vec<String>>> {
        let (session, config) = (self.session.clone(), self.session.config.clone());
        let path = keys::new_node(&self.folder, self.owner);
        let create =
            requests::create_node(&path, &record::encode(session.timeout, note), config.login.is_some());
        let deadline = session.clock.now().plus(config.timeout.min(session.timeout));
        session.connected(deadline).await?;
        // The server handles them in this order.
        let requested = self.requested.insert(session.send(&create));
        let mut acl = config.checks_folders.then(|| session.send(&requests::acl(&self.folder)));
        let mut children = session.send(&requests::children(&self.folder));
        let answer = session.answer(requested, deadline).await;
        if let Ok(_) | Err(CallError { cause: Cause::Refused(_), .. }) = &answer {
            self.requested = None;
        }
        let node = match answer {
            Ok(node) => self.node.insert(node),
            Err(CallError { cause: Cause::Refused(ErrorCode::NO_NODE), .. }) => return Ok(None),
            // A connection that had ended without our knowing is worth another attempt, under a new identity.
            Err(CallError { cause: Cause::ConnectionLost(why), .. }) if !session.has_ended() => {
                return Err(Error::Uncertain { name: self.name.clone(), source: why.to_string().into() });
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(acl) = &mut acl {
            let acl = match session.answer(acl, deadline).await {
                Err(error) if error.is_interruption() => session.insist(&requests::acl(&self.folder)).await?,
                answer => answer?,
            };
            folders::check(&session, &self.name, &self.folder, &acl, &node.0).await?;
        }
        // Our node, and with it our place, does not end with its connection.
        match session.answer(&mut children, deadline).await {
            Err(error) if error.is_interruption() => {
                Ok(Some(session.insist(&requests::children(&self.folder)).await?))
            }
            answer => Ok(Some(answer?)),
        }
    }

    /// Watches a contender; `None` if it is gone.
    async fn watch(&self, contender: &Contender) -> Result<Option<NodeWatch>> {
        Ok(self.session.watch(&contender.path(&self.folder)).await?.map(|(_, _, watch)| watch))
    }

    /// What a contender's node says; `None` if it is gone.
    async fn holder(&self, contender: &Contender) -> Result<Option<Holder>> {
        let found = if_exists(self.session.insist(&requests::read(&contender.path(&self.folder))).await)?;
        Ok(found.map(|(data, stat)| record::decode(&self.name, contender, &data, &stat)))
    }

    /// Our node is the first: hands it over to a hold.
    fn granted(mut self, request: &Request, waited: bool) -> Result<Grant> {
        let (session, config) = (self.session.clone(), &self.session.config);
        let Some((path, stat)) = self.node.clone() else {
            return Err(config.unavailable("this attempt has ended"));
        };
        if session.id.number != stat.ephemeral_owner {
            return Err(config.backend(format!("node `{path}` is of another session")));
        }
        let token = config.token(stat.czxid)?;
        self.node = None;
        let (sent, term) = (session.confirmed(), Some(session.timeout));
        let hold = Held::start(session, path, request.signal.clone(), sent);
        Ok(Grant { identity: request.identity, token, sent, term, pushed: waited, hold })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let session = self.session.clone();
        if let Some((path, _)) = self.node.take() {
            return remove(&session, path);
        }
        let Some(mut requested) = self.requested.take() else { return };
        let (folder, owner) = (std::mem::take(&mut self.folder), self.owner);
        self.session.run_in_background(async move {
            match session.answer(&mut requested, Moment::NEVER).await {
                Ok((path, _)) => remove(&session, path),
                Err(CallError { cause: Cause::Refused(_) | Cause::NotSent(_), .. }) => {}
                Err(_) => remove_lost(&session, &folder, owner).await,
            }
        });
    }
}

/// Removes a node of ours in the background, however often it takes while the session lasts. The first
/// request is sent at once, so that a next attempt of this client finds the queue without it.
pub(super) fn remove(session: &Arc<OpenSession>, path: String) {
    let delete = requests::delete(&path);
    let mut sent = session.send(&delete);
    let open = session.clone();
    session.run_in_background(async move {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match if_exists(open.answer(&mut sent, open.patience()).await) {
                Ok(_) => return,
                Err(error @ CallError { cause: Cause::Refused(_) | Cause::Garbled(_), .. }) => {
                    let error = Error::from(error);
                    tracing::warn!(%error, "a node could not be removed; it ends with its session");
                    return;
                }
                Err(_) if open.has_ended() => return,
                Err(_) => backoff.sleep().await,
            }
            sent = open.send(&delete);
        }
    });
}

/// Removes a node whose path never came, if there is one. The request for it may still arrive.
async fn remove_lost(session: &Arc<OpenSession>, folder: &str, owner: Owner) {
    let mut backoff = Backoff::new(Duration::from_millis(50), LATE / 4);
    let end = session.clock.now().plus(LATE);
    while !session.has_ended() && session.clock.now() < end {
        if let Ok(children) = session.insist(&requests::children(folder)).await
            && let Some(ours) = keys::queue(&children).iter().find(|one| one.owner() == Some(owner))
        {
            return remove(session, ours.path(folder));
        }
        backoff.sleep().await;
    }
}
