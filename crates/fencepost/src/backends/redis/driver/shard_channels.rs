//! Channels of shards: a message goes to the servers of one shard alone. A connection listens to that of a
//! lock while somebody waits for that lock over it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::connection::Connection;
use super::resp::Value;
use super::session::Session;
use crate::runtime::sync::lock;

/// What one connection listens to.
#[derive(Debug, Default)]
pub(super) struct ShardChannels(Mutex<HashMap<String, Listened>>);

#[derive(Debug, Default)]
struct Listened {
    waiters: usize,
    /// Whether the server knows of it, or is about to.
    live: bool,
    ended: Arc<Notify>,
}

impl ShardChannels {
    /// Under the mutex, so that the server is told in the order in which this changes.
    fn listen(self: &Arc<Self>, connection: &Connection, channel: &str) -> Result<Arc<Notify>, String> {
        let mut all = lock(&self.0);
        let listened = all.entry(channel.to_owned()).or_default();
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

    fn stop(&self, connection: &Connection, channel: &str) {
        let mut all = lock(&self.0);
        let Some(listened) = all.get_mut(channel) else { return };
        listened.waiters -= 1;
        if listened.waiters == 0 {
            all.remove(channel);
            let _ = connection.send_answered_by_push(&["SUNSUBSCRIBE", channel], Box::new(drop));
        }
    }

    /// The server does not serve the shard, or not yet. Whoever waits there asks for it again with the next
    /// look: sooner would be without end.
    fn refused(&self, channel: &str) {
        if let Some(listened) = lock(&self.0).get_mut(channel) {
            listened.live = false;
        }
    }

    /// The server has ended it: the shard is another one's now. Whoever waits there asks again.
    pub(super) fn ended(&self, channel: &str) {
        if let Some(listened) = lock(&self.0).get_mut(channel) {
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
    /// Listens to the channel of a runtime in the shard of a tag, if the server of the session has such
    /// channels. What is sent over the session after this is carried out after it.
    pub(in crate::backends) fn listen(session: &Arc<Session>, tag: &str, channel: &str) -> Option<Self> {
        let (channels, channel) = (session.shard_channels.as_ref()?, [tag, channel].concat());
        let ended = channels.listen(&session.connection, &channel).ok()?;
        Some(Self { session: session.clone(), channel, ended })
    }

    /// Waits until the server has ended it.
    pub(in crate::backends) async fn ended(&self) {
        self.ended.notified().await;
    }
}

impl Drop for ShardChannel {
    fn drop(&mut self) {
        if let Some(channels) = &self.session.shard_channels {
            channels.stop(&self.session.connection, &self.channel);
        }
    }
}
