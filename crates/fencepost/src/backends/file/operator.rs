//! What operators ask: who holds what, and to take a lock away.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use rustix::fs::{Dir, RenameFlags};

use super::attach::{LeaseKey, with_lease};
use super::client::Client;
use super::failure::Failure;
use super::keys::{self, SUFFIX, file_name, may_start_with};
use super::lockfile::LockFile;
use super::record::{Damage, HeldBy, Page, Record, Revocation};
use super::timestamp::{Timestamp, wall};
use super::waiters::waiters;
use crate::backend::{ForceRelease, Revoked};
use crate::text::printable;
use crate::{Error, FencingToken, Holder, Listing, Name, Owner, Result};

pub(super) fn list(client: &Client, prefix: &str) -> Result<Listing> {
    let Listing { mut holders, mut unreadable } = Listing::default();
    let failed = |error| client.directory_error(error);
    for entry in Dir::read_from(&client.directory.file).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(file_name) = entry.file_name().to_str() else { continue };
        if !file_name.ends_with(SUFFIX) || !may_start_with(file_name, prefix) {
            continue;
        }
        let is_asked = |holder: &Holder| holder.name.as_str().starts_with(prefix);
        match holder_in(client, file_name) {
            Ok(holder) => holders.extend(holder.filter(is_asked)),
            Err(error) => unreadable.push(error),
        }
    }
    holders.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Listing { holders, unreadable })
}

/// Who holds the lock of this file.
fn holder_in(client: &Client, file_name: &str) -> Result<Option<Holder>> {
    let failed = |failure| match keys::named_by(file_name) {
        Ok(name) => client.error_in(file_name, &name, failure),
        Err(error) => error,
    };
    let found = || {
        let Some(file) = LockFile::open(&client.directory, file_name)? else { return Ok(None) };
        let page = file.read()?;
        let Some(record) = page.record()? else { return Ok(None) };
        let name = Name::new(record.name)?;
        if keys::file_name(&name) != file_name {
            return Err(Failure::Damaged(Damage::Contents));
        }
        holder_of(client, &file, &name)
    };
    found().map_err(failed)
}

/// Who holds a lock, and who waits for it.
pub(super) fn show(client: &Client, name: &Name) -> Result<Option<Holder>> {
    let Some(mut holder) = current_holder(client, name)? else { return Ok(None) };
    match waiters(client, name) {
        Ok(mut queue) => {
            // Who got it just now may be listed for an instant.
            queue.retain(|waiter| waiter.owner != holder.owner);
            holder.queue = queue;
        }
        Err(error) => {
            let name = printable(name.as_str());
            tracing::warn!(%name, %error, "who waits for the lock cannot be read");
        }
    }
    Ok(Some(holder))
}

/// Who holds a lock.
pub(super) fn current_holder(client: &Client, name: &Name) -> Result<Option<Holder>> {
    let found = || match client.file(name)? {
        Some(file) => holder_of(client, &file, name),
        None => Ok(None),
    };
    found().map_err(|failure| client.error(name, failure))
}

/// Who has a lock whose flock is not ours; `None` if it is free, or only passing from hand to hand.
pub(super) fn holder_of(client: &Client, file: &LockFile, name: &Name) -> Result<Option<Holder>, Failure> {
    let locked = file.is_locked()?;
    let page = file.read()?;
    if !file.is_current()? {
        return Ok(None);
    }
    let Some(record) = client.record(&page, name)? else { return Ok(None) };
    let held = match record.held_by {
        HeldBy::Nobody => false,
        HeldBy::Flock => locked,
        HeldBy::Lease(end) => !end.is_over(Timestamp::now()),
    };
    Ok(held.then(|| holder(name, &page, &record)))
}

/// The holder that a record tells of.
pub(super) fn holder(name: &Name, page: &Page, record: &Record<'_>) -> Holder {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Holder {
        owner: Some(record.owner),
        token: FencingToken::new(record.token),
        host: some(record.host),
        pid: Some(record.pid),
        note: some(record.note),
        since: Some(SystemTime::UNIX_EPOCH + Duration::from_micros(record.since)),
        expires_in: match record.held_by {
            HeldBy::Lease(end) => Some(end.left(Timestamp::now())),
            _ => None,
        },
        revoked: page.revoked(record.owner).map(str::to_owned),
        ..Holder::unknown(name.clone())
    }
}

