//! A session: what nodes end with. It outlives its connections, as long as another one is made in time, and ends for us
//! when it may have ended for the servers, whether they say so or not.
//!
//! The deadline counts from the sending of the last request that the *leader* had a part in answering: a server that has
//! lost its leader goes on answering reads and pings for a while, and the leader hears of none of them. So heartbeats
//! are `sync` requests. An answered one also shows that no watched node had changed before, or the event would have
//! come first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::config::Config;
use super::connection::{Connection, Greeting, greet};
use super::protocol::{Code, Reply, Request, SessionId};
use super::watches::Watches;
use crate::backend::lock;
use crate::backends::batch::Batches;
use crate::clock::{Clock, Moment};
use crate::keeper::Keeper;
use crate::lease::drift;
use crate::{Error, Result};

/// A handle of a session. When the last one is dropped, the session is closed.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    beats: Arc<Batches<Beat>>,
    keeper: Arc<Keeper>,
}

type Beat = oneshot::Sender<Result<Moment, Arc<str>>>;

#[derive(Debug)]
struct Shared {
    config: Arc<Config>,
    clock: Clock,
    id: SessionId,
    timeout: Duration,
    watches: Arc<Watches>,
    phase: watch::Sender<Phase>,
    /// When the last request was sent that shows that the session lived.
    confirmed: Mutex<Moment>,
    /// Nobody needs it any more.
    closing: Notify,
    /// A request was not answered in time: is the connection still good?
    doubt: Notify,
}

#[derive(Clone, Debug)]
enum Phase {
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
    /// By our own clock: no server answered in time.
    Unheard,
    /// Nobody needed it any more.
    Closed,
}

impl End {
    fn text(self) -> &'static str {
        match self {
            Self::Expired => "the session has expired",
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
    link: Arc<Connection>,
    reply: oneshot::Receiver<Reply>,
    sent: Moment,
    by_leader: bool,
}

impl Session {
    /// Opens a session on the keeper's runtime, which must be the current one. Its timeout may be another than `wanted`.
    pub(super) async fn open(
        config: &Arc<Config>,
        keeper: &Arc<Keeper>,
        clock: &Clock,
        wanted: Duration,
        deadline: Moment,
    ) -> Result<Arc<Self>> {
        let wanted = i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX);
        let dial = Dial { config, clock, session: SessionId::NONE, timeout: wanted, last_zxid: 0 };
        let (sent, greeting) = dial.until(deadline).await.map_err(|why| config.unavailable(&*why))?;
        let Greeting::Welcome { session: id, timeout, stream } = greeting else {
            return Err(config.unavailable("a new session has expired at once"));
        };
        let watches = Arc::<Watches>::default();
        let link = Arc::new(Connection::start(stream, &watches, config.login.as_deref()));
        let shared = Arc::new(Shared {
            config: config.clone(),
            clock: clock.clone(),
            id,
            timeout: Duration::from_millis(timeout.unsigned_abs().into()),
            watches,
            phase: watch::Sender::new(Phase::Connected(link.clone())),
            confirmed: Mutex::new(sent),
            closing: Notify::new(),
            doubt: Notify::new(),
        });
        tracing::debug!(store = %config.label, session = ?id, "session opened");
        tokio::spawn(run(shared.clone(), link));
        let beats = Arc::new(Batches::new(keeper.clone()));
        Ok(Arc::new(Self { shared, beats, keeper: keeper.clone() }))
    }

    /// Where its connections are driven, and where it is tidied up after.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Gives up one handle. If it was the last, the session is closed when this returns, or its server is out of reach.
    pub(super) async fn close(self: Arc<Self>) {
        let Some(last) = Arc::into_inner(self) else { return };
        let shared = last.shared.clone();
        drop(last);
        let deadline = shared.clock.now().plus(shared.config.timeout);
        let mut phase = shared.phase.subscribe();
        let ended = phase.wait_for(|phase| matches!(phase, Phase::Ended(_)));
        let _ = shared.clock.within(Some(deadline), ended).await;
    }

