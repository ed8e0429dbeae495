//! One held lock, as its guard and the keeper both see it: the lease, what threatens it, and how it ended.
//!
//! `ended` is set before anything is sent that gives the lock up, and at most one renewal is under way at a
//! time. Together they make a renewal unable to outlive a release.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{Grant, Hold, Renewal, Request};
use crate::options::Options;
use crate::owner::Identity;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::fork;
use crate::runtime::lease::Lease;
use crate::runtime::loss_signal::{LossListener, LossSignal};
use crate::runtime::sync::lock;
use crate::stats::{Counters, add, subtract};
use crate::text::printable;
use crate::wait::jittered;
use crate::{Error, FencingToken, Loss, Name, Result, Risk, State, format_duration};

/// When a lock with a short first term is renewed, after it was acquired.
const FIRST_RENEWAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) id: u64,
    pub(crate) name: Name,
    pub(crate) identity: Identity,
    pub(crate) token: FencingToken,
    pub(crate) hold: Arc<dyn Hold>,
    signal: Arc<LossSignal>,
    clock: Clock,
    counters: Arc<Counters>,
    pub(crate) ttl: Duration,
    renew_every: Option<Duration>,
    acquired: Moment,
    /// Of the process that acquired it.
    generation: u32,
    progress: Mutex<Progress>,
}

/// What changes while the lock is held.
#[derive(Debug)]
struct Progress {
    lease: Lease,
    /// When to renew next; `None` if the lock is not renewed.
    renew_at: Option<Moment>,
    renewing: bool,
    /// The last renewal failed.
    failing: bool,
    loss: Option<Loss>,
    /// The guard gave the lock up; nothing may renew it any more.
    ended: bool,
    /// Watchers were told that the lock is at risk.
    warned: bool,
    /// Under which moment the keeper's schedule has this lock.
    scheduled: Option<Moment>,
}

/// What the keeper has to do for a lock now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Renew,
    /// Held for `max_hold`: give it back.
    Release,
    Nothing,
}

/// Logs an event of a held lock.
macro_rules! log {
    ($level:ident, $held:ident, $($rest:tt)+) => {
        tracing::$level!(
            name = %printable($held.name.as_str()),
            owner = %$held.identity.owner(),
            token = $held.token.get(),
            $($rest)+
        )
    };
}

