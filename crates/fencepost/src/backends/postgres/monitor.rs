//! The task that looks after the held locks of one session. It gives back those whose lease has ended, so
//! that others can have them, and asks the server now and then whether the rest are still there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::client::Client;
use super::hold::{self, RowState};
use super::session::Session;

/// How often a session is looked after. Two seconds after the end of a lease, waiters end the session
/// that keeps its advisory lock.
const TICK: Duration = Duration::from_secs(1);

/// Every so many ticks the server is asked for all locks, however long their ttl is.
const HEARTBEAT: u32 = 5;

/// Every so many ticks rows that nobody has used for a day are deleted.
const COLLECTION: u32 = 3600;

/// Looks after a session until it or the client is gone. Waits for no answer: a late one must not keep ended
/// leases from being given back.
pub(super) async fn watch(client: Weak<Client>, session: Weak<Session>) {
    let mut heartbeat: Option<JoinHandle<()>> = None;
    for tick in 0u32.. {
        {
            let (Some(client), Some(session)) = (client.upgrade(), session.upgrade()) else { return };
            if !session.is_usable() {
                return;
            }
            let (keeper, now) = (client.keeper(), client.clock.now());
            if tick % COLLECTION == 0 {
                keeper.spawn(collect(client.clone()));
            }
            for row in client.held.on(&session).into_iter().filter(|row| row.until() <= now) {
                hold::give_back(&client, row, now);
            }
            if tick % HEARTBEAT == 0 && heartbeat.as_ref().is_none_or(JoinHandle::is_finished) {
                heartbeat = Some(keeper.runtime().spawn(ask_for_all(client.clone(), session)));
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Asks the server whether the locks of a session are still there.
async fn ask_for_all(client: Arc<Client>, session: Arc<Session>) {
    let (now, mut live) = (client.clock.now(), client.held.on(&session));
    live.retain(|row| row.until() > now && !row.is_asked());
    if live.is_empty() {
        return;
    }
    let terms = vec![None; live.len()];
    match hold::check_rows(&client, &session, client.config.timeout, &live, &terms).await {
        Ok(states) => {
            for (row, state) in live.iter().zip(states) {
                if let RowState::Lost(why) = state {
                    row.signal.raise(why);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "looking after locks failed"),
    }
}

async fn collect(client: Arc<Client>) {
    let Ok(admin) = client.admin().await else { return };
    if let Err(error) = admin.client.batch_execute(&client.config.sql("SELECT @schema@.collect()")).await {
        tracing::debug!(%error, "deleting idle rows failed");
    }
}
