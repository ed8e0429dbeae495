//! Handles: taking a detached lock over, renewing it and giving it back without holding it.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::driver::resp::Value;
use super::driver::session::Session;
use super::hold::{self, Freed, Held};
use super::keys::KeySet;
use super::ops::{Kept, Op};
use super::record::{self, Record};
use crate::backend::{Grant, Renewal, Request};
use crate::{Error, FencingToken, Handle, Loss, Owner, Result};

/// Takes the lock over under the request's identity.
pub(super) async fn attach(client: &Arc<Client>, handle: &Handle, request: &Request) -> Result<Grant> {
    let keys = client.keys(handle.name())?;
    let (owner, token, ttl) = (handle.owner(), handle.token(), request.ttl);
    let runtime = client.sessions.slot();
    let entry = record::entry(request.owner(), &runtime.channel, &request.note);
    let pushes = client.router.open(request.owner(), request.signal.clone());
    let mut undo = Undo {
        client: client.clone(),
        keys: keys.clone(),
        session: None,
        attached: request.owner(),
        token,
        entry: record::entry(owner, &runtime.channel, ""),
    };
    let op = |session: &Arc<Session>| {
        undo.session = Some(session.clone());
        Op::Attach { owner, token, entry: &entry, ttl }
    };
    let answer = client.send(&keys, client.timeout().min(ttl), op).await?;
    undo.session = None;
    if let Value::Error(text) = &answer.reply {
        return Err(client.refusal(&keys, text).await);
    }
    match Kept::read(answer.reply).ok_or_else(|| client.unreadable())? {
        Kept::Not(found) => Err(Error::lost(handle.name(), hold::loss(&found, owner, Loss::Expired))),
        Kept::Ours => Ok(Grant {
            identity: request.identity,
            token,
            sent: answer.sent,
            term: Some(ttl),
            pushed: false,
            hold: Arc::new(Held {
                client: client.clone(),
                keys,
                owner: request.owner(),
                token,
                giving: Default::default(),
                _pushes: pushes,
                _runtime: runtime,
            }),
        }),
    }
}

pub(super) async fn renew(client: &Client, handle: &Handle, term: Duration) -> Result<Renewal> {
    let keys = client.keys(handle.name())?;
    hold::renew(client, &keys, handle.owner(), handle.token(), term, Loss::Expired).await
}

pub(super) async fn release(client: &Client, handle: &Handle) -> Result<bool> {
    let keys = client.keys(handle.name())?;
    let (owner, token) = (handle.owner(), handle.token());
    match hold::release(client, &keys, owner, token).await? {
        Freed::Yes => return Ok(true),
        Freed::Not => return Ok(false),
        Freed::Maybe => {}
    }
    // The handle may be stale or forged. A lock that has this token, or an older one, was not given back.
    let ttl = Duration::from_millis(1);
    let answer = client.run(&keys, Op::Renew { owner, token, ttl }, client.timeout()).await?;
    let Some(Kept::Not(found)) = Kept::read(answer.reply) else { return Err(client.unreadable()) };
    let found = String::from_utf8_lossy(&found);
    if Record::parse(&found).and_then(|record| record.token).is_some_and(|there| there <= token) {
        return Ok(false);
    }
    let source = "the connection ended before the answer, and a second request found nothing to give back";
    Err(Error::Uncertain { name: handle.name().clone(), source: source.into() })
}

/// Lets the handle be good again if it was attached by a request whose answer nobody heard.
struct Undo {
    client: Arc<Client>,
    keys: Arc<KeySet>,
    /// The session of the request, until it is answered.
    session: Option<Arc<Session>>,
    attached: Owner,
    token: FencingToken,
    /// What the lock goes back to.
    entry: String,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (client, keys, token, owner) =
            (self.client.clone(), self.keys.clone(), self.token, self.attached);
        let entry = std::mem::take(&mut self.entry);
        // The lock does not last for longer by this.
        let ttl = Duration::from_millis(1);
        let back = Op::Attach { owner, token, entry: &entry, ttl };
        let sent = session.send(&back.on(&keys), client.clock.now());
        self.client.background.spawn(&self.client.keeper, async move {
            if let Ok(reply) = sent
                && let Ok(Ok(Value::Int(_) | Value::Text(_))) =
                    tokio::time::timeout(client.timeout(), reply).await
            {
                return;
            }
            let back = Op::Attach { owner, token, entry: &entry, ttl };
            if let Err(error) = client.run(&keys, back, client.timeout()).await {
                tracing::debug!(%error, "a lock whose attachment was given up ends with its ttl");
            }
        });
    }
}
