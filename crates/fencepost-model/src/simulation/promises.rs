//! What Fencepost promises, checked at every moment at which it could break.

use std::collections::BTreeMap;

use super::plan::Plan;

#[derive(Clone, Debug)]
struct Valid {
    owner: String,
    /// In true time.
    until: u64,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    /// All tokens that were returned, and to whom.
    tokens: BTreeMap<u64, String>,
    guards: Vec<Valid>,
    /// Who got a guard last.
    last: String,
}

/// The history of all locks, as far as it matters.
#[derive(Clone, Debug)]
pub(super) struct Promises {
    locks: Vec<Lock>,
    exclusion: bool,
    tokens: bool,
}

/// What was promised and not kept.
pub(super) type Kept = Result<(), String>;

impl Promises {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            locks: vec![Lock::default(); plan.locks],
            exclusion: plan.promises_exclusion(),
            tokens: plan.promises_tokens(),
        }
    }

    /// The largest token that was returned before an attempt that starts now.
    pub(super) fn floor(&self, lock: usize) -> u64 {
        self.locks[lock].tokens.last_key_value().map_or(0, |(token, _)| *token)
    }

    /// UNIQUE and ORDER.
    pub(super) fn returned(&mut self, lock: usize, token: u64, floor: u64, owner: &str) -> Kept {
        let before = self.locks[lock].tokens.insert(token, owner.to_owned());
        if !self.tokens {
            return Ok(());
        }
        if let Some(before) = before {
            return Err(format!("UNIQUE: lock {lock} gave token {token} to {before} and to {owner}"));
        }
        if token <= floor {
            return Err(format!("ORDER: lock {lock} gave {token} to {owner}, after {floor} was returned"));
        }
        Ok(())
    }

    /// MUTEX.
    pub(super) fn locked(&mut self, lock: usize, owner: &str, now: u64, until: u64) -> Kept {
        let Lock { guards, last, .. } = &mut self.locks[lock];
        guards.retain(|guard| guard.until > now);
        let others = guards.iter().find(|guard| guard.owner != owner).cloned();
        guards.push(Valid { owner: owner.to_owned(), until });
        owner.clone_into(last);
        match others {
            Some(other) if self.exclusion => {
                Err(format!("MUTEX: lock {lock} is {owner}'s, and {}'s until {}", other.owner, other.until))
            }
            _ => Ok(()),
        }
    }

    /// CONTINUITY: who extends has had the lock all the time.
    pub(super) fn extended(&mut self, lock: usize, owner: &str, until: u64) -> Kept {
        let Lock { guards, last, .. } = &mut self.locks[lock];
        guards.retain(|guard| guard.owner != owner);
        guards.push(Valid { owner: owner.to_owned(), until });
        if self.exclusion && last != owner {
            return Err(format!("CONTINUITY: {owner} extends lock {lock}, which {last} got in between"));
        }
        Ok(())
    }

    /// A guard ends before its time.
    pub(super) fn ended(&mut self, lock: usize, owner: &str) {
        self.locks[lock].guards.retain(|guard| guard.owner != owner);
    }
}
