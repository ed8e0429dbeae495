//! One attempt to acquire, from before its first byte is sent until it is a hold. Dropped before that,
//! it undoes itself over the same connection, after what it undoes.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::channels::WaiterChannel;
use super::client::{Client, milliseconds, undo_backoff};
use super::driver::{errors, get};
use super::hold::{Held, HeldKind, HeldRow};
use super::keys::Key;
use super::record;
use super::session::{AdvisorySlot, Function, Session};
use crate::backend::{Grant, Request, TryOutcome};
use crate::runtime::clock::Moment;
use crate::runtime::fork;
use crate::wait::jittered;
use crate::{Error, FencingToken, Holder, Result};

/// How long a waiter sleeps at most before it asks again: while a lease holds the lock (its release is
/// told), while a session without a lease does (nobody tells), and while it changes hands. The first is
/// shorter than `LISTED`, so that the server keeps the waiter's entry.
const RECHECK: Duration = Duration::from_secs(2);
const RECHECK_FOREIGN: Duration = Duration::from_millis(250);
const RECHECK_MOVING: Duration = Duration::from_millis(50);

/// How long the server keeps a waiter's entry. A release grants the lock for what is left of that.
const LISTED: Duration = Duration::from_secs(3);

/// Takes the lock if it is free.
pub(super) async fn try_acquire(client: &Arc<Client>, request: &Request) -> Result<TryOutcome> {
    let mut acquire = Acquire::new(client, request, None);
    Ok(match acquire.ask().await? {
        Asked::Granted(granted) => TryOutcome::Granted(acquire.into_grant(granted)),
        Asked::Busy { holder, .. } => TryOutcome::Busy(Some(holder)),
    })
}

/// Waits for the lock: asks, and asks again when the server has news or after a while, until it is ours.
pub(super) async fn acquire(client: &Arc<Client>, request: &Request) -> Result<Grant> {
    let mut acquire = Acquire::new(client, request, Some(client.channels.take()));
    loop {
        match acquire.ask().await? {
            Asked::Granted(granted) => return Ok(acquire.into_grant(granted)),
            Asked::Busy { holder, again_in } => {
                // A holder without a name is no news to those who have seen one that has.
                if holder.owner.is_some() || holder.note.is_some() || request.seen.holder().is_none() {
                    request.seen.note(holder);
                }
                request.seen.answered();
                if let Some(granted) = acquire.news(again_in).await? {
                    return Ok(acquire.into_grant(granted));
                }
            }
        }
    }
}

struct Acquire {
    client: Arc<Client>,
    request: Request,
    key: Key,
    owner: String,
    /// Where a waiter is notified; `None` for one that only tries.
    channel: Option<WaiterChannel>,
    /// The session that may have granted the lock, and its advisory lock.
    asked: Option<(Arc<Session>, Option<AdvisorySlot>)>,
    /// What the monitor knows of a request for an advisory lock, until somebody looks at the answer.
    row: Option<Arc<HeldRow>>,
    /// The entry that the server's queue may have of a waiter.
    entry: Option<QueueEntry>,
    /// A forked child leaves it to its parent.
    generation: u32,
}

struct QueueEntry {
    session: Arc<Session>,
    /// When the last answered request for it was sent, and until when the server keeps it since then.
    renewed: Option<(Moment, i64)>,
}

/// What the server said to a request for the lock.
enum Asked {
    Granted(Granted),
    Busy { holder: Holder, again_in: Duration },
}

struct Granted {
    token: FencingToken,
    sent: Moment,
    term: Duration,
    pushed: bool,
    session: Arc<Session>,
}

impl Acquire {
    fn new(client: &Arc<Client>, request: &Request, channel: Option<WaiterChannel>) -> Self {
        let key = Key::of(&client.config.schema, request.name.as_str());
        let (client, owner) = (client.clone(), request.owner().to_string());
        let (request, generation) = (request.clone(), fork::generation());
        Self { client, request, key, owner, channel, asked: None, row: None, entry: None, generation }
    }

