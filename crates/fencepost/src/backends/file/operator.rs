//! Seeing and breaking locks: list, show, force-release, and the collection of files that nobody uses.

use std::time::Duration;

use rustix::fs::{AtFlags, Dir, statat, unlinkat};

use super::claim::{holder, process, wall};
use super::lockfile::{LockFile, Spare, UNFINISHED};
use super::place::{self, SUFFIX};
use super::record::{Page, Record, Revocation, State};
use super::{Shared, record};
use crate::backend::Revoked;
use crate::{Error, Holder, Name, Owner, Result};

/// A file that was not written for this long may be collected: the wall clock has long passed its tokens.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// The pause between two collections.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// The most that one collection looks at.
const SWEEP_MOST: usize = 4096;
/// Its time of modification is when the last collection was.
const SWEPT: &str = ".swept";

impl Shared {
    /// Who holds a lock.
    pub(super) fn look_up(&self, name: &Name) -> Result<Option<Holder>> {
        let file_name = place::file_name(name);
        match LockFile::open(&self.place, &file_name)
            .map_err(|error| self.failed(&file_name, "open", error))?
        {
            Some(file) => self.holder_of(&file, name, &file_name),
            None => Ok(None),
        }
    }

    /// Who holds which lock.
    pub(super) fn look_around(&self, prefix: &str) -> Result<Vec<Holder>> {
        let mut holders = Vec::new();
        for file_name in self.files(SUFFIX)? {
            if !place::may_start_with(&file_name, prefix) {
                continue;
            }
            let failed = |error| self.failed(&file_name, "open", error);
            let Some(file) = LockFile::open(&self.place, &file_name).map_err(failed)? else { continue };
            let page = file.peek().map_err(failed)?;
            let name = match page.record() {
                Ok(None) => continue,
                Ok(Some(record)) => Name::new(record.name)?,
                Err(damage) => return Err(self.damaged(&file_name, &named_by(&file_name)?, damage)),
            };
            if place::file_name(&name) != file_name {
                return Err(self.damaged(&file_name, &named_by(&file_name)?, record::Damage::Contents));
            }
            if name.as_str().starts_with(prefix) {
                holders.extend(self.holder_of(&file, &name, &file_name)?);
            }
        }
        holders.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(holders)
    }

