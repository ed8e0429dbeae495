//! A session as those who use it see it: what nodes end with. It outlives its connections, as long as another one is made
//! in time.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::config::Config;
use super::connection::Connection;
use super::dial::{Dial, Greeting, Reason};
use super::life::{Answer, End, Life, Pending, Phase, Trouble, run};
use super::protocol::{Code, Permission, Request, SessionId};
use super::watches::Watches;
use crate::backends::common::batch::Batches;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Error, Result};

/// A handle of a session. When the last one is dropped, the session is closed.
#[derive(Debug)]
pub(super) struct Session {
    life: Arc<Life>,
    beats: Arc<Batches<Beat>>,
    keeper: Arc<Keeper>,
    background: BackgroundTasks,
    /// Whom nodes are made for that are for us alone, once it is known.
    identities: OnceLock<Vec<Permission>>,
}

type Beat = oneshot::Sender<Result<Moment, Arc<str>>>;

impl Session {
    /// Opens a session on the keeper's runtime, which must be the current one. Its timeout may be another than `wanted`.
    pub(super) async fn open(
        config: &Arc<Config>,
        keeper: &Arc<Keeper>,
        background: BackgroundTasks,
        clock: &Clock,
        wanted: Duration,
        deadline: Moment,
        reason: &Reason,
    ) -> Result<Arc<Self>> {
        let wanted = i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX);
        let dial = Dial { config, clock, session: SessionId::NONE, timeout: wanted, last_zxid: 0 };
        let found = dial.until(deadline, reason).await;
        let (sent, greeting) = found.ok_or_else(|| config.unavailable(&*reason.get()))?;
        let Greeting::Welcome { session: id, timeout, stream } = greeting else {
            return Err(config.unavailable("a new session has expired at once"));
        };
        let watches = Arc::<Watches>::default();
        let link = Arc::new(Connection::start(
            stream,
            &watches,
            config.login.as_ref().map(crate::url::Password::reveal),
        ));
        let life = Arc::new(Life {
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
        tokio::spawn(run(life.clone(), link));
        let beats = Arc::new(Batches::new(keeper.clone()));
        let identities = OnceLock::new();
        Ok(Arc::new(Self { life, beats, keeper: keeper.clone(), background, identities }))
    }

    /// Where its connections are driven.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Tidies up in the background.
    pub(super) fn run_errand(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(&self.keeper, job);
    }

    /// Gives up one handle. If it was the last, the session is closed when this returns, or its server is out of reach.
    pub(super) async fn close(self: Arc<Self>) {
        let Some(last) = Arc::into_inner(self) else { return };
        let life = last.life.clone();
        drop(last);
        let deadline = life.clock.now().plus(life.config.timeout);
        let mut phase = life.phase.subscribe();
        let ended = phase.wait_for(|phase| matches!(phase, Phase::Ended(_)));
        let _ = life.clock.within(Some(deadline), ended).await;
    }

    /// What our login is to the servers, if it is known yet.
    pub(super) fn identities(&self) -> Option<&[Permission]> {
        self.identities.get().map(Vec::as_slice)
    }

    /// Notes it: the permissions of a node that is for us alone.
    pub(super) fn note_identities(&self, ours: Vec<Permission>) -> &[Permission] {
        self.identities.get_or_init(|| ours)
    }

    /// The timeout that the server granted.
    pub(super) fn timeout(&self) -> Duration {
        self.life.timeout
    }

    pub(super) fn config(&self) -> &Config {
        &self.life.config
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.life.clock
    }

    pub(super) fn watches(&self) -> &Watches {
        &self.life.watches
    }

    /// Whether a node is of this session.
    pub(super) fn owns(&self, ephemeral_owner: i64) -> bool {
        self.life.id.number == ephemeral_owner
    }

    /// When the last request was sent that shows that the session lived.
    pub(super) fn confirmed(&self) -> Moment {
        *lock(&self.life.confirmed)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.life.phase.borrow(), Phase::Ended(_)) || self.life.is_over()
    }

    /// How it ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        match *self.life.phase.borrow() {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> End {
        let mut phase = self.life.phase.subscribe();
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
        let mut phase = self.life.phase.subscribe();
        let found = self.clock().within(Some(deadline), phase.wait_for(usable)).await;
        let found = found.and_then(std::result::Result::ok).map(|phase| phase.clone());
        let why = match found {
            Some(Phase::Connected(link)) => return Ok(link),
            Some(Phase::Ended(end)) => end.text().into(),
            Some(Phase::Connecting(why)) => why,
            None => match &*self.life.phase.borrow() {
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

    /// Sends a request if there is a connection.
    pub(super) fn send_now(&self, request: &Request<'_>) -> Option<Pending> {
        let Phase::Connected(link) = self.life.phase.borrow().clone() else { return None };
        self.send(&link, request).ok()
    }

    /// Waits for the answer.
    pub(super) async fn answer(&self, pending: Pending, deadline: Moment) -> Result<Answer, Trouble> {
        self.life.answer(pending, deadline).await
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
        let life = self.life.clone();
        self.beats.send(result, move |batch| drop(tokio::spawn(beat_for(life.clone(), batch))));
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
        self.life.closing.notify_one();
    }
}

async fn beat_for(life: Arc<Life>, batch: Vec<Beat>) {
    let outcome = match &*life.phase.borrow() {
        Phase::Connected(link) => Ok(link.clone()),
        Phase::Connecting(why) => Err(why.clone()),
        Phase::Ended(end) => Err(end.text().into()),
    };
    let outcome = match outcome {
        Ok(link) => life.beat(&link).await.map_err(|trouble| trouble.why),
        Err(why) => Err(why),
    };
    for one in batch {
        // Who gave up need not know.
        let _ = one.send(outcome.clone());
    }
}
