//! What all locks of one store share: two connections, the locks that are held, and those that are waited for.
//!
//! The session has the advisory locks. The other connection listens, and serves operators, whose questions may take longer
//! than a renewal can wait.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::config::Config;
use super::hold::Renewals;
use super::key::Key;
use super::queue::Queue;
use super::session::{Bonds, Session, Statements};
use super::wire::{Wire, refuse_pools, set_up};
use super::{hold, warden};
use crate::backend::lock;
use crate::clock::{Clock, Moment};
use crate::keeper::Keeper;
use crate::{Loss, Owner, Result};

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) config: Config,
    pub(super) clock: Clock,
    keeper: Arc<Keeper>,
    /// Where the server tells us something.
    pub(super) channel: String,
    pub(super) queue: Arc<Queue>,
    pub(super) bonds: Bonds,
    pub(super) renewals: Arc<Renewals>,
    session: Mutex<Option<Arc<Session>>>,
    listener: Mutex<Option<Arc<Wire>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl Hub {
    pub(super) fn new(config: Config) -> Result<Arc<Self>> {
        let clock = Clock::system();
        let keeper = Keeper::of(&clock)?;
        Ok(Arc::new(Self {
            config,
            clock,
            renewals: Arc::new(Renewals::new(keeper.clone())),
            keeper,
            channel: format!("fencepost_{}", Owner::fresh()),
            queue: Arc::default(),
            bonds: Bonds::default(),
            session: Mutex::default(),
            listener: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }))
    }

    /// The keeper of this process: a forked child has one of its own.
    pub(super) fn keeper(&self) -> Arc<Keeper> {
        Keeper::of(&self.clock).unwrap_or_else(|_| self.keeper.clone())
    }

    /// The session, made anew if it has ended.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        match self.current() {
            Some(session) => Ok(session),
            None => self.elsewhere(Self::connect).await,
        }
    }

    /// The connection that listens, made anew if it has ended.
    pub(super) async fn listener(self: &Arc<Self>) -> Result<Arc<Wire>> {
        match self.listening() {
            Some(wire) => Ok(wire),
            None => self.elsewhere(Self::listen).await,
        }
    }

    /// Makes the schema if it is missing, and says whether it was.
    pub(super) async fn make_schema(self: &Arc<Self>) -> Result<bool> {
        let make = async |hub: Arc<Self>| {
            let wire = Wire::open(&hub.config, &hub.keeper(), |_| {}).await?;
            hub.config.ensure_schema(&wire.client).await
        };
        self.elsewhere(|hub| async move { make(hub).await }).await
    }

    /// Sees to it that we listen, soon.
    pub(super) fn listen_again(self: &Arc<Self>) {
        if self.listening().is_none() {
            let hub = self.clone();
            self.keeper().spawn(async move {
                if let Err(error) = hub.listen().await {
                    tracing::debug!(%error, "the store does not tell us news for now");
                }
            });
        }
    }

    pub(super) fn current(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone().filter(|session| session.is_usable())
    }

    fn listening(&self) -> Option<Arc<Wire>> {
        lock(&self.listener).clone().filter(|wire| wire.is_usable())
    }

    /// Connects on the keeper's runtime, where the connection lives.
    async fn elsewhere<T: Send + 'static, F>(
        self: &Arc<Self>,
        connect: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.in_time(self.keeper().carry_out(connect(self.clone()))).await? {
            Some(connected) => connected,
            None => Err(self.config.unavailable("the thread that connects has ended")),
        }
    }

    /// Waits for something, at most for the store's timeout.
    pub(super) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let limit = self.config.timeout;
        match tokio::time::timeout(limit, future).await {
            Ok(out) => Ok(out),
            Err(_) => {
                Err(self.config.unavailable(format!("no answer within {}", crate::format_duration(limit))))
            }
        }
    }

    async fn connect(self: Arc<Self>) -> Result<Arc<Session>> {
        let _turn = self.connecting.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let keeper = self.keeper();
        let open = async {
            let (wire, listener) =
                tokio::try_join!(Wire::open(&self.config, &keeper, |_| {}), self.open_listener(&keeper))?;
            refuse_pools(&self.config, &wire.client, &listener.client).await?;
            let identity = set_up(&self.config, &wire.client).await?;
            self.config.ensure_schema(&wire.client).await?;
            let statements = Statements::prepare(&self.config, &wire).await?;
            self.start_listening(&listener).await?;
            Ok((Session::new(wire, identity, statements, self.clock.now()), listener))
        };
        let (session, listener) = self.in_time(open).await??;
        let session = Arc::new(session);
        tracing::debug!(store = %self.config.label, backend = session.pid, "connected");
        warden::start(&self, &keeper, &session);
        *lock(&self.listener) = Some(Arc::new(listener));
        *lock(&self.session) = Some(session.clone());
        Ok(session)
    }

    async fn listen(self: Arc<Self>) -> Result<Arc<Wire>> {
        let _turn = self.connecting.lock().await;
        if let Some(wire) = self.listening() {
            return Ok(wire);
        }
        let keeper = self.keeper();
        let open = async {
            let wire = self.open_listener(&keeper).await?;
            self.config.ensure_schema(&wire.client).await?;
            self.start_listening(&wire).await?;
            Ok(Arc::new(wire))
        };
        let wire: Arc<Wire> = self.in_time(open).await??;
        *lock(&self.listener) = Some(wire.clone());
        // What was said meanwhile was said to nobody.
        self.queue.hint_all();
        Ok(wire)
    }

    async fn open_listener(self: &Arc<Self>, keeper: &Keeper) -> Result<Wire> {
        let hub: Weak<Self> = Arc::downgrade(self);
        Wire::open(&self.config, keeper, move |message| {
            if let Some(hub) = hub.upgrade() {
                hub.deliver(message);
            }
        })
        .await
    }

    async fn start_listening(&self, wire: &Wire) -> Result<()> {
        let sql = format!("LISTEN {}", super::trouble::quoted(&self.channel));
        wire.client.batch_execute(&sql).await.map_err(|error| self.config.trouble(error))
    }

    /// Takes in what the server tells us: `free TWO_PART KEY`, `revoked OWNER REASON`, `taken OWNER REASON`. All of it is a
    /// hint; a spare one costs a question.
    fn deliver(self: &Arc<Self>, message: &str) {
        let mut words = message.splitn(3, ' ');
        let (Some(what), Some(one), Some(rest)) = (words.next(), words.next(), words.next()) else { return };
        if what == "free" {
            if let Ok(number) = rest.parse() {
                self.queue.hint(Key { two_part: one == "1", number });
            }
            return;
        }
        let Some(bond) = one.parse::<Owner>().ok().and_then(|owner| self.bonds.get(owner)) else { return };
        bond.signal.raise(Loss::ForceReleased { reason: rest.to_owned() });
        if what == "taken" {
            // The next holder waits for our advisory lock alone.
            let hub = self.clone();
            self.keeper().spawn(async move {
                if let Err(error) = hold::release(&hub, &bond).await {
                    tracing::debug!(name = %bond.name, %error, "letting go failed");
                }
            });
        }
    }

    /// The server did not answer a request that was sent at `sent`. If it has said nothing else either and the session
    /// has no lock worth keeping, the next caller gets a new one.
    pub(super) fn suspect(&self, session: &Arc<Session>, sent: Moment) {
        let now = self.clock.now();
        if !session.heard_since(sent) && self.bonds.on(session).iter().all(|bond| bond.until() <= now) {
            session.wire.close();
        }
    }

    /// Ends the connections, the session's when its last lock is given back.
    pub(super) fn close(&self) {
        if let Some(session) = lock(&self.session).take() {
            session.retiring.store(true, Ordering::Release);
            if self.bonds.on(&session).is_empty() {
                session.wire.close();
            }
        }
        if let Some(listener) = lock(&self.listener).take() {
            listener.close();
        }
    }
}

/// Milliseconds as the functions take them.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().max(1)).unwrap_or(i64::MAX)
}
