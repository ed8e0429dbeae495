//! A lock held on PostgreSQL: how it is renewed, looked after and given back.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::hub::{Hub, milliseconds};
use super::session::{Bond, Session};
use super::wire::get;
use crate::backend::{Hold, Renewal};
use crate::backends::common::batch::Batches;
use crate::runtime::sync::lock;
use crate::{Error, Loss, Result};

#[derive(Debug)]
pub(super) struct Held {
    hub: Arc<Hub>,
    bond: Arc<Bond>,
}

impl Held {
    /// From here on the lock is looked after.
    pub(super) fn new(hub: &Arc<Hub>, bond: Arc<Bond>) -> Arc<Self> {
        hub.bonds.insert(&bond, hub.clock.now());
        Arc::new(Self { hub: hub.clone(), bond })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hub.bonds.remove(&self.bond);
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let (result, answer) = oneshot::channel();
        let hub = self.hub.clone();
        self.hub.renewals.send(Waiting { bond: self.bond.clone(), term, result }, move |batch| {
            hub.keeper().spawn(send(hub.clone(), batch));
        });
        answer.await.unwrap_or_else(|_| Err(self.hub.config.unavailable("the thread that renews has ended")))
    }

    async fn release(&self) -> Result<bool> {
        release(&self.hub, &self.bond).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let (bond, hub) = (&self.bond, &self.hub);
        let Some(session) = bond.session.clone().filter(|session| session.is_usable()) else {
            return Ok(Renewal::Lost(Loss::SessionEnded));
        };
        let sent = hub.clock.now();
        // Before the request is on its way: a release that follows must not give back what this one does.
        let unlock = bond.give_up() && bond.is_advisory();
        match self.hub.detach(&session, bond, term, unlock).await {
            Ok(None) => {
                hub.bonds.remove(bond);
                hub.queue.hint(bond.key);
                Ok(Renewal::Renewed { sent, term: Some(term) })
            }
            Ok(Some(why)) => {
                hub.bonds.keep(bond, hub.clock.now());
                Ok(Renewal::Lost(why))
            }
            Err(error) => {
                hub.bonds.keep(bond, hub.clock.now());
                Err(error)
            }
        }
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Gives a lock back: `true` if it was still ours.
pub(super) async fn release(hub: &Arc<Hub>, bond: &Arc<Bond>) -> Result<bool> {
    let bound = bond.bound().filter(|session| session.is_usable()).cloned();
    let session = match &bound {
        Some(session) => session.clone(),
        None => hub.session().await?,
    };
    let given_up = bound.is_some() && bond.give_up();
    let unlock = given_up && bond.is_advisory();
    let (sent, owner, key) = (hub.clock.now(), bond.owner.to_string(), bond.key);
    let ended = bond.until() <= sent;
    let arguments: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&session.pid, &key.two_part, &key.number, &owner, &unlock, &ended, &None::<&str>];
    let asked = hub.in_time(session.ask(&hub.clock, &session.statements.release, &arguments)).await;
    if given_up && !matches!(asked, Ok(Ok(_))) {
        hub.bonds.keep(bond, hub.clock.now());
    }
    let rows = match asked {
        Ok(rows) => rows.map_err(|error| hub.config.trouble(error))?,
        Err(error) => {
            hub.suspect(&session, sent);
            return Err(error);
        }
    };
    hub.bonds.remove(bond);
    let Some(row) = rows.first() else { return Ok(false) };
    if get::<&str>(row, 1).is_none() {
        // Nobody is on the list, but somebody of this process may be about to.
        hub.queue.hint(key);
    }
    Ok(get(row, 0).unwrap_or(false))
}

/// Renewals that go to the server together.
pub(super) type Renewals = Batches<Waiting>;

#[derive(Debug)]
pub(super) struct Waiting {
    bond: Arc<Bond>,
    term: Duration,
    result: oneshot::Sender<Result<Renewal>>,
}

/// Sends a batch: all locks of one session in one request.
async fn send(hub: Arc<Hub>, mut batch: Vec<Waiting>) {
    while let Some(session) = batch.first().and_then(|one| one.bond.session.clone()) {
        let (now, later) = batch.into_iter().partition(|one| one.bond.is_on(&session));
        batch = later;
        let locked = send_over(&hub, &session, now).await;
        if !locked.is_empty() {
            hub.keeper().spawn(send_again(hub.clone(), session, locked));
        }
    }
}

/// Renews those whose row somebody has locked, apart from the rest. Most rows are locked for a moment only.
async fn send_again(hub: Arc<Hub>, session: Arc<Session>, mut batch: Vec<Waiting>) {
    let (start, mut pause) = (hub.clock.now(), Duration::from_millis(5));
    while let Some(limit) = patience(&hub, &batch) {
        if hub.clock.now().since(start) + pause > limit {
            for one in batch {
                let why = format!("somebody has locked the row of lock `{}`", one.bond.name);
                let _ = one.result.send(Err(hub.config.unavailable(why)));
            }
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
        batch = send_over(&hub, &session, batch).await;
    }
}

/// How long the renewals of a batch can wait. `None` for none.
fn patience(hub: &Hub, batch: &[Waiting]) -> Option<Duration> {
    batch.iter().map(|one| one.term).min().map(|shortest| hub.patience(shortest))
}

fn fail(batch: Vec<Waiting>, error: &Error) {
    for one in batch {
        let _ = one.result.send(Err(error.copy()));
    }
}

/// Returns those whose row somebody has locked.
async fn send_over(hub: &Arc<Hub>, session: &Arc<Session>, batch: Vec<Waiting>) -> Vec<Waiting> {
    let (live, ended): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|one| session.is_usable() && one.bond.bound().is_some());
    let why = if session.is_usable() { Loss::Expired } else { Loss::SessionEnded };
    for one in ended {
        let _ = one.result.send(Ok(Renewal::Lost(why.clone())));
    }
    let Some(limit) = patience(hub, &live) else { return Vec::new() };
    let sent = hub.clock.now();
    let bonds: Vec<_> = live.iter().map(|one| one.bond.clone()).collect();
    let terms: Vec<_> = live.iter().map(|one| Some(milliseconds(one.term))).collect();
    let answer = tokio::time::timeout(limit, ask(hub, session, &bonds, &terms)).await.unwrap_or_else(|_| {
        hub.suspect(session, sent);
        Err(hub.config.unavailable(format!("no answer within {}", crate::format_duration(limit))))
    });
    let states = match answer {
        Ok(states) => states,
        Err(error) => {
            fail(live, &error);
            return Vec::new();
        }
    };
    let mut locked = Vec::new();
    for (one, state) in live.into_iter().zip(states) {
        let renewal = match state {
            State::Locked => {
                locked.push(one);
                continue;
            }
            State::Lost(why) => Renewal::Lost(why),
            State::Fine => {
                let mut until = lock(&one.bond.until);
                *until = (*until).max(sent.plus(one.term));
                Renewal::Renewed { sent, term: Some(one.term) }
            }
        };
        let _ = one.result.send(Ok(renewal));
    }
    locked
}

/// Asks the server whether the locks of a session are still there, without renewing them.
pub(super) fn look_after(hub: &Arc<Hub>, session: &Arc<Session>, bonds: Vec<Arc<Bond>>) {
    let (hub, session) = (hub.clone(), session.clone());
    hub.keeper().spawn(async move {
        let sent = hub.clock.now();
        let terms = vec![None; bonds.len()];
        match hub.in_time(ask(&hub, &session, &bonds, &terms)).await {
            Ok(Ok(states)) => {
                for (bond, state) in bonds.iter().zip(states) {
                    if let State::Lost(why) = state {
                        bond.signal.raise(why);
                        hub.queue.hint(bond.key);
                    }
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "looking after locks failed"),
            Err(_) => hub.suspect(&session, sent),
        }
    });
}

/// What a lock was found like.
#[derive(Clone)]
enum State {
    Fine,
    Lost(Loss),
    /// Somebody has locked its row.
    Locked,
}

/// Renews locks, or looks after them where there is no term.
async fn ask(
    hub: &Arc<Hub>,
    session: &Arc<Session>,
    bonds: &[Arc<Bond>],
    terms: &[Option<i64>],
) -> Result<Vec<State>> {
    let two_parts: Vec<bool> = bonds.iter().map(|bond| bond.key.two_part).collect();
    let keys: Vec<i64> = bonds.iter().map(|bond| bond.key.number).collect();
    let owners: Vec<String> = bonds.iter().map(|bond| bond.owner.to_string()).collect();
    let bound: Vec<bool> = bonds.iter().map(|bond| bond.is_advisory()).collect();
    let arguments: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
        [&session.pid, &two_parts, &keys, &owners, &terms, &bound];
    let rows = session.ask(&hub.clock, &session.statements.renew, &arguments).await;
    let rows = rows.map_err(|error| hub.config.trouble(error))?;
    let mut states = vec![State::Fine; bonds.len()];
    for row in rows {
        let place = get::<i32>(&row, 0).and_then(|place| usize::try_from(place).ok()).unwrap_or(0);
        let (found, reason) = (get::<&str>(&row, 1), get::<&str>(&row, 2));
        let Some(place) = place.checked_sub(1) else {
            if let Some(locks) = reason.and_then(|locks| locks.parse().ok()) {
                session.room.saw(locks);
            }
            continue;
        };
        let (Some(state), Some(bond)) = (states.get_mut(place), bonds.get(place)) else { continue };
        if found == Some("locked") {
            *state = State::Locked;
            continue;
        }
        let why = why(found, reason);
        match why {
            // It is not there to be given back.
            Loss::SessionEnded => drop(bond.give_up()),
            // The guard lets go when it has stopped its work.
            Loss::ForceReleased { .. } => {}
            _ => give_back(hub, bond),
        }
        *state = State::Lost(why);
    }
    Ok(states)
}

/// Gives a lock back whose lease has ended. Its guard knows that by itself; this lets others have it.
pub(super) fn give_back(hub: &Arc<Hub>, bond: &Arc<Bond>) {
    if bond.bound().is_none() {
        return;
    }
    let (hub, bond) = (hub.clone(), bond.clone());
    hub.keeper().spawn(async move {
        if let Err(error) = release(&hub, &bond).await {
            tracing::debug!(name = %bond.name, %error, "giving an ended lock back failed");
        }
    });
}

/// How the functions of the schema say that a lock was lost.
pub(super) fn why(found: Option<&str>, reason: Option<&str>) -> Loss {
    match found {
        Some("unlocked") => Loss::SessionEnded,
        Some("revoked") => Loss::ForceReleased { reason: reason.unwrap_or_default().to_owned() },
        Some("ended") => Loss::Expired,
        _ => Loss::Taken,
    }
}
