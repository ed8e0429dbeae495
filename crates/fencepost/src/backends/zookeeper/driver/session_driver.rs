//! Keeps a session alive by heartbeats, carries it from one connection to the next, and ends it for us when
//! it may have ended for the servers, whether they say so or not.
//!
//! The deadline counts from the send of the last request that the *leader* had a part in answering. A server
//! that has lost its leader goes on answering reads and pings for a while, and the leader hears of none of
//! them. So heartbeats are `sync` requests. Even they do not reset the leader's timer if they come through
//! another server, which tells the leader of its sessions some time later: in time, if the answer comes in
//! the first half of the session's timeout. After a longer silence only the greeting of a new connection
//! counts. docs/proofs/zookeeper.md has the whole argument.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::call::CallError;
use super::connect::{Connected, ask_each};
use super::connection::Connection;
use super::protocol::ConnectRequest;
use super::requests;
use super::session::Session;
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::runtime::lease::valid_until;
use crate::runtime::sync::lock;

/// Heartbeats in the time after which a session ends.
const HEARTBEATS: u32 = 8;

/// And no rarer than that, so that a connection that leads nowhere does not keep callers waiting.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) enum Status {
    Connected(Arc<Connection>),
    /// Without a connection, and why.
    Connecting(Arc<str>),
    Ended(SessionEnd),
}

impl Status {
    /// Why a request has no answer yet.
    pub(super) fn why_silent(&self) -> Arc<str> {
        match self {
            Self::Connected(_) => "no answer in time".into(),
            Self::Connecting(why) => why.clone(),
            Self::Ended(end) => end.text().into(),
        }
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// A server said so.
    Expired,
    /// A server took it over with a shorter timeout than was granted.
    Shortened,
    /// By our own clock: no server answered in time.
    Unheard,
    /// Nobody needed it any more.
    Closed,
}

impl SessionEnd {
    /// The servers have ended it, or will before the timeout that they granted is over.
    pub(crate) fn by_server(self) -> bool {
        matches!(self, Self::Expired | Self::Shortened)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Expired => "the session has expired",
            Self::Shortened => {
                "a server has shortened the session; give all servers the same `maxSessionTimeout`, no \
                 shorter than the ttl"
            }
            Self::Unheard => "no server answered until the session's timeout was over",
            Self::Closed => "the session was closed",
        }
    }
}

impl Session {
    /// When the last request was sent that shows that the session lived.
    pub(crate) fn confirmed(&self) -> Moment {
        *lock(&self.confirmed)
    }

    /// Confirms the session by a request that was answered just now. After a silence so long that the session
    /// may be over before the leader hears of the request, nothing is confirmed: `false`.
    pub(super) fn confirm_answered(&self, sent: Moment) -> bool {
        let mut confirmed = lock(&self.confirmed);
        let in_time = self.clock.now() <= confirmed.plus(self.timeout / 2);
        if in_time {
            *confirmed = (*confirmed).max(sent);
        }
        in_time
    }

    /// From here on the servers may have ended the session.
    fn deadline(&self) -> Moment {
        valid_until(self.confirmed(), self.timeout)
    }

    pub(super) fn is_over(&self) -> bool {
        self.clock.now() >= self.deadline()
    }

    pub(super) fn end_as(&self, end: SessionEnd) {
        tracing::debug!(store = %self.config.label, session = ?self.id, "{}", end.text());
        self.set_status(Status::Ended(end));
    }

    /// Has the driver find another connection.
    pub(super) fn reconnect(&self, why: &str) {
        tracing::debug!(store = %self.config.label, session = ?self.id, %why, "connection lost");
        self.set_status(Status::Connecting(why.into()));
    }

    /// The end is the last status.
    fn set_status(&self, next: Status) {
        self.status.send_if_modified(|status| {
            let goes_on = !matches!(status, Status::Ended(_));
            if goes_on {
                *status = next;
            }
            goes_on
        });
    }