    /// Asks for the lock once.
    async fn ask(&mut self) -> Result<Asked> {
        let client = self.client.clone();
        let (config, name) = (&client.config, self.request.name.clone());
        let session = client.session().await?;
        // Code that knows the key sees advisory locks alone. What is handed over is a lease alone.
        let is_known = Key::is_spelled_out(name.as_str());
        let push = config.delay && !config.durable && !is_known;
        let slot = session.quota.take(is_known);
        if is_known && slot.is_none() {
            return Err(self.no_room(&session));
        }
        let (advisory, listed) = (slot.is_some(), self.entry.is_some());
        let channel = self.channel.as_ref().map(WaiterChannel::name);
        self.asked = Some((session.clone(), slot));
        self.entry = channel.map(|_| QueueEntry { session: session.clone(), renewed: None });
        let (term, host) = (milliseconds(self.request.ttl), crate::identity::host());
        let (process, note) = (std::process::id().cast_signed(), &*self.request.note);
        let arguments: [&(dyn ToSql + Sync); 17] = [
            &session.backend.pid,
            &self.key.two_part,
            &self.key.number,
            &name.as_str(),
            &self.owner,
            &term,
            &host,
            &process,
            &note,
            &session.backend.id,
            &client.channel,
            &config.delay,
            &config.sequence,
            &channel,
            &listed,
            &push,
            &advisory,
        ];
        let (sent, limit) = (client.clock.now(), config.timeout.min(self.request.ttl));
        if advisory {
            let until = sent.plus(self.request.ttl);
            let row = Arc::new(HeldRow::asked(self.key, &self.request, &session, until));
            client.held.insert(&row);
            self.row = Some(row);
        }
        // Sent first, but not waited for: if it fails, so does the request, or the next one repeats it.
        let listen = async {
            if let Some(channel) = &self.channel {
                drop(channel.listen(&session).await);
            }
        };
        let ask = client.ask(&session, limit, Function::Acquire, &arguments);
        let (_, answer) = tokio::join!(biased; client.within(limit, listen), ask);
        let answer = answer?;
        if let Some(row) = self.row.take() {
            client.held.remove(&row);
            if row.is_given_back() {
                // What is asked for next would be given back with it.
                return Err(Error::uncertain(&name, "nobody looked at the answer before the lease ended"));
            }
        }
        let row = match answer {
            Ok(rows) => rows.into_iter().next(),
            // A waiter goes on: whoever has locked the row may be about to give the lock back.
            Err(error) if channel.is_some() && errors::is_locked(&error) => {
                return Ok(Asked::Busy { holder: Holder::unknown(name), again_in: jittered(RECHECK) });
            }
            Err(error) => return Err(self.failed(&session, error)),
        };
        let row = row.ok_or_else(|| config.unavailable("an answer without a row"))?;
        let Some(token) = get(&row, 0) else {
            self.asked = None;
            let until: Option<i64> = get(&row, 11);
            self.entry = until.map(|until| QueueEntry { session, renewed: Some((sent, until)) });
            return self.busy(&row);
        };
        let pushed = get(&row, 1) == Some("pushed");
        let (token, term) = (self.token(token)?, self.request.ttl);
        Ok(Asked::Granted(Granted { token, sent, term, pushed, session }))
    }

    fn token(&self, token: i64) -> Result<FencingToken> {
        record::token(token).ok_or_else(|| self.client.config.broken(format!("{token} is not a token")))
    }

    /// A key of other code needs an advisory lock: that is all such code sees.
    fn no_room(&self, session: &Session) -> Error {
        Error::config(format!(
            "{}: this process has {} advisory locks, a quarter of what the server has room for, and `{}` \
             needs one more; raise `max_locks_per_transaction` there",
            self.client.config.label,
            session.quota.most(),
            self.request.name
        ))
    }

    /// The request failed. It is undone even if the server has refused it: a session's lock survives a
    /// commit that fails. If it may have been carried out, the caller may try again at once, under a new
    /// identity.
    fn failed(&self, session: &Session, error: tokio_postgres::Error) -> Error {
        let was_refused = session.is_usable() && error.as_db_error().is_some();
        match self.client.config.error(error) {
            Error::Unavailable { source, .. } if !was_refused => {
                Error::Uncertain { name: self.request.name.clone(), source }
            }
            other => other,
        }
    }

    fn busy(&self, row: &Row) -> Result<Asked> {
        let (wanted, found) = (self.request.name.as_str(), get::<&str>(row, 2));
        let is_live = get::<i64>(row, 9) > Some(0);
        if let Some(found) = found.filter(|found| *found != wanted && is_live) {
            return Err(Error::config(format!(
                "the names `{wanted}` and `{found}`, which is held, have the same 64-bit key {}; rename \
                 one of them",
                self.key.number
            )));
        }
        let holder = record::holder(&self.request.name, row);
        let again_in = match get(row, 1).unwrap_or_default() {
            // One millisecond more: the lease lives to the end of its last one.
            "held" => jittered(RECHECK).min(holder.expires_in.unwrap_or(RECHECK) + Duration::from_millis(1)),
            "foreign" => jittered(RECHECK_FOREIGN),
            _ => jittered(RECHECK_MOVING),
        };
        Ok(Asked::Busy { holder, again_in })
    }

