//! Looks after the locks of one session: ends those whose lease has ended, so that others can have them, and asks the
//! server now and then whether the rest are still there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::hold;
use super::hub::Hub;
use super::session::{HEARTBEAT, Session};
use crate::runtime::clock::Moment;
use crate::runtime::keeper::Keeper;

/// How often idle counters are collected.
const COLLECTION: Duration = Duration::from_secs(3600);

/// Starts a warden, which ends with the session or the store.
pub(super) fn start(hub: &Arc<Hub>, keeper: &Keeper, session: &Arc<Session>) {
    let end = session.wire.end();
    let (ending, ended) = (Arc::downgrade(hub), Arc::downgrade(session));
    keeper.spawn(async move {
        end.await;
        if let (Some(hub), Some(session)) = (ending.upgrade(), ended.upgrade()) {
            tracing::debug!(store = %hub.config.label, backend = session.pid, "session ended");
            hub.bonds.end(&session);
            hub.queue.hint_all();
        }
    });
    keeper.spawn(watch(Arc::downgrade(hub), Arc::downgrade(session)));
}

/// What a warden has to remember.
struct Rounds {
    collect_at: Moment,
    check_at: Moment,
    /// There was no lock in the last round.
    idle: bool,
}

async fn watch(hub: Weak<Hub>, session: Weak<Session>) {
    let start = Moment::at(Duration::ZERO);
    let mut rounds = Rounds { collect_at: start, check_at: start, idle: false };
    loop {
        let (clock, alarm, next) = {
            let (Some(hub), Some(session)) = (hub.upgrade(), session.upgrade()) else { return };
            if !session.is_usable() {
                return;
            }
            (hub.clock.clone(), session.alarm.clone(), rounds.round(&hub, &session))
        };
        alarm.rings(&clock, next).await;
    }
}

impl Rounds {
    /// Does what is due, and says when to come again.
    fn round(&mut self, hub: &Arc<Hub>, session: &Arc<Session>) -> Moment {
        let now = hub.clock.now();
        if now >= self.collect_at {
            self.collect_at = now.plus(COLLECTION);
            collect(hub);
        }
        let (ended, live): (Vec<_>, Vec<_>) =
            hub.bonds.on(session).into_iter().partition(|bond| bond.until() <= now);
        for bond in &ended {
            hold::give_back(hub, bond);
        }
        let was_idle = std::mem::replace(&mut self.idle, live.is_empty());
        let Some(next) = live.iter().map(|bond| bond.until()).min() else {
            // One more round: locks that come and go quickly do not set the alarm each time.
            return if was_idle { Moment::NEVER } else { now.plus(HEARTBEAT) };
        };
        if now >= self.check_at {
            self.check_at = now.plus(HEARTBEAT);
            hold::look_after(hub, session, live);
        }
        next.min(self.check_at)
    }
}

fn collect(hub: &Arc<Hub>) {
    let hub = hub.clone();
    hub.keeper().spawn(async move {
        let Ok(wire) = hub.desk().await else { return };
        if let Err(error) = wire.client.batch_execute(&hub.config.sql("SELECT @schema@.collect()")).await {
            tracing::debug!(%error, "collecting idle counters failed");
        }
    });
}