/// Takes a lock away from the holder that is found first, and from nobody that comes after it.
pub(super) async fn force_release(
    client: &Client,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let failed = |failure| client.error(name, failure);
    // The token of the holder that was found first; nothing inside if its record could not be read.
    let mut first = None;
    loop {
        let Some(file) = client.file(name).map_err(|error| failed(error.into()))? else { return Ok(None) };
        let found = match find(client, &file, name) {
            Ok(None) => return Ok(None),
            Ok(found) => found,
            // It cannot be told whose it is. An operator that means any holder starts it over.
            Err(Failure::Damaged(_)) if how.now && how.token.is_none() => None,
            Err(failure) => return Err(failed(failure)),
        };
        let token = found.as_ref().and_then(|victim| victim.token);
        let is_meant = found.as_ref().is_none_or(|victim| how.means(victim));
        if !is_meant || *first.get_or_insert(token) != token {
            return Err(Error::changed(name, found));
        }
        let _turn = operators_turn(client).await?;
        let revoked = match found.map(|victim| (victim.owner, victim.token, victim.expires_in)) {
            None => start_over(client, &file, name, &how.reason),
            Some((Some(owner), Some(token), Some(_))) => {
                revoke_lease(client, LeaseKey { name: name.clone(), owner, token }, how).await
            }
            Some((Some(owner), Some(_), None)) => revoke_flock(client, &file, name, owner, how),
            Some(_) => Err(Failure::Damaged(Damage::Contents)),
        };
        if let Some(revoked) = revoked.map_err(failed)? {
            return Ok(Some(revoked));
        }
        // The holder let go, or the lock was attached, while we looked.
    }
}

fn find(client: &Client, file: &LockFile, name: &Name) -> Result<Option<Holder>, Failure> {
    // Nobody gets a lock whose revocation is damaged, held or not.
    file.read()?.revocation()?;
    holder_of(client, file, name)
}

/// Asks the holder to let go. With `now` also puts a new file in the place of the one that it has locked.
/// `None` if it has let go by itself.
pub(super) fn revoke_flock(
    client: &Client,
    file: &LockFile,
    name: &Name,
    owner: Owner,
    how: &ForceRelease,
) -> Result<Option<Revoked>, Failure> {
    // First of all: without room for it nothing was done yet, and nothing is told to the victim.
    let spare = how.now.then(|| create_locked(client)).transpose()?;
    let page = file.read()?;
    let Some(record) = client.record(&page, name)? else { return Ok(None) };
    if record.owner != owner || record.held_by != HeldBy::Flock || !file.is_current()? {
        return Ok(None);
    }
    let token = client.next_token(page.last_token(Some(&record))?)?;
    if let Some(spare) = &spare {
        let durable = client.durable;
        spare.write(&Record { held_by: HeldBy::Nobody, token: token.get(), durable, ..record })?;
    }
    let (victim, reason) = (record.owner, how.reason.as_str());
    let revocation = Revocation { victim, token: token.get(), reason, replacing: how.now };
    if !announce(client, file, name, &revocation)? {
        return Ok(None);
    }
    match spare {
        // The victim hears of it by the replacement.
        Some(spare) => put_in_place(client, spare, name)?,
        None => {
            if client.durable {
                file.sync()?;
            }
            file.touch()?;
        }
    }
    let victim = Holder { revoked: Some(how.reason.clone()), ..holder(name, &page, &record) };
    Ok(Some(Revoked::new(victim, token, how.now)))
}

