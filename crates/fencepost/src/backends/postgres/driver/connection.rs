//! One connection. The keeper's runtime drives it: whatever becomes of a caller, what it sent is answered.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::sync::Notify;
#[cfg(unix)]
use tokio_postgres::NoTls;
#[cfg(unix)]
use tokio_postgres::config::Host;
use tokio_postgres::{AsyncMessage, Client};

use super::errors::reason;
use super::login::Login;
#[cfg(unix)]
use super::login::LoginStream;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::Result;
use crate::backends::postgres::config::Config;
#[cfg(unix)]
use crate::backends::postgres::config::DEFAULT_PORT;
#[cfg(feature = "tls")]
use crate::backends::postgres::config::Encryption;
use crate::runtime::keeper::Keeper;

pub(crate) struct Connection {
    pub(crate) client: Client,
    close: Arc<Notify>,
    /// `close` was called; the driving task ends a little later.
    closed: AtomicBool,
    /// A forked child has the parent's memory and not its threads: nobody would drive this there.
    process: u32,
}

/// What a connection tells its owner unasked.
pub(crate) enum Event<'a> {
    Notification { channel: &'a str, payload: &'a str },
    Ended,
}

type Messages =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send>;

impl Connection {
    /// Connects. Must be called on the keeper's runtime.
    pub(crate) async fn open(
        config: &Config,
        keeper: &Keeper,
        on_event: impl Fn(Event<'_>) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (client, mut messages) = connect(config).await?;
        let close = Arc::<Notify>::default();
        let closing = close.clone();
        keeper.spawn(async move {
            tokio::select! {
                () = closing.notified() => {}
                () = drive(&mut messages, &on_event) => {}
            }
            drop(messages);
            on_event(Event::Ended);
        });
        Ok(Self { client, close, closed: AtomicBool::new(false), process: std::process::id() })
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && !self.client.is_closed() && self.process == std::process::id()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.close.notify_one();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.notify_one();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("usable", &self.is_usable()).finish_non_exhaustive()
    }
}

/// Writes requests and hands out answers until the connection ends.
async fn drive(messages: &mut Messages, on_event: &(impl Fn(Event<'_>) + Send + Sync)) {
    loop {
        match poll_fn(&mut *messages).await {
            Some(Ok(AsyncMessage::Notification(news))) => {
                on_event(Event::Notification { channel: news.channel(), payload: news.payload() });
            }
            Some(Ok(_)) => {}
            end => {
                // Callers learn from the crate that the connection is closed, but not why.
                if let Some(why) = end.and_then(Result::err).as_ref().and_then(reason) {
                    tracing::warn!("a connection to PostgreSQL was closed: {why}");
                }
                return;
            }
        }
    }
}

async fn connect(config: &Config) -> Result<(Client, Messages)> {
    let login = Login {
        cleartext: config.cleartext,
        #[cfg(feature = "tls")]
        tls: match &config.encryption {
            Encryption::Off => None,
            Encryption::Preferred => Some(Tls::preferred()?),
            Encryption::Verified(settings) => Some(Tls::verified(settings)?),
        },
    };
    // The crate would talk to a unix socket without `Login`.
    #[cfg(unix)]
    if let [Host::Unix(folder)] = config.server.get_hosts() {
        let port = config.server.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
        let path = folder.join(format!(".s.PGSQL.{port}"));
        let missing = |error| config.unavailable(format!("{}: {error}", path.display()));
        let stream = LoginStream::plain(tokio::net::UnixStream::connect(&path).await.map_err(missing)?);
        let (client, mut connection) =
            config.server.connect_raw(stream, NoTls).await.map_err(|error| config.error(error))?;
        return Ok((client, Box::new(move |context| connection.poll_message(context))));
    }
    let (client, mut connection) = config.server.connect(login).await.map_err(|error| config.error(error))?;
    Ok((client, Box::new(move |context| connection.poll_message(context))))
}
