//! What is known of one lock: its tokens, its holds and its registers.

use std::collections::{BTreeMap, HashMap};

use super::{Grant, Hold, Moment, Register, Rule};

/// How many tokens may pile up before those that cannot come again are forgotten.
const MANY: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Record {
    /// The grant with the largest token.
    highest: Option<Grant>,
    /// The same among those whose guards were valid when their clients knew.
    highest_held: Option<Grant>,
    /// Who asks, and the largest token that was granted before.
    asking: HashMap<u32, (Moment, Option<Grant>)>,
    /// Grants whose tokens nobody who asks now would be found out with otherwise.
    granted: BTreeMap<u64, Grant>,
    /// Holds that go on, by client.
    open: HashMap<u32, Hold>,
    /// Holds that ended and may still overlap with one that goes on.
    ended: Vec<Hold>,
    guarded: Value,
    unguarded: Value,
}

/// A register.
#[derive(Debug, Default)]
struct Value {
    value: u64,
    /// The last write that was taken: by whom, with which token, when.
    last: Option<(u32, u64, Moment)>,
}

/// What a grant broke, and the earlier grant that shows it.
pub(super) type Clash = (Rule, Grant);

impl Record {
    pub(super) fn invoke(&mut self, client: u32, at: Moment) {
        self.asking.insert(client, (at, self.highest));
    }

    pub(super) fn give_up(&mut self, client: u32) {
        self.asking.remove(&client);
    }

    /// Notes a grant. Returns it, the grant before it, and what it broke.
    pub(super) fn grant(
        &mut self,
        client: u32,
        at: Moment,
        token: u64,
        until: Option<Moment>,
    ) -> Option<(Grant, Option<Clash>)> {
        let (invoked, floor) = self.asking.remove(&client)?;
        let grant = Grant { client, token, invoked, at };
        let twice = self.granted.get(&token).copied().or(floor.filter(|floor| floor.token == token));
        let hold = Hold::new(grant, until);
        // Who held it before, at a moment that is known: when that client knew of its grant and its guard was
        // valid. The store kept the lock for it from its own grant to that moment at least; likewise for this
        // one. Neither when a request was sent nor when a release arrived is needed: if the two times at the
        // store do not overlap, they lie in the order of the two moments, and so do the grants, and so must
        // the tokens. If they do overlap, exclusion is broken, and this has the same excuses.
        let before = self.highest_held.filter(|held| hold.was_valid() && held.at < at && held.token > token);
        let clash = match (twice, floor, before) {
            (Some(duplicate), ..) => Some((Rule::UniqueTokens, duplicate)),
            (None, Some(floor), _) if floor.token > token => Some((Rule::OrderedTokens, floor)),
            (None, _, Some(before)) => Some((Rule::TokensInTurn, before)),
            _ => None,
        };
        self.granted.insert(token, grant);
        if hold.was_valid() && self.highest_held.is_none_or(|highest| highest.token < token) {
            self.highest_held = Some(grant);
        }
        if self.highest.is_none_or(|highest| highest.token < token) {
            self.highest = Some(grant);
        }
        if self.granted.len() > MANY {
            // Whoever is granted one of these from now on has asked after a larger one was granted: out of
            // order.
            let floors = self.asking.values().map(|(_, floor)| floor.map_or(0, |floor| floor.token));
            let least = floors.chain(self.highest.map(|highest| highest.token)).min().unwrap_or(0);
            self.granted.retain(|token, _| *token >= least);
        }
        self.open.insert(client, hold);
        Some((grant, clash))
    }

    /// The hold of a client.
    pub(super) fn hold(&mut self, client: u32) -> Option<&mut Hold> {
        self.open.get_mut(&client)
    }

    /// Ends a hold. Returns it and those that it overlapped with.
    pub(super) fn end(&mut self, client: u32, at: Moment, how: &str) -> Option<(Hold, Vec<Hold>)> {
        let mut hold = self.open.remove(&client)?;
        hold.gone = Some(at);
        how.clone_into(&mut hold.how);
        let overlapping = self.ended.iter().filter(|other| other.overlap(&hold).is_some()).cloned().collect();
        self.ended.push(hold.clone());
        // What ended before every open hold began, and before now, overlaps with nothing to come.
        let earliest = self.open.values().map(|open| open.grant.at).min().unwrap_or(at);
        self.ended.retain(|ended| ended.end() > earliest);
        Some((hold, overlapping))
    }

    /// Whether a read shows what the writes before it left.
    pub(super) fn reads(&self, register: Register, value: u64) -> bool {
        self.register(register).value == value
    }

    /// Takes a write. Returns the write that was overwritten unread, if one was.
    pub(super) fn write(
        &mut self,
        register: Register,
        based_on: u64,
        by: (u32, u64, Moment),
    ) -> Option<(u32, u64, Moment)> {
        let register = match register {
            Register::Guarded => &mut self.guarded,
            Register::Unguarded => &mut self.unguarded,
        };
        let lost = register.last.filter(|_| register.value != based_on);
        *register = Value { value: based_on + 1, last: Some(by) };
        lost
    }

    fn register(&self, register: Register) -> &Value {
        match register {
            Register::Guarded => &self.guarded,
            Register::Unguarded => &self.unguarded,
        }
    }

    /// Who still has it, or asks for it.
    pub(super) fn clients(&self) -> Vec<u32> {
        self.open.keys().chain(self.asking.keys()).copied().collect()
    }
}
