//! What a lock file holds: one page with two slots, each with its own length and checksum.
//!
//! The first slot is the record of the holder; only whoever has the flock writes it. The second is an operator's
//! revocation and may be written while somebody else has the flock. Each slot is one `pwrite` inside one page, which
//! a kill cannot tear; a reader without the flock may still see half of one, and reads again.

use std::time::Duration;

use crate::Owner;

/// Where the revocation starts.
pub(super) const REVOCATION: usize = 2048;
/// The most a lock file holds.
pub(super) const PAGE: usize = 4096;
/// The longest reason that is kept, in bytes.
pub(super) const MAX_REASON: usize = 1024;

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
    pub(super) state: State,
    pub(super) owner: Owner,
    /// The largest token handed out so far, by this slot.
    pub(super) token: u64,
    pub(super) pid: u32,
    /// When that process started, in clock ticks since boot: with the pid it names one process for ever.
    pub(super) started: u64,
    /// When the lock was acquired, in microseconds of the wall clock.
    pub(super) since: u64,
    /// Written by a durable store: its tokens may be ahead of the clock, so the file is never collected.
    pub(super) durable: bool,
    pub(super) name: &'a str,
    pub(super) host: &'a str,
    pub(super) note: &'a str,
}

/// What the record says about the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Held for as long as the flock is; without one, its holder died.
    Held,
    /// Detached: held until the lease ends, by nobody's flock.
    Leased(Lease),
}

/// The end of a detached lock, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// The boot whose clock `boottime` is of; zero if that is not known.
    pub(super) boot: [u8; 16],
    /// Nanoseconds since that boot.
    pub(super) boottime: u64,
    /// Microseconds of the wall clock.
    pub(super) wall: u64,
}

/// The time on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) boot: [u8; 16],
    pub(super) boottime: u64,
    pub(super) wall: u64,
}

impl Lease {
    pub(super) fn ending(now: &Now, term: Duration) -> Self {
        let nanoseconds = u64::try_from(term.as_nanos()).unwrap_or(u64::MAX);
        Self {
            boot: now.boot,
            boottime: now.boottime.saturating_add(nanoseconds),
            wall: now.wall.saturating_add(nanoseconds / 1_000),
        }
    }

    /// This lease, or one of `term` from now if that ends later.
    pub(super) fn at_least(self, now: &Now, term: Duration) -> Self {
        if self.left(now) < term { Self::ending(now, term) } else { self }
    }

    /// Time left. In the same boot its clock decides, which nobody can set; after a reboot only the wall clock is
    /// left.
    pub(super) fn left(&self, now: &Now) -> Duration {
        if self.boot == now.boot && self.boot != [0; 16] {
            Duration::from_nanos(self.boottime.saturating_sub(now.boottime))
        } else {
            Duration::from_micros(self.wall.saturating_sub(now.wall))
        }
    }
}

/// The operator's slot: who is asked to let go, and why.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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

    /// The record; `None` in a file that was just created. A file of zeros is what a power cut leaves of a record
    /// that never reached the disk: fresh as well.
    pub(super) fn record(&self) -> Result<Option<Record<'_>>, Damage> {
        let slot = &self.bytes[..self.len.min(REVOCATION)];
        if slot.iter().take(HEADER).all(|byte| *byte == 0) && slot.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut body = open(slot, RECORD_MAGIC)?;
        let state = body.take(1)?[0];
        let durable = body.take(1)?[0] != 0;
        let pid = body.u32()?;
        let started = body.u64()?;
        let since = body.u64()?;
        let token = body.u64()?;
        let owner = Owner::from_bytes(body.id()?);
        let lease = Lease { boot: body.id()?, boottime: body.u64()?, wall: body.u64()? };
        let state = match state {
            0 => State::Free,
            1 => State::Held,
            2 => State::Leased(lease),
            _ => return Err(Damage::Contents),
        };
        let (name, host, note) = (body.text()?, body.text()?, body.text()?);
        Ok(Some(Record { state, owner, token, pid, started, since, durable, name, host, note }))
    }

    /// The revocation, whoever it was meant for.
    pub(super) fn revocation(&self) -> Result<Option<Revocation<'_>>, Damage> {
        let slot = self.bytes.get(REVOCATION..self.len).unwrap_or_default();
        if slot.iter().take(HEADER).all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut body = open(slot, REVOCATION_MAGIC)?;
        let victim = Owner::from_bytes(body.id()?);
        let token = body.u64()?;
        Ok(Some(Revocation { victim, token, reason: body.text()?, replacing: slot[FLAGS] & REPLACING != 0 }))
    }

    /// The reason for which `owner` was asked to let go.
    pub(super) fn revoked(&self, owner: Owner) -> Result<Option<&str>, Damage> {
        let revocation = self.revocation()?.filter(|revocation| revocation.victim == owner);
        Ok(revocation.map(|revocation| revocation.reason))
    }

    /// The largest token that either slot knows of; `record` is this page's.
    pub(super) fn last_token(&self, record: Option<&Record<'_>>) -> Result<u64, Damage> {
        let revoked = self.revocation()?.map_or(0, |revocation| revocation.token);
        Ok(record.map_or(0, |record| record.token).max(revoked))
    }
}

