//! When the guardian sends which signal. Pure: time comes in, steps come out.

use std::time::Duration;

/// How long to wait for a killed group to vanish. Only a process in an uninterruptible call takes any time,
/// and it never runs the command's code again.
const VANISH: Duration = Duration::from_secs(10);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask the group to end.
    Terminate,
    /// End the group.
    Kill,
    /// Stop waiting for what cannot be killed.
    GiveUp,
}

/// The plan, on `CLOCK_BOOTTIME`.
#[derive(Debug)]
pub(super) struct Plan {
    grace: Duration,
    /// When the lease ends, and how long before that the command is asked to end.
    lease: Option<(Duration, Duration)>,
    /// When the command is asked to end although the lock is held.
    end_at: Option<Duration>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Watching,
    /// Asked to end; its grace is over at this time.
    Ending {
        patient: Duration,
    },
    Killed {
        give_up_at: Duration,
    },
    Over,
}

impl Plan {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, lease: None, end_at: None, phase: Phase::Watching }
    }

    /// The command is asked to end at `at`, whatever the lease says.
    pub(super) fn end_at(&mut self, at: Duration) {
        self.end_at = Some(at);
    }

    /// The lease now ends at `until`.
    pub(super) fn lease(&mut self, until: Duration, margin: Duration) {
        self.lease = Some((until, margin));
    }

    /// Whether the command has been asked to end.
    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.phase, Phase::Watching)
    }

    /// The command has to end, whatever the lease says.
    pub(super) fn end(&mut self, now: Duration) -> Option<Step> {
        match self.phase {
            Phase::Watching => Some(self.begin(now)),
            _ => None,
        }
    }

    /// What has fallen due.
    pub(super) fn due(&mut self, now: Duration) -> Option<Step> {
        match self.phase {
            Phase::Watching => (now >= self.begin_at()?).then(|| self.begin(now)),
            Phase::Ending { patient } => (now >= self.kill_at(patient)).then(|| self.kill(now)),
            Phase::Killed { give_up_at } => (now >= give_up_at).then(|| {
                self.phase = Phase::Over;
                Step::GiveUp
            }),
            Phase::Over => None,
        }
    }

    /// When to ask again.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Watching => self.begin_at(),
            Phase::Ending { patient } => Some(self.kill_at(patient)),
            Phase::Killed { give_up_at } => Some(give_up_at),
            Phase::Over => None,
        }
    }

    /// When to ask the command to end.
    fn begin_at(&self) -> Option<Duration> {
        let lease = self.lease.map(|(until, margin)| until.saturating_sub(margin));
        lease.into_iter().chain(self.end_at).min()
    }

    /// KILL comes after the grace, but some time before the end of the lease: somebody else may have the lock
    /// then, and a killed group takes a moment to vanish. A lease that is renewed meanwhile leaves more time.
    fn kill_at(&self, patient: Duration) -> Duration {
        self.lease.map_or(patient, |(until, margin)| until.saturating_sub(margin / 8).min(patient))
    }

    fn begin(&mut self, now: Duration) -> Step {
        let patient = now.saturating_add(self.grace);
        if self.kill_at(patient) <= now {
            return self.kill(now);
        }
        self.phase = Phase::Ending { patient };
        Step::Terminate
    }

    fn kill(&mut self, now: Duration) -> Step {
        self.phase = Phase::Killed { give_up_at: now.saturating_add(VANISH) };
        Step::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends_the_command_within_it() {
        let mut plan = Plan::new(at(8));
        plan.lease(at(130), at(8));
        assert_eq!(plan.due(at(121)), None);
        assert_eq!(plan.wake_at(), Some(at(122)));
        assert_eq!(plan.due(at(122)), Some(Step::Terminate));
        assert_eq!(plan.wake_at(), Some(at(129)));
        assert_eq!(plan.due(at(128)), None);
        assert_eq!(plan.due(at(129)), Some(Step::Kill));
        assert_eq!(plan.due(at(129) + VANISH), Some(Step::GiveUp));
        assert_eq!((plan.due(at(999)), plan.wake_at()), (None, None));
    }

    #[test]
    fn a_renewal_moves_the_plan() {
        let mut plan = Plan::new(at(5));
        plan.lease(at(130), at(5));
        plan.lease(at(140), at(5));
        assert_eq!(plan.due(at(130)), None);
        assert_eq!(plan.wake_at(), Some(at(135)));
    }

    #[test]
    fn a_guardian_that_slept_past_the_lease_kills_at_once() {
        let mut plan = Plan::new(at(5));
        plan.lease(at(130), at(5));
        assert_eq!(plan.due(at(131)), Some(Step::Kill));
    }

    #[test]
    fn a_lost_lock_gives_the_command_its_grace_but_not_past_the_lease() {
        let mut plan = Plan::new(at(5));
        assert_eq!(plan.end(at(100)), Some(Step::Terminate));
        assert_eq!(plan.wake_at(), Some(at(105)));
        assert_eq!(plan.end(at(101)), None, "asked once");

        let mut plan = Plan::new(at(50));
        plan.lease(at(130), at(8));
        assert_eq!(plan.end(at(100)), Some(Step::Terminate));
        assert_eq!(plan.wake_at(), Some(at(129)));
    }

    #[test]
    fn a_command_that_may_hold_no_longer_has_its_grace_while_the_lease_is_renewed() {
        let mut plan = Plan::new(at(30));
        plan.lease(at(110), at(2));
        plan.end_at(at(105));
        assert_eq!(plan.due(at(104)), None);
        assert_eq!(plan.wake_at(), Some(at(105)));
        assert_eq!(plan.due(at(105)), Some(Step::Terminate));
        assert!(plan.wake_at() < Some(at(110)), "a lease that is not renewed ends before the grace");
        plan.lease(at(150), at(2));
        assert_eq!(plan.wake_at(), Some(at(135)));
        assert_eq!(plan.due(at(134)), None);
        assert_eq!(plan.due(at(135)), Some(Step::Kill));
    }

    #[test]
    fn no_grace_means_kill() {
        assert_eq!(Plan::new(at(0)).end(at(100)), Some(Step::Kill));
    }

    #[test]
    fn a_lock_without_an_end_never_falls_due() {
        let mut plan = Plan::new(at(5));
        assert_eq!((plan.due(Duration::MAX), plan.wake_at()), (None, None));
    }
}
