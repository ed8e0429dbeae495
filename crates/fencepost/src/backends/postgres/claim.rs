//! One attempt to acquire, from before its first byte is sent until it is a hold. Dropped before that, it undoes
//! itself: the release goes over the same connection, right behind what it undoes.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::hold::Held;
use super::hub::{Hub, milliseconds};
use super::key::Key;
use super::queue::Place;
use super::session::{Bond, Session, Slot};
use super::trouble;
use super::wire::get;
use crate::backend::{Grant, Request, WaitObservation};
use crate::runtime::background::Spawned;
use crate::runtime::clock::Moment;
use crate::wait::jittered;
use crate::{Error, FencingToken, Holder, Name, Result};

/// How long a waiter sleeps at most before it asks again: while a lease holds the lock (its release is told), while a
/// session without a lease does (nobody tells), and while it changes hands.
const RECHECK: Duration = Duration::from_secs(1);
const RECHECK_FOREIGN: Duration = Duration::from_millis(250);
const RECHECK_MOVING: Duration = Duration::from_millis(50);

/// How long the server keeps a waiter on its list. A release grants the lock for what is left of that.
const LISTED: Duration = Duration::from_secs(3);

pub(super) struct Claim {
    hub: Arc<Hub>,
    request: Request,
    key: Key,
    owner: String,
    place: Option<Place>,
    /// The session that a request is under way on, and the advisory lock that it may get there.
    asked: Option<(Arc<Session>, Option<Slot>)>,
    /// The last answer that the lock is held by somebody else.
    listed: Option<Listed>,
}

/// How a waiter came onto the server's list.
struct Listed {
    session: Arc<Session>,
    sent: Moment,
    until: i64,
}

/// What the server said to a request for the lock.
pub(super) enum Said {
    Granted(Grant),
    Busy { holder: Holder, again_in: Duration },
}

impl Claim {
    pub(super) fn new(hub: &Arc<Hub>, request: &Request) -> Self {
        let key = Key::of(&hub.config.schema, request.name.as_str());
        let (hub, owner) = (hub.clone(), request.owner().to_string());
        Self { hub, request: request.clone(), key, owner, place: None, asked: None, listed: None }
    }

    /// Asks for the lock once.
    pub(super) async fn ask(&mut self) -> Result<Said> {
        let hub = self.hub.clone();
        let config = &hub.config;
        let session = hub.session().await?;
        let channel = self.place.as_ref().map(|_| hub.channel.as_str());
        let listed = self.place.as_ref().is_some_and(Place::is_listed);
        if let Some(place) = &self.place {
            place.ask_as(self.request.owner());
        }
        // Code that knows the key sees advisory locks alone, and a lease that shall end with its session has to be of one.
        let is_key = self.request.name.as_str().starts_with("pg:");
        let push = config.delay && !config.durable && !is_key;
        let slot = session.room.take(is_key);
        if is_key && slot.is_none() {
            return Err(self.no_room(&session));
        }
        let (name, advisory) = (self.request.name.as_str(), slot.is_some());
        let (term, host) = (milliseconds(self.request.ttl), crate::identity::host());
        let (process, note) = (std::process::id().cast_signed(), &*self.request.note);
        let Key { two_part, number } = self.key;
        let arguments: [&(dyn ToSql + Sync); 17] = [
            &session.pid,
            &two_part,
            &number,
            &name,
            &self.owner,
            &term,
            &host,
            &process,
            &note,
            &session.id,
            &hub.channel,
            &config.delay,
            &config.sequence,
            &channel,
            &listed,
            &push,
            &advisory,
        ];
        let limit = config.timeout.min(self.request.ttl);
        let sent = hub.clock.now();
        self.asked = Some((session.clone(), slot));
        let ask = session.ask(&hub.clock, &session.statements.acquire, &arguments);
        let row = match tokio::time::timeout(limit, ask).await {
            Ok(Ok(mut rows)) => rows.pop(),
            // A waiter goes on: whoever has locked the row may be about to give the lock back.
            Ok(Err(error)) if self.place.is_some() && trouble::is_locked(&error) => {
                return Ok(Said::Busy {
                    holder: Holder::unknown(self.request.name.clone()),
                    again_in: jittered(RECHECK),
                });
            }
            Ok(Err(error)) => return Err(self.refused(&session, error)),
            Err(_) => {
                hub.suspect(&session, sent);
                return Err(config.unavailable(format!("no answer within {}", crate::format_duration(limit))));
            }
        };
        let Some(row) = row else { return Err(config.unavailable("an answer without a row")) };
        match get(&row, 0) {
            Some(token) => {
                let pushed = get(&row, 1) == Some("pushed");
                self.granted(&session, token, sent, self.request.ttl, pushed).map(Said::Granted)
            }
            None => {
                self.asked = None;
                self.listed = get(&row, 11).map(|until| Listed { session, sent, until });
                self.busy(&row)
            }
        }
    }