impl Record<'_> {
    /// The slot as bytes; returns how many there are.
    pub(super) fn encode(&self, out: &mut [u8; REVOCATION]) -> usize {
        let none = Lease { boot: [0; 16], boottime: 0, wall: 0 };
        let (state, lease) = match self.state {
            State::Free => (0, none),
            State::Held => (1, none),
            State::Leased(lease) => (2, lease),
        };
        let mut slot = Writer { out: out.as_mut_slice(), at: HEADER };
        slot.put(&[state, u8::from(self.durable)]);
        slot.put(&self.pid.to_le_bytes());
        slot.put(&self.started.to_le_bytes());
        slot.put(&self.since.to_le_bytes());
        slot.put(&self.token.to_le_bytes());
        slot.put(&self.owner.to_bytes());
        slot.put(&lease.boot);
        slot.put(&lease.boottime.to_le_bytes());
        slot.put(&lease.wall.to_le_bytes());
        slot.text(self.name, crate::MAX_NAME);
        slot.text(self.host, MAX_HOST);
        slot.text(self.note, MAX_NOTE);
        slot.seal(RECORD_MAGIC, 0)
    }
}

impl Revocation<'_> {
    /// The slot as bytes; returns how many there are.
    pub(super) fn encode(&self, out: &mut [u8; REVOCATION]) -> usize {
        let mut slot = Writer { out: out.as_mut_slice(), at: HEADER };
        slot.put(&self.victim.to_bytes());
        slot.put(&self.token.to_le_bytes());
        slot.text(self.reason, MAX_REASON);
        slot.seal(REVOCATION_MAGIC, if self.replacing { REPLACING } else { 0 })
    }
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

/// A hash of everything but the checksum's own place, eight bytes a step: each step is a bijection of the state, so
/// a change in one place always shows. Guards against accidents, not against forgery: whoever may write the directory
/// may take the locks.
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

    fn u32(&mut self) -> Result<u32, Damage> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Result<[u8; 16], Damage> {
        self.array()
    }

    fn text(&mut self) -> Result<&'a str, Damage> {
        let len = self.array().map(u16::from_le_bytes)?;
        std::str::from_utf8(self.take(usize::from(len))?).map_err(|_| Damage::Contents)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Text with its length in front, cut to `max` bytes.
    fn text(&mut self, text: &str, max: usize) {
        let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let text = &text[..end];
        self.put(&u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
        self.put(text.as_bytes());
    }

    fn seal(self, magic: &[u8; 8], flags: u8) -> usize {
        let slot = &mut self.out[..self.at];
        slot[..8].copy_from_slice(magic);
        slot[8..10].copy_from_slice(&VERSION.to_le_bytes());
        slot[10..12].copy_from_slice(&u16::try_from(self.at).unwrap_or(0).to_le_bytes());
        slot[FLAGS..16].fill(0);
        slot[FLAGS] = flags;
        let sum = checksum(slot);
        slot[16..HEADER].copy_from_slice(&sum.to_le_bytes());
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(record: &Record<'_>, revocation: Option<&Revocation<'_>>) -> Page {
        let mut page = Page::blank();
        let mut slot = [0; REVOCATION];
        page.len = record.encode(&mut slot);
        page.bytes[..page.len].copy_from_slice(&slot[..page.len]);
        if let Some(revocation) = revocation {
            let len = revocation.encode(&mut slot);
            page.bytes[REVOCATION..REVOCATION + len].copy_from_slice(&slot[..len]);
            page.len = REVOCATION + len;
        }
        page
    }

    fn record() -> Record<'static> {
        Record {
            state: State::Held,
            owner: Owner::fresh(),
            token: 7,
            pid: 42,
            started: 99,
            since: 1_000_000,
            durable: false,
            name: "order:42",
            host: "web-1",
            note: "charging",
        }
    }

    fn any_state() -> impl Strategy<Value = State> {
        let lease = (any::<[u8; 16]>(), any::<u64>(), any::<u64>());
        prop_oneof![
            Just(State::Free),
            Just(State::Held),
            lease.prop_map(|(boot, boottime, wall)| State::Leased(Lease { boot, boottime, wall })),
        ]
    }

    proptest! {
        #[test]
        fn a_page_reads_back_as_it_was_written(
            (state, token, pid, durable) in (any_state(), any::<u64>(), any::<u32>(), any::<bool>()),
            (name, host, note) in (".{1,128}", ".{0,60}", ".{0,256}"),
            reason in proptest::option::of(".{0,256}"),
        ) {
            let record =
                Record { state, token, pid, durable, name: &name, host: &host, note: &note, ..record() };
            let revocation = reason.as_deref();
            let revocation =
                revocation.map(|reason| Revocation { victim: record.owner, token, reason, replacing: durable });
            let page = page(&record, revocation.as_ref());
            prop_assert_eq!(page.record(), Ok(Some(record)));
            prop_assert_eq!(page.revocation(), Ok(revocation));
            prop_assert_eq!(page.revoked(Owner::fresh()), Ok(None));
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

        #[test]
        fn a_lease_ends_by_the_clock_of_its_boot_and_by_the_wall_clock_after_a_reboot(
            (boottime, wall) in (0u64..1 << 60, 0u64..1 << 50),
            term in 1u64..1 << 40,
        ) {
            let term = Duration::from_micros(term);
            let now = Now { boot: [1; 16], boottime, wall };
            let lease = Lease::ending(&now, term);
            prop_assert_eq!(lease.left(&now), term);
            prop_assert_eq!(lease.left(&Now { wall: 0, ..now }), term);
            prop_assert_eq!(lease.left(&Now { boot: [2; 16], boottime: 0, ..now }), term);
            prop_assert_eq!(lease.left(&Now { boot: [2; 16], wall: lease.wall, ..now }), Duration::ZERO);
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
        assert_eq!(page.revoked(record.owner).unwrap().unwrap().len(), MAX_REASON);
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
