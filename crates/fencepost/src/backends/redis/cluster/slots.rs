//! Slots of a cluster: the one of a key, the map of who serves them, and the answers of nodes that do not.

use crate::backends::redis::config::NodeAddress;
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::errors;
use crate::backends::redis::keys::hash_tag;

const SLOTS: u16 = 16_384;

/// The slot of a key.
pub(super) fn of(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// The one of the XMODEM protocol.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[allow(clippy::cast_possible_truncation)] // below 256
        let (mut crc, mut bit) = ((index as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// Who serves which slot, as some node has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::backends::redis) struct SlotMap {
    /// The index of each slot's master; empty if nothing is known.
    owners: Vec<u16>,
    masters: Vec<NodeAddress>,
    replicas: Vec<NodeAddress>,
}

const NOBODY: u16 = u16::MAX;

impl SlotMap {
    /// Reads the reply of a node to `CLUSTER SLOTS`; `None` if it is no such reply, or empty.
    pub(super) fn read(reply: &Value, asked: &NodeAddress) -> Option<Self> {
        let mut map = Self { owners: vec![NOBODY; usize::from(SLOTS)], ..Self::default() };
        for range in reply.as_list()? {
            let [first, last, nodes @ ..] = range.as_list()? else { return None };
            let slot = |value: &Value| u16::try_from(value.as_int()?).ok().filter(|slot| *slot < SLOTS);
            let (first, last) = (slot(first)?, slot(last)?);
            let mut nodes = nodes.iter().filter_map(|node| address(node, asked));
            let master = map.master(nodes.next()?);
            map.owners.get_mut(usize::from(first)..=usize::from(last))?.fill(master);
            map.replicas.extend(nodes);
        }
        (!map.masters.is_empty()).then_some(map)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&NodeAddress> {
        self.masters.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Notes that a node has told of a new owner.
    pub(super) fn set(&mut self, slot: u16, owner: NodeAddress) {
        let master = self.master(owner);
        if let Some(entry) = self.owners.get_mut(usize::from(slot)) {
            *entry = master;
        }
    }

    pub(super) fn masters(&self) -> &[NodeAddress] {
        &self.masters
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeAddress> {
        self.masters.iter().chain(&self.replicas)
    }

    /// Whether somebody serves every slot.
    pub(super) fn is_whole(&self) -> bool {
        !self.owners.contains(&NOBODY)
    }

    fn master(&mut self, address: NodeAddress) -> u16 {
        let index = self.masters.iter().position(|master| *master == address);
        let index = index.unwrap_or_else(|| {
            self.masters.push(address);
            self.masters.len() - 1
        });
        u16::try_from(index).unwrap_or(NOBODY)
    }
}

/// A node in that reply: host and port first. One without a host is the node that was asked.
fn address(node: &Value, asked: &NodeAddress) -> Option<NodeAddress> {
    let [host, port, ..] = node.as_list()? else { return None };
    let port = u16::try_from(port.as_int()?).ok().filter(|port| *port != 0)?;
    match host.as_text() {
        None | Some("" | "?") => Some((asked.0.clone(), port)),
        Some(host) => Some((host.to_owned(), port)),
    }
}

/// What a node answers that does not run a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another one serves the slot now.
    Moved(NodeAddress),
    /// The slot is on its way to another one, and this key is no more here.
    Ask(NodeAddress),
    /// It is on its way, and some of these keys are here and some there.
    TryAgain,
    /// The node cannot say, or may not serve; another map may help.
    Down,
}

impl Redirect {
    pub(super) fn read(reply: &Value, asked: &NodeAddress) -> Option<Self> {
        let Value::Error(text) = reply else { return None };
        let address = || {
            let (host, port) = text.split(' ').nth(2)?.rsplit_once(':')?;
            let host = if matches!(host, "" | "?") { &asked.0 } else { host };
            Some((host.to_owned(), port.parse().ok()?))
        };
        match errors::code(text) {
            "MOVED" => address().map(Self::Moved),
            "ASK" => address().map(Self::Ask),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "NOREPLICAS" => Some(Self::Down),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    fn node(host: &str, port: i64) -> Value {
        Value::List(vec![text(host), Value::Int(port), text("id"), Value::List(Vec::new())])
    }

    fn asked() -> NodeAddress {
        ("seed".to_owned(), 7000)
    }

    #[test]
    fn slots_are_those_that_servers_have() {
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("{foo}:bar", 12_182), ("lock:a", 6_035)]
        {
            assert_eq!(of(key), slot, "{key}");
        }
        assert_eq!(of("{lock:a}:waiting"), of("lock:a"));
    }

    #[test]
    fn a_map_says_who_serves_a_slot_and_an_empty_host_is_the_one_asked() {
        let range = |first, last, nodes: Vec<Value>| {
            Value::List([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let reply = Value::List(vec![
            range(0, 99, vec![node("a", 1), node("b", 2)]),
            range(100, 16_383, vec![node("", 3), node("?", 4)]),
        ]);
        let mut map = SlotMap::read(&reply, &asked()).unwrap();
        assert_eq!(map.owner(99), Some(&("a".to_owned(), 1)));
        assert_eq!(map.owner(100), Some(&("seed".to_owned(), 3)));
        assert_eq!(map.nodes().count(), 4);
        assert!(map.is_whole());
        map.set(99, ("c".to_owned(), 5));
        assert_eq!((map.owner(99).unwrap().1, map.owner(98).unwrap().1, map.masters().len()), (5, 1, 3));
        let gap = SlotMap::read(&Value::List(vec![range(1, 16_383, vec![node("a", 1)])]), &asked()).unwrap();
        assert!(!gap.is_whole() && gap.owner(0).is_none());
        for odd in
            [range(0, 16_384, vec![node("a", 1)]), range(9, 1, vec![node("a", 1)]), range(0, 1, vec![])]
        {
            assert_eq!(SlotMap::read(&Value::List(vec![odd]), &asked()), None);
        }
        assert_eq!(SlotMap::read(&Value::List(Vec::new()), &asked()), None);
    }

    #[test]
    fn redirects_are_read_from_errors() {
        let of = |text: &str| Redirect::read(&Value::Error(text.to_owned()), &asked());
        assert_eq!(of("MOVED 7 h:1"), Some(Redirect::Moved(("h".to_owned(), 1))));
        assert_eq!(of("MOVED 7 :1"), Some(Redirect::Moved(("seed".to_owned(), 1))));
        assert_eq!(of("ASK 7 ::1:6379"), Some(Redirect::Ask(("::1".to_owned(), 6379))));
        assert_eq!(of("TRYAGAIN Multiple keys"), Some(Redirect::TryAgain));
        assert_eq!(of("CLUSTERDOWN The cluster is down"), Some(Redirect::Down));
        for other in ["MOVED", "MOVED 7 h", "MOVED 7 h:x", "ERR MOVED 7 h:1", ""] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Redirect::read(&text("MOVED 7 h:1"), &asked()), None, "a value is no error");
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(
            reply in "(MOVED|ASK|TRYAGAIN)[ 0-9a-z:.]{0,20}",
            numbers in proptest::collection::vec(any::<i64>(), 0..6),
        ) {
            let _ = Redirect::read(&Value::Error(reply), &asked());
            let items: Vec<_> = numbers.iter().map(|number| Value::Int(*number)).collect();
            let nodes = [items.clone(), vec![Value::List(items.clone())]].concat();
            let _ = SlotMap::read(&Value::List(vec![Value::List(nodes)]), &asked());
        }
    }
}
