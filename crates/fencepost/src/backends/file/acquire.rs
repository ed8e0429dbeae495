//! From a lock file to a grant. Nothing here waits for the lock: waiters stand in `local_queue.rs`.
//!
//! These calls take a few microseconds and run on the caller's thread. Moving them to another thread would
//! cost more than they do. Only `durable=yes` waits for a disk.

use std::sync::Arc;

use super::client::Client;
use super::failure::Failure;
use super::hold::Held;
use super::keys::file_name;
use super::local_queue;
use super::lockfile::LockFile;
use super::operator::{current_holder, holder, holder_of};
use super::record::{HeldBy, Page, Revocation};
use super::timestamp::{Timestamp, wall};
use super::waiters::{LISTED_AFTER, ListedWaiter};
use crate::backend::{Grant, Request, TryOutcome};
use crate::runtime::sync::lock;
use crate::{Holder, Result};

/// How often an attempt looks again, at once, at a lock that changes hands.
const SPINS: u32 = 64;

/// What became of an attempt.
pub(super) enum AttemptOutcome {
    Granted(Grant),
    Busy(Holder),
    /// The lock changes hands, its file is being looked at, or the file was collected or replaced.
    Passing,
}

pub(super) async fn try_acquire(client: &Arc<Client>, request: &Request) -> Result<TryOutcome> {
    client.listener.start_soon(client);
    let mut patience = client.patience();
    loop {
        match attempt(client, request).map_err(|failure| client.error(&request.name, failure))? {
            AttemptOutcome::Granted(grant) => return Ok(TryOutcome::Granted(grant)),
            AttemptOutcome::Busy(holder) => return Ok(TryOutcome::Busy(Some(holder))),
            AttemptOutcome::Passing => {
                if !patience.pause().await {
                    return Ok(TryOutcome::Busy(None));
                }
            }
        }
    }
}

pub(super) async fn acquire(client: &Arc<Client>, request: &Request) -> Result<Grant> {
    client.listener.start_soon(client);
    // Not past the waiters of this process.
    if !client.queues.is_waited_for(&request.name) {
        match attempt(client, request).map_err(|failure| client.error(&request.name, failure))? {
            AttemptOutcome::Granted(grant) => return Ok(grant),
            AttemptOutcome::Busy(holder) => request.seen.note(holder),
            AttemptOutcome::Passing => {}
        }
    } else if let Some(holder) = current_holder(client, &request.name)? {
        request.seen.note(holder);
    }
    client.listener.start(client);
    let since = wall();
    let mut waiter = local_queue::join(client, request)?;
    if let Ok(grant) = tokio::time::timeout(LISTED_AFTER, &mut waiter).await {
        return grant;
    }
    let _listed = ListedWaiter::enter(client, request, since);
    waiter.await
}

/// Takes the lock if it is free now.
pub(super) fn attempt(client: &Arc<Client>, request: &Request) -> Result<AttemptOutcome, Failure> {
    let file_name = file_name(&request.name);
    for _ in 0..SPINS {
        let file = LockFile::open_or_create(&client.directory, &file_name)?;
        let attempt = match file.try_lock()? {
            true => claim(client, file, request)?,
            false => {
                holder_of(client, &file, &request.name)?.map_or(AttemptOutcome::Passing, AttemptOutcome::Busy)
            }
        };
        if !matches!(attempt, AttemptOutcome::Passing) {
            return Ok(attempt);
        }
        std::thread::yield_now();
    }
    Ok(AttemptOutcome::Passing)
}

/// Makes a grant of a file whose flock is ours. Dropping the file gives the flock up.
pub(super) fn claim(
    client: &Arc<Client>,
    file: LockFile,
    request: &Request,
) -> Result<AttemptOutcome, Failure> {
    let sent = client.clock.now();
    let page = file.read()?;
    let record = match client.record(&page, &request.name) {
        Ok(record) => record,
        // A file that the directory does not have any more may hold anything.
        Err(_) if matches!(file.is_current(), Ok(false)) => return Ok(AttemptOutcome::Passing),
        Err(damage) => return Err(damage.into()),
    };
    if let Some(record) = &record
        && let HeldBy::Lease(end) = record.held_by
        && !end.is_over(Timestamp::now())
    {
        return Ok(AttemptOutcome::Busy(holder(&request.name, &page, record)));
    }
    let token = client.next_token(page.last_token(record.as_ref())?)?;
    let mut hold = Held::new(client, file, request, token, wall());
    match write_grant(client, &mut hold, &page) {
        Ok(true) => {}
        given_up => {
            hold.abandon();
            return given_up.map(|_| AttemptOutcome::Passing);
        }
    }
    let (token, hold) = (hold.token, Arc::new(hold));
    let watched = Arc::downgrade(&hold);
    lock(&client.holds).insert(request.owner(), watched);
    // Only now: an operator that replaces the file after this look finds us among the holders to tell.
    if !hold.file.is_current()? {
        return Ok(AttemptOutcome::Passing);
    }
    Ok(AttemptOutcome::Granted(Grant {
        identity: request.identity,
        token,
        sent,
        term: None,
        pushed: false,
        hold,
    }))
}

/// Writes the record of a grant; `false` if the file is about to be replaced.
///
/// After we read the page, an operator may reserve a token, or begin to replace the file under the holder
/// before us. It looks for us after it wrote, and we for it, so at least one sees the other. So no token is
/// given twice or out of order, and an operator takes the lock only from the holder that it found.
fn write_grant(client: &Arc<Client>, hold: &mut Held, before: &Page) -> Result<bool, Failure> {
    if client.durable && before.len == 0 {
        // Before the record: a file with a record counts as one whose entry is on the disk.
        hold.file.sync_with_entry()?;
    }
    loop {
        hold.file.write_or_restore(&hold.record(HeldBy::Flock), before)?;
        let page = hold.file.read()?;
        let Ok(Some(revocation)) = page.revocation() else { break };
        if revocation.replacing {
            if withdraw_for_the_dead(client, &hold.file)? {
                continue;
            }
            return Ok(false);
        }
        if revocation.token < hold.token.get() {
            break;
        }
        hold.token = client.next_token(revocation.token)?;
    }
    if client.durable {
        hold.file.sync()?;
    }
    Ok(true)
}

/// Withdraws the announcement that a file is about to be replaced, if its operator was killed.
fn withdraw_for_the_dead(client: &Client, file: &LockFile) -> Result<bool, Failure> {
    let turn = LockFile::of_directory(&client.directory)?;
    if !turn.try_lock()? {
        return Ok(false);
    }
    if let Ok(Some(left)) = file.read()?.revocation() {
        file.revoke(&Revocation { replacing: false, ..left })?;
    }
    Ok(true)
}