    /// Waits for news, and takes what a release has granted. The grant ends with the entry that the last
    /// answered request made, so it counts from that request's send. What was granted to an earlier entry, or
    /// has little left, is asked for.
    async fn news(&mut self, most: Duration) -> Result<Option<Granted>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        let Some(push) = channel.news(most).await else { return Ok(None) };
        let Some(QueueEntry { session, renewed: Some((sent, until)) }) = &self.entry else { return Ok(None) };
        let term = LISTED.min(self.request.ttl);
        let in_time = self.client.clock.now() < sent.plus(term * 2 / 3);
        if push.owner != self.request.owner() || push.until != *until || !in_time {
            return Ok(None);
        }
        let (session, sent) = (session.clone(), *sent);
        self.asked = Some((session.clone(), None));
        Ok(Some(Granted { token: self.token(push.token)?, sent, term, pushed: true, session }))
    }

    /// The lock is ours: hands everything over to a hold.
    fn into_grant(mut self, granted: Granted) -> Grant {
        let Granted { token, sent, term, pushed, session } = granted;
        self.entry = None;
        let slot = self.asked.take().and_then(|(_, slot)| slot).filter(|_| !pushed);
        let identity = self.request.identity;
        let kind = HeldKind::OfSession(session, slot);
        let row = HeldRow::new(self.key, &self.request, kind, sent.plus(term));
        Grant { identity, token, sent, term: Some(term), pushed, hold: Held::new(&self.client, row) }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let (asked, entry, channel) = (self.asked.take(), self.entry.take(), self.channel.take());
        let row = self.row.take();
        if self.generation != fork::generation() {
            return mem::forget((asked, entry, channel, row, self.client.clone()));
        }
        if let Some(row) = row {
            self.client.held.remove(&row);
        }
        if asked.is_none() && entry.is_none() {
            return;
        }
        let (client, key, ttl) = (self.client.clone(), self.key, self.request.ttl);
        let owner = mem::take(&mut self.owner);
        self.client.background.spawn(&self.client.keeper(), async move {
            if let Some((session, slot)) = asked {
                undo(&client, &session, key, &owner, ttl).await;
                drop(slot);
            }
            if let (Some(entry), Some(channel)) = (entry, channel) {
                leave(&client, &entry.session, key, channel.name(), &owner).await;
            }
            client.close_again();
        });
    }
}

/// Undoes a request whose answer nobody waits for.
async fn undo(client: &Arc<Client>, asked: &Arc<Session>, key: Key, owner: &str, ttl: Duration) {
    let (end, mut backoff) = (client.clock.now().plus(ttl * 2), undo_backoff());
    while client.clock.now() < end {
        let session = if asked.is_usable() { Ok(asked.clone()) } else { client.session().await };
        if let Ok(session) = session
            && is_undone(&session, asked, key, owner).await
        {
            return;
        }
        backoff.sleep().await;
    }
}

/// Over the session that was asked, the advisory lock is given back, too. Over another one the row is
/// freed, and the question is whether the old backend can still grant it.
async fn is_undone(session: &Arc<Session>, asked: &Arc<Session>, key: Key, owner: &str) -> bool {
    let same = Arc::ptr_eq(session, asked);
    let old = (!same).then_some(asked.backend.id.as_str());
    let arguments: [&(dyn ToSql + Sync); 7] =
        [&session.backend.pid, &key.two_part, &key.number, &owner, &same, &false, &old];
    match session.call(Function::Release, &arguments).await {
        Ok(rows) => rows.first().is_some_and(|row| get(row, 0) == Some(true) || get(row, 2) != Some(true)),
        // Whoever may not even undo was not granted anything.
        Err(error) => errors::is_denied(&error),
    }
}

/// Tells the server that `owner` does not wait any more. If that fails, its entry and what was granted
/// to it end by themselves.
async fn leave(client: &Arc<Client>, asked: &Arc<Session>, key: Key, channel: &str, owner: &str) {
    let (end, mut backoff) = (client.clock.now().plus(LISTED), undo_backoff());
    while client.clock.now() < end {
        match try_leave(client, asked, key, channel, owner).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "leaving the queue failed"),
        }
        backoff.sleep().await;
    }
}

/// `false`: somebody has locked the row.
async fn try_leave(
    client: &Arc<Client>,
    asked: &Arc<Session>,
    key: Key,
    channel: &str,
    owner: &str,
) -> Result<bool> {
    let session = if asked.is_usable() { asked.clone() } else { client.session().await? };
    let arguments: [&(dyn ToSql + Sync); 5] =
        [&session.backend.pid, &key.two_part, &key.number, &channel, &owner];
    let found = client.call(&session, Function::Leave, &arguments).await?;
    Ok(found.and_then(|row| get(&row, 0)) != Some(false))
}
