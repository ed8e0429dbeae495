//! A lock held on PostgreSQL: how it is renewed, looked after and given back.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_postgres::Row;

use super::hub::{Hub, milliseconds};
use super::session::{Bond, Session};
use crate::backend::{Hold, Renewal, lock};
use crate::backends::batch::Batches;
use crate::{Loss, Result};

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
        let bound = bond.bound().filter(|session| session.is_usable() && bond.advisory).cloned();
        let Some(session) = bound else {
            let renewal = self.renew(term).await?;
            if matches!(renewal, Renewal::Renewed { .. }) {
                // It does not end with the session any more, and is nobody's here.
                bond.give_up();
                hub.bonds.remove(bond);
            }
            return Ok(renewal);
        };
        let sent = hub.clock.now();
        // Before the request is on its way: a release that follows must not give back what this one does.
        bond.give_up();
        let (owner, term_ms) = (bond.owner.to_string(), milliseconds(term));
        let key = bond.key;
        let arguments: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&session.pid, &key.two_part, &key.number, &owner, &term_ms];
        let rows = hub.in_time(session.ask(&hub.clock, &session.statements.detach, &arguments)).await;
        match rows {
            Ok(Ok(rows)) if rows.first().is_some_and(|row| row.get(0)) => {
                hub.bonds.remove(bond);
                hub.queue.hint(key);
                Ok(Renewal::Renewed { sent, term: Some(term) })
            }
            Ok(Ok(_)) => {
                hub.bonds.keep(bond, hub.clock.now());
                self.renew(term).await
            }
            Ok(Err(error)) => {
                hub.bonds.keep(bond, hub.clock.now());
                Err(hub.config.trouble(error))
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
    let unlock = given_up && bond.advisory;
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
    if row.get::<_, Option<&str>>(1).is_none() {
        // Nobody is on the list, but somebody of this process may be about to.
        hub.queue.hint(key);
    }
    Ok(row.get(0))
}

/// Renewals that go to the server together.
pub(super) type Renewals = Batches<Waiting>;

#[derive(Debug)]
pub(super) struct Waiting {
    bond: Arc<Bond>,
    term: Duration,
    result: oneshot::Sender<Result<Renewal>>,
}

/// Sends a batch: all locks of one session, and those that are leases alone, in one request.
async fn send(hub: Arc<Hub>, mut batch: Vec<Waiting>) {
    while !batch.is_empty() {
        let bound = batch.iter().find_map(|one| one.bond.session.clone());
        let (now, later) = batch.into_iter().partition(|one| {
            one.bond.session.is_none() || bound.as_ref().is_some_and(|session| one.bond.is_on(session))
        });
        batch = later;
        let session = match bound {
            Some(session) => Ok(session),
            None => hub.session().await,
        };
        match session {
            Ok(session) => send_over(&hub, &session, now).await,
            Err(error) => {
                let text = error.to_string();
                fail(&hub, now, &text);
            }
        }
    }
}

fn fail(hub: &Hub, batch: Vec<Waiting>, text: &str) {
    for one in batch {
        let _ = one.result.send(Err(hub.config.unavailable(text.to_owned())));
    }
}

async fn send_over(hub: &Arc<Hub>, session: &Arc<Session>, batch: Vec<Waiting>) {
    let (live, ended): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .partition(|one| one.bond.session.is_none() || (session.is_usable() && one.bond.bound().is_some()));
    let why = if session.is_usable() { Loss::Expired } else { Loss::SessionEnded };
    for one in ended {
        let _ = one.result.send(Ok(Renewal::Lost(why.clone())));
    }
    let Some(shortest) = live.iter().map(|one| one.term).min() else { return };
    if !session.is_usable() {
        return fail(hub, live, "the session has ended");
    }
    let sent = hub.clock.now();
    let bonds: Vec<_> = live.iter().map(|one| one.bond.clone()).collect();
    let terms: Vec<_> = live.iter().map(|one| Some(milliseconds(one.term))).collect();
    // Late answers are worthless.
    let limit = hub.config.timeout.min((shortest / 3).max(Duration::from_millis(20)));
    let losses = match tokio::time::timeout(limit, ask(hub, session, &bonds, &terms)).await {
        Ok(Ok(losses)) => losses,
        Ok(Err(text)) => return fail(hub, live, &text),
        Err(_) => {
            hub.suspect(session, sent);
            return fail(hub, live, &format!("no answer within {}", crate::format_duration(limit)));
        }
    };
    for (one, loss) in live.into_iter().zip(losses) {
        let renewal = match loss {
            Some(why) => Renewal::Lost(why),
            None => {
                let mut until = lock(&one.bond.until);
                *until = (*until).max(sent.plus(one.term));
                Renewal::Renewed { sent, term: Some(one.term) }
            }
        };
        let _ = one.result.send(Ok(renewal));
    }
}

/// Asks the server whether the locks of a session are still there, without renewing them.
pub(super) fn look_after(hub: &Arc<Hub>, session: &Arc<Session>, bonds: Vec<Arc<Bond>>) {
    let (hub, session) = (hub.clone(), session.clone());
    hub.keeper().spawn(async move {
        let sent = hub.clock.now();
        let terms = vec![None; bonds.len()];
        match hub.in_time(ask(&hub, &session, &bonds, &terms)).await {
            Ok(Ok(losses)) => {
                for (bond, loss) in bonds.iter().zip(losses) {
                    if let Some(why) = loss {
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

/// Renews locks, or looks after them where there is no term. Says of each how it was lost, if it was.
async fn ask(
    hub: &Arc<Hub>,
    session: &Arc<Session>,
    bonds: &[Arc<Bond>],
    terms: &[Option<i64>],
) -> Result<Vec<Option<Loss>>, String> {
    let two_parts: Vec<bool> = bonds.iter().map(|bond| bond.key.two_part).collect();
    let keys: Vec<i64> = bonds.iter().map(|bond| bond.key.number).collect();
    let owners: Vec<String> = bonds.iter().map(|bond| bond.owner.to_string()).collect();
    let bound: Vec<bool> = bonds.iter().map(|bond| bond.advisory).collect();
    let arguments: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&session.pid, &two_parts, &keys, &owners, &terms, &bound, &hub.channel];
    let rows = session.ask(&hub.clock, &session.statements.renew, &arguments).await;
    let rows = rows.map_err(|error| hub.config.trouble(error).to_string())?;
    let mut losses = vec![None; bonds.len()];
    for row in rows {
        let place = usize::try_from(row.get::<_, i32>(0)).unwrap_or(0).wrapping_sub(1);
        if let (Some(loss), Some(bond)) = (losses.get_mut(place), bonds.get(place)) {
            let why = why(&row);
            match why {
                // It is not there to be given back.
                Loss::SessionEnded => drop(bond.give_up()),
                // The guard lets go when it has stopped its work.
                Loss::ForceReleased { .. } => {}
                _ => give_back(hub, bond),
            }
            *loss = Some(why);
        }
    }
    Ok(losses)
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

fn why(row: &Row) -> Loss {
    match row.get(1) {
        "unlocked" => Loss::SessionEnded,
        "revoked" => Loss::ForceReleased { reason: row.get::<_, Option<String>>(2).unwrap_or_default() },
        "ended" => Loss::Expired,
        _ => Loss::Taken,
    }
}
