//! What the compiler promises to users.

use crate::fence::{Active, Fence, Resource};
use crate::{Error, Guard, GuardSet, Handle, Lock, LockSet, Locks, Watch, blocking, memory};

fn shared<T: Send + Sync + Clone + 'static>() {}
fn sendable<T: Send + Sync + 'static>() {}

#[test]
fn what_is_handed_from_task_to_task_is_send_and_sync() {
    shared::<Locks>();
    shared::<Lock>();
    shared::<LockSet>();
    shared::<Watch>();
    shared::<Handle>();
    shared::<Fence>();
    shared::<Resource>();
    shared::<Active>();
    shared::<memory::Store>();
    shared::<memory::ManualClock>();
    shared::<blocking::Locks>();
    shared::<blocking::Lock>();
    sendable::<Guard>();
    sendable::<GuardSet>();
    sendable::<blocking::Guard>();
    sendable::<blocking::GuardSet>();
    sendable::<Error>();
    sendable::<crate::fence::Error>();
}

/// Compiled, not run.
#[allow(dead_code)]
fn every_future_can_be_spawned(locks: Locks, guard: Guard, guards: GuardSet, handle: &Handle, watch: &Watch) {
    fn spawned(_: impl Send) {}
    let (lock, set) = (locks.lock("a"), locks.all(["a"]));
    spawned(Locks::connect(""));
    spawned(Locks::init(""));
    spawned(Locks::reconfigure(""));
    spawned(lock.acquire());
    spawned(lock.try_acquire());
    spawned(lock.attach(handle));
    spawned(lock.scope(async |_| ()));
    spawned(set.acquire());
    spawned(set.try_acquire());
    spawned(locks.extend(handle, std::time::Duration::ZERO));
    spawned(locks.release(handle));
    spawned(locks.list(""));
    spawned(locks.show(""));
    spawned(locks.force_release("", ""));
    spawned(locks.check());
    spawned(guard.lost());
    spawned(guard.changed());
    spawned(guard.extend());
    spawned(watch.lost());
    spawned(guards.lost());
    spawned(guards.release());
    spawned(guard.release());
    spawned(locks.close());
}
