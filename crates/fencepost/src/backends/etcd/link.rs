//! One connection to one member: opened, logged in, and with one watch stream for everybody who waits for a key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use http::header::HeaderValue;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::AbortHandle;

use super::config::Config;
use super::grpc::{Answers, Caller, MAX_SIGHT, Trouble};
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, KeyValue, Reply, WatchAction, WatchCancel, WatchCreate,
    WatchRequest, WatchResponse,
};
use crate::Result;
use crate::runtime::sync::lock;
use crate::url::Password;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How much a member may send before we have read it.
const WINDOW: u32 = 1 << 20;

/// Bytes of the headers of one answer: a status, a sentence and little more.
const MAX_HEADERS: u32 = 16 << 10;

/// How many sights of one watch may wait to be looked at. Keys of ours change a few times in their lives.
const MAX_SIGHTS: usize = 256;

/// One member, and how to reach it.
#[derive(Debug)]
pub(super) struct Endpoint {
    host: String,
    port: u16,
    base: String,
    #[cfg(feature = "tls")]
    tls: Option<crate::backends::common::tls::Tls>,
}

impl Endpoint {
    pub(super) fn all(config: &Config) -> Result<Vec<Self>> {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let endpoint = |(host, port): &(String, u16)| {
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            #[cfg(feature = "tls")]
            let tls = config
                .tls
                .as_ref()
                .map(|files| crate::backends::common::tls::Tls::new(files, host, Some("h2")));
            Ok(Self {
                host: host.clone(),
                port: *port,
                base: format!("{scheme}://{open}{host}{close}:{port}"),
                #[cfg(feature = "tls")]
                tls: tls.transpose()?,
            })
        };
        config.endpoints.iter().map(endpoint).collect()
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Ok(Box::new(tls.wrap(stream).await?));
        }
        Ok(Box::new(stream))
    }
}

#[derive(Debug)]
pub(super) struct Link {
    caller: Caller,
    connection: AbortHandle,
    watches: Mutex<Watches>,
    next: AtomicI64,
}

#[derive(Debug, Default)]
struct Watches {
    /// Leads to the stream, if there is one.
    requests: Option<UnboundedSender<WatchRequest>>,
    open: HashMap<i64, Sender<Sight>>,
}

impl Watches {
    /// Forgets a watch, and lets the server forget it.
    fn cancel(&mut self, watch_id: i64) {
        if self.open.remove(&watch_id).is_some()
            && let Some(requests) = &self.requests
        {
            let cancel = WatchCancel { watch_id };
            let _ = requests.send(WatchRequest { action: Some(WatchAction::Cancel(cancel)) });
        }
    }
}

/// What a watch of one key has seen.
#[derive(Debug, PartialEq)]
pub(super) enum Sight {
    /// The server watches: what happens from now on is seen.
    Open,
    Put(KeyValue),
    Deleted,
    /// Nothing more will be seen: look for yourself, and watch again.
    Ended,
}