impl LeaseState {
    pub(crate) fn new(
        request: &Request,
        grant: Grant,
        options: &Options,
        clock: Clock,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let acquired = clock.now();
        // Counted from here: a grant by push answers a request that was sent long before.
        let cap = options.max_hold.map(|hold| acquired.plus(hold));
        let lease = Lease::new(grant.sent, request.ttl, grant.term, cap);
        let renew_every = options.renew.then(|| options.cadence(&clock));
        // A push grants a short term at first, which is made up to the ttl even where nothing else is
        // renewed. A moment later is early enough, and lets the holder begin, or even end, its work first.
        let is_short = grant.term.is_some_and(|term| term < request.ttl);
        let renew_at = match renew_every {
            _ if is_short => Some(acquired.plus(FIRST_RENEWAL)),
            every => every.map(|every| lease.renew_at(every)),
        };
        add(&counters.held_now, 1);
        let held = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: request.name.clone(),
            identity: grant.identity,
            token: grant.token,
            hold: grant.hold,
            signal: request.signal.clone(),
            clock,
            counters,
            ttl: request.ttl,
            renew_every,
            acquired,
            generation: fork::generation(),
            progress: Mutex::new(Progress {
                lease,
                renew_at,
                renewing: false,
                failing: false,
                loss: None,
                ended: false,
                warned: false,
                scheduled: None,
            }),
        });
        if !grant.pushed {
            held.round_trip(acquired.since(grant.sent));
        }
        held
    }

    /// The state now, from the local clock alone.
    pub(crate) fn state(&self) -> State {
        if self.is_inherited() {
            return State::Lost(Loss::Forked);
        }
        let now = self.clock.now();
        self.state_of(&mut lock(&self.progress), now)
    }

    fn state_of(&self, progress: &mut Progress, now: Moment) -> State {
        if progress.loss.is_none() {
            if let Some(why) = self.signal.loss() {
                self.declare(progress, why.clone());
            } else if progress.lease.is_over(now) {
                let why = self.cause(progress, now);
                self.declare(progress, why);
            }
        }
        if let Some(why) = &progress.loss {
            return State::Lost(why.clone());
        }
        let renewed_every = self.renew_every.filter(|_| !progress.ended);
        let is_risky = progress.lease.risk_at(renewed_every).is_some_and(|risk_at| now >= risk_at);
        let why = match progress.lease.left(now) {
            None => return State::Held { left: None },
            Some(_) if progress.failing => Risk::Unreachable,
            left if !is_risky => return State::Held { left },
            Some(_) if progress.lease.at_cap() => Risk::MaxHold,
            Some(_) if renewed_every.is_none() => Risk::Ending,
            Some(_) => Risk::RenewalLate,
        };
        State::AtRisk { left: progress.lease.left(now).unwrap_or_default(), why }
    }

    /// Why the lease ran out. A keeper that runs declares a loss on time: what is noticed late was slept
    /// through.
    fn cause(&self, progress: &Progress, now: Moment) -> Loss {
        let has_asked = progress.renewing || progress.failing;
        match self.renew_every {
            _ if progress.lease.at_cap() => Loss::MaxHold,
            None => Loss::Expired,
            Some(_) if progress.lease.ended_long_ago(now) || !has_asked => Loss::Paused,
            Some(_) => Loss::Unreachable,
        }
    }

    fn declare(&self, progress: &mut Progress, why: Loss) {
        if progress.loss.is_some() {
            return;
        }
        if !progress.ended {
            self.counters.lost(&why);
            log!(warn, self, held = %self.held_for(), why = %why, "lock lost");
        }
        progress.loss = Some(why);
        self.signal.wake();
    }

    /// Has `listener` told when the store tells of a loss, whether or not anybody asks.
    pub(crate) fn report_losses_to(&self, listener: Box<dyn LossListener>) {
        self.signal.report_to(listener);
    }

    /// For logs.
    fn held_for(&self) -> String {
        format_duration(self.clock.now().since(self.acquired))
    }

    /// Whether this process was forked from the one that holds the lock. Nothing else here may be asked then:
    /// the parent may have forked while another thread had the mutex.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// To be called by whoever drops its share: what a child has inherited is never dropped.
    pub(crate) fn leak_in_a_child(self: &Arc<Self>) {
        if self.is_inherited() {
            std::mem::forget(self.clone());
        }
    }

    /// Whether the guard gave the lock up.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.progress).ended
    }

    pub(crate) fn valid_until(&self) -> Option<Moment> {
        lock(&self.progress).lease.until()
    }

    /// Waits until `look` finds something, looking whenever the state may have changed.
    pub(crate) async fn until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.signal.until(look).await
    }

    /// Counts a round trip and warns when it comes near the ttl.
    fn round_trip(&self, took: Duration) {
        self.counters.round_trips.record(took);
        if took > self.ttl / 4 {
            add(&self.counters.slow, 1);
            log!(
                warn, self, took = %format_duration(took), ttl = %format_duration(self.ttl),
                "a store round trip took more than a quarter of the ttl; use a longer ttl or a nearer store"
            );
        }
    }
}

/// The keeper's side.
impl LeaseState {
    /// When the keeper has to look at this lock again; `None` when it need not any more.
    fn due(&self, progress: &Progress, now: Moment) -> Option<Moment> {
        if progress.ended || progress.loss.is_some() {
            return None;
        }
        if self.signal.loss().is_some() {
            return Some(now);
        }
        let renew = progress.renew_at().filter(|_| !progress.renewing);
        let risk = progress.lease.risk_at(self.renew_every);
        let risk = risk.filter(|risk_at| !progress.warned && *risk_at > now);
        [renew, risk, progress.lease.until()].into_iter().flatten().min()
    }

    /// Notes where the keeper's schedule has this lock from now on. Returns where it had it, and that place;
    /// `None` is nowhere.
    pub(crate) fn reschedule(&self) -> (Option<Moment>, Option<Moment>) {
        let now = self.clock.now();
        let mut progress = lock(&self.progress);
        let due = self.due(&progress, now);
        (std::mem::replace(&mut progress.scheduled, due), due)
    }

