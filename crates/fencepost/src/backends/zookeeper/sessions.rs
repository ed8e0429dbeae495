//! The sessions of one store: one for each ttl, because what ends by itself in ZooKeeper ends with its session, and all
//! of a session at once. Most programs use one ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::Config;
use super::dial::Reason;
use super::session::Session;
use crate::options::DEFAULT_TTL;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Error, Result, format_duration};

/// More sessions than this are kept only while a lock needs them.
const IDLE: usize = 8;

/// Whoever finds none opens one, and others wait for it.
type Slot = tokio::sync::Mutex<Option<Arc<Session>>>;

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    pub(super) background: BackgroundTasks,
    /// By ttl in milliseconds, and the process that they are of: a forked child must not speak for its parent.
    slots: Mutex<(u32, HashMap<u128, Arc<Slot>>)>,
}

impl Sessions {
    pub(super) fn new(config: Config, clock: Clock) -> Self {
        let slots = Mutex::new((std::process::id(), HashMap::new()));
        Self { config: Arc::new(config), clock, background: BackgroundTasks::default(), slots }
    }

    /// A session for locks of this ttl. If it has to be opened, that may take so long, unless nobody listens.
    pub(super) async fn of(&self, ttl: Duration, patience: Duration) -> Result<Arc<Session>> {
        let session = self.open(ttl, patience).await?;
        let (granted, wanted) = (session.timeout(), ttl);
        if granted.as_millis() == wanted.as_millis() {
            return Ok(session);
        }
        let (limit, setting) = if granted > wanted {
            ("shortest", "minSessionTimeout")
        } else {
            ("longest", "maxSessionTimeout")
        };
        Err(Error::invalid(format!(
            "a ttl of {} cannot be had: the {limit} session that {} grants lasts {}; use that ttl, or change `{setting}` of \
             the servers",
            format_duration(wanted),
            self.config.label,
            format_duration(granted)
        )))
    }

    /// Any session, for looking at locks.
    pub(super) async fn any(&self) -> Result<Arc<Session>> {
        let open = self.slots(|slots| slots.values().find_map(|slot| live(&*slot.try_lock().ok()?)));
        match open {
            Some(session) => Ok(session),
            None => self.open(DEFAULT_TTL, self.config.timeout).await,
        }
    }

    fn slots<T>(&self, look: impl FnOnce(&mut HashMap<u128, Arc<Slot>>) -> T) -> T {
        let mut slots = lock(&self.slots);
        if slots.0 != std::process::id() {
            *slots = (std::process::id(), HashMap::new());
        }
        look(&mut slots.1)
    }

    /// The session of a slot, opened if need be. The server may have granted another timeout.
    async fn open(&self, ttl: Duration, patience: Duration) -> Result<Arc<Session>> {
        let slot = self.slots(|slots| {
            if slots.len() > IDLE && !slots.contains_key(&ttl.as_millis()) {
                slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_used(slot));
            }
            slots.entry(ttl.as_millis()).or_default().clone()
        });
        if let Some(session) = slot.try_lock().ok().and_then(|slot| live(&slot)) {
            return Ok(session);
        }
        let (config, clock) = (self.config.clone(), self.clock.clone());
        let keeper = Keeper::of(&clock)?;
        let deadline = clock.now().plus(patience);
        let reason = Arc::<Reason>::default();
        let opening = {
            let (config, keeper, background) = (config.clone(), keeper.clone(), self.background.clone());
            let reason = reason.clone();
            async move {
                let mut slot = slot.lock().await;
                if let Some(session) = live(&slot) {
                    return Ok(session);
                }
                let session =
                    Session::open(&config, &keeper, background, &clock, ttl, deadline, &reason).await?;
                *slot = Some(session.clone());
                Ok(session)
            }
        };
        match self.clock.within(Some(deadline), keeper.carry_out(opening)).await {
            Some(Some(outcome)) => outcome,
            Some(None) => Err(config.unavailable("the keeper has ended")),
            None => Err(config.unavailable(&*reason.get())),
        }
    }

    /// Closes the sessions. Those that carry locks are closed with their last one.
    pub(super) async fn close(&self) {
        let slots: Vec<_> = self.slots(|slots| slots.drain().map(|(_, slot)| slot).collect());
        for slot in slots {
            if let Some(session) = slot.lock().await.take() {
                session.close().await;
            }
        }
    }
}

fn live(slot: &Option<Arc<Session>>) -> Option<Arc<Session>> {
    slot.as_ref().filter(|session| !session.has_ended()).cloned()
}

fn is_used(slot: &Slot) -> bool {
    let Ok(slot) = slot.try_lock() else { return true };
    slot.as_ref().is_some_and(|session| Arc::strong_count(session) > 1)
}