    async fn beat(&self) -> Result<(), CallError> {
        let sent = self.clock.now();
        // A stuck connection must be replaced while there is time to.
        let limit = sent.plus(self.config.timeout.min(self.timeout / 3));
        self.answer(&mut self.send(&requests::sync()), limit).await?;
        // If the answer came too late to confirm anything, the connection is closed by now.
        if self.confirmed() >= sent {
            self.heartbeats.send_replace(sent);
        }
        Ok(())
    }
}

/// Drives a session until it ends. `closing` completes when nobody needs it any more.
pub(super) async fn run(
    session: Arc<Session>,
    mut connection: Arc<Connection>,
    mut stream: TcpStream,
    mut closing: oneshot::Receiver<()>,
) {
    loop {
        serve(&session, &connection, stream, &mut closing).await;
        if closing.is_terminated() {
            session.end_as(SessionEnd::Closed);
        }
        let why = session.status.borrow().why_silent();
        connection.end(&why);
        if session.end().is_some() {
            return;
        }
        let reconnected = tokio::select! {
            reconnected = reconnect(&session) => reconnected,
            // Its nodes are gone, or will be with it.
            _ = &mut closing => Err(SessionEnd::Closed),
        };
        match reconnected {
            Ok(found) => (connection, stream) = found,
            Err(end) => return session.end_as(end),
        }
        session.set_status(Status::Connected(connection.clone()));
        // Somebody may wait for the answer to a heartbeat that was lost.
        session.heartbeat_wanted.notify_one();
    }
}

/// Serves requests over one connection, for as long as it is good.
async fn serve(
    session: &Session,
    connection: &Connection,
    mut stream: TcpStream,
    closing: &mut oneshot::Receiver<()>,
) {
    let mut status = session.status.subscribe();
    let (reader, writer) = stream.split();
    let error = tokio::select! {
        // Writing comes before reading: a server that sends without end does not keep us from asking.
        biased;
        _ = status.wait_for(|status| !matches!(status, Status::Connected(_))) => return,
        error = connection.write(writer) => error.to_string(),
        error = connection.read(reader, &session.watches) => error.to_string(),
        error = keep_alive(session, closing) => error,
    };
    session.reconnect(&error);
}

/// Makes heartbeats until one fails, or the session was closed.
async fn keep_alive(session: &Session, closing: &mut oneshot::Receiver<()>) -> String {
    loop {
        let due = session.confirmed().plus((session.timeout / HEARTBEATS).min(LONGEST_PAUSE));
        tokio::select! {
            _ = &mut *closing => {
                let mut closed = session.send(&requests::close_session());
                let _ = session.answer(&mut closed, session.patience()).await;
                return SessionEnd::Closed.text().to_owned();
            }
            () = session.heartbeat_wanted.notified() => {}
            () = session.clock.sleep_until(due) => {}
        }
        if let Err(error) = session.beat().await {
            return format!("a heartbeat failed: {}", error.cause);
        }
    }
}

/// Finds a server that goes on with the session.
async fn reconnect(session: &Session) -> Result<(Arc<Connection>, TcpStream), SessionEnd> {
    let timeout = i32::try_from(session.timeout.as_millis()).unwrap_or(i32::MAX);
    let pause = (session.timeout / 20).min(Duration::from_millis(100));
    let mut backoff = Backoff::new(pause, pause);
    loop {
        if session.is_over() {
            return Err(SessionEnd::Unheard);
        }
        let request = ConnectRequest { session: session.id, timeout, last_zxid: session.watches.last_zxid() };
        let limit = session.clock.now().plus(session.config.timeout.min(session.timeout / 2));
        match ask_each(&session.config, &session.clock, request, limit.min(session.deadline())).await {
            Ok(Connected { timeout: ..=0, .. }) => return Err(SessionEnd::Expired),
            // The servers count by what this one grants, from now on.
            Ok(found) if found.timeout < timeout || found.session.number != session.id.number => {
                return Err(SessionEnd::Shortened);
            }
            Ok(Connected { sent, stream, .. }) => {
                let mut confirmed = lock(&session.confirmed);
                *confirmed = (*confirmed).max(sent);
                return Ok((Connection::new(&session.watches, session.config.login()), stream));
            }
            Err(none) => {
                session.set_status(Status::Connecting(none.why));
                backoff.sleep().await;
            }
        }
    }
}