/// Writes a revocation. A process that takes the lock now sees it, or we see that process here: then the
/// holder that is meant has let go by itself, its successor keeps the lock, and nothing is replaced. `false`
/// in that case.
pub(super) fn announce(
    client: &Client,
    file: &LockFile,
    name: &Name,
    revocation: &Revocation<'_>,
) -> Result<bool, Failure> {
    file.revoke(revocation)?;
    let after = file.read()?;
    if client.record(&after, name)?.is_some_and(|record| record.owner == revocation.victim) {
        return Ok(true);
    }
    file.revoke(&Revocation { replacing: false, ..*revocation })?;
    Ok(false)
}

/// Asks for a detached lock back: it can be neither renewed nor attached from then on. With `now` ends its
/// lease. `None` if it is not this key's any more.
pub(super) async fn revoke_lease(
    client: &Client,
    key: LeaseKey,
    how: &ForceRelease,
) -> Result<Option<Revoked>, Failure> {
    let revoked = with_lease(client, &key, |lease| {
        let (file, page, record) = (lease.file, lease.page, &lease.record);
        let token = client.next_token(page.last_token(Some(record))?)?;
        let (victim, reason) = (key.owner, how.reason.as_str());
        // The reason first: an owner that finds its lease gone then finds out why.
        file.revoke(&Revocation { victim, token: token.get(), reason, replacing: false })?;
        if how.now {
            let freed = Record { held_by: HeldBy::Nobody, token: token.get(), ..*record };
            file.write_or_restore(&freed, page)?;
        }
        file.touch()?;
        if client.durable {
            file.sync()?;
        }
        let victim = Holder { revoked: Some(how.reason.clone()), ..holder(&key.name, page, record) };
        Ok(Some(Revoked::new(victim, token, how.now)))
    });
    match revoked.await {
        Err(Failure::Lost(_)) => Ok(None),
        revoked => revoked,
    }
}

/// Replaces a file that cannot be read. A holder that has it locked loses it. `None` if another operator has
/// done so.
fn start_over(
    client: &Client,
    file: &LockFile,
    name: &Name,
    reason: &str,
) -> Result<Option<Revoked>, Failure> {
    let page = file.read()?;
    let is_readable = client.record(&page, name).is_ok() && page.revocation().is_ok();
    if is_readable || !file.is_current()? {
        return Ok(None);
    }
    let last = page.last_token(page.record().ok().flatten().as_ref()).unwrap_or(0);
    let token = client.next_token(last)?;
    let spare = create_locked(client)?;
    spare.write(&Record {
        held_by: HeldBy::Nobody,
        owner: Owner::fresh(),
        token: token.get(),
        pid: std::process::id(),
        since: wall(),
        durable: client.durable,
        name: name.as_str(),
        host: crate::identity::host(),
        note: "",
    })?;
    put_in_place(client, spare, name)?;
    let victim = Holder { revoked: Some(reason.to_owned()), ..Holder::unknown(name.clone()) };
    Ok(Some(Revoked::new(victim, token, true)))
}

/// A new file to put in the place of another. Its flock is ours, so nobody has it before it is complete.
fn create_locked(client: &Client) -> Result<LockFile, Failure> {
    let spare = LockFile::create(&client.directory)?;
    if spare.try_lock()? { Ok(spare) } else { Err(std::io::Error::from(ErrorKind::ResourceBusy).into()) }
}

/// Puts a file in the place of the one that has the name now, which nobody is granted from here on.
fn put_in_place(client: &Client, mut spare: LockFile, name: &Name) -> Result<(), Failure> {
    if client.durable {
        spare.sync()?;
    }
    spare.rename(&file_name(name), RenameFlags::empty())?;
    if client.durable { Ok(client.directory.sync()?) } else { Ok(()) }
}

/// One operator at a time, so that no two reserve the same token. A turn lasts for a few system calls.
async fn operators_turn(client: &Client) -> Result<LockFile> {
    let failed = |error| client.directory_error(error);
    let (turn, mut patience) =
        (LockFile::of_directory(&client.directory).map_err(failed)?, client.patience());
    while !turn.try_lock().map_err(failed)? {
        if !patience.pause().await {
            let source = "another force-release is under way and does not end; it may be stopped";
            return Err(client.unavailable(source.to_owned()));
        }
    }
    Ok(turn)
}
