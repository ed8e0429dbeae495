//! The servers, the clients, and all that can happen next.

use super::{GRAIN, LAG, Rules, TTL};
use crate::search::Steps;

/// A lock that was left to whoever has its handle.
const HANDLE: u8 = u8::MAX;

/// What a server keeps, and replication carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Store {
    /// Which grant has the lock, and what is left of it.
    lock: Option<(u8, u8)>,
    /// The reign of the key, and what is left of its quarantine.
    key: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Server {
    store: Store,
    /// Run id and replication id: a number that is never used again.
    reign: u8,
    master: bool,
    /// For how long it goes on without its replicas; `None` while it has them.
    alone: Option<u8>,
}

/// How far a client is with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Link {
    None,
    /// It was told where the master is.
    Told(u8),
    /// It has greeted the server, and met this reign.
    Open(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    link: Link,
    /// Of the guard, as its holder counts.
    pub(super) left: u8,
    grant: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    servers: [Server; 2],
    pub(super) clients: Vec<Client>,
    /// What a majority of the sentinels says.
    named: u8,
    next_reign: u8,
    next_grant: u8,
    promotions: u8,
    restarts: u8,
    /// Of the last step.
    sight: u32,
}

impl World {
    pub(super) fn new(rules: &Rules) -> Self {
        let lock = rules.detached.then_some((HANDLE, TTL));
        let store = Store { lock, key: Some((1, 0)) };
        let server = |master, reign| Server { store, reign, master, alone: None };
        let client = Client { link: Link::None, left: 0, grant: 0 };
        Self {
            servers: [server(true, 1), server(false, 0)],
            clients: vec![client; rules.clients],
            named: 0,
            next_reign: 2,
            next_grant: 1,
            promotions: rules.promotions,
            restarts: rules.restarts,
            sight: 0,
        }
    }

    /// Clients differ in nothing but what they do; grants in nothing but who has them.
    pub(super) fn canonical(mut self) -> Self {
        self.sight = 0;
        for client in &mut self.clients {
            if client.left == 0 {
                client.grant = 0;
            }
        }
        self.clients.sort_unstable();
        // Grants are counted anew, in the order in which they are found.
        let mut known = vec![0, HANDLE];
        let mut rename = |grant: &mut u8| {
            let at = known.iter().position(|other| other == grant).unwrap_or_else(|| {
                known.push(*grant);
                known.len() - 1
            });
            *grant = if at == 1 { HANDLE } else { u8::try_from(at).expect("a few grants") };
        };
        self.clients.iter_mut().for_each(|client| rename(&mut client.grant));
        for server in &mut self.servers {
            server.store.lock.iter_mut().for_each(|(grant, _)| rename(grant));
        }
        self.next_grant = u8::try_from(known.len()).expect("a few grants");
        self
    }

    pub(super) fn sights(&self) -> u32 {
        let named = &self.servers[usize::from(self.named)];
        let of = |grant: u8| named.store.lock.is_some_and(|(holder, _)| holder == grant);
        let held =
            |known: bool| self.clients.iter().any(|client| client.left > 0 && of(client.grant) == known);
        let waits = named.store.key.is_some_and(|(reign, left)| reign == named.reign && left > 0);
        self.sight | u32::from(held(false)) | u32::from(waits && held(true)) << 1
    }

