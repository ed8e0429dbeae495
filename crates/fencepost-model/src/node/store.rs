//! As much of Redis as the scripts use: texts and lists that may have an end, at a time that stands still
//! while a script runs.

use std::collections::{BTreeMap, VecDeque};

/// A command met a key of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A list.
    List(VecDeque<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Value,
    /// The last millisecond in which it is there.
    until: Option<u64>,
}

/// The keys of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    now: u64,
}

impl Store {
    /// Sets the clock, in milliseconds.
    pub fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// `GET`.
    pub fn get(&mut self, key: &str) -> Result<Option<&str>, WrongType> {
        match self.live(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::List(_)) => Err(WrongType),
        }
    }

    /// Whether a key is there, whatever it holds.
    pub fn exists(&mut self, key: &str) -> bool {
        self.live(key).is_some()
    }

    /// `SET key text`.
    pub fn set(&mut self, key: &str, text: &str) {
        self.put(key, Value::Text(text.to_owned()), None);
    }

    /// `SET key text PX ttl`.
    pub fn set_px(&mut self, key: &str, text: &str, ttl: u64) {
        self.put(key, Value::Text(text.to_owned()), Some(self.now + ttl));
    }

    /// `SET key text KEEPTTL`.
    pub fn set_keep_ttl(&mut self, key: &str, text: &str) {
        let until = self.live(key).and_then(|entry| entry.until);
        self.put(key, Value::Text(text.to_owned()), until);
    }

    /// `DEL`; whether it was there.
    pub fn del(&mut self, key: &str) -> bool {
        self.live(key).is_some() && self.entries.remove(key).is_some()
    }

    /// `FLUSHALL`.
    pub fn flush(&mut self) {
        self.entries.clear();
    }

    /// `PTTL`: milliseconds, -1 without end, -2 without key.
    pub fn pttl(&mut self, key: &str) -> i64 {
        let now = self.now;
        match self.live(key).map(|entry| entry.until) {
            None => -2,
            Some(None) => -1,
            Some(Some(until)) => i64::try_from(until - now).unwrap_or(i64::MAX),
        }
    }

    /// `PEXPIRE`.
    pub fn pexpire(&mut self, key: &str, ttl: u64) {
        let until = self.now + ttl;
        if let Some(entry) = self.live(key) {
            entry.until = Some(until);
        }
    }

    /// `PEXPIRE` for a key that ends sooner than that. One without end counts as ended, as `PTTL` has it.
    pub fn prolong(&mut self, key: &str, ttl: u64) {
        if self.pttl(key) < i64::try_from(ttl).unwrap_or(i64::MAX) {
            self.pexpire(key, ttl);
        }
    }

    /// `RPUSH`.
    pub fn rpush(&mut self, key: &str, text: &str) -> Result<(), WrongType> {
        if !self.exists(key) {
            self.put(key, Value::List(VecDeque::new()), None);
        }
        if let Some(list) = self.list(key)? {
            list.push_back(text.to_owned());
        }
        Ok(())
    }

    /// `LPOS`, as a yes or no.
    pub fn contains(&mut self, key: &str, text: &str) -> Result<bool, WrongType> {
        Ok(self.list(key)?.is_some_and(|list| list.iter().any(|entry| entry == text)))
    }

    /// `LREM key 1 text`.
    pub fn lrem(&mut self, key: &str, text: &str) -> Result<(), WrongType> {
        if let Some(list) = self.list(key)?
            && let Some(at) = list.iter().position(|entry| entry == text)
        {
            list.remove(at);
        }
        self.drop_empty(key);
        Ok(())
    }

    /// `LPOP`.
    pub fn lpop(&mut self, key: &str) -> Result<Option<String>, WrongType> {
        let entry = self.list(key)?.and_then(VecDeque::pop_front);
        self.drop_empty(key);
        Ok(entry)
    }

    /// Removes what has ended. Redis does so now and then; what is gone does not come back when a clock is
    /// set back.
    pub fn sweep(&mut self) {
        let now = self.now;
        self.entries.retain(|_, entry| entry.until.is_none_or(|until| now <= until));
    }

    /// What is there now: keys in order, their values, and what `PTTL` says.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Value, i64)> {
        let live = self.entries.iter().filter(|(_, entry)| entry.until.is_none_or(|until| self.now <= until));
        live.map(|(key, entry)| {
            let left = entry.until.map_or(-1, |until| i64::try_from(until - self.now).unwrap_or(i64::MAX));
            (key.as_str(), &entry.value, left)
        })
    }

    fn put(&mut self, key: &str, value: Value, until: Option<u64>) {
        self.entries.insert(key.to_owned(), Entry { value, until });
    }

    fn live(&mut self, key: &str) -> Option<&mut Entry> {
        let now = self.now;
        if self.entries.get(key)?.until.is_some_and(|until| now > until) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    fn list(&mut self, key: &str) -> Result<Option<&mut VecDeque<String>>, WrongType> {
        match self.live(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(Value::Text(_)) => Err(WrongType),
        }
    }

    fn drop_empty(&mut self, key: &str) {
        if let Ok(Some(list)) = self.list(key)
            && list.is_empty()
        {
            self.entries.remove(key);
        }
    }
}
