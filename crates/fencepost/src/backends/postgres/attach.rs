//! Locks by their handles: one statement each, on condition of owner and token. What outlives its session has nobody who
//! would notice that a crash of the server took it back, so it is on disk before it is told.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::hold::why;
use super::hub::{Hub, milliseconds};
use super::key::Key;
use super::session::{Bond, Session};
use super::wire::get;
use crate::backend::{Grant, Hold, Renewal, Request};
use crate::{Error, FencingToken, Handle, Loss, Owner, Result};

type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

impl Hub {
    /// Calls a function of the schema about a lock and its owner, over a session. Sent at the first poll.
    async fn call_over(
        self: &Arc<Self>,
        session: &Arc<Session>,
        function: &str,
        (key, owner): (Key, Owner),
        more: &[Argument<'_>],
    ) -> Result<Option<Row>> {
        let owner = owner.to_string();
        let mut arguments: Vec<Argument<'_>> = vec![
            (&session.pid, Type::INT4),
            (&key.two_part, Type::BOOL),
            (&key.number, Type::INT8),
            (&owner, Type::TEXT),
        ];
        arguments.extend(more.iter().cloned());
        let places: Vec<_> = (1..=arguments.len()).map(|place| format!("${place}")).collect();
        let sql = self.config.sql(&format!("SELECT * FROM @schema@.{function}({})", places.join(", ")));
        let rows = session.ask_once(&self.clock, &sql, &arguments).await;
        Ok(rows.map_err(|error| self.config.trouble(error))?.into_iter().next())
    }