    pub(super) fn steps(&self, rules: &Rules, steps: &mut Steps<Self>) {
        let mut push = |what: &dyn Fn() -> String, change: &dyn Fn(&mut Self) -> bool| {
            let mut next = self.clone();
            next.sight = 0;
            if change(&mut next) {
                steps.push(next, what);
            }
        };
        push(&|| "time passes".to_owned(), &|world| {
            world.tick();
            true
        });
        for at in 0..self.clients.len() {
            let named = |what: &str| format!("client {at} {what}");
            for server in 0..2 {
                push(&|| named(&format!("is told of server {server}")), &|world| {
                    world.tell(at, server, rules)
                });
            }
            push(&|| named("greets"), &|world| world.greet(at, rules));
            push(&|| named("loses its connection"), &|world| {
                std::mem::replace(&mut world.clients[at].link, Link::None) != Link::None
            });
            push(&|| named("acquires"), &|world| world.acquire(at, rules));
            push(&|| named("attaches"), &|world| world.attach(at, rules));
            // The keeper has a connection of its own, and so has each runtime.
            for over in 0..self.clients.len() {
                push(&|| named(&format!("renews over the connection of {over}")), &|world| {
                    world.renew(at, over, rules)
                });
            }
            push(&|| named("releases"), &|world| world.release(at, true));
            push(&|| named("releases, and nobody hears it"), &|world| world.release(at, false));
        }
        push(&|| "the replica catches up".to_owned(), &Self::replicate);
        push(&|| "the master is cut off".to_owned(), &|world| world.cut_off());
        push(&|| "the replica is promoted".to_owned(), &Self::promote);
        push(&|| "the old master becomes a replica".to_owned(), &Self::demote);
        for server in 0..2 {
            for lost in [false, true] {
                let how = if lost { "without" } else { "with" };
                push(&|| format!("server {server} is started again {how} its data"), &|world| {
                    world.restart(server, lost)
                });
            }
        }
    }

    fn tick(&mut self) {
        for server in &mut self.servers {
            if let Some((_, left)) = &mut server.store.lock {
                *left -= 1;
                if *left == 0 {
                    server.store.lock = None;
                }
            }
            if let Some((_, left)) = &mut server.store.key {
                *left = left.saturating_sub(1);
            }
            server.alone = server.alone.map(|left| left.saturating_sub(1));
        }
        for client in &mut self.clients {
            client.left = client.left.saturating_sub(1);
        }
    }

    fn tell(&mut self, at: usize, server: u8, rules: &Rules) -> bool {
        let master = self.servers[usize::from(server)].master;
        let told = if rules.majority { server == self.named } else { master };
        told && std::mem::replace(&mut self.clients[at].link, Link::Told(server)) == Link::None
    }

    fn greet(&mut self, at: usize, rules: &Rules) -> bool {
        let Link::Told(index) = self.clients[at].link else { return false };
        let server = &mut self.servers[usize::from(index)];
        if !server.master {
            self.clients[at].link = Link::None;
            return true;
        }
        if rules.key && server.store.key.is_none_or(|(reign, _)| reign != server.reign) {
            if rules.alone_grants_not && server.alone == Some(0) {
                return false;
            }
            server.store.key = Some((server.reign, rules.pause()));
        }
        self.clients[at].link = Link::Open(index, server.reign);
        true
    }

    /// Whether a server grants over a link.
    fn may_grant(&self, index: u8, met: u8, rules: &Rules) -> bool {
        let server = &self.servers[usize::from(index)];
        server.master
            && !(rules.alone_grants_not && server.alone == Some(0))
            && !(rules.key && server.store.key != Some((met, 0)))
            && !(rules.asks_the_server && rules.key && server.reign != met)
    }

    fn acquire(&mut self, at: usize, rules: &Rules) -> bool {
        let Link::Open(index, met) = self.clients[at].link else { return false };
        let free = self.servers[usize::from(index)].store.lock.is_none();
        if self.clients[at].left > 0 || !free || !self.may_grant(index, met, rules) {
            return false;
        }
        if index != self.named {
            self.sight |= 8;
        } else if self.promotions < rules.promotions {
            self.sight |= 4;
        }
        self.grant(at, index);
        true
    }

    fn grant(&mut self, at: usize, index: u8) {
        let grant = self.next_grant;
        self.next_grant += 1;
        self.servers[usize::from(index)].store.lock = Some((grant, TTL));
        let client = &mut self.clients[at];
        (client.left, client.grant) = (TTL, grant);
    }