    /// A key of other code needs an advisory lock: that is all such code sees.
    fn no_room(&self, session: &Session) -> Error {
        Error::config(format!(
            "{}: this process has {} advisory locks, a quarter of what the server has room for, and `{}` needs one \
             more; raise `max_locks_per_transaction` there",
            self.hub.config.label,
            session.room.quota(),
            self.request.name
        ))
    }

    /// The request failed. It is undone even if the server has refused it: a session's lock survives a commit that fails.
    fn refused(&self, session: &Session, error: tokio_postgres::Error) -> Error {
        if session.is_usable() && error.as_db_error().is_some() {
            return self.hub.config.trouble(error);
        }
        // A new attempt under a new identity may be made at once; this one is undone.
        match self.hub.config.trouble(error) {
            Error::Unavailable { source, .. } => Error::Uncertain { name: self.request.name.clone(), source },
            other => other,
        }
    }

    fn busy(&self, row: &Row) -> Result<Said> {
        let (wanted, found) = (self.request.name.as_str(), get::<&str>(row, 2));
        let is_live = get::<i64>(row, 9) > Some(0);
        if let Some(found) = found.filter(|found| *found != wanted && is_live) {
            return Err(Error::config(format!(
                "the names `{wanted}` and `{found}`, which is held, have the same 64-bit key {}; rename one of them",
                self.key.number
            )));
        }
        let holder = holder(&self.request.name, row);
        let again_in = match get(row, 1).unwrap_or_default() {
            // One millisecond more: the lease lives to the end of its last one.
            "held" => jittered(RECHECK).min(holder.expires_in.unwrap_or(RECHECK) + Duration::from_millis(1)),
            "foreign" => jittered(RECHECK_FOREIGN),
            _ => jittered(RECHECK_MOVING),
        };
        Ok(Said::Busy { holder, again_in })
    }

    /// Waits until the lock is ours: at the server, or behind others of this process who wait there.
    pub(super) async fn acquire(mut self) -> Result<Grant> {
        self.place = Some(self.hub.queue.join(self.key));
        let pause = match self.ask_in_turn().await? {
            Turn::Granted(grant) => return Ok(grant),
            Turn::Wait(pause) => pause,
        };
        // The rest on the keeper's thread, where news arrive: they need not go through the caller's to become a request.
        let (hub, key, seen) = (self.hub.clone(), self.key, self.request.seen.clone());
        let task = hub.background.carry_out(&hub.keeper(), async move {
            let hub = self.hub.clone();
            self.wait(pause).await.map(|grant| Fresh { hub, grant: Some(grant) })
        });
        let mut waiting = Waiting { task, hub, key, seen };
        match (&mut waiting.task).await {
            Some(granted) => granted?.take(),
            None => Err(Error::Unavailable {
                store: "(this process)".to_owned(),
                source: "the thread that waits has ended".into(),
            }),
        }
    }

