//! One script on one server, for what is no lock.

use super::connector::Connector;
use super::resp::Value;
use super::session::{Session, Sessions, Silence};
use crate::backends::redis::config::Config;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct ScriptClient {
    sessions: Sessions,
}

/// What came of a call.
pub(crate) enum Outcome {
    Answered(Value),
    /// The server's error, as it is.
    Refused(String),
    /// It was sent, and may have run, or may run later.
    Unanswered(String),
}

impl ScriptClient {
    pub(crate) async fn connect(url: StoreUrl, script: &'static str) -> Result<Self> {
        let connector = Connector::new(Config::from_url(url)?)?;
        let sessions = Sessions::new(connector, script, None, Clock::system());
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
        self.sessions.refusal(text)
    }

    pub(crate) fn unavailable(&self, why: String) -> Error {
        self.sessions.unavailable(why)
    }

    /// Runs the script once. An error means that it was not sent, or has done nothing.
    pub(crate) async fn run(&self, key: &str, arguments: &[&[u8]]) -> Result<Outcome> {
        let mut redialled = false;
        loop {
            let session = self.sessions.current(self.sessions.deadline()).await?;
            match self.call(&session, key, arguments).await {
                Ok(Value::Error(text)) => return Ok(Outcome::Refused(text)),
                Ok(value) => return Ok(Outcome::Answered(value)),
                Err(Silence::NotSent(_) | Silence::ReadOnly) if !redialled => redialled = true,
                Err(Silence::Ended(why)) => return Ok(Outcome::Unanswered(why)),
                Err(Silence::TimedOut(after)) => {
                    return Ok(Outcome::Unanswered(format!(
                        "no answer within {}",
                        crate::format_duration(after)
                    )));
                }
                Err(silence) => return Err(self.sessions.error(silence)),
            }
        }
    }

    async fn call(&self, session: &Session, key: &str, arguments: &[&[u8]]) -> Result<Value, Silence> {
        let deadline = self.sessions.deadline();
        let send = || self.sessions.answer(session, session.eval(&[key], arguments), deadline);
        match send().await? {
            Value::Error(text) if text.starts_with("NOSCRIPT") && session.did_not_run(&text) => send().await,
            value => Ok(value),
        }
    }
}
