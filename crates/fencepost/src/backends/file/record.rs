//! What a lock file holds: one page with two slots, each with a length and a checksum.
//!
//! The first slot is the record of the holder. Only the process that has the flock writes it. The second is
//! an operator's revocation and may be written while another process has the flock. Each slot is written by
//! one `pwrite` inside one page, which a kill cannot tear. A reader without the flock may still see half of
//! one, and reads again.

use super::timestamp::Timestamp;
use crate::Owner;

/// Where the revocation starts.
pub(super) const REVOCATION: usize = 2048;
/// The most a lock file holds.
pub(super) const PAGE: usize = 4096;
/// The longest reason that is kept, in bytes.
const MAX_REASON: usize = 1024;

const VERSION: u16 = 1;
const RECORD_MAGIC: &[u8; 8] = b"fencepst";
const REVOCATION_MAGIC: &[u8; 8] = b"fenceRVK";
const HEADER: usize = 24;
/// Where a slot's flags are. Earlier versions write zero and do not look.
const FLAGS: usize = 12;
const REPLACING: u8 = 1;
const MAX_HOST: usize = 255;
const MAX_NOTE: usize = 1024;

/// The holder's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) held_by: HeldBy,
    pub(super) owner: Owner,
    /// The largest token handed out so far, by this slot.
    pub(super) token: u64,
    pub(super) pid: u32,
    /// When the lock was acquired, in microseconds of the wall clock.
    pub(super) since: u64,
    /// Written by a durable store: its tokens may be ahead of the clock, so the file is never collected.
    pub(super) durable: bool,
    pub(super) name: &'a str,
    pub(super) host: &'a str,
    pub(super) note: &'a str,
}

/// What keeps the lock held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldBy {
    Nobody,
    /// The holder's flock. Without one, the holder died and the lock is free.
    Flock,
    /// A lease until this moment, without a flock: the lock is detached.
    Lease(Timestamp),
}

/// The operator's slot: which holder is asked to let go, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revocation<'a> {
    pub(super) victim: Owner,
    /// The token that was reserved for the operator.
    pub(super) token: u64,
    pub(super) reason: &'a str,
    /// The operator is about to replace the file under its holder: nobody else is granted the lock here.
    pub(super) replacing: bool,
}

/// Why a slot cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    #[error("it is no lock file of fencepost")]
    Foreign,
    #[error("it was written by another version of fencepost (format {0})")]
    Version(u16),
    #[error("its record is truncated")]
    Truncated,
    #[error("its record is damaged: the checksum does not match")]
    Checksum,
    #[error("its record makes no sense")]
    Contents,
    #[error("it belongs to lock `{0}`")]
    OtherLock(String),
}

/// The bytes of a lock file as they were read.
pub(super) struct Page {
    pub(super) bytes: [u8; PAGE],
    pub(super) len: usize,
}

impl Page {
    pub(super) fn blank() -> Self {
        Self { bytes: [0; PAGE], len: 0 }
    }

    /// The record; `None` in a file that was just created. A power cut leaves zeros of a record that never
    /// reached the disk: such a file counts as just created.
    pub(super) fn record(&self) -> Result<Option<Record<'_>>, Damage> {
        let slot = &self.bytes[..self.len.min(REVOCATION)];
        if slot.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut body = open(slot, RECORD_MAGIC)?;
        let held_by = body.take(1)?[0];
        let durable = body.take(1)?[0] != 0;
        let pid = u32::from_le_bytes(body.array()?);
        body.take(8)?;
        let since = body.u64()?;
        let token = body.u64()?;
        let owner = Owner::from_bytes(body.array()?);
        let end = Timestamp { boot: body.array()?, boottime: body.u64()?, wall: body.u64()? };
        let held_by = match held_by {
            0 => HeldBy::Nobody,
            1 => HeldBy::Flock,
            2 => HeldBy::Lease(end),
            _ => return Err(Damage::Contents),
        };
        let (name, host, note) = (body.text()?, body.text()?, body.text()?);
        Ok(Some(Record { held_by, owner, token, pid, since, durable, name, host, note }))
    }

    /// The revocation, whoever it was meant for.
    pub(super) fn revocation(&self) -> Result<Option<Revocation<'_>>, Damage> {
        let slot = self.bytes.get(REVOCATION..self.len).unwrap_or_default();
        if slot.iter().take(HEADER).all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut body = open(slot, REVOCATION_MAGIC)?;
        let victim = Owner::from_bytes(body.array()?);
        let token = body.u64()?;
        Ok(Some(Revocation { victim, token, reason: body.text()?, replacing: slot[FLAGS] & REPLACING != 0 }))
    }

    /// The reason for which `owner` was asked to let go. Without the flock a revocation may be half written;
    /// the owner hears of that one at the next look.
    pub(super) fn revoked(&self, owner: Owner) -> Option<&str> {
        let revocation = self.revocation().ok()??;
        (revocation.victim == owner).then_some(revocation.reason)
    }

    /// The largest token that either slot knows of; `record` is this page's.
    pub(super) fn last_token(&self, record: Option<&Record<'_>>) -> Result<u64, Damage> {
        let revoked = self.revocation()?.map_or(0, |revocation| revocation.token);
        Ok(record.map_or(0, |record| record.token).max(revoked))
    }
}

