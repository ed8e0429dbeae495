//! What all locks of one store share: two connections, the locks that are held, and those that are waited for.
//!
//! The session has the advisory locks, and listens: a backend that is just awake to tell us something answers what we ask
//! next the faster. The other connection, the desk, serves operators, whose questions may take longer than a renewal can wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::config::Config;
use super::hold::Renewals;
use super::key::Key;
use super::queue::{Push, Queue};
use super::schema::Found;
use super::session::{Bonds, Session, Statements};
use super::wire::{ROW_WAIT, Wire, refuse_pools, set_up};
use super::{hold, warden};
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Loss, Owner, Result};

/// How long making the schema may take. It happens once, and is more than a round trip.
const MAKING: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) config: Config,
    pub(super) clock: Clock,
    keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
    /// Where the server tells us something.
    pub(super) channel: String,
    pub(super) queue: Arc<Queue>,
    pub(super) bonds: Bonds,
    pub(super) renewals: Arc<Renewals>,
    session: Mutex<Option<Arc<Session>>>,
    desk: Mutex<Option<Arc<Wire>>>,
    connecting: tokio::sync::Mutex<()>,
    closed: AtomicBool,
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
            background: BackgroundTasks::default(),
            channel: format!("fencepost_{}", Owner::fresh()),
            queue: Arc::default(),
            bonds: Bonds::default(),
            session: Mutex::default(),
            desk: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
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

    /// The connection for operators, made anew if it has ended.
    pub(super) async fn desk(self: &Arc<Self>) -> Result<Arc<Wire>> {
        match self.open_already() {
            Some(wire) => Ok(wire),
            None => self.elsewhere(Self::open_desk).await,
        }
    }

    fn open_already(&self) -> Option<Arc<Wire>> {
        lock(&self.desk).clone().filter(|wire| wire.is_usable())
    }

    /// Makes the schema, or with `upgrade` brings it to the layout of this program, and says what was there.
    pub(super) async fn make_schema(self: &Arc<Self>, upgrade: bool) -> Result<Found> {
        self.elsewhere(move |hub| async move {
            let make = async {
                let wire = Wire::open(&hub.config, &hub.keeper(), |_| {}).await?;
                let found = hub.config.find_schema(&wire.client).await?;
                match found {
                    Found::Current => {}
                    Found::Earlier if !upgrade => return Err(hub.config.is_of_an_earlier_layout()),
                    Found::Earlier | Found::Nothing => hub.config.make_schema(&wire.client).await?,
                }
                Ok(found)
            };
            hub.within(MAKING.max(hub.config.timeout), make).await?
        })
        .await
    }

    pub(super) fn current(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone().filter(|session| session.is_usable())
    }

    /// Connects on the keeper's runtime, where the connection lives. What is done there has limits of its own: it goes on
    /// when the caller does not wait for it any more.
    async fn elsewhere<T: Send + 'static, F>(
        self: &Arc<Self>,
        connect: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.keeper().carry_out(connect(self.clone())).await {
            Some(connected) => connected,
            None => Err(self.config.unavailable("the thread that connects has ended")),
        }
    }

    /// Waits for something, at most for the store's timeout.
    pub(super) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.within(self.config.timeout, future).await
    }

    /// How long a renewal can wait: a late answer is worthless.
    pub(super) fn patience(&self, term: Duration) -> Duration {
        self.config.timeout.min((term / 3).max(Duration::from_millis(20)))
    }

    pub(super) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T> {
        match tokio::time::timeout(limit, future).await {
            Ok(out) => Ok(out),
            Err(_) => {
                Err(self.config.unavailable(format!("no answer within {}", crate::format_duration(limit))))
            }
        }
    }

    async fn connect(self: Arc<Self>) -> Result<Arc<Session>> {
        let _turn = self.in_time(self.connecting.lock()).await?;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let keeper = self.keeper();
        let mut opened = self.in_time(self.open(&keeper)).await??;
        if opened.is_none() {
            self.make_schema(false).await?;
            opened = self.in_time(self.open(&keeper)).await??;
        }
        let Some((session, desk)) = opened else {
            return Err(self.config.unavailable("the schema was removed while it was made"));
        };
        let session = Arc::new(session);
        tracing::debug!(store = %self.config.label, backend = session.pid, "connected");
        warden::start(&self, &keeper, &session);
        *lock(&self.desk) = Some(Arc::new(desk));
        *lock(&self.session) = Some(session.clone());
        Ok(session)
    }

    /// Opens both connections; none if there is no schema.
    async fn open(self: &Arc<Self>, keeper: &Keeper) -> Result<Option<(Session, Wire)>> {
        let (wire, desk) =
            tokio::try_join!(self.open_session(keeper), Wire::open(&self.config, keeper, |_| {}))?;
        refuse_pools(&self.config, &wire.client, &desk.client).await?;
        let config = &self.config;
        let (backend, _) = tokio::try_join!(
            set_up(config, &wire.client, config.timeout.min(ROW_WAIT)),
            set_up(config, &desk.client, config.timeout)
        )?;
        match config.find_schema(&wire.client).await? {
            Found::Current => {}
            Found::Earlier => return Err(config.is_of_an_earlier_layout()),
            Found::Nothing => return Ok(None),
        }
        let statements = Statements::prepare(&self.config, &wire).await?;
        let listen = format!("LISTEN {}", super::trouble::quoted(&self.channel));
        wire.client.batch_execute(&listen).await.map_err(|error| self.config.trouble(error))?;
        Ok(Some((Session::new(wire, backend, statements, self.clock.now()), desk)))
    }

    async fn open_session(self: &Arc<Self>, keeper: &Keeper) -> Result<Wire> {
        let hub: Weak<Self> = Arc::downgrade(self);
        Wire::open(&self.config, keeper, move |message| {
            if let Some(hub) = hub.upgrade() {
                hub.deliver(message);
            }
        })
        .await
    }

    async fn open_desk(self: Arc<Self>) -> Result<Arc<Wire>> {
        let open = async {
            let _turn = self.connecting.lock().await;
            if let Some(wire) = self.open_already() {
                return Ok(wire);
            }
            let wire = Wire::open(&self.config, &self.keeper(), |_| {}).await?;
            set_up(&self.config, &wire.client, self.config.timeout).await?;
            let wire = Arc::new(wire);
            *lock(&self.desk) = Some(wire.clone());
            Ok(wire)
        };
        self.in_time(open).await?
    }

    /// Takes in what the server tells us: `free TWO_PART KEY`, `granted TWO_PART KEY OWNER TOKEN UNTIL`, `revoked OWNER REASON`,
    /// `taken OWNER REASON`.
    fn deliver(self: &Arc<Self>, message: &str) {
        let mut words = message.splitn(3, ' ');
        let (Some(what), Some(one), Some(rest)) = (words.next(), words.next(), words.next()) else { return };
        if what == "free" {
            if let Ok(number) = rest.parse() {
                self.queue.hint(Key { two_part: one == "1", number });
            }
            return;
        }
        if what == "granted" {
            let Some((number, push)) = rest.split_once(' ') else { return };
            if let (Ok(number), Some(push)) = (number.parse(), Push::parse(push)) {
                self.queue.pushed(Key { two_part: one == "1", number }, push);
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
        self.closed.store(true, Ordering::Release);
        if let Some(session) = lock(&self.session).take() {
            session.retiring.store(true, Ordering::Release);
            if self.bonds.on(&session).is_empty() {
                session.wire.close();
            }
        }
        if let Some(desk) = lock(&self.desk).take() {
            desk.close();
        }
    }

    /// Something that went on after the end is done: nobody needs the connection that it has made any more.
    pub(super) fn close_again(&self) {
        if self.closed.load(Ordering::Acquire) {
            self.close();
        }
    }
}

/// Milliseconds as the functions take them.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().max(1)).unwrap_or(i64::MAX)
}
