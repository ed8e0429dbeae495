//! Handles: taking a detached lock over, renewing it and giving it back without holding it.

use std::sync::Arc;
use std::time::Duration;

use super::client::{self, Client, Op, Undone};
use super::driver::batch;
use super::driver::resp::Value;
use super::driver::session::Session;
use super::errors;
use super::hold::{self, Held};
use super::keys::KeySet;
use super::record::{self, Record};
use crate::backend::{Grant, Renewal, Request};
use crate::{Error, FencingToken, Handle, Loss, Owner, Result};

/// Of an op that is not to make the lock last longer.
const NO_LONGER: Duration = Duration::from_millis(1);

/// Takes the lock over under the request's identity.
pub(super) async fn attach(client: &Arc<Client>, handle: &Handle, request: &Request) -> Result<Grant> {
    client.config().check_ttl(request.ttl)?;
    let keys = client.keys(handle.name())?;
    let (owner, token, ttl) = (handle.owner(), handle.token(), request.ttl);
    let pushes = client.listen(request.owner(), &request.signal);
    let entry = record::entry(request.owner(), &pushes.1, &request.note);
    let mut attachment = Attachment {
        client,
        keys: keys.clone(),
        session: None,
        attached: request.owner(),
        token,
        before: record::entry(owner, &pushes.1, ""),
    };
    let op = |session: &Arc<Session>| {
        attachment.session = Some(session.clone());
        Op::Attach { owner, token, entry: &entry, ttl }
    };
    let reply = client.send(&keys, client.timeout().min(ttl), op).await?;
    if let Value::Error(text) = &reply.value {
        if errors::code(text) != batch::UNREPLICATED {
            // Nothing was done, so there is nothing to undo.
            attachment.session = None;
        }
        return Err(client.refusal(&keys, text).await);
    }
    attachment.session = None;
    if let Err(found) = client::renewed(reply.value).ok_or_else(|| client.unreadable())? {
        return Err(Error::lost(handle.name(), hold::loss(&found, owner, Loss::Expired)));
    }
    let hold = Held::new(client, keys, request.owner(), token, pushes);
    Ok(Grant { identity: request.identity, token, sent: reply.sent, term: Some(ttl), pushed: false, hold })
}

pub(super) async fn renew(client: &Client, handle: &Handle, term: Duration) -> Result<Renewal> {
    let keys = client.keys(handle.name())?;
    hold::renew(client, &keys, handle.owner(), handle.token(), term, Loss::Expired).await
}

pub(super) async fn release(client: &Client, handle: &Handle) -> Result<bool> {
    let keys = client.keys(handle.name())?;
    let (owner, token) = (handle.owner(), handle.token());
    if let Some(freed) = hold::release(client, &keys, owner, token).await? {
        return Ok(freed);
    }
    // The handle may be stale or forged. A lock that has this token, or an older one, was not given back.
    let op = Op::Renew { owner, token, ttl: NO_LONGER };
    let reply = client.run(&keys, op, client.timeout(), client::renewed).await?;
    let Err(found) = reply.value else { return Err(client.unreadable()) };
    let found = String::from_utf8_lossy(&found);
    if Record::parse(&found).and_then(|record| record.token).is_some_and(|there| there <= token) {
        return Ok(false);
    }
    let source = "the connection ended before the answer, and a second request found nothing to give back";
    Err(Error::Uncertain { name: handle.name().clone(), source: source.into() })
}

/// One request to attach. Dropped before it is answered, it makes the handle good again.
struct Attachment<'a> {
    client: &'a Arc<Client>,
    keys: Arc<KeySet>,
    /// The session of the request, until it is answered.
    session: Option<Arc<Session>>,
    attached: Owner,
    token: FencingToken,
    /// The entry that the lock goes back to.
    before: String,
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (client, keys, entry) =
            (self.client.clone(), self.keys.clone(), std::mem::take(&mut self.before));
        let (owner, token) = (self.attached, self.token);
        let back = Op::Attach { owner, token, entry: &entry, ttl: NO_LONGER };
        let sharing = client.servers.sharing(keys.each()[0]);
        let sent = client::post(&[back], &keys, &session, client.clock.now(), sharing);
        self.client.background.spawn(&self.client.keeper, async move {
            if client.undone(sent).await == Undone::Done {
                return;
            }
            let back = Op::Attach { owner, token, entry: &entry, ttl: NO_LONGER };
            if let Err(error) = client.run(&keys, back, client.timeout(), client::renewed).await {
                tracing::debug!(%error, "a lock whose attachment was given up ends with its ttl");
            }
        });
    }
}
