//! The life of a session: kept by heartbeats, carried from one connection to the next, and over for us when it may be over
//! for the servers, whether they say so or not.
//!
//! The deadline counts from the sending of the last request that the *leader* had a part in answering: a server that has
//! lost its leader goes on answering reads and pings for a while, and the leader hears of none of them. So heartbeats
//! are `sync` requests. Even they do not reset the leader's timer if they come through another server, which tells the
//! leader of its sessions some time later: in time, if the answer comes in the first half of the session's timeout. After
//! a longer silence only the greeting of a new connection counts. SAFETY.md has the whole argument.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::config::Config;
use super::connection::Connection;
use super::dial::{Dial, Greeting};
use super::protocol::{Code, Reply, Request, SessionId};
use super::watches::Watches;
use crate::Result;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::lease::drift;
use crate::runtime::sync::lock;

/// Heartbeats in the time after which a session ends.
const BEATS: u32 = 8;
/// And no rarer than that, so that a connection that leads nowhere does not keep waiters waiting.
const LONGEST_BEAT: Duration = Duration::from_secs(10);

/// What the handles of a session and the task that keeps it alive share.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    pub(super) id: SessionId,
    pub(super) timeout: Duration,
    pub(super) watches: Arc<Watches>,
    pub(super) phase: watch::Sender<Phase>,
    /// When the last request was sent that shows that the session lived.
    pub(super) confirmed: Mutex<Moment>,
    /// Nobody needs it any more.
    pub(super) closing: Notify,
    /// A request was not answered in time: is the connection still good?
    pub(super) doubt: Notify,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Connected(Arc<Connection>),
    /// Without a connection, and why.
    Connecting(Arc<str>),
    Ended(End),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A server said so.
    Expired,
    /// A server took it over with a shorter timeout than locks count on.
    Shortened,
    /// By our own clock: no server answered in time.
    Unheard,
    /// Nobody needed it any more.
    Closed,
}

impl End {
    /// The servers have ended it, or will before its locks' ttl is over.
    pub(super) fn by_server(self) -> bool {
        matches!(self, Self::Expired | Self::Shortened)
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Expired => "the session has expired",
            Self::Shortened => {
                "a server has shortened the session; give all servers the same `maxSessionTimeout`, no shorter than the ttl"
            }
            Self::Unheard => "no server answered until the session's timeout was over",
            Self::Closed => "the session was closed",
        }
    }
}

/// An answer to a request: its body, or what was wrong.
pub(super) type Answer = Result<Vec<u8>, Code>;

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Trouble {
    /// The request may have reached the server.
    pub(super) sent: bool,
    pub(super) why: Arc<str>,
}

/// A request on its way.
pub(super) struct Pending {
    pub(super) link: Arc<Connection>,
    pub(super) reply: oneshot::Receiver<Reply>,
    pub(super) sent: Moment,
    pub(super) by_leader: bool,
}

impl Life {
    fn confirm(&self, sent: Moment) {
        let mut confirmed = lock(&self.confirmed);
        *confirmed = (*confirmed).max(sent);
    }

    /// The same for a request that was answered just now; `false`, and nothing is confirmed, after a silence so long that
    /// the session may be over before the leader hears of the request.
    fn confirm_answered(&self, sent: Moment) -> bool {
        let mut confirmed = lock(&self.confirmed);
        let in_time = self.clock.now() <= confirmed.plus(self.timeout / 2);
        if in_time {
            *confirmed = (*confirmed).max(sent);
        }
        in_time
    }

    /// From here on the servers may have ended the session.
    fn deadline(&self) -> Moment {
        lock(&self.confirmed).plus(self.timeout.saturating_sub(drift(self.timeout)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.clock.now() >= self.deadline()
    }

    pub(super) fn end(&self, end: End) {
        tracing::debug!(store = %self.config.label, session = ?self.id, "{}", end.text());
        self.turn(Phase::Ended(end));
    }

    /// Goes on to another phase. The end is the last one.
    fn turn(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let goes_on = !matches!(phase, Phase::Ended(_));
            if goes_on {
                *phase = next;
            }
            goes_on
        });
    }

