//! What all locks of one store share: two connections, the locks that are held, and those that are
//! waited for.
//!
//! The session has the advisory locks, and listens. The admin connection serves operators, whose
//! questions may take longer than a renewal can wait. Both are driven on the keeper's runtime.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::channels::Channels;
use super::config::Config;
use super::driver::{Connection, Event, refuse_pools, set_up};
use super::hold::{self, HeldRow, HeldRows, RenewalRequest};
use super::monitor;
use super::record::Notification;
use super::schema::Layout;
use super::session::{Function, Session};
use crate::backends::common::backoff::Backoff;
use crate::backends::common::batch::Batches;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Loss, Owner, Result};

/// How long making the schema may take. It happens once, and is more than a round trip.
const MAKING: Duration = Duration::from_secs(30);

/// How long a session waits for a row that somebody has locked: all its other requests wait meanwhile.
/// Our own statements lock a row for less.
const ROW_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Client {
    pub(super) config: Config,
    pub(super) clock: Clock,
    keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
    /// Where the server notifies holders.
    pub(super) channel: String,
    pub(super) channels: Arc<Channels>,
    pub(super) held: HeldRows,
    pub(super) renewals: Arc<Batches<RenewalRequest>>,
    session: Mutex<Option<Arc<Session>>>,
    admin: Mutex<Option<Arc<Connection>>>,
    /// Held while connecting, on the keeper's runtime alone: a caller's may be blocked.
    connecting: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

impl Client {
    pub(super) fn new(config: Config) -> Result<Arc<Self>> {
        let clock = Clock::system();
        let keeper = Keeper::of(&clock)?;
        let channel = format!("fencepost_{}", Owner::fresh());
        Ok(Arc::new(Self {
            config,
            clock,
            renewals: Arc::new(Batches::new(keeper.clone())),
            keeper,
            background: BackgroundTasks::default(),
            channels: Channels::new(&channel),
            channel,
            held: HeldRows::default(),
            session: Mutex::default(),
            admin: Mutex::default(),
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
        match self.current_session() {
            Some(session) => Ok(session),
            None => self.on_keeper(Self::connect).await,
        }
    }

    fn current_session(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone().filter(|session| session.is_usable())
    }

    /// The connection for operators, made anew if it has ended.
    pub(super) async fn admin(self: &Arc<Self>) -> Result<Arc<Connection>> {
        match self.current_admin() {
            Some(admin) => Ok(admin),
            None => self.on_keeper(Self::connect_admin).await,
        }
    }

    fn current_admin(&self) -> Option<Arc<Connection>> {
        lock(&self.admin).clone().filter(|admin| admin.is_usable())
    }

    /// Calls a function over a session. The outer error is that no answer came. A session that has said
    /// nothing else either, and has no lock worth keeping, is closed then: the next caller gets a new one.
    pub(super) async fn ask(
        &self,
        session: &Arc<Session>,
        limit: Duration,
        function: Function,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Result<Vec<Row>, tokio_postgres::Error>> {
        let sent = self.clock.now();
        let answer = self.within(limit, session.call(function, arguments)).await;
        if answer.is_err() {
            self.suspect(session, sent);
        }
        answer
    }

    /// Closes a session that has not answered since, unless it has a lock worth keeping.
    pub(super) fn suspect(&self, session: &Arc<Session>, sent: Moment) {
        let now = self.clock.now();
        let is_worthless = |row: &Arc<HeldRow>| row.is_asked() || row.until() <= now;
        if !session.heard_since(sent) && self.held.on(session).iter().all(is_worthless) {
            session.close();
        }
    }

    /// The same within the store's timeout, for the first row of the answer.
    pub(super) async fn call(
        &self,
        session: &Arc<Session>,
        function: Function,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>> {
        let rows = self.ask(session, self.config.timeout, function, arguments).await?;
        Ok(rows.map_err(|error| self.config.error(error))?.into_iter().next())
    }

    /// How long a renewal can wait: a late answer is worthless.
    pub(super) fn patience(&self, term: Duration) -> Duration {
        self.config.timeout.min((term / 3).max(Duration::from_millis(20)))
    }

    /// Waits at most for the store's timeout.
    pub(super) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.within(self.config.timeout, future).await
    }

    pub(super) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T> {
        let late = |_| self.config.unavailable(format!("no answer within {}", crate::format_duration(limit)));
        tokio::time::timeout(limit, future).await.map_err(late)
    }

    /// Connects on the keeper's runtime, where connections live. It goes on if the caller does not wait
    /// for it.
    async fn on_keeper<T: Send + 'static, F>(
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

    async fn connect(self: Arc<Self>) -> Result<Arc<Session>> {
        let _turn = self.in_time(self.connecting.lock()).await?;
        if let Some(session) = self.current_session() {
            return Ok(session);
        }
        let mut opened = self.in_time(self.open()).await??;
        if opened.is_none() {
            self.clone().make_schema(false).await?;
            opened = self.in_time(self.open()).await??;
        }
        let Some((session, admin)) = opened else {
            return Err(self.config.unavailable("the schema was removed while it was made"));
        };
        let session = Arc::new(session);
        tracing::debug!(store = %self.config.label, backend = session.backend.pid, "connected");
        self.keeper().spawn(monitor::watch(Arc::downgrade(&self), Arc::downgrade(&session)));
        *lock(&self.admin) = Some(Arc::new(admin));
        *lock(&self.session) = Some(session.clone());
        Ok(session)
    }

    /// Opens both connections; none if there is no schema.
    async fn open(self: &Arc<Self>) -> Result<Option<(Session, Connection)>> {
        let (config, keeper, client) = (&self.config, self.keeper(), Arc::downgrade(self));
        let on_event = move |event: Event<'_>| {
            if let Some(client) = Weak::upgrade(&client) {
                client.on_event(event);
            }
        };
        let (connection, admin) = tokio::try_join!(
            Connection::open(config, &keeper, on_event),
            Connection::open(config, &keeper, |_| {})
        )?;
        refuse_pools(config, &connection.client, &admin.client).await?;
        let (backend, _) = tokio::try_join!(
            set_up(config, &connection.client, config.timeout.min(ROW_WAIT)),
            set_up(config, &admin.client, config.timeout)
        )?;
        match config.layout(&connection.client).await? {
            Layout::Current => {}
            Layout::Earlier => return Err(config.is_of_an_earlier_layout()),
            Layout::None => return Ok(None),
        }
        let session = Session::prepare(config, connection, backend, self.clock.clone()).await?;
        session.listen(&self.channel).await.map_err(|error| config.error(error))?;
        Ok(Some((session, admin)))
    }

    async fn connect_admin(self: Arc<Self>) -> Result<Arc<Connection>> {
        let open = async {
            let _turn = self.connecting.lock().await;
            if let Some(admin) = self.current_admin() {
                return Ok(admin);
            }
            let admin = Connection::open(&self.config, &self.keeper(), |_| {}).await?;
            set_up(&self.config, &admin.client, self.config.timeout).await?;
            let admin = Arc::new(admin);
            *lock(&self.admin) = Some(admin.clone());
            Ok(admin)
        };
        self.in_time(open).await?
    }

    /// Makes the schema, or upgrades it. Returns what there was before.
    pub(super) async fn init(self: &Arc<Self>) -> Result<Layout> {
        self.on_keeper(|client| client.make_schema(true)).await
    }

    async fn make_schema(self: Arc<Self>, upgrade: bool) -> Result<Layout> {
        let config = &self.config;
        let make = async {
            let connection = Connection::open(config, &self.keeper(), |_| {}).await?;
            let layout = config.layout(&connection.client).await?;
            match layout {
                Layout::Current => {}
                Layout::Earlier if !upgrade => return Err(config.is_of_an_earlier_layout()),
                Layout::Earlier | Layout::None => config.make_schema(&connection.client).await?,
            }
            Ok(layout)
        };
        self.within(MAKING.max(config.timeout), make).await?
    }

    fn on_event(self: &Arc<Self>, event: Event<'_>) {
        let Event::Notification { channel, payload } = event else {
            return self.held.end_with_their_sessions();
        };
        match Notification::parse(payload) {
            Some(Notification::Free) => self.channels.notify(channel, None),
            Some(Notification::Granted(grant)) => self.channels.notify(channel, Some(grant)),
            Some(Notification::Revoked { owner, reason, taken }) => {
                let Some(row) = self.held.get(owner) else { return };
                row.signal.raise(Loss::ForceReleased { reason });
                if taken && row.is_advisory() {
                    // The next holder only waits for our advisory lock.
                    hold::give_back(self, row, Moment::NEVER);
                }
            }
            None => {}
        }
    }

    /// Ends the connections. The session ends with its last lock.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(lock(&self.session).take());
        drop(lock(&self.admin).take());
    }

    /// Ends connections that something has made after the end.
    pub(super) fn close_again(&self) {
        if self.closed.load(Ordering::Acquire) {
            self.close();
        }
    }
}

/// Pauses between attempts to undo something.
pub(super) fn undo_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(5))
}

/// Milliseconds as the functions take them.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().max(1)).unwrap_or(i64::MAX)
}
