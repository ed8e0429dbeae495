//! The sessions of one store: one for each ttl, because a lock ends with its session, and a session with its
//! timeout. Most programs use one ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::Config;
use super::driver::OpenSession;
use crate::options::DEFAULT_TTL;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Error, Result, format_duration};

/// More sessions than this are kept only while a lock needs them.
const IDLE: usize = 8;

/// Locked while the session is opened: others with its ttl wait for it.
type SessionSlot = tokio::sync::Mutex<Option<Arc<OpenSession>>>;

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    pub(super) background: BackgroundTasks,
    /// By ttl in milliseconds.
    slots: Mutex<HashMap<u128, Arc<SessionSlot>>>,
}

impl Sessions {
    pub(super) fn new(config: Config, clock: Clock) -> Self {
        Self {
            config: Arc::new(config),
            clock,
            background: BackgroundTasks::default(),
            slots: Mutex::default(),
        }
    }

    /// A session for locks of this ttl. Opening it takes at most `patience`, and ends at once if no server
    /// listens.
    pub(super) async fn of(&self, ttl: Duration, patience: Duration) -> Result<Arc<OpenSession>> {
        let session = self.open(ttl, patience).await?;
        let granted = session.timeout;
        if granted.as_millis() == ttl.as_millis() {
            return Ok(session);
        }
        let (limit, setting) =
            if granted > ttl { ("shortest", "minSessionTimeout") } else { ("longest", "maxSessionTimeout") };
        Err(Error::invalid(format!(
            "a ttl of {} cannot be had: the {limit} session that {} grants lasts {}; use that ttl, or change \
             `{setting}` of the servers",
            format_duration(ttl),
            self.config.label,
            format_duration(granted)
        )))
    }

    /// Any session, for looking at locks.
    pub(super) async fn any(&self) -> Result<Arc<OpenSession>> {
        let open = lock(&self.slots).values().find_map(|slot| live(slot));
        match open {
            Some(session) => Ok(session),
            None => self.open(DEFAULT_TTL, self.config.timeout).await,
        }
    }

    /// The session of a slot, opened if need be. The server may have granted another timeout.
    async fn open(&self, ttl: Duration, patience: Duration) -> Result<Arc<OpenSession>> {
        let slot = {
            let mut slots = lock(&self.slots);
            if slots.len() > IDLE && !slots.contains_key(&ttl.as_millis()) {
                slots.retain(|_, slot| is_used(slot));
            }
            slots.entry(ttl.as_millis()).or_default().clone()
        };
        if let Some(session) = live(&slot) {
            return Ok(session);
        }
        let (config, clock, background) = (self.config.clone(), self.clock.clone(), self.background.clone());
        let keeper = Keeper::of(&clock)?;
        let deadline = clock.now().plus(patience);
        let opening = {
            let keeper = keeper.clone();
            async move {
                let Some(mut slot) = clock.within(Some(deadline), slot.lock()).await else {
                    return Err(config.unavailable("no server granted a session in time"));
                };
                if let Some(session) = slot.as_ref().filter(|session| !session.has_ended()) {
                    return Ok(session.clone());
                }
                let opened =
                    OpenSession::open(config.clone(), keeper, background, clock, ttl, deadline).await;
                let session = opened.map_err(|why| config.unavailable(why.to_string()))?;
                Ok(slot.insert(session).clone())
            }
        };
        let opened = keeper.carry_out(opening).await;
        opened.unwrap_or_else(|| Err(self.config.unavailable("the keeper has ended")))
    }

    /// Closes the sessions. Those with locks are closed with the last of them.
    pub(super) async fn close(&self) {
        let slots: Vec<_> = lock(&self.slots).drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            if let Some(session) = slot.lock().await.take() {
                session.close().await;
            }
        }
    }
}

fn live(slot: &SessionSlot) -> Option<Arc<OpenSession>> {
    slot.try_lock().ok()?.as_ref().filter(|session| !session.has_ended()).cloned()
}

/// Whether anybody opens or uses the session of a slot.
fn is_used(slot: &Arc<SessionSlot>) -> bool {
    let session_is_used = |session: &Arc<OpenSession>| Arc::strong_count(session) > 1;
    Arc::strong_count(slot) > 1
        || slot.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(session_is_used))
}