    async fn wait(mut self, mut pause: Option<Duration>) -> Result<Grant> {
        loop {
            let Some(place) = &self.place else { return Err(self.hub.config.unavailable("nobody waits")) };
            match pause {
                Some(pause) => drop(tokio::time::timeout(pause, place.news()).await),
                None => place.news().await,
            }
            if let Some(grant) = self.take_pushed() {
                return grant;
            }
            match self.ask_in_turn().await? {
                Turn::Granted(grant) => return Ok(grant),
                Turn::Wait(next) => pause = next,
            }
        }
    }

    /// Takes what a release has granted. It ends with the entry that the server made for the last request, so it counts from that
    /// one's send; what was granted for an earlier entry, or has not much left, is asked for.
    fn take_pushed(&mut self) -> Option<Result<Grant>> {
        let push = self.place.as_ref()?.take_pushed()?;
        let term = LISTED.min(self.request.ttl);
        let now = self.hub.clock.now();
        let Listed { session, sent, .. } = self.listed.take_if(|listed| {
            push.owner == self.request.owner()
                && push.until == listed.until
                && now < listed.sent.plus(term / 2)
        })?;
        Some(self.granted(&session, push.token, sent, term, true))
    }

    /// Asks, if this is the first of those who wait here.
    async fn ask_in_turn(&mut self) -> Result<Turn> {
        if !self.place.as_ref().is_some_and(Place::is_first) {
            return Ok(Turn::Wait(None));
        }
        match self.ask().await? {
            Said::Granted(grant) => Ok(Turn::Granted(grant)),
            Said::Busy { holder, again_in } => {
                if let Some(place) = &self.place {
                    place.list(true);
                    // Whom nobody can name is no news to those who have seen somebody.
                    if is_named(&holder) || place.seen().is_none() {
                        place.saw(&holder);
                        self.request.seen.note(holder);
                    }
                }
                Ok(Turn::Wait(Some(again_in)))
            }
        }
    }

    /// The lock is ours: hands everything over to a hold.
    fn granted(
        &mut self,
        session: &Arc<Session>,
        token: i64,
        sent: Moment,
        term: Duration,
        pushed: bool,
    ) -> Result<Grant> {
        let token = u64::try_from(token).ok().and_then(FencingToken::new).ok_or_else(|| Error::Backend {
            store: self.hub.config.label.clone(),
            source: format!("{token} is not a token").into(),
        })?;
        let Request { name, identity, signal, .. } = &self.request;
        let owner = identity.owner();
        let (session, until) = (Some(session.clone()), sent.plus(term));
        let slot = self.asked.take().and_then(|(_, slot)| slot).filter(|_| !pushed);
        let bond = Bond::new(self.key, name.clone(), owner, signal.clone(), session, slot, until);
        let hold = Held::new(&self.hub, bond);
        if let Some(place) = self.place.take() {
            place.list(false);
            place.leave(owner);
        }
        Ok(Grant { identity: *identity, token, sent, term: Some(term), pushed, hold })
    }
}

fn is_named(holder: &Holder) -> bool {
    holder.owner.is_some() || holder.note.is_some()
}

/// What asking came to: the lock, or a pause until it is time to ask again; none behind others who will.
enum Turn {
    Granted(Grant),
    Wait(Option<Duration>),
}

/// A task that ends with whoever waits for it.
struct Waiting {
    task: Spawned<Result<Fresh>>,
    hub: Arc<Hub>,
    key: Key,
    seen: Arc<WaitObservation>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Who waited behind others has not asked itself. Here and not in the task, which ends later than the caller goes on.
        if !self.task.is_finished()
            && let Some(holder) = self.hub.queue.seen(self.key)
        {
            self.seen.note(holder);
        }
        self.task.abort();
    }
}

/// A grant on its way to the caller. If that is gone, it is given back.
struct Fresh {
    hub: Arc<Hub>,
    grant: Option<Grant>,
}

