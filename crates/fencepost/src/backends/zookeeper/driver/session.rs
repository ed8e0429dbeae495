//! A session: what nodes end with. It outlives its connections, as long as another one is made in time.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::super::config::Config;
use super::connect::connect;
use super::connection::Connection;
use super::protocol::{ConnectRequest, SessionId};
use super::requests::Permission;
use super::session_driver::{self, SessionEnd, Status};
use super::watches::Watches;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Clock,
    pub(crate) id: SessionId,
    /// What the server granted.
    pub(crate) timeout: Duration,
    /// Whom nodes are made for that are for our login alone, once a node has shown it.
    pub(crate) own_acl: OnceLock<Vec<Permission>>,
    /// Where its connections are driven.
    pub(crate) keeper: Arc<Keeper>,
    background: BackgroundTasks,
    pub(super) watches: Watches,
    pub(super) status: watch::Sender<Status>,
    /// When the last request was sent that shows that the session lived.
    pub(super) confirmed: Mutex<Moment>,
    /// When the last heartbeat was sent that was answered.
    pub(super) heartbeats: watch::Sender<Moment>,
    /// Asks the driver for a heartbeat now.
    pub(super) heartbeat_wanted: Notify,
}

/// Keeps a session open. When the last clone of the `Arc` is dropped, the driver closes it.
#[derive(Debug)]
pub(crate) struct OpenSession {
    session: Arc<Session>,
    _in_use: oneshot::Sender<()>,
}

impl Deref for OpenSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl OpenSession {
    /// Opens a session on the keeper's runtime, which must be the current one. Its timeout may be another
    /// than `wanted`.
    pub(crate) async fn open(
        config: Arc<Config>,
        keeper: Arc<Keeper>,
        background: BackgroundTasks,
        clock: Clock,
        wanted: Duration,
        deadline: Moment,
    ) -> Result<Arc<Self>, Arc<str>> {
        let timeout = i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX);
        let request = ConnectRequest { session: SessionId::default(), timeout, last_zxid: 0 };
        let connected = connect(&config, &clock, request, deadline).await?;
        let timeout = match u64::try_from(connected.timeout) {
            Ok(timeout @ 1..) => Duration::from_millis(timeout),
            _ => return Err("a new session has expired at once".into()),
        };
        tracing::debug!(store = %config.label, session = ?connected.session, "session opened");
        let watches = Watches::default();
        let connection = Connection::new(&watches, config.login());
        let session = Arc::new(Session {
            config,
            clock,
            id: connected.session,
            timeout,
            own_acl: OnceLock::new(),
            keeper,
            background,
            watches,
            status: watch::Sender::new(Status::Connected(connection.clone())),
            confirmed: Mutex::new(connected.sent),
            heartbeats: watch::Sender::new(connected.sent),
            heartbeat_wanted: Notify::new(),
        });
        let (in_use, closing) = oneshot::channel();
        tokio::spawn(session_driver::run(session.clone(), connection, connected.stream, closing));
        Ok(Arc::new(Self { session, _in_use: in_use }))
    }

    /// Drops one clone. If it was the last, the session is closed when this returns, or its server is out of
    /// reach.
    pub(crate) async fn close(self: Arc<Self>) {
        let session = self.session.clone();
        if Arc::into_inner(self).is_some() {
            session.clock.within(Some(session.patience()), session.ended()).await;
        }
    }
}

impl Session {
    /// Does something for a caller who does not wait for it any more.
    pub(crate) fn run_in_background(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(&self.keeper, job);
    }

    /// Whether it must not be counted on any more, by a server's word or by our own clock.
    pub(crate) fn has_ended(&self) -> bool {
        self.end().is_some() || self.is_over()
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<SessionEnd> {
        match *self.status.borrow() {
            Status::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> SessionEnd {
        let mut status = self.status.subscribe();
        let _ = status.wait_for(|status| matches!(status, Status::Ended(_))).await;
        self.end().unwrap_or(SessionEnd::Closed)
    }
}