impl Record<'_> {
    /// The slot as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (held_by, end) = match self.held_by {
            HeldBy::Nobody => (0, Timestamp::default()),
            HeldBy::Flock => (1, Timestamp::default()),
            HeldBy::Lease(end) => (2, end),
        };
        let mut slot = vec![0; HEADER];
        slot.extend([held_by, u8::from(self.durable)]);
        slot.extend(self.pid.to_le_bytes());
        // Earlier versions wrote when the process started. Nobody reads it.
        slot.extend([0; 8]);
        slot.extend(self.since.to_le_bytes());
        slot.extend(self.token.to_le_bytes());
        slot.extend(self.owner.to_bytes());
        slot.extend(end.boot);
        slot.extend(end.boottime.to_le_bytes());
        slot.extend(end.wall.to_le_bytes());
        put_text(&mut slot, self.name, crate::MAX_NAME);
        put_text(&mut slot, self.host, MAX_HOST);
        put_text(&mut slot, self.note, MAX_NOTE);
        seal(slot, RECORD_MAGIC, 0)
    }
}

impl Revocation<'_> {
    /// The slot as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut slot = vec![0; HEADER];
        slot.extend(self.victim.to_bytes());
        slot.extend(self.token.to_le_bytes());
        put_text(&mut slot, self.reason, MAX_REASON);
        seal(slot, REVOCATION_MAGIC, if self.replacing { REPLACING } else { 0 })
    }
}

/// Appends a text with its length in front, cut to `max` bytes.
fn put_text(slot: &mut Vec<u8>, text: &str, max: usize) {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let text = &text[..end];
    slot.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
    slot.extend(text.as_bytes());
}

/// Fills in the header of a slot.
fn seal(mut slot: Vec<u8>, magic: &[u8; 8], flags: u8) -> Vec<u8> {
    let len = u16::try_from(slot.len()).unwrap_or(0);
    slot[..8].copy_from_slice(magic);
    slot[8..10].copy_from_slice(&VERSION.to_le_bytes());
    slot[10..12].copy_from_slice(&len.to_le_bytes());
    slot[FLAGS] = flags;
    let sum = checksum(&slot);
    slot[16..HEADER].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// Checks the header of a slot and returns its body.
fn open<'a>(slot: &'a [u8], magic: &[u8; 8]) -> Result<Reader<'a>, Damage> {
    if !slot.starts_with(magic) {
        let cut = slot.len() < magic.len() && magic.starts_with(slot);
        return Err(if cut { Damage::Truncated } else { Damage::Foreign });
    }
    let header = slot.get(..HEADER).ok_or(Damage::Truncated)?;
    let version = u16::from_le_bytes([header[8], header[9]]);
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let len = usize::from(u16::from_le_bytes([header[10], header[11]]));
    let slot = slot.get(..len.max(HEADER)).ok_or(Damage::Truncated)?;
    if slot[16..HEADER] != checksum(slot).to_le_bytes() {
        return Err(Damage::Checksum);
    }
    Ok(Reader(&slot[HEADER..]))
}