impl Fresh {
    fn take(mut self) -> Result<Grant> {
        self.grant.take().ok_or_else(|| self.hub.config.unavailable("the lock went to somebody else"))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        self.hub.background.spawn(&self.hub.keeper(), async move {
            if let Err(error) = grant.hold.release().await {
                tracing::debug!(%error, "giving back a lock that nobody waits for failed");
            }
        });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (hub, key) = (self.hub.clone(), self.key);
        if let Some(place) = self.place.take()
            && place.leave(self.request.owner())
        {
            leave(&hub, key, self.owner.clone());
        }
        if let Some((session, slot)) = self.asked.take() {
            let (owner, ttl) = (self.owner.clone(), self.request.ttl);
            self.hub.background.spawn(&self.hub.keeper(), async move {
                undo(&hub, &session, key, &owner, ttl).await;
                drop(slot);
                hub.close_again();
            });
        }
    }
}

/// Tells the server that `owner` does not wait any more. If that fails, its entry and what was granted to it end by themselves.
fn leave(hub: &Arc<Hub>, key: Key, owner: String) {
    let Some(session) = hub.current() else { return };
    let (keeper, background, hub) = (hub.keeper(), hub.background.clone(), hub.clone());
    let mut leaving = Box::pin(async move {
        let mut pause = Duration::from_millis(20);
        while pause < LISTED {
            let arguments: [&(dyn ToSql + Sync); 5] =
                [&session.pid, &key.two_part, &key.number, &hub.channel, &owner];
            match session.ask(&hub.clock, &session.statements.leave, &arguments).await {
                Ok(rows) if rows.first().is_none_or(|row| get(row, 0).unwrap_or(true)) => return,
                Ok(_) => tokio::time::sleep(pause).await,
                Err(error) => return tracing::debug!(%error, "leaving the queue failed"),
            }
            pause *= 2;
        }
    });
    // Sent here and now: the store may be closed next.
    if leaving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        background.spawn(&keeper, leaving);
    }
}

/// Undoes a request whose answer nobody waits for.
async fn undo(hub: &Arc<Hub>, asked: &Arc<Session>, key: Key, owner: &str, ttl: Duration) {
    let mut pause = Duration::from_millis(20);
    while pause < ttl * 2 {
        let session = if asked.is_usable() { Ok(asked.clone()) } else { hub.session().await };
        if let Ok(session) = session {
            let same = Arc::ptr_eq(&session, asked);
            // On the session that was asked, the advisory lock is given back, too. On another one, the row is freed, and the
            // question is whether the old backend can still grant it.
            let (unlock, old) = if same { (true, None) } else { (false, Some(asked.id.as_str())) };
            let arguments: [&(dyn ToSql + Sync); 7] =
                [&session.pid, &key.two_part, &key.number, &owner, &unlock, &false, &old];
            match session.ask(&hub.clock, &session.statements.release, &arguments).await {
                Ok(rows) => {
                    if let Some(row) = rows.first()
                        && (get(row, 0).unwrap_or(false) || !get(row, 2).unwrap_or(false))
                    {
                        if get::<&str>(row, 1).is_none() {
                            hub.queue.hint(key);
                        }
                        return;
                    }
                }
                // Whoever may not even undo was not granted anything.
                Err(error) if trouble::is_denied(&error) => return,
                Err(_) => {}
            }
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// Who a row says holds the lock: columns 2 to 10 of what `acquire` returns. Whoever may write to the table may have
/// written anything: what makes no sense is left out.
pub(super) fn holder(name: &Name, row: &Row) -> Holder {
    let mut holder = Holder::unknown(name.clone());
    let number = |column| get::<i64>(row, column).and_then(|number| u64::try_from(number).ok());
    holder.note = get::<String>(row, 7).filter(|note| !note.is_empty());
    holder.owner = get::<&str>(row, 3).and_then(|owner| owner.parse().ok());
    if holder.owner.is_none() {
        return holder;
    }
    holder.revoked = get(row, 10);
    holder.token = number(4).and_then(FencingToken::new);
    holder.host = get(row, 5);
    holder.pid = get(row, 6).and_then(|pid: i32| u32::try_from(pid).ok());
    holder.since =
        number(8).and_then(|since| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since)));
    holder.expires_in = number(9).map(Duration::from_millis);
    holder
}
