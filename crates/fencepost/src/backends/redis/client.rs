//! What attempts and holds share: sessions with the server, and one way to send it an [`Op`].

use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::driver::connector::Connector;
use super::driver::push::PushRouter;
use super::driver::resp::Value;
use super::driver::session::{Session, Sessions, Silence};
use super::keys::{self, KeySet};
use super::ops::{self, Op};
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::{Error, Name, Result};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) sessions: Sessions,
    pub(super) router: Arc<PushRouter>,
    pub(super) clock: Clock,
    pub(super) keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
}

/// An answer, and when its request was sent.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Value,
    pub(super) sent: Moment,
    /// The session of a first request ended, and it may have been carried out.
    pub(super) repeated: bool,
}

impl Client {
    pub(super) async fn connect(config: Config) -> Result<Self> {
        let (clock, router) = (Clock::system(), Arc::<PushRouter>::default());
        let connector = Connector::new(config)?;
        let sessions = Sessions::new(connector, ops::SCRIPT, Some(router.clone()), clock.clone());
        sessions.current(sessions.deadline()).await?;
        let keeper = Keeper::of(&clock)?;
        Ok(Self { sessions, router, clock, keeper, background: BackgroundTasks::default() })
    }

    pub(super) fn config(&self) -> &Config {
        self.sessions.config()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.config().timeout
    }

    /// The keys of a lock; refuses a name that cannot have any.
    pub(super) fn keys(&self, name: &Name) -> Result<Arc<KeySet>> {
        keys::of(&self.config().start, name).map(Arc::new)
    }

    /// Runs one op.
    pub(super) async fn run(&self, keys: &KeySet, op: Op<'_>, timeout: Duration) -> Result<Answer> {
        let answer = self.send(keys, timeout, |_| op).await?;
        match &answer.reply {
            Value::Error(text) => Err(self.refusal(keys, text).await),
            _ => Ok(answer),
        }
    }

    /// Sends what `op` says for a session, and once more over a new one if the first turns out to have ended,
    /// or its server to have become a replica. That is safe for every verb but `seize`: each names the
    /// identity that it is for, and most of them the token.
    pub(super) async fn send<'a>(
        &self,
        keys: &KeySet,
        timeout: Duration,
        mut op: impl FnMut(&Arc<Session>) -> Op<'a>,
    ) -> Result<Answer> {
        let deadline = self.clock.now().plus(timeout);
        let (mut first, mut repeated) = (true, false);
        loop {
            let session = self.sessions.current(deadline).await?;
            let (op, sent) = (op(&session), self.clock.now());
            match self.sessions.exchange(&session, &[op.on(keys)], sent, deadline).await {
                Ok(reply) => return Ok(Answer { reply, sent, repeated }),
                Err(silence @ Silence::TimedOut(_)) => return Err(self.sessions.error(silence)),
                Err(silence) if !first => return Err(self.sessions.error(silence)),
                Err(silence) => {
                    first = false;
                    repeated = matches!(silence, Silence::Ended(_));
                }
            }
        }
    }

    /// What an error reply to an op means. One about a key of another type says which key.
    pub(super) async fn refusal(&self, keys: &KeySet, text: &str) -> Error {
        match text.contains("WRONGTYPE") {
            true => self.odd_key(keys).await.map(|(_, odd)| self.backend(odd)),
            false => None,
        }
        .unwrap_or_else(|| self.sessions.refusal(text))
    }

    /// Whether the lock itself is a key of another type: somebody else's.
    pub(super) async fn is_of_another_type(&self, keys: &KeySet) -> bool {
        self.odd_key(keys).await.is_some_and(|(index, _)| index == 0)
    }

    /// The first of a lock's keys that is of another type, and what to do about it.
    async fn odd_key(&self, keys: &KeySet) -> Option<(usize, String)> {
        let types = keys.each().map(|key| ["TYPE", key]);
        let types = self.sessions.ask(&types.each_ref().map(|words| &words[..])).await.ok()?;
        let rights = ["string", "string", "list"];
        keys.each().iter().zip(&types).zip(rights).enumerate().find_map(|(index, ((key, found), right))| {
            let found = found.as_text().filter(|found| *found != "none" && *found != right)?;
            Some((index, format!("key `{key}` is a {found}, not a {right}; delete it if nobody needs it")))
        })
    }

    /// An answer that cannot be read.
    pub(super) fn unreadable(&self) -> Error {
        self.backend("an answer that makes no sense".to_owned())
    }

    fn backend(&self, what: String) -> Error {
        Error::Backend { store: self.config().label.clone(), source: what.into() }
    }
}