/// A hash of everything but the checksum's own place, eight bytes a step. Each step is a bijection, so a
/// change in one place always shows. It guards against accidents, not against forgery: whoever may write the
/// directory may take the locks.
fn checksum(slot: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    [&slot[..16], &slot[HEADER..]].iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let (words, rest) = part.as_chunks::<8>();
        let hash = words.iter().fold(hash, |hash, word| step(hash, u64::from_le_bytes(*word)));
        rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)))
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damage::Contents)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        self.take(N)?.try_into().map_err(|_| Damage::Contents)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a str, Damage> {
        let len = self.array().map(u16::from_le_bytes)?;
        std::str::from_utf8(self.take(usize::from(len))?).map_err(|_| Damage::Contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(record: &Record<'_>, revocation: Option<&Revocation<'_>>) -> Page {
        let mut page = Page::blank();
        let slot = record.encode();
        assert!(slot.len() <= REVOCATION);
        page.len = slot.len();
        page.bytes[..page.len].copy_from_slice(&slot);
        if let Some(revocation) = revocation {
            let slot = revocation.encode();
            page.len = REVOCATION + slot.len();
            page.bytes[REVOCATION..page.len].copy_from_slice(&slot);
        }
        page
    }

    fn record() -> Record<'static> {
        Record {
            held_by: HeldBy::Flock,
            owner: Owner::fresh(),
            token: 7,
            pid: 42,
            since: 1_000_000,
            durable: false,
            name: "order:42",
            host: "web-1",
            note: "charging",
        }
    }

    fn any_held_by() -> impl Strategy<Value = HeldBy> {
        let end = (any::<[u8; 16]>(), any::<u64>(), any::<u64>());
        prop_oneof![
            Just(HeldBy::Nobody),
            Just(HeldBy::Flock),
            end.prop_map(|(boot, boottime, wall)| HeldBy::Lease(Timestamp { boot, boottime, wall })),
        ]
    }

    proptest! {
        #[test]
        fn a_page_reads_back_as_it_was_written(
            (held_by, token, pid, durable) in (any_held_by(), any::<u64>(), any::<u32>(), any::<bool>()),
            (name, host, note) in (".{1,128}", ".{0,60}", ".{0,256}"),
            reason in proptest::option::of(".{0,256}"),
        ) {
            let record =
                Record { held_by, token, pid, durable, name: &name, host: &host, note: &note, ..record() };
            let (victim, replacing) = (record.owner, durable);
            let revocation = reason.as_deref();
            let revocation = revocation.map(|reason| Revocation { victim, token, reason, replacing });
            let page = page(&record, revocation.as_ref());
            prop_assert_eq!(page.record(), Ok(Some(record)));
            prop_assert_eq!(page.revocation(), Ok(revocation));
            prop_assert_eq!(page.revoked(Owner::fresh()), None);
        }

        #[test]
        fn one_changed_byte_is_noticed(at in 0usize..100, by in 1u8..=255) {
            let mut page = page(&record(), None);
            page.bytes[at] = page.bytes[at].wrapping_add(by);
            // The flags and what is always zero after them are covered by the checksum as well.
            prop_assert!(page.record().is_err());
        }

        #[test]
        fn a_truncated_page_is_noticed(keep in 1usize..100) {
            let mut page = page(&record(), None);
            page.len = keep;
            prop_assert_eq!(page.record(), Err(Damage::Truncated));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..PAGE)) {
            let mut page = Page::blank();
            page.len = bytes.len();
            page.bytes[..bytes.len()].copy_from_slice(&bytes);
            let _ = (page.record(), page.revocation());
        }
    }

    #[test]
    fn the_longest_texts_fit_and_longer_ones_are_cut_between_characters() {
        let (name, text) = ("n".repeat(crate::MAX_NAME), "ü".repeat(5_000));
        let record = Record { name: &name, host: &text, note: &text, ..record() };
        let revocation = Revocation { victim: record.owner, token: 1, reason: &text, replacing: false };
        let page = page(&record, Some(&revocation));
        let read = page.record().unwrap().unwrap();
        assert_eq!((read.name, read.host.len(), read.note.len()), (name.as_str(), 254, 1024));
        assert_eq!(page.revoked(record.owner).unwrap().len(), MAX_REASON);
    }

    #[test]
    fn empty_and_zeroed_files_are_fresh_and_other_files_are_foreign() {
        let mut page = Page::blank();
        assert_eq!(page.record(), Ok(None));
        page.len = 100;
        assert_eq!(page.record(), Ok(None));
        page.bytes[..5].copy_from_slice(b"1234\n");
        assert_eq!(page.record(), Err(Damage::Foreign));
        page.bytes[..8].copy_from_slice(RECORD_MAGIC);
        page.bytes[8] = 9;
        assert_eq!(page.record(), Err(Damage::Version(9)));
    }
}