    pub(super) async fn answer(&self, pending: Pending, deadline: Moment) -> Result<Answer, Trouble> {
        let Pending { link, reply, sent, by_leader } = pending;
        match self.clock.within(Some(deadline), reply).await {
            Some(Ok(Reply { body: Err(Code::SessionExpired), .. })) => {
                self.end(End::Expired);
                Err(Trouble { sent: true, why: End::Expired.text().into() })
            }
            Some(Ok(reply)) => {
                let by_leader = by_leader && reply.body.as_ref().err().is_none_or(|code| code.by_leader());
                if by_leader && !self.confirm_answered(sent) {
                    link.close("the session was silent for too long to count on this connection");
                }
                Ok(reply.body)
            }
            Some(Err(_)) => Err(Trouble { sent: true, why: link.why_ended() }),
            None => {
                self.doubt.notify_one();
                Err(Trouble { sent: true, why: "no answer in time".into() })
            }
        }
    }

    /// How long a heartbeat may take: a stuck connection should be replaced while there is time to.
    fn beat_limit(&self) -> Duration {
        self.config.timeout.min(self.timeout / 3)
    }

    pub(super) async fn beat(&self, link: &Arc<Connection>) -> Result<Moment, Trouble> {
        let sent = self.clock.now();
        let reply = link.send(&Request::Sync).map_err(|why| Trouble { sent: false, why })?;
        let pending = Pending { link: link.clone(), reply, sent, by_leader: true };
        let answer = self.answer(pending, sent.plus(self.beat_limit())).await?;
        match answer {
            Ok(_) if *lock(&self.confirmed) >= sent => Ok(sent),
            Ok(_) => Err(Trouble { sent: true, why: link.why_ended() }),
            Err(code) => Err(Trouble { sent: true, why: format!("a heartbeat failed: {code:?}").into() }),
        }
    }
}

/// Keeps the session alive and connected, until it ends.
pub(super) async fn run(life: Arc<Life>, mut link: Arc<Connection>) {
    loop {
        if serve(&life, &link).await == Next::Close {
            if let Ok(reply) = link.send(&Request::CloseSession) {
                let deadline = life.clock.now().plus(life.config.timeout);
                let _ = life.clock.within(Some(deadline), reply).await;
            }
            return life.end(End::Closed);
        }
        if matches!(*life.phase.borrow(), Phase::Ended(_)) {
            return;
        }
        tracing::debug!(store = %life.config.label, why = %link.why_ended(), "connection lost");
        life.turn(Phase::Connecting(link.why_ended()));
        let reconnected = tokio::select! {
            found = reconnect(&life) => found,
            // Its nodes are gone, or will be with it.
            () = life.closing.notified() => Err(End::Closed),
        };
        match reconnected {
            Ok(found) => link = found,
            Err(end) => return life.end(end),
        }
        life.turn(Phase::Connected(link.clone()));
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Reconnect,
    Close,
}

/// Makes heartbeats until the connection ends or nobody needs the session any more.
async fn serve(life: &Life, link: &Arc<Connection>) -> Next {
    loop {
        let due = lock(&life.confirmed).plus((life.timeout / BEATS).min(LONGEST_BEAT));
        tokio::select! {
            biased;
            () = link.ended() => return Next::Reconnect,
            () = life.closing.notified() => return Next::Close,
            () = life.doubt.notified() => {}
            () = life.clock.sleep_until(due) => {}
        }
        if let Err(trouble) = life.beat(link).await {
            link.close(&trouble.why);
        }
    }
}

/// Finds a server that goes on with the session.
async fn reconnect(life: &Life) -> Result<Arc<Connection>, End> {
    let timeout = i32::try_from(life.timeout.as_millis()).unwrap_or(i32::MAX);
    loop {
        if life.is_over() {
            return Err(End::Unheard);
        }
        let dial = Dial {
            config: &life.config,
            clock: &life.clock,
            session: life.id,
            timeout,
            last_zxid: life.watches.last_zxid(),
        };
        let limit = life.clock.now().plus(life.config.timeout.min(life.timeout / 2));
        match dial.round(limit.min(life.deadline())).await {
            Ok((sent, Greeting::Welcome { session, timeout: granted, stream })) => {
                // The servers count by what this one grants, from now on.
                if granted < timeout || session.number != life.id.number {
                    return Err(End::Shortened);
                }
                life.confirm(sent);
                let login = life.config.login.as_ref().map(crate::url::Password::reveal);
                return Ok(Arc::new(Connection::start(stream, &life.watches, login)));
            }
            Ok((_, Greeting::Expired)) => return Err(End::Expired),
            Err((why, _)) => {
                life.turn(Phase::Connecting(why));
                let pause = (life.timeout / 20).min(Duration::from_millis(100));
                tokio::time::sleep(crate::wait::jittered(pause)).await;
            }
        }
    }
}
