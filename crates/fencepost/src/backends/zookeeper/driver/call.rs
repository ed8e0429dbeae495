//! Requests of a session, each over the connection of the moment.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::config::Config;
use super::connection::Answer;
use super::jute::Reader;
use super::protocol::ErrorCode;
use super::requests::{self, Decode, Request, Stat};
use super::session::Session;
use super::session_driver::{SessionEnd, Status};
use super::watches::{NodeChange, NodeWatch};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;

/// Why a request has no result.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) cause: Cause,
    /// The node that it was about.
    pub(crate) path: String,
    pub(crate) config: Arc<Config>,
}

#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The server refused it.
    Refused(ErrorCode),
    /// The answer is not of ZooKeeper's protocol.
    Garbled(Arc<str>),
    /// It never left.
    NotSent(Arc<str>),
    /// No answer came in time. The request may still be carried out.
    Unanswered(Arc<str>),
    /// The connection ended before the answer. The request may have been carried out, or may still be.
    ConnectionLost(Arc<str>),
}

impl CallError {
    /// It has no answer because of its connection. The session may go on.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self.cause, Cause::NotSent(_) | Cause::Unanswered(_) | Cause::ConnectionLost(_))
    }

    /// The request may have been carried out.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.cause, Cause::Unanswered(_) | Cause::ConnectionLost(_))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(f, "{code:?}"),
            Self::Garbled(why) | Self::NotSent(why) | Self::Unanswered(why) | Self::ConnectionLost(why) => {
                f.write_str(why)
            }
        }
    }
}

/// The result of a request about a node; `None` if there is no such node.
pub(crate) fn if_exists<T>(result: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match result {
        Err(CallError { cause: Cause::Refused(ErrorCode::NO_NODE), .. }) => Ok(None),
        result => result.map(Some),
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    path: String,
    /// Where the answer comes, or why nothing was sent.
    answer: Result<oneshot::Receiver<Answer>, Arc<str>>,
    sent: Moment,
    by_leader: bool,
    decode: Decode<T>,
}

impl Session {
    /// The moment by which a request that is sent now must be answered.
    pub(crate) fn patience(&self) -> Moment {
        self.clock.now().plus(self.config.timeout)
    }

    fn error(&self, cause: Cause, path: &str) -> CallError {
        CallError { cause, path: path.to_owned(), config: self.config.clone() }
    }

    /// Waits for a connection, at most until the deadline.
    pub(crate) async fn connected(&self, deadline: Moment) -> Result<(), CallError> {
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| !matches!(status, Status::Connecting(_)));
        if self.clock.within(Some(deadline), settled).await.is_some() && self.end().is_none() {
            return Ok(());
        }
        Err(self.error(Cause::NotSent(self.status.borrow().why_silent()), "/"))
    }

    /// Sends a request if there is a connection. Never waits.
    pub(crate) fn send<T>(&self, request: &Request<T>) -> Pending<T> {
        let sent = self.clock.now();
        let answer = match &*self.status.borrow() {
            Status::Connected(connection) => connection.send(request),
            status => Err(status.why_silent()),
        };
        let (by_leader, decode) = (request.by_leader, request.decode);
        Pending { path: request.path.clone(), answer, sent, by_leader, decode }
    }

    /// Waits for an answer. May be called again if none came in time.
    pub(crate) async fn answer<T>(&self, pending: &mut Pending<T>, deadline: Moment) -> Result<T, CallError> {
        let answer = self.answer_or_cause(pending, deadline).await;
        answer.map_err(|cause| self.error(cause, &pending.path))
    }

    async fn answer_or_cause<T>(&self, pending: &mut Pending<T>, deadline: Moment) -> Result<T, Cause> {
        let lost = || Cause::ConnectionLost("the connection ended".into());
        let answer = match &mut pending.answer {
            Ok(answer) if answer.is_terminated() => return Err(lost()),
            Ok(answer) => answer,
            Err(why) => return Err(Cause::NotSent(why.clone())),
        };
        let Some(answer) = self.clock.within(Some(deadline), answer).await else {
            // Is the connection still good?
            self.heartbeat_wanted.notify_one();
            return Err(Cause::Unanswered("no answer in time".into()));
        };
        let body = answer.map_err(|_| lost())?.map_err(Cause::ConnectionLost)?.body;
        if body == Err(ErrorCode::SESSION_EXPIRED) {
            self.end_as(SessionEnd::Expired);
            return Err(Cause::Unanswered(SessionEnd::Expired.text().into()));
        }
        let by_leader = pending.by_leader && body.as_ref().err().is_none_or(|code| code.by_leader());
        if by_leader && !self.confirm_answered(pending.sent) {
            self.reconnect("the session was silent for too long to count on this connection");
        }
        let body = body.map_err(Cause::Refused)?;
        (pending.decode)(&mut Reader(&body)).map_err(|error| Cause::Garbled(error.to_string().into()))
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn call<T>(&self, request: &Request<T>, deadline: Moment) -> Result<T, CallError> {
        self.connected(deadline).await?;
        self.answer(&mut self.send(request), deadline).await
    }

    /// Sends requests together; each answer has the time of one request.
    pub(crate) async fn call_all<T>(
        &self,
        requests: &[Request<T>],
    ) -> Result<Vec<Result<T, CallError>>, CallError> {
        self.connected(self.patience()).await?;
        let mut answers = Vec::with_capacity(requests.len());
        for mut pending in requests.iter().map(|request| self.send(request)).collect::<Vec<_>>() {
            answers.push(self.answer(&mut pending, self.patience()).await);
        }
        Ok(answers)
    }

    /// Asks for what changes nothing, over one connection after the other, for as long as the session lasts.
    pub(crate) async fn insist<T>(&self, request: &Request<T>) -> Result<T, CallError> {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        loop {
            match self.call(request, self.patience()).await {
                Err(error) if error.is_interruption() && !self.has_ended() => {
                    backoff.sleep().await;
                }
                result => return result,
            }
        }
    }

    /// Reads a node and watches it; `None` if it is gone.
    pub(crate) async fn watch(&self, path: &str) -> Result<Option<(Vec<u8>, Stat, NodeWatch)>, CallError> {
        // In this order: the watch sees what comes right after the answer.
        let watch = self.watches.watch(path);
        let found = if_exists(self.insist(&requests::read_and_watch(path)).await)?;
        if found.is_none() {
            self.watches.tell(path, NodeChange::Deleted);
        }
        Ok(found.map(|(data, stat)| (data, stat, watch)))
    }

    /// Shows that the session lives by a request that is sent now; many callers share one. Returns when it
    /// was sent. What happened to watched nodes before it was answered has been told then.
    pub(crate) async fn heartbeat(&self) -> Result<Moment, CallError> {
        let asked = self.clock.now();
        let mut answered = self.heartbeats.subscribe();
        self.heartbeat_wanted.notify_one();
        tokio::select! {
            biased;
            answer = self.clock.within(Some(self.patience()), answered.wait_for(|sent| *sent >= asked)) => {
                if let Some(Ok(sent)) = answer {
                    return Ok(*sent);
                }
            }
            _ = self.ended() => {}
        }
        Err(self.error(Cause::Unanswered(self.status.borrow().why_silent()), "/"))
    }
}
