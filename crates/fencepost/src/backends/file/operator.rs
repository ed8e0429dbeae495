//! Seeing and breaking locks: list, show, force-release, and the collection of files that nobody uses.

use std::time::Duration;

use rustix::fs::{AtFlags, Dir, statat, unlinkat};

use super::claim::{holder, process, wall};
use super::lease::Key;
use super::lockfile::{LockFile, Spare, UNFINISHED};
use super::place::{self, SUFFIX};
use super::record::{Page, Record, Revocation, State};
use super::{Shared, record};
use crate::backend::{ForceRelease, Revoked};
use crate::text::printable;
use crate::{Error, Holder, Listing, Name, Owner, Result};

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
    pub(super) fn look_around(&self, prefix: &str) -> Result<Listing> {
        let Listing { mut holders, mut unreadable } = Listing::default();
        for file_name in self.files(SUFFIX)? {
            if !place::may_start_with(&file_name, prefix) {
                continue;
            }
            match self.holder_in(&file_name) {
                Ok(holder) => {
                    holders.extend(holder.filter(|holder| holder.name.as_str().starts_with(prefix)))
                }
                Err(error) => unreadable.push(error),
            }
        }
        holders.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { holders, unreadable })
    }

    /// Who holds the lock of this file.
    fn holder_in(&self, file_name: &str) -> Result<Option<Holder>> {
        let failed = |error| self.failed(file_name, "open", error);
        let Some(file) = LockFile::open(&self.place, file_name).map_err(failed)? else { return Ok(None) };
        let damaged = |damage| match named_by(file_name) {
            Ok(name) => self.damaged(file_name, &name, damage),
            Err(error) => error,
        };
        let page = file.peek().map_err(failed)?;
        let Some(record) = page.record().map_err(damaged)? else { return Ok(None) };
        let name = Name::new(record.name)?;
        if place::file_name(&name) != file_name {
            return Err(damaged(record::Damage::Contents));
        }
        self.holder_of(&file, &name, file_name)
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

    /// Takes a lock away from the holder that is found first, and from nobody who comes after it.
    pub(super) async fn revoke(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        let file_name = place::file_name(name);
        // The token of the holder that was found first; nothing inside if its record could not be read.
        let mut first = None;
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
            let found = match found {
                Ok(Some(victim)) => Some(victim),
                Ok(None) => return Ok(None),
                // Whose it is cannot be told: only an operator that means whoever has it starts it over.
                Err(Error::Backend { .. }) if how.now && how.token.is_none() => None,
                Err(error) => return Err(error),
            };
            let token = found.as_ref().and_then(|victim| victim.token);
            let meant = found.as_ref().is_none_or(|victim| how.means(victim));
            if !meant || *first.get_or_insert(token) != token {
                return Err(Error::changed(name, found));
            }
            let revoked = match found.map(|victim| (victim.expires_in, victim.owner, victim.token)) {
                None => self.start_over(&file, name, &how.reason).await?,
                Some((Some(_), Some(owner), Some(token))) => {
                    self.revoke_lease(name, Key { owner, token }, how).await?
                }
                Some((None, Some(owner), _)) => self.revoke_flock(&file, name, owner, how).await?,
                Some(_) => None,
            };
            if let Some(revoked) = revoked {
                return Ok(Some(revoked));
            }
            // The holder has let go, or was attached, under our hands.
            self.pause(tried).await;
        }
        Ok(None)
    }

    /// Asks the holder to let go; with `now` also puts a new file in the place of the one that it has locked. `None`
    /// if it has let go by itself.
    pub(super) async fn revoke_flock(
        &self,
        file: &LockFile,
        name: &Name,
        owner: Owner,
        how: &ForceRelease,
    ) -> Result<Option<Revoked>> {
        let file_name = place::file_name(name);
        let failed = |error| self.failed(&file_name, "write", error);
        let _turn = self.operators_turn().await?;
        // First of all: without room for it nothing was done yet, and nothing is told to the victim.
        let spare = how.now.then(|| Spare::create(&self.place, self.durable)).transpose().map_err(failed)?;
        let page = file.peek().map_err(failed)?;
        let Some(record) = self.record(&page, name, &file_name)? else { return Ok(None) };
        let current = file.is_current(&self.place, &file_name).map_err(failed)?;
        if record.owner != owner || record.state != State::Held || !current {
            return Ok(None);
        }
        let last = page.last_token(Some(&record)).map_err(|damage| self.damaged(&file_name, name, damage))?;
        let token = self.next_token(last, &self.now())?;
        let fresh = Record { state: State::Free, token: token.get(), durable: self.durable, ..record };
        if let Some(spare) = &spare {
            spare.write(&fresh).map_err(failed)?;
        }
        let (victim, reason) = (record.owner, how.reason.as_str());
        let revocation = Revocation { victim, token: token.get(), reason, replacing: how.now };
        if !self.announce(file, name, &revocation)? {
            return Ok(None);
        }
        if let Some(mut spare) = spare {
            // The victim hears of it by the replacement.
            spare.put(&file_name).map_err(failed)?;
        } else {
            if self.durable {
                file.sync(&self.place, false).map_err(failed)?;
            }
            file.touch().map_err(failed)?;
        }
        let mut victim = holder(name, &page, &record, &self.now());
        victim.revoked = Some(how.reason.clone());
        Ok(Some(Revoked::new(victim, token, how.now)))
    }

    /// Writes a revocation. Whoever takes the lock now sees it, or we see that here: then the holder that is meant has let go by
    /// itself, its successor keeps the lock, and nothing is replaced. `false` in that case.
    pub(super) fn announce(&self, file: &LockFile, name: &Name, revocation: &Revocation<'_>) -> Result<bool> {
        let file_name = place::file_name(name);
        let failed = |error| self.failed(&file_name, "write", error);
        file.revoke(revocation).map_err(failed)?;
        let after = file.peek().map_err(failed)?;
        let meant = |record: Record<'_>| record.owner == revocation.victim;
        if self.record(&after, name, &file_name)?.is_some_and(meant) {
            return Ok(true);
        }
        file.revoke(&Revocation { replacing: false, ..*revocation }).map_err(failed)?;
        Ok(false)
    }

    /// Asks whoever has a lease to let go: it can be neither renewed nor attached from then on. With `now`
    /// ends it. `None` if it is not this key's any more.
    pub(super) async fn revoke_lease(
        &self,
        name: &Name,
        key: Key,
        how: &ForceRelease,
    ) -> Result<Option<Revoked>> {
        let reason = how.reason.as_str();
        let _turn = self.operators_turn().await?;
        let revoked = self.on_lease(name, key, true, |file, page, record, _| {
            let wrong = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
            let now = self.now();
            let token = self
                .next_token(page.last_token(Some(record)).map_err(wrong)?, &now)
                .map_err(std::io::Error::other)?;
            // The reason first: whoever finds its lease gone then finds out why.
            let (victim, token_number) = (key.owner, token.get());
            file.revoke(&Revocation { victim, token: token_number, reason, replacing: false })?;
            if how.now {
                let fresh = Record { state: State::Free, token: token_number, ..*record };
                file.write_or_restore(&fresh, page)?;
            }
            file.touch()?;
            if self.durable {
                file.sync(&self.place, false)?;
            }
            let mut victim = holder(name, page, record, &now);
            victim.revoked = Some(reason.to_owned());
            Ok(Revoked::new(victim, token, how.now))
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
        if readable || !file.is_current(&self.place, &file_name).map_err(failed)? {
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
                tracing::debug!(file = %printable(file_name), %error, "an idle lock file was not collected");
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
        if !file.try_lock()? || !file.is_current(&self.place, file_name)? || !self.is_idle(file_name, IDLE) {
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