    /// Looks at the lock at `now`. Renewals that fall due before `soon` are made early, to share a batch.
    pub(crate) fn look(&self, now: Moment, soon: Moment) -> Action {
        let mut progress = lock(&self.progress);
        progress.scheduled = None;
        if progress.ended {
            return Action::Nothing;
        }
        match self.state_of(&mut progress, now) {
            State::Lost(Loss::MaxHold) => return Action::Release,
            State::Lost(_) => return Action::Nothing,
            State::AtRisk { left, why } if !progress.warned => {
                progress.warned = true;
                log!(warn, self, left = %format_duration(left), why = %why, "lock at risk");
                self.signal.wake();
            }
            _ => {}
        }
        if progress.renewing || progress.renew_at().is_none_or(|renew_at| renew_at > soon) {
            return Action::Nothing;
        }
        progress.renewing = true;
        Action::Renew
    }

    /// One renewal, started by [`look`](Self::look).
    pub(crate) async fn renew(&self) {
        let (term, until) = {
            let progress = lock(&self.progress);
            (progress.lease.term_to_ask(self.ttl, self.clock.now()), progress.lease.until())
        };
        let answer = self.clock.within(until, self.hold.renew(term)).await;
        self.finish_renewal(answer.as_ref());
    }

    /// Takes over what a renewal came to; `None` is an answer that did not come before the lease ended.
    fn finish_renewal(&self, answer: Option<&Result<Renewal>>) {
        let now = self.clock.now();
        let mut progress = lock(&self.progress);
        progress.renewing = false;
        progress.failing = true;
        match answer {
            Some(Ok(Renewal::Renewed { sent, term })) => {
                self.round_trip(now.since(*sent));
                if progress.lease.renewed(*sent, *term, now) {
                    add(&self.counters.renewed, 1);
                    log!(debug, self, "lock renewed");
                    progress.failing = false;
                    progress.warned = false;
                    progress.renew_at = self.renew_every.map(|every| progress.lease.renew_at(every));
                }
            }
            Some(Ok(Renewal::Lost(why))) => self.declare(&mut progress, why.clone()),
            Some(Err(error)) => {
                add(&self.counters.renewals_failed, 1);
                let left = format_duration(progress.lease.left(now).unwrap_or(self.ttl));
                log!(warn, self, %left, %error, "renewal failed, trying again");
                // A failed `extend` of a lock that is not renewed is the caller's to repeat.
                let again = now.plus(jittered(progress.lease.pause_after_failure(now)));
                progress.renew_at = progress.renew_at.map(|_| again);
            }
            None => {}
        }
        self.state_of(&mut progress, now);
        drop(progress);
        self.signal.wake();
    }
}

impl Progress {
    fn renew_at(&self) -> Option<Moment> {
        self.renew_at.filter(|_| !self.lease.at_cap())
    }
}

/// The guard's side.
impl LeaseState {
    /// Ends renewal: no new one starts. Returns under which moment the schedule has this lock.
    pub(crate) fn end(&self) -> Option<Moment> {
        let mut progress = lock(&self.progress);
        if !progress.ended {
            progress.ended = true;
            subtract(&self.counters.held_now, 1);
            self.counters.holding.record(self.clock.now().since(self.acquired));
            self.signal.wake();
        }
        progress.scheduled.take()
    }

    /// Waits until no renewal is under way.
    pub(crate) async fn quiet(&self) {
        self.until(|| (!lock(&self.progress).renewing).then_some(())).await;
    }

