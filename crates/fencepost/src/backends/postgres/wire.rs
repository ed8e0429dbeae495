//! One connection, driven on the keeper's runtime: whatever becomes of the caller's, what was sent is answered.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
#[cfg(unix)]
use tokio_postgres::NoTls;
#[cfg(unix)]
use tokio_postgres::config::Host;
use tokio_postgres::types::FromSql;
use tokio_postgres::{AsyncMessage, Client, Row};

#[cfg(unix)]
use super::config::DEFAULT_PORT;
#[cfg(feature = "tls")]
use super::config::Encryption;
use super::config::{Config, KEEPALIVE, USER_TIMEOUT};
use super::login::Login;
#[cfg(unix)]
use super::login::Stream;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::trouble::{FIX, reason};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Error, Result};

pub(crate) struct Wire {
    pub(crate) client: Client,
    /// Ends with the connection.
    ended: watch::Receiver<()>,
    driver: AbortHandle,
    /// Was told to end, which its driver does a little later.
    closed: AtomicBool,
    /// The driver's, so that it ends with the driver.
    line: Weak<Mutex<Line>>,
    bell: Arc<Bell>,
    /// A forked child has the parent's memory and not its threads: nobody would drive this there.
    process: u32,
}

type Messages =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send>;

/// What drives a connection: it writes what was asked, hands out the answers, and returns what the server says unasked.
struct Line {
    messages: Messages,
    notified: Box<dyn Fn(&str) + Send>,
    ended: bool,
}

