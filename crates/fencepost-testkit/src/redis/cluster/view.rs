//! The cluster as one node sees it: the answer to `CLUSTER NODES`.

use std::ops::RangeInclusive;

/// A node, as another one or it itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    flags: Vec<String>,
    /// The id of its master, if it is a replica.
    pub(super) master: Option<String>,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

impl Seen {
    fn parse(line: &str) -> Option<Self> {
        // id, address, flags, master, ping, pong, epoch, link, slots…
        let words: Vec<_> = line.split_whitespace().collect();
        let [id, _, flags, master, _, _, _, _, slots @ ..] = &words[..] else { return None };
        // A slot on its way is in brackets, and belongs to its master until it has arrived.
        let slots = slots.iter().filter(|slot| !slot.starts_with('['));
        Some(Self {
            id: (*id).to_owned(),
            flags: flags.split(',').map(str::to_owned).collect(),
            master: Some(*master).filter(|master| *master != "-").map(str::to_owned),
            slots: slots.map(|slot| range(slot)).collect::<Option<_>>()?,
        })
    }

    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Whether it is there and known to be well.
    pub(super) fn is_well(&self) -> bool {
        !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| self.is(flag))
    }
}

fn range(slots: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Reads the answer.
pub(super) fn parse(text: &str) -> Vec<Seen> {
    text.lines().filter_map(Seen::parse).collect()
}

/// What all nodes of a cluster agree on when it is at rest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Agreed<'a> {
    /// Who of those that are up has which slots, sorted.
    pub(super) owners: Vec<(u16, u16, &'a str)>,
    /// Whom each of those that are up follows, if it is a replica.
    pub(super) masters: Vec<Option<&'a str>>,
}

/// What of that is seen here, about the nodes that are up; nothing unless all of them are well.
pub(super) fn agreed<'a>(view: &'a [Seen], up: &[&str]) -> Option<Agreed<'a>> {
    let nodes: Option<Vec<_>> =
        up.iter().map(|id| view.iter().find(|seen| seen.id == **id && seen.is_well())).collect();
    let nodes = nodes?;
    let slots = nodes.iter().flat_map(|node| node.slots.iter().map(|slots| (slots, node.id.as_str())));
    let mut owners: Vec<_> = slots.map(|(slots, id)| (*slots.start(), *slots.end(), id)).collect();
    owners.sort_unstable();
    Some(Agreed { owners, masters: nodes.iter().map(|node| node.master.as_deref()).collect() })
}
