//! One connection to one member: opened, logged in, and with one watch stream for everybody who watches a
//! key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use http::header::HeaderValue;
use prost::Message;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::AbortHandle;

use super::grpc::{Channel, GrpcError};
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, KeyValue, ServerMessage, WatchCancel, WatchCreate,
    WatchRequest, WatchResponse,
};
use crate::Result;
use crate::backends::common::stream;
use crate::backends::common::tls::Tls;
use crate::backends::etcd::config::Config;
use crate::url::Password;

/// How much a member may send before we have read it.
const WINDOW: u32 = 1 << 20;

/// Bytes of the headers of one answer: a status, a sentence and little more.
const MAX_HEADERS: u32 = 16 << 10;

/// How many events of one watch may wait to be looked at. Keys of ours change a few times in their lives.
const MAX_EVENTS: usize = 256;

/// One member, and how to reach it.
#[derive(Debug)]
pub(crate) struct Member {
    host: String,
    port: u16,
    base: String,
    login: Option<(String, Password)>,
    tls: Option<Tls>,
}

impl Member {
    pub(crate) fn all(config: &Config) -> Result<Vec<Arc<Self>>> {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let member = |(host, port): &(String, u16)| {
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            let tls = config.tls.as_ref().map(|settings| Tls::new(settings, host, Some("h2")));
            Ok(Arc::new(Self {
                host: host.clone(),
                port: *port,
                base: format!("{scheme}://{open}{host}{close}:{port}"),
                login: config.login.clone(),
                tls: tls.transpose()?,
            }))
        };
        config.endpoints.iter().map(member).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    driver: AbortHandle,
    /// Leads to the task that has the watch stream.
    watches: UnboundedSender<WatchCommand>,
}

impl Connection {
    /// Connects to a member, and logs in if there is a user.
    pub(crate) async fn open(member: &Member) -> Result<Self, GrpcError> {
        let stream = stream::connect(&member.host, member.port, member.tls.as_ref()).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        builder.max_header_list_size(MAX_HEADERS).enable_push(false);
        let (sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd ended");
            }
        });
        let (watches, commands) = mpsc::unbounded_channel();
        let channel = Channel { sender, base: member.base.clone(), token: None };
        let mut opened = Self { channel, driver: driver.abort_handle(), watches };
        opened.log_in(member.login.as_ref()).await?;
        tokio::spawn(run_watches(opened.channel.clone(), commands));
        Ok(opened)
    }

    async fn log_in(&mut self, login: Option<&(String, Password)>) -> Result<(), GrpcError> {
        let Some((name, password)) = login.cloned() else { return Ok(()) };
        let request = AuthenticateRequest { name, password: password.reveal().to_owned() };
        match self.call::<_, AuthenticateResponse>("Auth/Authenticate", &request).await {
            Ok(answer) => self.channel.token = HeaderValue::try_from(answer.token).ok(),
            // A cluster that asks nobody for a password.
            Err(GrpcError::Refused { message, .. }) if message.contains("authentication is not enabled") => {}
            Err(GrpcError::Refused { code, message }) => {
                return Err(GrpcError::Refused { code, message: password.hide_in(&message) });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) async fn call<A, B>(&self, path: &str, message: &A) -> Result<B, GrpcError>
    where
        A: Message,
        B: ServerMessage,
    {
        self.channel.call(path, message).await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Ends the connection, and with it all that waits for an answer.
    pub(crate) fn close(&self) {
        self.driver.abort();
    }

    /// Watches one key: from a revision of the past, or from now on if that is zero.
    pub(crate) fn watch(&self, key: &[u8], start_revision: i64) -> Watch {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let watch_id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let create = WatchCreate { key: key.to_vec(), start_revision, watch_id };
        let _ = self.watches.send(WatchCommand::Create(create, sender));
        Watch { watch_id, events, commands: self.watches.clone() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a watch of one key has seen.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchEvent {
    /// The server watches: what happens from now on is seen.
    Open,
    Put(KeyValue),
    Deleted,
    /// Nothing more will be seen: look for yourself, and watch again.
    Ended,
}

/// A watch of one key. The server forgets it when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    watch_id: i64,
    events: mpsc::Receiver<WatchEvent>,
    commands: UnboundedSender<WatchCommand>,
}

impl Watch {
    pub(crate) async fn next(&mut self) -> WatchEvent {
        self.events.recv().await.unwrap_or(WatchEvent::Ended)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.commands.send(WatchCommand::Cancel(WatchCancel { watch_id: self.watch_id }));
    }
}

#[derive(Debug)]
enum WatchCommand {
    Create(WatchCreate, mpsc::Sender<WatchEvent>),
    Cancel(WatchCancel),
}

/// Carries all watches of a connection over one stream. They end with it, and the next one begins another.
async fn run_watches(channel: Channel, mut commands: UnboundedReceiver<WatchCommand>) {
    let mut open = OpenWatches::new();
    while let Some(first) = next_request(&mut commands, &mut open).await {
        if let Err(error) = run_watch_stream(&channel, &first, &mut commands, &mut open).await {
            tracing::debug!(?error, "a watch stream ended");
        }
        open.clear();
    }
}

async fn run_watch_stream(
    channel: &Channel,
    first: &WatchRequest,
    commands: &mut UnboundedReceiver<WatchCommand>,
    open: &mut OpenWatches,
) -> Result<(), GrpcError> {
    let (mut requests, mut answers) = channel.stream("Watch/Watch", first).await?;
    loop {
        tokio::select! {
            request = next_request(commands, open) => match request {
                Some(request) => requests.send(&request)?,
                None => return Ok(()),
            },
            answer = answers.next() => {
                let Some(answer) = answer? else { return Ok(()) };
                if let Some(cancel) = pass_on(answer, open) {
                    requests.send(&cancel)?;
                }
            }
        }
    }
}

type OpenWatches = HashMap<i64, mpsc::Sender<WatchEvent>>;

/// What to ask of the server next; `None` when nobody can ask any more.
async fn next_request(
    commands: &mut UnboundedReceiver<WatchCommand>,
    open: &mut OpenWatches,
) -> Option<WatchRequest> {
    loop {
        match commands.recv().await? {
            WatchCommand::Create(create, events) => {
                open.insert(create.watch_id, events);
                return Some(WatchRequest { create: Some(create), cancel: None });
            }
            WatchCommand::Cancel(cancel) => {
                if open.remove(&cancel.watch_id).is_some() {
                    return Some(WatchRequest { create: None, cancel: Some(cancel) });
                }
            }
        }
    }
}

/// Passes on what the server has seen. Returns the end of a watch that nobody keeps up with.
fn pass_on(answer: WatchResponse, open: &mut OpenWatches) -> Option<WatchRequest> {
    let WatchResponse { watch_id, created, canceled, events } = answer;
    let opened = (created && !canceled).then_some(WatchEvent::Open);
    let seen = events.into_iter().map(|event| match event.kv {
        Some(kv) if event.kind == 0 => WatchEvent::Put(kv),
        _ => WatchEvent::Deleted,
    });
    let watcher = open.get(&watch_id)?;
    let told = opened.into_iter().chain(seen).try_for_each(|event| watcher.try_send(event));
    // Cancelled: refused, or from a revision that is compacted away.
    if canceled || told.is_err() {
        open.remove(&watch_id);
    }
    let cancel = WatchRequest { create: None, cancel: Some(WatchCancel { watch_id }) };
    (told.is_err() && !canceled).then_some(cancel)
}