impl Link {
    /// Connects to one member, and logs in if there is a user.
    pub(super) async fn open(
        endpoint: &Endpoint,
        login: Option<&(String, Password)>,
    ) -> Result<Self, Trouble> {
        let stream = endpoint.connect().await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        builder.max_header_list_size(MAX_HEADERS).enable_push(false);
        let (sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd ended");
            }
        });
        let caller = Caller { sender, base: endpoint.base.clone(), token: None };
        let mut link = Self {
            caller,
            connection: connection.abort_handle(),
            watches: Mutex::default(),
            next: AtomicI64::new(1),
        };
        link.log_in(login).await?;
        Ok(link)
    }

    async fn log_in(&mut self, login: Option<&(String, Password)>) -> Result<(), Trouble> {
        let Some((name, password)) = login.cloned() else { return Ok(()) };
        let request = AuthenticateRequest { name, password: password.reveal().to_owned() };
        match self.call::<_, AuthenticateResponse>("Auth/Authenticate", &request).await {
            Ok(answer) => self.caller.token = HeaderValue::try_from(answer.token).ok(),
            // A cluster that asks nobody for a password.
            Err(Trouble::Refused { message, .. }) if message.contains("authentication is not enabled") => {}
            Err(Trouble::Refused { code, message }) => {
                return Err(Trouble::Refused { code, message: password.hide_in(&message) });
            }
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }

    pub(super) async fn call<A: Message, B: Reply>(&self, path: &str, message: &A) -> Result<B, Trouble> {
        self.caller.call(path, message).await
    }

    pub(super) fn is_over(&self) -> bool {
        self.connection.is_finished()
    }

    /// Ends the connection and with it all that waits for an answer.
    pub(super) fn close(&self) {
        self.connection.abort();
    }

    /// Watches one key: from now on, or from a revision of the past. Opens the stream if there is none.
    pub(super) fn watch(self: &Arc<Self>, key: &[u8], start_revision: i64) -> Watch {
        let (sights, seen) = channel(MAX_SIGHTS);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let create = WatchCreate { key: key.to_vec(), start_revision, watch_id: id };
        let mut watches = lock(&self.watches);
        watches.open.insert(id, sights);
        let requests = watches.requests.get_or_insert_with(|| {
            let (requests, asked) = unbounded_channel();
            tokio::spawn(run_watches(Arc::downgrade(self), self.caller.clone(), asked));
            requests
        });
        let _ = requests.send(WatchRequest { action: Some(WatchAction::Create(create)) });
        Watch { link: Arc::downgrade(self), id, seen }
    }

    /// Passes on what the server has seen.
    fn report(&self, answer: WatchResponse) {
        let mut watches = lock(&self.watches);
        let Some(sights) = watches.open.get(&answer.watch_id) else { return };
        let opened = (answer.created && !answer.canceled).then_some(Sight::Open);
        let seen = answer.events.into_iter().map(|event| match event.kv {
            Some(kv) if event.kind == 0 => Sight::Put(kv),
            _ => Sight::Deleted,
        });
        let told = opened.into_iter().chain(seen).try_for_each(|sight| sights.try_send(sight));
        // Refused, or from a revision that is compacted away; or nobody keeps up with it. Its end is heard
        // after all else.
        if answer.canceled {
            watches.open.remove(&answer.watch_id);
        } else if told.is_err() {
            watches.cancel(answer.watch_id);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Carries all watches of a link over one stream. When that ends, so do they.
async fn run_watches(link: Weak<Link>, caller: Caller, mut asked: UnboundedReceiver<WatchRequest>) {
    let ended = async {
        let (mut questions, response) = caller.stream("Watch/Watch").await?;
        // The server begins to answer when it was asked.
        if let Some(request) = asked.recv().await {
            questions.send(&request)?;
        }
        let mut answers = Answers::new(response, MAX_SIGHT).await?;
        loop {
            tokio::select! {
                request = asked.recv() => match request {
                    Some(request) => questions.send(&request)?,
                    None => return Ok(()),
                },
                answer = answers.next() => match (answer?, link.upgrade()) {
                    (Some(answer), Some(link)) => link.report(answer),
                    _ => return Ok(()),
                },
            }
        }
    };
    let ended: Result<(), Trouble> = ended.await;
    if let Err(trouble) = ended {
        tracing::debug!(?trouble, "a watch stream ended");
    }
    if let Some(link) = link.upgrade() {
        // Whoever watches hears of the end by that of the channel.
        drop(std::mem::take(&mut *lock(&link.watches)));
    }
}

/// A watch of one key. The server forgets it when it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    link: Weak<Link>,
    id: i64,
    seen: Receiver<Sight>,
}

impl Watch {
    pub(super) async fn next(&mut self) -> Sight {
        self.seen.recv().await.unwrap_or(Sight::Ended)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        lock(&link.watches).cancel(self.id);
    }
}
