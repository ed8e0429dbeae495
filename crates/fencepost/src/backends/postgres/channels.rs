//! Where waiters are notified. The server's queue has one entry for each lock and channel, so each waiter has
//! a channel of its own. Later waiters use it again: a session listens to as many as it had waiters at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::record::PushedGrant;
use super::session::Session;
use crate::runtime::sync::lock;

#[derive(Debug)]
pub(super) struct Channels {
    prefix: String,
    all: Mutex<HashMap<String, Arc<Channel>>>,
    free: Mutex<Vec<Arc<Channel>>>,
}

#[derive(Debug)]
struct Channel {
    name: String,
    /// The backend that listens to it.
    listening: Mutex<Option<String>>,
    news: Notify,
    pushed: Mutex<Option<PushedGrant>>,
}

impl Channels {
    pub(super) fn new(prefix: &str) -> Arc<Self> {
        Arc::new(Self { prefix: prefix.to_owned(), all: Mutex::default(), free: Mutex::default() })
    }

    /// A channel for one waiter.
    pub(super) fn take(self: &Arc<Self>) -> WaiterChannel {
        let free = lock(&self.free).pop();
        let channel = free.unwrap_or_else(|| {
            let mut all = lock(&self.all);
            let channel = Arc::new(Channel {
                name: format!("{}_{}", self.prefix, all.len()),
                listening: Mutex::default(),
                news: Notify::new(),
                pushed: Mutex::default(),
            });
            all.insert(channel.name.clone(), channel.clone());
            channel
        });
        WaiterChannel { all: self.clone(), channel }
    }

    /// The lock that a waiter is listed for may be free, or a release has granted it to that waiter.
    pub(super) fn notify(&self, channel: &str, grant: Option<PushedGrant>) {
        let channel = lock(&self.all).get(channel).cloned();
        if let Some(channel) = channel {
            if grant.is_some() {
                *lock(&channel.pushed) = grant;
            }
            channel.news.notify_one();
        }
    }
}

/// A channel, for as long as its waiter waits.
#[derive(Debug)]
pub(super) struct WaiterChannel {
    all: Arc<Channels>,
    channel: Arc<Channel>,
}

impl WaiterChannel {
    pub(super) fn name(&self) -> &str {
        &self.channel.name
    }

    /// Has the server notify us over this session.
    pub(super) async fn listen(&self, session: &Session) -> Result<(), tokio_postgres::Error> {
        if lock(&self.channel.listening).as_ref() != Some(&session.backend.id) {
            session.listen(&self.channel.name).await?;
            *lock(&self.channel.listening) = Some(session.backend.id.clone());
        }
        Ok(())
    }

    /// Waits for news, at most so long. What was meant for an earlier waiter may come, too.
    pub(super) async fn news(&self, most: Duration) -> Option<PushedGrant> {
        let _ = tokio::time::timeout(most, self.channel.news.notified()).await;
        lock(&self.channel.pushed).take()
    }
}

impl Drop for WaiterChannel {
    fn drop(&mut self) {
        lock(&self.all.free).push(self.channel.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;

    #[tokio::test]
    async fn waiters_have_channels_of_their_own_and_use_them_again() {
        let channels = Channels::new("x");
        let (one, two) = (channels.take(), channels.take());
        assert_eq!((one.name(), two.name()), ("x_0", "x_1"));
        let grant = PushedGrant { owner: Owner::fresh(), token: 7, until: 8 };
        channels.notify("x_2", Some(grant));
        channels.notify("x_1", Some(grant));
        assert_eq!(two.news(Duration::MAX).await, Some(grant));
        channels.notify("x_0", None);
        assert_eq!(one.news(Duration::MAX).await, None, "a hint is no grant");
        assert_eq!(one.news(Duration::ZERO).await, None, "nothing is told twice");
        drop(one);
        assert_eq!(channels.take().name(), "x_0");
    }
}
