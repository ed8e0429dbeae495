//! What a run came across. A simulation that never sees something proves nothing about it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    Won,
    TimedOut,
    RoundTwo,
    Split,
    InOrder,
    Woken,
    Quarantine,
    DataLoss,
    Extended,
    Remade,
    LateRefused,
    PassedRefused,
    LossNoticed,
    Expired,
    Revoked,
    Acknowledged,
    Undone,
    Stray,
    Crash,
    Pause,
}

impl Sight {
    pub(super) const ALL: [Self; 20] = [
        Self::Won,
        Self::TimedOut,
        Self::RoundTwo,
        Self::Split,
        Self::InOrder,
        Self::Woken,
        Self::Quarantine,
        Self::DataLoss,
        Self::Extended,
        Self::Remade,
        Self::LateRefused,
        Self::PassedRefused,
        Self::LossNoticed,
        Self::Expired,
        Self::Revoked,
        Self::Acknowledged,
        Self::Undone,
        Self::Stray,
        Self::Crash,
        Self::Pause,
    ];
}

/// How often each was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sights([u64; Sight::ALL.len()]);

impl Sights {
    pub(super) fn see(&mut self, sight: Sight) {
        self.0[sight as usize] += 1;
    }

    pub(super) fn count(&self, sight: Sight) -> u64 {
        self.0[sight as usize]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}
