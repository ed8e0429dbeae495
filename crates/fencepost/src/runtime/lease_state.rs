//! One held lock, as its guard and the keeper both see it: the lease, what threatens it, and how it ended.
//!
//! `ended` is set before anything is sent that gives the lock up, and at most one renewal is under way at a
//! time. Together they make a renewal unable to outlive a release.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{Grant, Hold, Renewal, Request};
use crate::options::Options;
use crate::owner::Identity;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::lease::Lease;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::stats::{Counters, add, subtract};
use crate::text::printable;
use crate::{Error, FencingToken, Loss, Name, Owner, Result, Risk, State, format_duration};

/// When a lock with a short first term is renewed, after it was acquired.
const FIRST_RENEWAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) id: u64,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) identity: Identity,
    pub(crate) token: FencingToken,
    pub(crate) hold: Arc<dyn Hold>,
    signal: Arc<LossSignal>,
    clock: Clock,
    counters: Arc<Counters>,
    ttl: Duration,
    renew_every: Option<Duration>,
    acquired: Moment,
    /// Of the process that acquired it.
    generation: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    lease: Lease,
    /// The last renewal failed.
    trouble: bool,
    /// When to renew, if not by the cadence: after a failure, or because the first term was a short one.
    renew_early_at: Option<Moment>,
    renewing: bool,
    /// A renewal has been sent since the last one was answered.
    tried: bool,
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
        // A lock handed over by push has a short term at first. A moment later is early enough to renew it,
        // and lets the holder begin, or even end, its work first.
        let short = grant.term.is_some_and(|term| term < request.ttl);
        let renew_early_at = short.then(|| acquired.plus(FIRST_RENEWAL));
        let round_trip = (!grant.pushed).then(|| acquired.since(grant.sent));
        add(&counters.held_now, 1);
        let held = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: request.name.clone(),
            owner: grant.identity.owner(),
            identity: grant.identity,
            token: grant.token,
            hold: grant.hold,
            signal: request.signal.clone(),
            clock,
            counters,
            ttl: request.ttl,
            renew_every,
            acquired,
            generation: crate::runtime::fork::generation(),
            inner: Mutex::new(Inner {
                lease,
                trouble: false,
                renew_early_at,
                renewing: false,
                tried: false,
                loss: None,
                ended: false,
                warned: false,
                scheduled: None,
            }),
        });
        if let Some(took) = round_trip {
            held.round_trip(took);
        }
        held
    }

    /// The state now, from the local clock alone.
    pub(crate) fn state(&self) -> State {
        if self.is_inherited() {
            return State::Lost(Loss::Forked);
        }
        let now = self.clock.now();
        self.state_of(&mut lock(&self.inner), now)
    }

    fn state_of(&self, inner: &mut Inner, now: Moment) -> State {
        if inner.loss.is_none() {
            if let Some(why) = self.signal.loss() {
                self.declare(inner, why.clone());
            } else if inner.lease.is_over(now) {
                let why = self.cause(inner, now);
                self.declare(inner, why);
            }
        }
        if let Some(why) = &inner.loss {
            return State::Lost(why.clone());
        }
        let left = inner.lease.left(now);
        let renewed_every = self.renew_every.filter(|_| !inner.ended);
        let risky = inner.lease.risk_at(renewed_every).is_some_and(|risk_at| now >= risk_at);
        match left {
            Some(left) if inner.trouble => State::AtRisk { left, why: Risk::Unreachable },
            Some(left) if risky && inner.lease.at_cap() => State::AtRisk { left, why: Risk::MaxHold },
            Some(left) if risky && renewed_every.is_none() => State::AtRisk { left, why: Risk::Ending },
            Some(left) if risky => State::AtRisk { left, why: Risk::RenewalLate },
            left => State::Held { left },
        }
    }

    /// Why the lease ran out. If the keeper had been running it would have declared the loss on time: a loss
    /// that is noticed late was slept through.
    fn cause(&self, inner: &Inner, now: Moment) -> Loss {
        let late = inner.lease.until().map_or(Duration::ZERO, |until| now.since(until));
        let slept = late > (inner.lease.ttl() / 10).max(Duration::from_millis(100));
        match self.renew_every {
            _ if inner.lease.at_cap() => Loss::MaxHold,
            None => Loss::Expired,
            Some(_) if slept || !inner.tried => Loss::Paused,
            Some(_) => Loss::Unreachable,
        }
    }

    fn declare(&self, inner: &mut Inner, why: Loss) {
        if inner.loss.is_some() {
            return;
        }
        if !inner.ended {
            self.counters.lost(&why);
            tracing::warn!(
                name = %self.shown(), owner = %self.owner, token = self.token.get(),
                held = %format_duration(self.clock.now().since(self.acquired)), why = %why, "lock lost"
            );
        }
        inner.loss = Some(why);
        self.signal.wake();
    }

    /// Has losses that the store tells counted and logged when they come, whether or not anybody asks for the
    /// state.
    pub(crate) fn report_losses_to(self: &Arc<Self>, keeper: &Arc<Keeper>) {
        self.signal.report_to(keeper, self);
    }

    /// The name for logs.
    fn shown(&self) -> Cow<'_, str> {
        printable(self.name.as_str())
    }

    /// Time left, if the lock is held and has an end.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        match self.state() {
            State::Held { left } => left,
            State::AtRisk { left, .. } => Some(left),
            State::Lost(_) => Some(Duration::ZERO),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether this process was forked from the one that holds the lock. Nothing else here may be asked then:
    /// the parent may have forked while another thread had the mutex.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != crate::runtime::fork::generation()
    }

    /// To be called by whoever drops its share: what a child has inherited is never dropped.
    pub(crate) fn leak_in_a_child(self: &Arc<Self>) {
        if self.is_inherited() {
            std::mem::forget(self.clone());
        }
    }

    /// Whether the guard gave the lock up.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.inner).ended
    }

    pub(crate) fn valid_until(&self) -> Option<Moment> {
        lock(&self.inner).lease.until()
    }

    /// Waits until `look` finds something, looking whenever the state may have changed.
    pub(crate) async fn until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.signal.until(look).await
    }

    // --- the keeper's side
    // -------------------------------------------------------------------------------------

    /// When to renew next. A short first term is made up to the ttl even where nothing else is renewed.
    fn renew_at(&self, inner: &Inner) -> Option<Moment> {
        if inner.lease.at_cap() {
            return None;
        }
        inner.renew_early_at.or_else(|| Some(inner.lease.renew_at(self.renew_every?)))
    }

    /// When the keeper has to look at this lock again; `None` when it need not any more.
    fn due(&self, inner: &Inner, now: Moment) -> Option<Moment> {
        if inner.ended || inner.loss.is_some() {
            return None;
        }
        if self.signal.loss().is_some() {
            return Some(now);
        }
        let lease = &inner.lease;
        let renew = self.renew_at(inner).filter(|_| !inner.renewing);
        let risk = lease.risk_at(self.renew_every).filter(|risk_at| !inner.warned && *risk_at > now);
        [renew, risk, lease.until()].into_iter().flatten().min()
    }

    /// Notes where the keeper's schedule shall have this lock from now on. Returns where it had it, and that
    /// place; `None` is nowhere.
    pub(crate) fn reschedule(&self) -> (Option<Moment>, Option<Moment>) {
        let now = self.clock.now();
        let mut inner = lock(&self.inner);
        let due = self.due(&inner, now);
        (std::mem::replace(&mut inner.scheduled, due), due)
    }

    /// Looks at the lock at `now`. Renewals that fall due before `soon` are made early, to share a batch.
    pub(crate) fn look(&self, now: Moment, soon: Moment) -> Action {
        let mut inner = lock(&self.inner);
        inner.scheduled = None;
        if inner.ended {
            return Action::Nothing;
        }
        match self.state_of(&mut inner, now) {
            State::Lost(Loss::MaxHold) => return Action::Release,
            State::Lost(_) => return Action::Nothing,
            State::AtRisk { left, why } if !inner.warned => {
                inner.warned = true;
                tracing::warn!(
                    name = %self.shown(), owner = %self.owner, token = self.token.get(),
                    left = %format_duration(left), why = %why,
                    "lock at risk"
                );
                self.signal.wake();
            }
            _ => {}
        }
        if inner.renewing || self.renew_at(&inner).is_none_or(|renew_at| renew_at > soon) {
            return Action::Nothing;
        }
        inner.renewing = true;
        inner.tried = true;
        Action::Renew
    }

    /// One renewal, started by [`look`](Self::look).
    pub(crate) async fn renew(&self) {
        let (term, until) = {
            let inner = lock(&self.inner);
            (inner.lease.term_to_ask(inner.lease.ttl(), self.clock.now()), inner.lease.until())
        };
        let answer = self.clock.within(until, self.hold.renew(term)).await;
        self.finish_renewal(answer.as_ref());
    }

    /// Takes over what a renewal came to; `None` is an answer that did not come before the lease ended.
    fn finish_renewal(&self, answer: Option<&Result<Renewal>>) {
        let now = self.clock.now();
        let mut inner = lock(&self.inner);
        inner.renewing = false;
        match answer {
            Some(Ok(Renewal::Renewed { sent, term })) => {
                self.round_trip(now.since(*sent));
                if inner.lease.renewed(*sent, *term, now) {
                    add(&self.counters.renewed, 1);
                    tracing::debug!(name = %self.shown(), owner = %self.owner, token = self.token.get(), "lock renewed");
                    inner.trouble = false;
                    inner.renew_early_at = None;
                    inner.tried = false;
                    inner.warned = false;
                }
            }
            Some(Ok(Renewal::Lost(why))) => self.declare(&mut inner, why.clone()),
            Some(Err(error)) => {
                add(&self.counters.renewals_failed, 1);
                let left = inner.lease.left(now).unwrap_or(inner.lease.ttl());
                let pause = (left / 8).clamp(Duration::from_millis(10), Duration::from_secs(5));
                tracing::warn!(
                    name = %self.shown(), owner = %self.owner, token = self.token.get(),
                    left = %format_duration(left), %error,
                    "renewal failed, trying again"
                );
                inner.trouble = true;
                // A failed `extend` of a lock that is not renewed is the caller's to repeat.
                if self.renew_every.is_some() || inner.renew_early_at.is_some() {
                    inner.renew_early_at = Some(now.plus(crate::wait::jittered(pause)));
                }
            }
            None => {}
        }
        self.state_of(&mut inner, now);
        drop(inner);
        self.signal.wake();
    }

    /// Counts a round trip and warns when it comes near the ttl.
    fn round_trip(&self, took: Duration) {
        self.counters.round_trips.record(took);
        let ttl = self.ttl;
        if took > ttl / 4 {
            add(&self.counters.slow, 1);
            tracing::warn!(
                name = %self.shown(), took = %format_duration(took), ttl = %format_duration(ttl),
                "a store round trip took more than a quarter of the ttl; use a longer ttl or a nearer store"
            );
        }
    }

    // --- the guard's side
    // --------------------------------------------------------------------------------------

    /// Ends renewal: no new one starts. Returns under which moment the schedule has this lock.
    pub(crate) fn end(&self) -> Option<Moment> {
        let mut inner = lock(&self.inner);
        if !inner.ended {
            inner.ended = true;
            subtract(&self.counters.held_now, 1);
            self.counters.holding.record(self.clock.now().since(self.acquired));
            self.signal.wake();
        }
        inner.scheduled.take()
    }

    /// Waits until no renewal is under way.
    pub(crate) async fn quiet(&self) {
        self.until(|| (!lock(&self.inner).renewing).then_some(())).await;
    }

    /// Extends the lease so that it ends `ttl` from now; never shortens it.
    pub(crate) async fn extend(&self, ttl: Duration) -> Result<Option<Duration>> {
        let (term, until) = loop {
            self.quiet().await;
            let now = self.clock.now();
            let mut inner = lock(&self.inner);
            if let State::Lost(why) = self.state_of(&mut inner, now) {
                return Err(Error::lost(&self.name, why));
            }
            if inner.ended {
                return Err(Error::invalid("the guard of this lock is gone"));
            }
            if !inner.renewing {
                inner.renewing = true;
                inner.tried = true;
                break (inner.lease.term_to_ask(ttl, now), inner.lease.until());
            }
        };
        let answer = self.clock.within(until, self.hold.renew(term)).await;
        if let Some(Err(error @ Error::Invalid { .. })) = answer {
            // Nothing was asked of the store.
            lock(&self.inner).renewing = false;
            self.signal.wake();
            return Err(error);
        }
        self.finish_renewal(answer.as_ref());
        match (self.state(), answer) {
            (State::Lost(why), _) => Err(Error::lost(&self.name, why)),
            (_, Some(Err(error))) => Err(error.of_change(&self.name)),
            _ => Ok(self.valid_for()),
        }
    }

    /// Gives the lock back for a guard that is gone, as often as it takes while the store may still have it.
    pub(crate) async fn release_in_background(&self) {
        self.quiet().await;
        let give_up = {
            let mut inner = lock(&self.inner);
            let now = self.clock.now();
            match self.state_of(&mut inner, now) {
                State::Lost(_) => now.plus(inner.lease.ttl()),
                _ => inner.lease.until().unwrap_or(now.plus(inner.lease.ttl())),
            }
        };
        for tried in 1u32.. {
            match self.hold.release().await {
                Ok(_) => {
                    self.note_release();
                    return;
                }
                Err(error) => {
                    tracing::debug!(name = %self.shown(), owner = %self.owner, %error, "release failed");
                }
            }
            let pause = Duration::from_millis(20 << tried.min(7));
            let again = self.clock.now().plus(crate::wait::jittered(pause));
            if again >= give_up {
                tracing::warn!(
                    name = %self.shown(), owner = %self.owner,
                    "the store did not answer the release; the lock ends with its lease"
                );
                return;
            }
            self.clock.sleep_until(again).await;
        }
    }

    /// Counts and reports a release.
    pub(crate) fn note_release(&self) {
        add(&self.counters.released, 1);
        tracing::debug!(
            name = %self.shown(), owner = %self.owner, token = self.token.get(),
            held = %format_duration(self.clock.now().since(self.acquired)), "lock released"
        );
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
