//! Moments on two clocks. The end of a detached lock must count in other processes and after a reboot.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::Owner;
use crate::runtime::clock::Clock;

/// A moment on the clock of a boot and on the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timestamp {
    /// The boot whose clock `boottime` is of; zero if that is not known.
    pub(super) boot: [u8; 16],
    /// Nanoseconds since that boot.
    pub(super) boottime: u64,
    /// Microseconds of the wall clock.
    pub(super) wall: u64,
}

impl Timestamp {
    pub(super) fn now() -> Self {
        let (boot, ahead) = boot();
        let ours = i128::try_from(Clock::system().now().since_origin().as_nanos()).unwrap_or(i128::MAX);
        let boottime = u64::try_from(ours.saturating_sub(ahead).max(0)).unwrap_or(u64::MAX);
        Self { boot, boottime, wall: wall() }
    }

    pub(super) fn plus(self, term: Duration) -> Self {
        let nanoseconds = u64::try_from(term.as_nanos()).unwrap_or(u64::MAX);
        Self {
            boot: self.boot,
            boottime: self.boottime.saturating_add(nanoseconds),
            wall: self.wall.saturating_add(nanoseconds / 1_000),
        }
    }

    /// Time from `now` until this moment. In the same boot its clock decides, which nobody can set; after a
    /// reboot only the wall clock is left.
    pub(super) fn left(self, now: Self) -> Duration {
        if self.boot == now.boot && self.boot != [0; 16] {
            Duration::from_nanos(self.boottime.saturating_sub(now.boottime))
        } else {
            Duration::from_micros(self.wall.saturating_sub(now.wall))
        }
    }

    pub(super) fn is_over(self, now: Self) -> bool {
        self.left(now).is_zero()
    }

    /// This moment, or the one `term` from now if that is later.
    pub(super) fn at_least(self, term: Duration, now: Self) -> Self {
        if self.left(now) < term { now.plus(term) } else { self }
    }
}

/// Microseconds of the wall clock.
pub(super) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The identity of this boot, and how many nanoseconds our clock is ahead of its clock: in a time namespace
/// it has another origin. The identity is zero if the system does not tell both.
fn boot() -> ([u8; 16], i128) {
    static BOOT: OnceLock<([u8; 16], i128)> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id = id.trim().parse().map_or([0; 16], Owner::to_bytes);
        // The offsets are those of our children's namespace. It is ours unless somebody asked for another.
        let namespace = |of: &str| std::fs::read_link(format!("/proc/self/ns/{of}")).ok();
        match (namespace("time"), namespace("time_for_children")) {
            // A kernel without time namespaces.
            (None, None) => (id, 0),
            (ours, childrens) if ours == childrens => {
                let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
                boottime_offset(&offsets).map_or(([0; 16], 0), |ahead| (id, ahead))
            }
            _ => ([0; 16], 0),
        }
    })
}

/// The offset of `CLOCK_BOOTTIME` in nanoseconds, from lines like `boottime 86400 0`.
fn boottime_offset(offsets: &str) -> Option<i128> {
    let line = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse::<i128>().ok());
    let (seconds, nanoseconds) = (numbers.next()??, numbers.next()??);
    Some(seconds * 1_000_000_000 + nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_lease_ends_by_the_clock_of_its_boot_and_by_the_wall_clock_after_a_reboot(
            (boottime, wall) in (0u64..1 << 60, 0u64..1 << 50),
            term in 1u64..1 << 40,
        ) {
            let term = Duration::from_micros(term);
            let now = Timestamp { boot: [1; 16], boottime, wall };
            let end = now.plus(term);
            prop_assert_eq!(end.left(now), term);
            prop_assert_eq!(end.left(Timestamp { wall: 0, ..now }), term);
            prop_assert_eq!(end.left(Timestamp { boot: [2; 16], boottime: 0, ..now }), term);
            let later = Timestamp { boot: [2; 16], wall: end.wall, ..now };
            prop_assert_eq!(end.left(later), Duration::ZERO);
        }
    }

    #[test]
    fn this_machine_has_a_boot() {
        assert_ne!(boot().0, [0; 16]);
    }

    #[test]
    fn the_origin_of_a_time_namespace_is_read() {
        let offsets = "monotonic           0         0\nboottime        86400 250000000\n";
        assert_eq!(boottime_offset(offsets), Some(86_400_250_000_000));
        assert_eq!(boottime_offset("monotonic 0 0\nboottime -5 0\n"), Some(-5_000_000_000));
        assert_eq!(boottime_offset("monotonic 0 0\n"), None);
    }
}