impl Line {
    /// Goes on as far as is possible without waiting; `Ready` when the connection has ended.
    fn go_on(&mut self, waker: &Waker) -> Poll<()> {
        while !self.ended {
            match (self.messages)(&mut Context::from_waker(waker)) {
                Poll::Ready(Some(Ok(AsyncMessage::Notification(news)))) => (self.notified)(news.payload()),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(end) => {
                    // Whoever asks is told by the driver that the connection is closed, and not why.
                    if let Some(why) = end.and_then(Result::err).as_ref().and_then(reason) {
                        tracing::warn!("a connection to PostgreSQL was closed: {why}");
                    }
                    self.ended = true;
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

/// Wakes the driver of a connection, except while somebody else does its work, who looks afterwards whether there is more.
#[derive(Debug, Default)]
struct Bell {
    driver: Mutex<Option<Waker>>,
    /// How many threads do the driver's work now.
    hands: AtomicUsize,
    rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.hands.load(Ordering::SeqCst) == 0 {
            self.wake_driver();
        }
    }

    fn wake_driver(&self) {
        if let Some(driver) = &*lock(&self.driver) {
            driver.wake_by_ref();
        }
    }
}

/// Somebody who does the driver's work. Behind it, the driver is woken if the bell has rung meanwhile.
struct Hand<'a>(&'a Bell);

impl<'a> Hand<'a> {
    fn new(bell: &'a Bell) -> Self {
        bell.hands.fetch_add(1, Ordering::SeqCst);
        Self(bell)
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        self.0.hands.fetch_sub(1, Ordering::SeqCst);
        if self.0.rung.load(Ordering::SeqCst) {
            self.0.wake_driver();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl Wire {
    /// Connects. Called on the keeper's runtime.
    pub(crate) async fn open(
        config: &Config,
        keeper: &Keeper,
        notified: impl Fn(&str) + Send + 'static,
    ) -> Result<Self> {
        let (client, messages) = dial(config).await?;
        let (alive, ended) = watch::channel(());
        let line = Arc::new(Mutex::new(Line { messages, notified: Box::new(notified), ended: false }));
        let bell = Arc::<Bell>::default();
        let (weak, waker, rings) = (Arc::downgrade(&line), Waker::from(bell.clone()), bell.clone());
        let driver = keeper.runtime().spawn(async move {
            poll_fn(|context| {
                *lock(&rings.driver) = Some(context.waker().clone());
                lock(&line).go_on(&waker)
            })
            .await;
            drop(alive);
        });
        let driver = driver.abort_handle();
        let closed = AtomicBool::new(false);
        Ok(Self { client, ended, driver, closed, line: weak, bell, process: std::process::id() })
    }

    /// Asks something: `send` puts it into the driver's hands, and this takes it to the server at once, from the caller's
    /// thread. Waking the driver's for that would cost a change of threads in every request.
    pub(super) fn at_once<T>(&self, send: impl FnOnce() -> T) -> T {
        if !self.is_usable() {
            return send();
        }
        let _hand = Hand::new(&self.bell);
        let sent = send();
        let done = self.line.upgrade().is_some_and(|line| {
            line.try_lock().is_ok_and(|mut line| {
                self.bell.rung.store(false, Ordering::SeqCst);
                line.go_on(&Waker::from(self.bell.clone())).is_pending()
            })
        });
        if !done {
            // The connection has ended; or the driver or another caller is at work, who may have looked before this was sent.
            self.bell.ring();
        }
        sent
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && !self.client.is_closed() && self.process == std::process::id()
    }

    /// Waits for the end of the connection.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.driver.abort();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("usable", &self.is_usable()).finish_non_exhaustive()
    }
}

async fn dial(config: &Config) -> Result<(Client, Messages)> {
    let login = Login {
        cleartext: config.cleartext,
        #[cfg(feature = "tls")]
        tls: match &config.encryption {
            Encryption::Off => None,
            Encryption::Preferred => Some(Tls::preferred()?),
            Encryption::Verified(files) => Some(Tls::verified(files)?),
        },
    };
    // The driver leaves nothing of a unix socket to `Login`.
    #[cfg(unix)]
    if let [Host::Unix(folder)] = config.server.get_hosts() {
        let port = config.server.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
        let path = folder.join(format!(".s.PGSQL.{port}"));
        let missing = |error| config.unavailable(format!("{}: {error}", path.display()));
        let stream = Stream::plain(tokio::net::UnixStream::connect(&path).await.map_err(missing)?);
        let (client, mut connection) =
            config.server.connect_raw(stream, NoTls).await.map_err(|error| config.trouble(error))?;
        return Ok((client, Box::new(move |context| connection.poll_message(context))));
    }
    let (client, mut connection) =
        config.server.connect(login).await.map_err(|error| config.trouble(error))?;
    Ok((client, Box::new(move |context| connection.poll_message(context))))
}

/// Which backend serves a client now. By the simple protocol: a pool would give the two halves of a prepared
/// statement to two backends.
async fn backend(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let messages = client.simple_query("SELECT pg_catalog.pg_backend_pid()").await?;
    Ok(messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
        _ => None,
    }))
}

/// Refuses to work through something that gives a session's backend to others between its transactions. The
/// same answer twice would prove nothing: a pool usually gives the backend it gave last. But a second client with a transaction
/// open either gets the first one's backend, or forces the first one to another.
pub(super) async fn refuse_pools(config: &Config, session: &Client, other: &Client) -> Result<()> {
    let trouble = |error| config.trouble(error);
    let pooled =
        |how: &str| Error::config(format!("{} is a pool that {how} session locks; {FIX}", config.label));
    let own = backend(session).await.map_err(trouble)?;
    other.simple_query("BEGIN").await.map_err(|_| pooled("knows no transactions and no"))?;
    for _ in 0..3 {
        if backend(other).await.map_err(trouble)? == own || backend(session).await.map_err(trouble)? != own {
            return Err(pooled("shares connections between clients and loses"));
        }
    }
    other.simple_query("COMMIT").await.map(drop).map_err(trouble)
}

/// How long a session waits for a row that somebody has locked: all its other requests wait behind that. Our own
/// statements lock a row for less.
pub(super) const ROW_WAIT: Duration = Duration::from_millis(500);

/// What a session is.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(super) pid: i32,
    /// As the table of locks names it.
    pub(super) id: String,
    /// The synchronous_commit of what has to outlive the session.
    pub(super) commit: String,
    /// How many locks the server has room for.
    pub(super) room: usize,
}

/// Sets what a session needs, where the server knows it, whatever its defaults are. `row_wait` is how long to wait for a
/// row that somebody has locked.
pub(crate) async fn set_up(config: &Config, client: &Client, row_wait: Duration) -> Result<Backend> {
    let trouble = |error| config.trouble(error);
    // First of all: nobody who may create functions in another schema shall have us run them. Tables of this session come last.
    client.batch_execute("SET search_path = pg_catalog, pg_temp").await.map_err(trouble)?;
    let (seconds, half) = (KEEPALIVE.as_secs().to_string(), (KEEPALIVE / 2).as_secs().to_string());
    let (row_wait, user_timeout) = (row_wait.as_millis().to_string(), USER_TIMEOUT.as_millis().to_string());
    let mut settings = vec![
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
        ("statement_timeout", "0"),
        ("transaction_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("lock_timeout", &row_wait),
        ("tcp_keepalives_idle", &seconds),
        ("tcp_keepalives_interval", &half),
        ("tcp_keepalives_count", "2"),
        ("tcp_user_timeout", &user_timeout),
        ("plan_cache_mode", "force_generic_plan"),
        ("jit", "off"),
    ];
    // A server that is set to forget by itself is told otherwise; one that waits for its standbys goes on doing so.
    settings.push(("synchronous_commit", if config.durable { "on" } else { "off" }));
    let (names, values): (Vec<&str>, Vec<&str>) = settings.into_iter().unzip();
    let set = "SELECT set_config(v.name, v.value, false) FROM unnest($1::text[], $2::text[]) v (name, value) \
               JOIN pg_settings s ON s.name = v.name \
               WHERE v.name <> 'synchronous_commit' OR v.value = 'off' OR s.setting = 'off'";
    client.query(set, &[&names, &values]).await.map_err(trouble)?;
    let who = "SELECT pg_backend_pid(), format('%s %s', pid, extract(epoch FROM backend_start)), pg_is_in_recovery(), \
               (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), \
               current_setting('max_locks_per_transaction')::bigint \
               * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) \
               FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let row = client.query_one(who, &[]).await.map_err(trouble)?;
    if get(&row, 2).unwrap_or(false) {
        return Err(Error::config(format!(
            "{} is a standby, which grants no locks; name the primary",
            config.label
        )));
    }
    let (Some(pid), Some(id)) = (get(&row, 0), get(&row, 1)) else {
        return Err(config.unavailable("it does not say which backend serves us"));
    };
    let commit = get::<String>(&row, 3).filter(|value| value != "off").unwrap_or_else(|| "on".to_owned());
    let room = get(&row, 4).and_then(|room: i64| usize::try_from(room).ok()).unwrap_or(0);
    Ok(Backend { pid, id, commit, room })
}

/// A column; `None` if it is null, or not what we expect: a server may answer anything.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Option<T> {
    row.try_get::<_, Option<T>>(column).ok().flatten()
}