    /// The timeout that the server granted.
    pub(super) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    pub(super) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub(super) fn watches(&self) -> &Watches {
        &self.shared.watches
    }

    /// Whether a node is of this session.
    pub(super) fn owns(&self, ephemeral_owner: i64) -> bool {
        self.shared.id.number == ephemeral_owner
    }

    /// When the last request was sent that shows that the session lived.
    pub(super) fn confirmed(&self) -> Moment {
        *lock(&self.shared.confirmed)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ended(_)) || self.shared.is_over()
    }

    /// How it ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        match *self.shared.phase.borrow() {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> End {
        let mut phase = self.shared.phase.subscribe();
        // The sender lives in `self`.
        match phase.wait_for(|phase| matches!(phase, Phase::Ended(_))).await.as_deref() {
            Ok(Phase::Ended(end)) => *end,
            _ => End::Closed,
        }
    }

    /// The moment by which one request has to be answered.
    pub(super) fn patience(&self) -> Moment {
        self.clock().now().plus(self.config().timeout)
    }

    /// A connection, if there is one before the deadline.
    pub(super) async fn link(&self, deadline: Moment) -> Result<Arc<Connection>, Trouble> {
        let usable = |phase: &Phase| match phase {
            Phase::Connected(link) => !link.has_ended(),
            Phase::Connecting(_) => false,
            Phase::Ended(_) => true,
        };
        let mut phase = self.shared.phase.subscribe();
        let found = self.clock().within(Some(deadline), phase.wait_for(usable)).await;
        let found = found.and_then(std::result::Result::ok).map(|phase| phase.clone());
        let why = match found {
            Some(Phase::Connected(link)) => return Ok(link),
            Some(Phase::Ended(end)) => end.text().into(),
            Some(Phase::Connecting(why)) => why,
            None => match &*self.shared.phase.borrow() {
                Phase::Connecting(why) => why.clone(),
                _ => "no connection in time".into(),
            },
        };
        Err(Trouble { sent: false, why })
    }

    /// Sends a request over a connection. Never waits.
    pub(super) fn send(&self, link: &Arc<Connection>, request: &Request<'_>) -> Result<Pending, Trouble> {
        let sent = self.clock().now();
        match link.send(request) {
            Ok(reply) => Ok(Pending { link: link.clone(), reply, sent, by_leader: request.by_leader() }),
            Err(why) => Err(Trouble { sent: false, why }),
        }
    }

    /// Waits for the answer.
    pub(super) async fn answer(&self, pending: Pending, deadline: Moment) -> Result<Answer, Trouble> {
        self.shared.answer(pending, deadline).await
    }

    /// Sends a request and waits for the answer.
    pub(super) async fn call(&self, request: &Request<'_>, deadline: Moment) -> Result<Answer, Trouble> {
        let link = self.link(deadline).await?;
        self.answer(self.send(&link, request)?, deadline).await
    }

    /// Asks for what changes nothing, over one connection after the other, for as long as the session lasts.
    pub(super) async fn insist(&self, request: &Request<'_>) -> Result<Answer> {
        loop {
            match self.call(request, self.patience()).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) if self.has_ended() => return Err(self.unavailable(&trouble.why)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// What the server has refused.
    pub(super) fn refusal(&self, code: Code, path: &str) -> Error {
        let store = &self.config().label;
        match code {
            Code::NoAuth | Code::AuthFailed => Error::config(format!(
                "{store} does not let us use the node `{path}`; give the login it was made with in the URL, as in \
                 `zookeeper://user:password@host`, or change the node's ACL"
            )),
            Code::Unimplemented => {
                Error::config(format!("{store} is too old; Fencepost needs ZooKeeper 3.5 or newer"))
            }
            code => self.config().backend(format!("`{path}`: {code:?}")),
        }
    }

    /// Shows that the session lives by a request that is sent now; many who ask at once share one. Returns when it was
    /// sent.
    pub(super) async fn beat(&self) -> Result<Moment> {
        let (result, answer) = oneshot::channel();
        let shared = self.shared.clone();
        self.beats.send(result, move |batch| drop(tokio::spawn(beat_for(shared.clone(), batch))));
        match answer.await {
            Ok(Ok(sent)) => Ok(sent),
            Ok(Err(why)) => Err(self.unavailable(&why)),
            Err(_) => Err(self.unavailable("the runtime that carried the heartbeat ended")),
        }
    }

    pub(super) fn unavailable(&self, why: &str) -> Error {
        self.config().unavailable(why)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.closing.notify_one();
    }
}

async fn beat_for(shared: Arc<Shared>, batch: Vec<Beat>) {
    let outcome = match &*shared.phase.borrow() {
        Phase::Connected(link) => Ok(link.clone()),
        Phase::Connecting(why) => Err(why.clone()),
        Phase::Ended(end) => Err(end.text().into()),
    };
    let outcome = match outcome {
        Ok(link) => shared.beat(&link).await.map_err(|trouble| trouble.why),
        Err(why) => Err(why),
    };
    for one in batch {
        // Who gave up need not know.
        let _ = one.send(outcome.clone());
    }
}

impl Shared {
    fn confirm(&self, sent: Moment) {
        let mut confirmed = lock(&self.confirmed);
        *confirmed = (*confirmed).max(sent);
    }

    /// From here on the servers may have ended the session.
    fn deadline(&self) -> Moment {
        lock(&self.confirmed).plus(self.timeout.saturating_sub(drift(self.timeout)))
    }

    fn is_over(&self) -> bool {
        self.clock.now() >= self.deadline()
    }

    fn end(&self, end: End) {
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

    async fn answer(&self, pending: Pending, deadline: Moment) -> Result<Answer, Trouble> {
        let Pending { link, reply, sent, by_leader } = pending;
        match self.clock.within(Some(deadline), reply).await {
            Some(Ok(Reply { body: Err(Code::SessionExpired), .. })) => {
                self.end(End::Expired);
                Err(Trouble { sent: true, why: End::Expired.text().into() })
            }
            Some(Ok(reply)) => {
                if by_leader {
                    self.confirm(sent);
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

    async fn beat(&self, link: &Arc<Connection>) -> Result<Moment, Trouble> {
        let sent = self.clock.now();
        let reply = link.send(&Request::Sync).map_err(|why| Trouble { sent: false, why })?;
        let pending = Pending { link: link.clone(), reply, sent, by_leader: true };
        let answer = self.answer(pending, sent.plus(self.beat_limit())).await?;
        match answer {
            Ok(_) => Ok(sent),
            Err(code) => Err(Trouble { sent: true, why: format!("a heartbeat failed: {code:?}").into() }),
        }
    }
}

/// Keeps the session alive and connected, until it ends.
async fn run(shared: Arc<Shared>, mut link: Arc<Connection>) {
    loop {
        if serve(&shared, &link).await == Next::Close {
            if let Ok(reply) = link.send(&Request::CloseSession) {
                let deadline = shared.clock.now().plus(shared.config.timeout);
                let _ = shared.clock.within(Some(deadline), reply).await;
            }
            return shared.end(End::Closed);
        }
        if matches!(*shared.phase.borrow(), Phase::Ended(_)) {
            return;
        }
        tracing::debug!(store = %shared.config.label, why = %link.why_ended(), "connection lost");
        shared.turn(Phase::Connecting(link.why_ended()));
        let reconnected = tokio::select! {
            found = reconnect(&shared) => found,
            // Its nodes are gone, or will be with it.
            () = shared.closing.notified() => Err(End::Closed),
        };
        match reconnected {
            Ok(found) => link = found,
            Err(end) => return shared.end(end),
        }
        shared.turn(Phase::Connected(link.clone()));
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Reconnect,
    Close,
}

/// Makes heartbeats until the connection ends or nobody needs the session any more.
async fn serve(shared: &Shared, link: &Arc<Connection>) -> Next {
    loop {
        let due = lock(&shared.confirmed).plus(shared.timeout / 4);
        tokio::select! {
            biased;
            () = link.ended() => return Next::Reconnect,
            () = shared.closing.notified() => return Next::Close,
            () = shared.doubt.notified() => {}
            () = shared.clock.sleep_until(due) => {}
        }
        if let Err(trouble) = shared.beat(link).await {
            link.close(&trouble.why);
        }
    }
}

/// Finds a server that goes on with the session.
async fn reconnect(shared: &Shared) -> Result<Arc<Connection>, End> {
    let timeout = i32::try_from(shared.timeout.as_millis()).unwrap_or(i32::MAX);
    loop {
        if shared.is_over() {
            return Err(End::Unheard);
        }
        let dial = Dial {
            config: &shared.config,
            clock: &shared.clock,
            session: shared.id,
            timeout,
            last_zxid: shared.watches.last_zxid(),
        };
        let limit = shared.clock.now().plus(shared.config.timeout.min(shared.timeout / 2));
        match dial.round(limit.min(shared.deadline())).await {
            Ok((sent, Greeting::Welcome { stream, .. })) => {
                shared.confirm(sent);
                let login = shared.config.login.as_deref();
                return Ok(Arc::new(Connection::start(stream, &shared.watches, login)));
            }
            Ok((_, Greeting::Expired)) => return Err(End::Expired),
            Err((why, _)) => {
                shared.turn(Phase::Connecting(why));
                let pause = (shared.timeout / 20).min(Duration::from_millis(100));
                tokio::time::sleep(crate::wait::jittered(pause)).await;
            }
        }
    }
}

/// What to say to which servers.
struct Dial<'a> {
    config: &'a Config,
    clock: &'a Clock,
    session: SessionId,
    timeout: i32,
    last_zxid: i64,
}

impl Dial<'_> {
    /// Asks all servers in turn, again and again, unless nobody listens on any of them.
    async fn until(&self, deadline: Moment) -> Result<(Moment, Greeting), Arc<str>> {
        loop {
            let (why, listening) = match self.round(deadline).await {
                Ok(found) => return Ok(found),
                Err(trouble) => trouble,
            };
            if !listening || self.clock.now() >= deadline {
                return Err(why);
            }
            tokio::time::sleep(crate::wait::jittered(Duration::from_millis(100))).await;
        }
    }

    /// Asks each server once, from one at random on; says why none was right, and whether any listened.
    async fn round(&self, deadline: Moment) -> Result<(Moment, Greeting), (Arc<str>, bool)> {
        let (mut why, mut listening) = (Arc::from("no server was asked"), false);
        let count = self.config.servers.len();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between zero and the count
        let start = (crate::wait::random() * count as f64) as usize;
        for turn in 0..count {
            let server = &self.config.servers[(start + turn) % count];
            let sent = self.clock.now();
            // What time there is, shared with those still to be asked.
            let share = deadline.since(sent) / u32::try_from(count - turn).unwrap_or(1);
            let greeting = greet(server, self.session, self.timeout, self.last_zxid);
            let (host, port) = server;
            match self.clock.within(Some(sent.plus(share)), greeting).await {
                Some(Ok(greeting)) => return Ok((sent, greeting)),
                Some(Err(error)) => {
                    listening |= error.kind() != std::io::ErrorKind::ConnectionRefused;
                    why = format!("{host}:{port}: {error}").into();
                }
                None => {
                    listening = true;
                    why = format!("{host}:{port}: no answer in time").into();
                }
            }
        }
        Err((why, listening))
    }
}
