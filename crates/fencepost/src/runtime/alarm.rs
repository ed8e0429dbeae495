//! Wakes the keeper at a moment of its clock, also when the machine was suspended in between: tokio's timers
//! stop then, so this is a timerfd on `CLOCK_BOOTTIME`. Whoever schedules something sets it; that wakes no
//! thread.

use tokio::sync::{Notify, watch};

use crate::runtime::clock::{Clock, Moment};

#[derive(Debug)]
pub(crate) struct Alarm {
    kind: Kind,
    now: Notify,
}

#[derive(Debug)]
enum Kind {
    /// For manual clocks, and where there is no such timer.
    Clock(Clock, watch::Sender<Moment>),
    #[cfg(target_os = "linux")]
    Timer(tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>),
}

impl Alarm {
    /// An alarm that is not set. Called inside the runtime that will wait for it.
    pub(crate) fn new(clock: Clock) -> Self {
        #[cfg(target_os = "linux")]
        if clock.manual().is_none() {
            use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags).map_err(std::io::Error::from);
            // SAFETY: the descriptor is owned by the `AsyncFd` from here on; nothing replaces or closes it.
            #[allow(unsafe_code)]
            let timer = timer.and_then(|timer| Ok(unsafe { tokio::io::unix::AsyncFd::register(timer)? }));
            match timer {
                Ok(timer) => return Self { kind: Kind::Timer(timer), now: Notify::new() },
                Err(error) => {
                    tracing::warn!(%error, "no suspend-aware timer; a loss during suspend is noticed at the \
                    first check");
                }
            }
        }
        Self { kind: Kind::Clock(clock, watch::Sender::new(Moment::NEVER)), now: Notify::new() }
    }

    /// Sets the alarm to a moment, whatever it was set to.
    pub(crate) fn set(&self, moment: Moment) {
        match &self.kind {
            Kind::Clock(_, set) => {
                set.send_replace(moment);
            }
            #[cfg(target_os = "linux")]
            Kind::Timer(timer) => {
                use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
                let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
                let at = if moment == Moment::NEVER {
                    zero
                } else {
                    let since = moment.since_origin();
                    let tv_sec = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
                    Timespec { tv_sec, tv_nsec: since.subsec_nanos().max(1).into() }
                };
                let once = Itimerspec { it_interval: zero, it_value: at };
                if timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once).is_err() {
                    self.ring();
                }
            }
        }
    }

    /// Rings now.
    pub(crate) fn ring(&self) {
        self.now.notify_one();
    }

    /// Waits until it rings. It may ring early.
    pub(crate) async fn rings(&self) {
        let set = async {
            match &self.kind {
                Kind::Clock(clock, set) => {
                    let mut changes = set.subscribe();
                    loop {
                        let moment = *changes.borrow_and_update();
                        tokio::select! {
                            () = clock.sleep_until(moment), if moment < Moment::NEVER => return,
                            _ = changes.changed() => {}
                        }
                    }
                }
                #[cfg(target_os = "linux")]
                Kind::Timer(timer) => {
                    if let Ok(mut ready) = timer.readable().await {
                        let _ = rustix::io::read(timer.get_ref(), &mut [0u8; 8]);
                        ready.clear_ready();
                    }
                }
            }
        };
        tokio::select! {
            () = self.now.notified() => {}
            () = set => {}
        }
    }
}