    /// Extends the lease so that it ends `ttl` from now; never shortens it.
    pub(crate) async fn extend(&self, ttl: Duration) -> Result<Option<Duration>> {
        let (term, until) = loop {
            self.quiet().await;
            let now = self.clock.now();
            let mut progress = lock(&self.progress);
            if let State::Lost(why) = self.state_of(&mut progress, now) {
                return Err(Error::lost(&self.name, why));
            }
            if progress.ended {
                return Err(Error::invalid("the guard of this lock is gone"));
            }
            if !std::mem::replace(&mut progress.renewing, true) {
                break (progress.lease.term_to_ask(ttl, now), progress.lease.until());
            }
        };
        let answer = self.clock.within(until, self.hold.renew(term)).await;
        if let Some(Err(error @ Error::Invalid { .. })) = answer {
            // Nothing was asked of the store.
            lock(&self.progress).renewing = false;
            self.signal.wake();
            return Err(error);
        }
        self.finish_renewal(answer.as_ref());
        match (self.state(), answer) {
            (State::Lost(why), _) => Err(Error::lost(&self.name, why)),
            (_, Some(Err(error))) => Err(error.of_change(&self.name)),
            (state, _) => Ok(state.left()),
        }
    }

    /// Gives the lock back for a guard that is gone, as often as it takes while the store may still have it.
    pub(crate) async fn release_in_background(&self) {
        self.quiet().await;
        let give_up = {
            let now = self.clock.now();
            let mut progress = lock(&self.progress);
            let until = progress.lease.until().filter(|_| !self.state_of(&mut progress, now).is_lost());
            until.unwrap_or(now.plus(self.ttl))
        };
        for tried in 1u32.. {
            match self.hold.release().await {
                Ok(_) => return self.note_release(),
                Err(error) => log!(debug, self, %error, "release failed"),
            }
            let again = self.clock.now().plus(jittered(Duration::from_millis(20 << tried.min(7))));
            if again >= give_up {
                log!(warn, self, "the store did not answer the release; the lock ends with its lease");
                return;
            }
            self.clock.sleep_until(again).await;
        }
    }

    /// Counts and reports a release.
    pub(crate) fn note_release(&self) {
        add(&self.counters.released, 1);
        log!(debug, self, held = %self.held_for(), "lock released");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::owner::Identity;

    /// A lock whose store refuses to renew it.
    #[derive(Debug)]
    struct Refused(fn() -> Error);

    #[async_trait::async_trait]
    impl Hold for Refused {
        async fn renew(&self, _: Duration) -> Result<Renewal> {
            Err((self.0)())
        }

        async fn release(&self) -> Result<bool> {
            Err((self.0)())
        }

        async fn detach(&self, _: Duration) -> Result<Renewal> {
            Err((self.0)())
        }

        fn lifeline(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn held(refusal: fn() -> Error) -> Arc<LeaseState> {
        let (name, clock) = (Name::new("a").unwrap(), Clock::system());
        let request = Request::new(name.clone(), Duration::from_secs(60), "".into(), Arc::default());
        let grant = Grant {
            identity: Identity::fresh(&name),
            token: FencingToken::new(7).unwrap(),
            sent: clock.now(),
            term: Some(request.ttl),
            pushed: false,
            hold: Arc::new(Refused(refusal)),
        };
        LeaseState::new(&request, grant, &Options::new(request.ttl), clock, Arc::default())
    }

    #[tokio::test]
    async fn an_extension_that_fails_says_how_and_is_uncertain_only_if_its_outcome_is() {
        let extended =
            |refusal| async move { held(refusal).extend(Duration::from_secs(60)).await.unwrap_err() };
        let refused = extended(|| Error::config("renewing is forbidden")).await;
        assert!(
            matches!(&refused, Error::Config { message } if message == "renewing is forbidden"),
            "{refused}"
        );
        let odd = extended(|| Error::Backend { store: "x:".to_owned(), source: "odd".into() }).await;
        assert!(matches!(&odd, Error::Backend { .. }), "{odd}");
        let silent = || {
            let source = std::io::Error::from_raw_os_error(110);
            Error::Unavailable { store: "x:".to_owned(), source: Box::new(source) }
        };
        let unknown = extended(silent).await;
        let Error::Uncertain { source, .. } = &unknown else { panic!("{unknown}") };
        let Some(Error::Unavailable { source, .. }) = source.downcast_ref::<Error>() else {
            panic!("{source}")
        };
        assert_eq!(source.downcast_ref::<std::io::Error>().unwrap().raw_os_error(), Some(110));
    }
}