    /// The same, within the store's timeout.
    async fn call(
        self: &Arc<Self>,
        session: &Arc<Session>,
        function: &str,
        lock: (Key, Owner),
        more: &[Argument<'_>],
    ) -> Result<Option<Row>> {
        let sent = self.clock.now();
        let answer = self.in_time(self.call_over(session, function, lock, more)).await;
        if answer.is_err() {
            self.suspect(session, sent);
        }
        answer?
    }

    /// Turns a held lock into a lease alone: `None`, or how it was lost.
    pub(super) async fn detach(
        self: &Arc<Self>,
        session: &Arc<Session>,
        bond: &Bond,
        term: Duration,
        unlock: bool,
    ) -> Result<Option<Loss>> {
        let term = milliseconds(term);
        let more: [Argument<'_>; 3] =
            [(&term, Type::INT8), (&unlock, Type::BOOL), (&session.commit, Type::TEXT)];
        self.verdict(self.call(session, "detach", (bond.key, bond.owner), &more).await?)
    }

    pub(super) async fn attach(self: &Arc<Self>, handle: &Handle, request: &Request) -> Result<Grant> {
        let name = handle.name();
        let lock = self.lock_of(handle);
        let session = self.session().await?;
        let sent = self.clock.now();
        let heir = Heir {
            owner: request.owner(),
            ttl: request.ttl,
            note: &request.note,
            channel: Some(&self.channel),
        };
        let mut undo = Undo::new(self, &session, handle, request);
        let answer = self.in_time(self.hand_on(&session, lock, handle.token(), heir)).await;
        if answer.is_err() {
            self.suspect(&session, sent);
        }
        let lost = answer??;
        undo.armed = false;
        if let Some(why) = lost {
            return Err(Error::lost(name, why));
        }
        let until = sent.plus(request.ttl);
        let bond =
            Bond::new(lock.0, name.clone(), request.owner(), request.signal.clone(), None, None, until);
        Ok(Grant {
            identity: request.identity,
            token: handle.token(),
            sent,
            term: Some(request.ttl),
            pushed: false,
            hold: Attached::new(self, bond, handle.token()),
        })
    }

    async fn hand_on(
        self: &Arc<Self>,
        session: &Arc<Session>,
        lock: (Key, Owner),
        token: FencingToken,
        heir: Heir<'_>,
    ) -> Result<Option<Loss>> {
        let (token, owner, term) = (number(token), heir.owner.to_string(), milliseconds(heir.ttl));
        let (host, process) = (crate::identity::host(), std::process::id().cast_signed());
        let more: [Argument<'_>; 8] = [
            (&token, Type::INT8),
            (&owner, Type::TEXT),
            (&term, Type::INT8),
            (&host, Type::TEXT),
            (&process, Type::INT4),
            (&heir.note, Type::TEXT),
            (&heir.channel, Type::TEXT),
            (&session.commit, Type::TEXT),
        ];
        self.verdict(self.call_over(session, "attach", lock, &more).await?)
    }

    pub(super) async fn renew_detached(self: &Arc<Self>, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.renew_lease(self.lock_of(handle), handle.token(), term).await
    }

    async fn renew_lease(
        self: &Arc<Self>,
        lock: (Key, Owner),
        token: FencingToken,
        term: Duration,
    ) -> Result<Renewal> {
        let session = self.session().await?;
        let (token, term_ms) = (number(token), milliseconds(term));
        let more: [Argument<'_>; 3] =
            [(&token, Type::INT8), (&term_ms, Type::INT8), (&session.commit, Type::TEXT)];
        let sent = self.clock.now();
        let row = self.call(&session, "renew_detached", lock, &more).await?;
        Ok(match self.verdict(row)? {
            None => Renewal::Renewed { sent, term: Some(term) },
            Some(why) => Renewal::Lost(why),
        })
    }

    pub(super) async fn release_detached(self: &Arc<Self>, handle: &Handle) -> Result<bool> {
        self.release_lease(self.lock_of(handle), handle.token()).await
    }

    async fn release_lease(self: &Arc<Self>, lock: (Key, Owner), token: FencingToken) -> Result<bool> {
        let (session, token) = (self.session().await?, number(token));
        let more: [Argument<'_>; 2] = [(&token, Type::INT8), (&session.commit, Type::TEXT)];
        let row = self.call(&session, "release_detached", lock, &more).await?;
        self.queue.hint(lock.0);
        Ok(row.and_then(|row| get(&row, 0)).unwrap_or(false))
    }

    fn lock_of(&self, handle: &Handle) -> (Key, Owner) {
        (Key::of(&self.config.schema, handle.name().as_str()), handle.owner())
    }

    /// How a lock was lost, if it was.
    fn verdict(&self, row: Option<Row>) -> Result<Option<Loss>> {
        let row = row.ok_or_else(|| self.config.unavailable("an answer without a row"))?;
        Ok(get::<&str>(&row, 0).map(|found| why(Some(found), get(&row, 1))))
    }
}

/// An attached lock: a lease that ends with no session. Its guard lives through a crash of the server, so the
/// server has on disk whatever it has told the guard.
#[derive(Debug)]
struct Attached {
    hub: Arc<Hub>,
    /// Known to the store, which hears of revocations.
    bond: Arc<Bond>,
    token: FencingToken,
    /// It is left to whoever attaches it next: a release that comes later must not touch it.
    detached: Mutex<bool>,
}

impl Attached {
    fn new(hub: &Arc<Hub>, bond: Arc<Bond>, token: FencingToken) -> Arc<Self> {
        hub.bonds.insert(&bond, hub.clock.now());
        Arc::new(Self { hub: hub.clone(), bond, token, detached: Mutex::default() })
    }

    fn lock(&self) -> (Key, Owner) {
        (self.bond.key, self.bond.owner)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.hub.bonds.remove(&self.bond);
    }
}

#[async_trait]
impl Hold for Attached {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let renewal = self.hub.renew_lease(self.lock(), self.token, term);
        self.hub.within(self.hub.patience(term), renewal).await?
    }

    async fn release(&self) -> Result<bool> {
        let detached = self.detached.lock().await;
        if *detached {
            return Ok(true);
        }
        self.hub.release_lease(self.lock(), self.token).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let mut detached = self.detached.lock().await;
        let renewal = self.hub.renew_lease(self.lock(), self.token, term).await?;
        *detached = matches!(renewal, Renewal::Renewed { .. });
        Ok(renewal)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Who gets a lock.
struct Heir<'a> {
    owner: Owner,
    ttl: Duration,
    note: &'a str,
    channel: Option<&'a str>,
}

/// Makes the handle good again if nobody learns how an attach went: whoever has the handle has the lock.
struct Undo {
    hub: Arc<Hub>,
    session: Arc<Session>,
    from: (Key, Owner),
    to: Owner,
    token: FencingToken,
    ttl: Duration,
    armed: bool,
}

impl Undo {
    fn new(hub: &Arc<Hub>, session: &Arc<Session>, handle: &Handle, request: &Request) -> Self {
        let (key, to) = hub.lock_of(handle);
        let (hub, session, from) = (hub.clone(), session.clone(), (key, request.owner()));
        Self { hub, session, from, to, token: handle.token(), ttl: request.ttl, armed: true }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (hub, asked, from, to) = (self.hub.clone(), self.session.clone(), self.from, self.to);
        let (token, ttl) = (self.token, self.ttl);
        let mut undo = Box::pin(async move {
            // Lengthens nothing.
            let heir = || Heir { owner: to, ttl: Duration::ZERO, note: "", channel: None };
            let mut done = hub.hand_on(&asked, from, token, heir()).await.is_ok();
            let mut pause = Duration::from_millis(20);
            while !done && pause < ttl {
                tokio::time::sleep(pause).await;
                pause *= 2;
                // The session that was asked is gone. It may carry the attach out yet, so this looks until it finds it.
                if let Ok(session) = hub.session().await {
                    done = matches!(hub.hand_on(&session, from, token, heir()).await, Ok(None));
                }
            }
            hub.close_again();
        });
        // Sent here and now: before whatever is asked next over the same session.
        if undo.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.hub.background.spawn(&self.hub.keeper(), undo);
        }
    }
}

/// A token below 2^53 is a `bigint`.
fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}
