//! What the compiler promises to users.

use crate::fence::{Active, Fence, Resource};
use crate::{Error, FencingToken, Guard, GuardSet, Handle, Lock, LockSet, Locks, Watch, blocking, memory};

fn shared<T: Send + Sync + Clone + 'static>() {}
fn sendable<T: Send + Sync + 'static>() {}
fn spawned(_: impl Send) {}

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
    const TTL: std::time::Duration = std::time::Duration::ZERO;
    let (lock, set) = (locks.lock("a"), locks.all(["a"]));
    spawned(Locks::connect(""));
    spawned(Locks::init(""));
    spawned(Locks::reconfigure(""));
    spawned(lock.acquire());
    spawned(lock.try_acquire());
    spawned(lock.attach(handle));
    spawned(lock.scope(async |_| Ok::<_, Error>(())));
    spawned(set.acquire());
    spawned(set.try_acquire());
    spawned(set.scope(async |_| Ok::<_, Error>(())));
    spawned(locks.attach(handle));
    spawned(locks.extend(handle, TTL));
    spawned(locks.release(handle));
    spawned(locks.list(""));
    spawned(locks.show(""));
    spawned(locks.force_release("", ""));
    spawned(locks.check());
    spawned(guard.lost());
    spawned(guard.changed());
    spawned(guard.extend());
    spawned(guard.extend_to(TTL));
    spawned(guard.scope(async |_| Ok::<_, Error>(())));
    spawned(watch.lost());
    spawned(guards.lost());
    spawned(guards.scope(async |_| Ok::<_, Error>(())));
    spawned(guards.release());
    spawned(guard.release());
    let _ = |other: Guard| spawned(other.detach());
    spawned(locks.close());
}

/// Compiled, not run.
#[allow(dead_code)]
fn so_can_those_of_resources(fence: &Fence, resource: &Resource, active: &Active, token: FencingToken) {
    spawned(Fence::connect(""));
    spawned(fence.resource("").activate(token));
    spawned(resource.activate(token));
    spawned(resource.write_once(token, ""));
    spawned(active.read());
    spawned(active.write(""));
}

/// Compiled, not run.
#[cfg(feature = "redis")]
#[allow(dead_code)]
fn so_can_those_of_redis(redis: &crate::fence::Redis, token: FencingToken) {
    spawned(crate::fence::Redis::connect(""));
    spawned(redis.activate("", token));
    spawned(redis.run("", token, &["GET", "a"]));
    spawned(redis.run_once("", token, &["GET", "a"]));
}

/// Compiled, not run.
#[cfg(feature = "postgres")]
#[allow(dead_code)]
fn so_can_those_of_transactions(
    client: &mut tokio_postgres::Client,
    transaction: &tokio_postgres::Transaction<'_>,
    schema: &crate::postgres::Schema,
    token: FencingToken,
) {
    use crate::fence::postgres::{activate, activate_once, begin};
    use crate::postgres::{lock_in_transaction, try_lock_in_transaction};
    spawned(lock_in_transaction(transaction, ""));
    spawned(try_lock_in_transaction(transaction, ""));
    spawned(schema.lock_in_transaction(transaction, ""));
    spawned(schema.try_lock_in_transaction(transaction, ""));
    spawned(activate(transaction, "", token));
    spawned(activate_once(transaction, "", token));
    spawned(async move { begin(client, "", token).await?.commit().await.map_err(crate::Source::from) });
}
