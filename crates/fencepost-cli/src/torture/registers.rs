//! The resources that the locks protect: for each lock a register that checks tokens, and one that trusts
//! everybody.

/// The registers of all locks.
#[derive(Debug)]
pub(super) struct Registers(Vec<Pair>);

#[derive(Clone, Debug, Default)]
struct Pair {
    guarded: u64,
    /// The largest token that the guarded register has seen.
    highest: u64,
    unguarded: u64,
}

impl Registers {
    pub(super) fn new(locks: usize) -> Self {
        Self(vec![Pair::default(); locks])
    }

    /// Reads both. The guarded one notes the token before it answers: a writer with an older one can then no
    /// longer slip in between this read and the write that follows.
    pub(super) fn read(&mut self, lock: usize, token: u64) -> (Option<u64>, u64) {
        let pair = &mut self.0[lock];
        let fresh = pair.admits(token);
        (fresh.then_some(pair.guarded), pair.unguarded)
    }

    /// Writes both; says whether the guarded one took it.
    pub(super) fn write(&mut self, lock: usize, token: u64, guarded: Option<u64>, unguarded: u64) -> bool {
        let pair = &mut self.0[lock];
        pair.unguarded = unguarded + 1;
        match guarded {
            Some(value) if pair.admits(token) => {
                pair.guarded = value + 1;
                true
            }
            _ => false,
        }
    }
}

impl Pair {
    fn admits(&mut self, token: u64) -> bool {
        let fresh = token >= self.highest;
        self.highest = self.highest.max(token);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_writer_gets_past_the_unguarded_register_only() {
        let mut registers = Registers::new(1);
        assert_eq!(registers.read(0, 7), (Some(0), 0));
        assert_eq!(registers.read(0, 8), (Some(0), 0));
        assert!(registers.write(0, 8, Some(0), 0));
        assert!(!registers.write(0, 7, Some(0), 0));
        assert_eq!(registers.read(0, 8), (Some(1), 1));
        assert_eq!(registers.read(0, 7).0, None);
    }
}
