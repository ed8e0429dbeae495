//! Channels of shards: a message goes to the servers of one shard alone. A connection listens to that of a
//! lock while somebody waits for that lock over it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::connection::Connection;
use super::resp::Value;
use super::session::Session;
use crate::runtime::sync::lock;

/// How long a channel is kept without a waiter: who waited for a lock will often do so again.
const KEPT: Duration = Duration::from_secs(1);

/// What one connection listens to.
#[derive(Debug, Default)]
pub(super) struct ShardChannels(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    channels: HashMap<String, Listened>,
    /// When those without a waiter were last looked for.
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
struct Listened {
    waiters: usize,
    /// When the last one went.
    idle: Option<Instant>,
    /// Whether the server knows of it, or is about to.
    live: bool,
    ended: Arc<Notify>,
}

impl ShardChannels {
    /// Under the mutex, so that the server is told in the order in which this changes.
    fn listen(self: &Arc<Self>, connection: &Connection, channel: &str) -> Result<Arc<Notify>, String> {
        let mut all = lock(&self.0);
        let now = Instant::now();
        if all.swept.is_none_or(|swept| now - swept > KEPT) {
            all.swept = Some(now);
            all.channels.retain(|channel, listened| {
                let kept = listened.waiters > 0 || listened.idle.is_some_and(|idle| now - idle <= KEPT);
                if !kept && listened.live {
                    let _ = connection.send_answered_by_push(&["SUNSUBSCRIBE", channel], Box::new(drop));
                }
                kept
            });
        }
        let listened = all.channels.entry(channel.to_owned()).or_default();
        if !listened.live {
            let (channels, refused) = (Arc::downgrade(self), channel.to_owned());
            let refused = move |reply: Option<Value>| {
                if let (Some(_), Some(channels)) = (reply, channels.upgrade()) {
                    channels.refused(&refused);
                }
            };
            connection.send_answered_by_push(&["SSUBSCRIBE", channel], Box::new(refused))?;
            listened.live = true;
        }
        listened.waiters += 1;
        Ok(listened.ended.clone())
    }

    fn stop(&self, channel: &str) {
        if let Some(listened) = lock(&self.0).channels.get_mut(channel) {
            listened.waiters -= 1;
            listened.idle = Some(Instant::now());
        }
    }

    /// The server does not serve the shard, or not yet. Whoever waits there asks for it again with the next
    /// look: sooner would be without end.
    fn refused(&self, channel: &str) {
        if let Some(listened) = lock(&self.0).channels.get_mut(channel) {
            listened.live = false;
        }
    }

    /// Whether somebody listens to it, or did a moment ago.
    fn has(&self, channel: &str) -> bool {
        lock(&self.0).channels.get(channel).is_some_and(|listened| listened.live)
    }

    /// The server has ended it: the shard is another one's now. Whoever waits there asks again.
    pub(super) fn ended(&self, channel: &str) {
        if let Some(listened) = lock(&self.0).channels.get_mut(channel) {
            listened.live = false;
            listened.ended.notify_waiters();
        }
    }
}

/// Listens for one waiter, for as long as it lives.
#[derive(Debug)]
pub(in crate::backends) struct ShardChannel {
    session: Arc<Session>,
    channel: String,
    ended: Arc<Notify>,
}

impl ShardChannel {
    /// Listens to a channel, if the server of the session has channels of shards. What is sent over the
    /// session after this is carried out after it.
    pub(in crate::backends) fn listen(session: &Arc<Session>, channel: impl Fn() -> String) -> Option<Self> {
        let (channels, channel) = (session.shard_channels.as_ref()?, channel());
        let ended = channels.listen(&session.connection, &channel).ok()?;
        Some(Self { session: session.clone(), channel, ended })
    }

    /// Whether a waiter can be told over the session without listening anew.
    pub(in crate::backends) fn is_open(session: &Session, channel: impl Fn() -> String) -> bool {
        session.shard_channels.as_ref().is_none_or(|channels| channels.has(&channel()))
    }

    /// Waits until the server has ended it.
    pub(in crate::backends) async fn ended(&self) {
        self.ended.notified().await;
    }
}

impl Drop for ShardChannel {
    fn drop(&mut self) {
        if let Some(channels) = &self.session.shard_channels {
            channels.stop(&self.channel);
        }
    }
}
