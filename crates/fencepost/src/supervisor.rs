//! What programs need that supervise a holder from outside, or go past the lock to its store.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::runtime::clock::Moment;
use crate::{Guard, blocking};

/// What a supervisor of another process needs to know of a held lock. `fencepost run` is built on it.
pub trait SupervisorExt: Sealed {
    /// A descriptor that keeps the lock held for as long as any process has it open, where the store works
    /// that way (`file:`). Hand it to a child that must not outlive the lock, and to nobody else.
    fn lifeline(&self) -> Option<BorrowedFd<'_>>;

    /// End of validity on `CLOCK_BOOTTIME`; `None` if it has no end.
    fn valid_until_boottime(&self) -> Option<Duration>;
}

impl<G: Sealed> SupervisorExt for G {
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.guard().held.hold.lifeline()
    }

    fn valid_until_boottime(&self) -> Option<Duration> {
        let held = &self.guard().held;
        if held.is_inherited() {
            return Some(Duration::ZERO);
        }
        held.valid_until().map(Moment::since_origin)
    }
}

/// What a lock on etcd offers beside.
#[cfg(feature = "etcd")]
pub trait EtcdExt: Sealed {
    /// What a transaction of your own has to compare to be carried out only while this lock is held: the best
    /// fence there is for data in the same cluster. `None` on other stores.
    fn etcd_compare(&self) -> Option<crate::EtcdCompare>;
}

#[cfg(feature = "etcd")]
impl<G: Sealed> EtcdExt for G {
    fn etcd_compare(&self) -> Option<crate::EtcdCompare> {
        use crate::backends::etcd::Held;
        let hold: &dyn std::any::Any = &*self.guard().held.hold;
        hold.downcast_ref::<Held>().map(Held::compare)
    }
}

/// Guards alone have these traits.
pub trait Sealed {
    #[doc(hidden)]
    fn guard(&self) -> &Guard;
}

impl Sealed for Guard {
    fn guard(&self) -> &Guard {
        self
    }
}

impl Sealed for blocking::Guard {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}
