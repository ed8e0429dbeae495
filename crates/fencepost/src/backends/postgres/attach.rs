//! Handles: taking a detached lock over, renewing it and giving it back without holding it. Each is one
//! call, on condition of owner and token. Nobody would notice that a crash of the server took such a
//! lease back, so it is on disk before it is told.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::client::{Client, milliseconds, undo_backoff};
use super::driver::get;
use super::hold::{Held, HeldKind, HeldRow};
use super::keys::Key;
use super::record;
use super::session::{Function, Session};
use crate::backend::{Grant, Renewal, Request};
use crate::runtime::fork;
use crate::{Error, FencingToken, Handle, Loss, Owner, Result};

/// Takes the lock over under the request's identity.
pub(super) async fn attach(client: &Arc<Client>, handle: &Handle, request: &Request) -> Result<Grant> {
    let (name, token) = (handle.name(), handle.token());
    let key = Key::of(&client.config.schema, name.as_str());
    let session = client.session().await?;
    let sent = client.clock.now();
    let take_over = TakeOver {
        client: client.clone(),
        key,
        token,
        from: handle.owner(),
        to: request.owner(),
        ttl: request.ttl,
        note: request.note.to_string(),
        channel: Some(client.channel.clone()),
    };
    let mut undo = Undo { session: Some(session.clone()), take_over, generation: fork::generation() };
    let answer = client.in_time(undo.take_over.call(&session)).await;
    if answer.is_err() {
        client.suspect(&session, sent);
    }
    let lost = answer??;
    undo.session = None;
    if let Some(why) = lost {
        return Err(Error::lost(name, why));
    }
    let kind = HeldKind::Attached(Handle::new(name.clone(), request.identity, token, request.ttl));
    let row = HeldRow::new(key, request, kind, sent.plus(request.ttl));
    Ok(Grant {
        identity: request.identity,
        token,
        sent,
        term: Some(request.ttl),
        pushed: false,
        hold: Held::new(client, row),
    })
}

pub(super) async fn renew(client: &Arc<Client>, handle: &Handle, term: Duration) -> Result<Renewal> {
    let (session, key) = (client.session().await?, Key::of(&client.config.schema, handle.name().as_str()));
    let (owner, token) = (handle.owner().to_string(), record::number(handle.token()));
    let (backend, term_ms) = (&session.backend, milliseconds(term));
    let arguments: [&(dyn ToSql + Sync); 7] =
        [&backend.pid, &key.two_part, &key.number, &owner, &token, &term_ms, &backend.commit];
    let sent = client.clock.now();
    let found = client.call(&session, Function::RenewDetached, &arguments).await?;
    Ok(match loss(client, found)? {
        None => Renewal::Renewed { sent, term: Some(term) },
        Some(why) => Renewal::Lost(why),
    })
}

pub(super) async fn release(client: &Arc<Client>, handle: &Handle) -> Result<bool> {
    let (session, key) = (client.session().await?, Key::of(&client.config.schema, handle.name().as_str()));
    let (owner, token) = (handle.owner().to_string(), record::number(handle.token()));
    let backend = &session.backend;
    let arguments: [&(dyn ToSql + Sync); 6] =
        [&backend.pid, &key.two_part, &key.number, &owner, &token, &backend.commit];
    let found = client.call(&session, Function::ReleaseDetached, &arguments).await?;
    Ok(found.and_then(|found| get(&found, 0)).unwrap_or(false))
}

/// How a lock was lost, if it was, by what `detach`, `attach` and `renew_detached` return.
pub(super) fn loss(client: &Client, found: Option<Row>) -> Result<Option<Loss>> {
    let found = found.ok_or_else(|| client.config.unavailable("an answer without a row"))?;
    Ok(get::<&str>(&found, 0).map(|what| record::loss(Some(what), get(&found, 1))))
}

/// The change of a detached lock's owner.
struct TakeOver {
    client: Arc<Client>,
    key: Key,
    token: FencingToken,
    from: Owner,
    to: Owner,
    ttl: Duration,
    note: String,
    channel: Option<String>,
}

impl TakeOver {
    /// Sent at the first poll.
    async fn call(&self, session: &Arc<Session>) -> Result<Option<Loss>> {
        let (from, to) = (self.from.to_string(), self.to.to_string());
        let (token, term, host) =
            (record::number(self.token), milliseconds(self.ttl), crate::identity::host());
        let process = std::process::id().cast_signed();
        let arguments: [&(dyn ToSql + Sync); 12] = [
            &session.backend.pid,
            &self.key.two_part,
            &self.key.number,
            &from,
            &token,
            &to,
            &term,
            &host,
            &process,
            &self.note,
            &self.channel,
            &session.backend.commit,
        ];
        let rows = session.call(Function::Attach, &arguments).await;
        let rows = rows.map_err(|error| self.client.config.error(error))?;
        loss(&self.client, rows.into_iter().next())
    }

    /// The way back, which lengthens nothing.
    fn back(&self) -> Self {
        let (client, note) = (self.client.clone(), String::new());
        Self { client, note, from: self.to, to: self.from, ttl: Duration::ZERO, channel: None, ..*self }
    }
}

/// Makes the handle good again if nobody learns how an attach went: whoever has the handle has the lock.
struct Undo {
    /// The session that was asked, until it has answered.
    session: Option<Arc<Session>>,
    take_over: TakeOver,
    /// A forked child leaves it to its parent.
    generation: u32,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return mem::forget((self.session.take(), self.take_over.client.clone()));
        }
        let Some(asked) = self.session.take() else { return };
        let (back, ttl) = (self.take_over.back(), self.take_over.ttl);
        let client = back.client.clone();
        let mut undo = Box::pin(async move {
            let client = &back.client;
            let (end, mut backoff) = (client.clock.now().plus(ttl), undo_backoff());
            let mut done = back.call(&asked).await.is_ok();
            while !done && client.clock.now() < end {
                backoff.sleep().await;
                // The session that was asked is gone. It may carry the attach out yet, so this looks
                // until it finds it.
                if let Ok(session) = client.session().await {
                    done = matches!(back.call(&session).await, Ok(None));
                }
            }
            client.close_again();
        });
        // Sent here and now: before whatever is asked next over the same session.
        if undo.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            client.background.spawn(&client.keeper(), undo);
        }
    }
}