    fn attach(&mut self, at: usize, rules: &Rules) -> bool {
        let Link::Open(index, met) = self.clients[at].link else { return false };
        let server = &self.servers[usize::from(index)];
        let there = matches!(server.store.lock, Some((HANDLE, _)));
        let may = match rules.attach_waits {
            true => self.may_grant(index, met, rules),
            false => server.master && server.alone != Some(0),
        };
        if self.clients[at].left > 0 || !there || !may {
            return false;
        }
        self.grant(at, index);
        true
    }

    fn renew(&mut self, at: usize, over: usize, rules: &Rules) -> bool {
        let (Link::Open(index, met), client) = (self.clients[over].link, self.clients[at]) else {
            return false;
        };
        let server = &mut self.servers[usize::from(index)];
        if client.left == 0 || !server.master || rules.alone_renews_not && server.alone == Some(0) {
            return false;
        }
        let (reign, quarantine) = server.store.key.unwrap_or_default();
        if rules.renewals_ask && rules.key && (reign != met || rules.asks_the_server && server.reign != met) {
            return false;
        }
        let settles = if rules.renewals_wait { quarantine.saturating_sub(TTL) } else { 0 };
        match &mut server.store.lock {
            Some((grant, left)) if *grant == client.grant => {
                if *left < settles {
                    return false;
                }
                *left = TTL;
                self.clients[at].left = TTL;
            }
            // It is told that the lock is not its own any more.
            _ => self.clients[at].left = 0,
        }
        true
    }

    fn release(&mut self, at: usize, heard: bool) -> bool {
        let client = self.clients[at];
        if client.left == 0 {
            return false;
        }
        self.clients[at].left = 0;
        let (Link::Open(index, _), true) = (client.link, heard) else { return !heard };
        let server = &mut self.servers[usize::from(index)];
        let ours = server.store.lock.is_some_and(|(grant, _)| grant == client.grant);
        if !server.master || !ours {
            return false;
        }
        server.store.lock = None;
        true
    }

    fn pair(&mut self) -> (&mut Server, &mut Server) {
        let [first, second] = &mut self.servers;
        if self.named == 0 { (first, second) } else { (second, first) }
    }

    fn replicate(&mut self) -> bool {
        let (master, other) = self.pair();
        if other.master || master.alone.is_some() || other.store == master.store {
            return false;
        }
        other.store = master.store;
        true
    }

    /// It hears nothing of its replicas and of the sentinels any more; clients still reach it.
    fn cut_off(&mut self) -> bool {
        let (master, _) = self.pair();
        master.alone.replace(LAG).is_none()
    }

    fn promote(&mut self) -> bool {
        let reign = self.next_reign;
        let (old, new) = self.pair();
        if new.master {
            return false;
        }
        // A third server is the replica of the new one, and leaves the old one a little later.
        old.alone = old.alone.or(Some(LAG + GRAIN));
        (new.master, new.reign, new.alone) = (true, reign, None);
        self.next_reign += 1;
        self.named = 1 - self.named;
        let had = self.promotions;
        self.promotions = had.saturating_sub(1);
        had > 0
    }

    fn demote(&mut self) -> bool {
        let (new, old) = self.pair();
        if !old.master {
            return false;
        }
        // It copies what the new master has; connections to it may stay open.
        (old.master, old.reign, old.alone, old.store) = (false, 0, None, new.store);
        true
    }

    /// A server that was master comes back as one. It has replicas only if nobody has replaced it.
    fn restart(&mut self, index: u8, lost: bool) -> bool {
        let (named, reign) = (self.named, self.next_reign);
        let server = &mut self.servers[usize::from(index)];
        if !server.master || self.restarts == 0 {
            return false;
        }
        server.reign = reign;
        server.alone = (index != named).then_some(0);
        if lost {
            server.store = Store::default();
        }
        self.next_reign += 1;
        self.restarts -= 1;
        for client in &mut self.clients {
            if matches!(client.link, Link::Open(to, _) if to == index) {
                client.link = Link::None;
            }
        }
        true
    }
}
