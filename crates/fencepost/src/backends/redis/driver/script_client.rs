//! One script on one server, each call for one key.

use std::sync::Arc;

use super::batch::{Sharing, Step};
use super::connector::Connector;
use super::resp::Value;
use super::session::{NoReply, Script, ScriptReply, Sessions};
use crate::backends::redis::config::Config;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct ScriptClient {
    sessions: Sessions,
}

/// What came of a call.
pub(crate) enum ScriptOutcome {
    Answered(Value),
    /// The server's error, as it is.
    Refused(String),
    /// It was sent, and may have run, or may run later.
    Unanswered(String),
}

impl ScriptClient {
    pub(crate) async fn connect(url: StoreUrl, script: &'static str) -> Result<Self> {
        let connector = Connector::new(Config::from_url(url)?)?;
        let (script, channels) = (Script { text: script, sharded: None }, Arc::default());
        let sessions = Sessions::new(connector, script, None, channels, Clock::system());
        sessions.current(sessions.deadline()).await?;
        Ok(Self { sessions })
    }

    pub(crate) fn label(&self) -> &str {
        &self.sessions.config().label
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.sessions.config().prefix
    }

    /// What an error reply means.
    pub(crate) fn refusal(&self, text: &str) -> Error {
        self.sessions.connector.refusal(text)
    }

    pub(crate) fn unavailable(&self, why: String) -> Error {
        self.sessions.connector.unavailable(why)
    }

    /// Runs the script once. An error means that it was not sent, or has done nothing.
    pub(crate) async fn run(&self, key: &str, arguments: &[&[u8]]) -> Result<ScriptOutcome> {
        let sharing = Sharing::of_one_server(true);
        let step = Step { keys: &[key], arguments, needs_end: false, sharing, pushes: false };
        let called =
            self.sessions.call(self.sessions.deadline(), false, |session, sent, _| session.send(&step, sent));
        match called.await {
            Ok(ScriptReply { value: Value::Error(text), .. }) => Ok(ScriptOutcome::Refused(text)),
            Ok(ScriptReply { value, .. }) => Ok(ScriptOutcome::Answered(value)),
            Err(NoReply::Ended(why) | NoReply::TimedOut(why)) => Ok(ScriptOutcome::Unanswered(why)),
            Err(error) => Err(self.sessions.error(error)),
        }
    }
}