    /// The files whose names end so, in no order.
    fn files(&self, suffix: &str) -> Result<Vec<String>> {
        let failed = |error: rustix::io::Errno| self.failed("", "list", error.into());
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.place.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            files.extend(
                entry.file_name().to_str().ok().filter(|name| name.ends_with(suffix)).map(str::to_owned),
            );
        }
        Ok(files)
    }

    /// Takes a lock away from its holder.
    pub(super) async fn revoke(&self, name: &Name, reason: &str, now: bool) -> Result<Option<Revoked>> {
        let file_name = place::file_name(name);
        for tried in 0.. {
            let file = LockFile::open(&self.place, &file_name);
            let Some(file) = file.map_err(|error| self.failed(&file_name, "open", error))? else {
                return Ok(None);
            };
            let found =
                match file.peek().map_err(|error| self.failed(&file_name, "read", error))?.revocation() {
                    Ok(_) => self.holder_of(&file, name, &file_name),
                    // Nobody gets such a lock, held or not.
                    Err(damage) => Err(self.damaged(&file_name, name, damage)),
                };
            let victim = match found {
                Ok(Some(victim)) => victim,
                Ok(None) => return Ok(None),
                Err(Error::Backend { .. }) if now => {
                    if let Some(revoked) = self.start_over(&file, name, reason).await? {
                        return Ok(Some(revoked));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let revoked = match (victim.expires_in, victim.owner) {
                (Some(_), Some(owner)) => self.revoke_lease(name, owner, reason).await?,
                (None, Some(owner)) => self.revoke_flock(&file, name, owner, reason, now).await?,
                _ => None,
            };
            if let Some(revoked) = revoked {
                return Ok(Some(revoked));
            }
            // The holder changed under our hands: it is whoever has it now that the operator wants gone.
            self.pause(tried).await;
        }
        Ok(None)
    }

    /// Asks the holder to let go; with `now` also puts a new file in the place of the one that it has locked. `None`
    /// if it has let go by itself.
    async fn revoke_flock(
        &self,
        file: &LockFile,
        name: &Name,
        owner: Owner,
        reason: &str,
        now: bool,
    ) -> Result<Option<Revoked>> {
        let file_name = place::file_name(name);
        let failed = |error| self.failed(&file_name, "write", error);
        let _turn = self.operators_turn().await?;
        // First of all: without room for it nothing was done yet, and nothing is told to the victim.
        let spare = now.then(|| Spare::create(&self.place, self.durable)).transpose().map_err(failed)?;
        let page = file.peek().map_err(failed)?;
        let Some(record) = self.record(&page, name, &file_name)? else { return Ok(None) };
        if record.owner != owner || record.state != State::Held || !file.is_current().map_err(failed)? {
            return Ok(None);
        }
        let last = page.last_token(Some(&record)).map_err(|damage| self.damaged(&file_name, name, damage))?;
        let token = self.next_token(last, &self.now())?;
        let revocation = Revocation { victim: owner, token: token.get(), reason };
        let mut victim = holder(name, &page, &record, &self.now());
        victim.revoked = Some(reason.to_owned());
        if let Some(mut spare) = spare {
            let fresh = Record { state: State::Free, token: token.get(), durable: self.durable, ..record };
            spare.write(&fresh).map_err(failed)?;
            // The victim hears of it by the replacement.
            file.revoke(&revocation).map_err(failed)?;
            spare.put(&file_name).map_err(failed)?;
            // If it let go before that by itself, a successor may have got in, and it is the successor that lost the
            // lock. Nobody gets the old file any more, and nobody the new one while we have it: our token can still
            // be made larger than the successor's.
            let after = file.peek().map_err(failed)?;
            if let Ok(Some(next)) = after.record()
                && next.owner != owner
                && let Ok(last) = after.last_token(Some(&next))
            {
                let token = self.next_token(last, &self.now())?;
                spare.write(&Record { token: token.get(), ..fresh }).map_err(failed)?;
                if next.state != State::Free {
                    let revocation = Revocation { victim: next.owner, token: token.get(), reason };
                    file.revoke(&revocation).map_err(failed)?;
                    victim = holder(name, &after, &next, &self.now());
                    victim.revoked = Some(reason.to_owned());
                }
                return Ok(Some(Revoked::new(victim, token, true)));
            }
        } else {
            file.revoke(&revocation).map_err(failed)?;
            if self.durable {
                file.sync(&self.place, false).map_err(failed)?;
            }
            // If another one took the lock before it could see the reserved token, that token is not ours to give.
            // Looked at before the victim hears of it: a successor of one that lets go at once is none of our business.
            let after = file.peek().map_err(failed)?;
            if self.record(&after, name, &file_name)?.is_none_or(|after| after.owner != owner) {
                return Ok(None);
            }
            file.touch().map_err(failed)?;
        }
        Ok(Some(Revoked::new(victim, token, now)))
    }

    /// Ends a lease. Nobody's flock stands behind it, so it is over at once.
    async fn revoke_lease(&self, name: &Name, owner: Owner, reason: &str) -> Result<Option<Revoked>> {
        let _turn = self.operators_turn().await?;
        let revoked = self.on_lease(name, owner, |file, page, record, _| {
            let wrong = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
            let now = self.now();
            let token = self
                .next_token(page.last_token(Some(record)).map_err(wrong)?, &now)
                .map_err(std::io::Error::other)?;
            // The reason first: whoever finds its lease gone then finds out why.
            file.revoke(&Revocation { victim: owner, token: token.get(), reason })?;
            let fresh = Record { state: State::Free, token: token.get(), ..*record };
            file.write_or_restore(&fresh, page)?;
            file.touch()?;
            if self.durable {
                file.sync(&self.place, false)?;
            }
            let mut victim = holder(name, page, record, &now);
            victim.revoked = Some(reason.to_owned());
            Ok(Revoked::new(victim, token, true))
        });
        Ok(revoked.await?.ok())
    }

    /// Replaces a file that cannot be read. Whoever has it locked loses it. `None` if somebody else has done so.
    async fn start_over(&self, file: &LockFile, name: &Name, reason: &str) -> Result<Option<Revoked>> {
        let file_name = place::file_name(name);
        let failed = |error| self.failed(&file_name, "replace", error);
        let _turn = self.operators_turn().await?;
        let page = file.peek().map_err(failed)?;
        let readable = self.record(&page, name, &file_name).is_ok() && page.revocation().is_ok();
        if readable || !file.is_current().map_err(failed)? {
            return Ok(None);
        }
        let token = self
            .next_token(page.last_token(page.record().ok().flatten().as_ref()).unwrap_or(0), &self.now())?;
        let (pid, started) = process();
        let fresh = Record {
            state: State::Free,
            owner: Owner::fresh(),
            token: token.get(),
            pid,
            started,
            since: wall(),
            durable: self.durable,
            name: name.as_str(),
            host: crate::identity::host(),
            note: "",
        };
        let mut spare = Spare::create(&self.place, self.durable).map_err(failed)?;
        spare.write(&fresh).and_then(|()| spare.put(&file_name)).map_err(failed)?;
        let victim = Holder { revoked: Some(reason.to_owned()), ..Holder::unknown(name.clone()) };
        Ok(Some(Revoked::new(victim, token, true)))
    }

    /// One operator at a time, so that no two reserve the same token. A turn lasts for a few system calls.
    async fn operators_turn(&self) -> Result<LockFile> {
        let failed = |error| self.failed("", "lock", error);
        let (turn, deadline) =
            (LockFile::directory(&self.place).map_err(failed)?, self.clock.now().plus(self.timeout));
        for tried in 0.. {
            if turn.try_lock().map_err(failed)? {
                break;
            }
            if self.clock.now() >= deadline {
                let source = "another force-release is under way and does not end; it may be stopped".into();
                return Err(Error::Unavailable { store: self.label.clone(), source });
            }
            self.pause(tried).await;
        }
        Ok(turn)
    }

    /// Removes files of locks that nobody has used for a day. At most once an hour, and never in a durable store:
    /// without the counter only the clock keeps tokens growing.
    pub(super) fn sweep(&self) {
        if self.durable || !self.is_sweep_due() {
            return;
        }
        // A file is removed by its name: no operator may give that name to another one meanwhile.
        let Ok(turn) = LockFile::directory(&self.place) else { return };
        if !turn.try_lock().unwrap_or(false) {
            return;
        }
        let Ok(entries) = Dir::read_from(&self.place.dir) else { return };
        for entry in entries.take(SWEEP_MOST).flatten() {
            let Ok(file_name) = entry.file_name().to_str() else { continue };
            if !self.is_idle(file_name, IDLE) {
                continue;
            }
            if file_name.starts_with(UNFINISHED) {
                let _ = unlinkat(&self.place.dir, file_name, AtFlags::empty());
            } else if file_name.ends_with(SUFFIX)
                && let Err(error) = self.collect(file_name)
            {
                tracing::debug!(file = file_name, %error, "an idle lock file was not collected");
            }
        }
    }

    fn is_idle(&self, file_name: &str, idle: Duration) -> bool {
        let Ok(stat) = statat(&self.place.dir, file_name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let written = u64::try_from(stat.st_mtime).unwrap_or(u64::MAX);
        written.saturating_add(idle.as_secs()) < wall() / 1_000_000
    }

    fn is_sweep_due(&self) -> bool {
        let new = statat(&self.place.dir, SWEPT, AtFlags::SYMLINK_NOFOLLOW).is_err();
        if !new && !self.is_idle(SWEPT, SWEEP_EVERY) {
            return false;
        }
        LockFile::open_or_create(&self.place, SWEPT).is_ok_and(|mark| mark.touch().is_ok())
    }

    /// Removes one file, if it is idle indeed.
    fn collect(&self, file_name: &str) -> std::io::Result<()> {
        let Some(file) = LockFile::open(&self.place, file_name)? else { return Ok(()) };
        // Whoever waits for this flock gets it when the file is gone, notices, and makes a new one.
        if !file.try_lock()? || !file.is_current()? || !self.is_idle(file_name, IDLE) {
            return Ok(());
        }
        let (mut page, now) = (Page::blank(), self.now());
        file.read(&mut page)?;
        let over = match page.record() {
            Ok(None) => true,
            Ok(Some(record)) => {
                let leased = matches!(record.state, State::Leased(lease) if !lease.left(&now).is_zero());
                !leased && !record.durable && page.last_token(Some(&record)).is_ok_and(|last| last < now.wall)
            }
            Err(_) => false,
        };
        if over {
            unlinkat(&self.place.dir, file_name, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// The name that a file's own name tells.
fn named_by(file_name: &str) -> Result<Name> {
    let stem = file_name.strip_suffix(SUFFIX).unwrap_or(file_name);
    Name::new(&crate::text::decode(stem).unwrap_or_else(|| stem.to_owned()))
}
