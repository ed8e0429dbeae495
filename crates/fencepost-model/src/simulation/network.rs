//! Connections: in order like TCP, and what a dead one carried may still arrive, later than what a new one
//! carries.

use std::rc::Rc;

use super::client::{Link, State, channel, listener};
use super::message::{Packet, Reply, Request, Tag};
use super::server::MEMBERS;
use super::sights::Sight;
use super::world::{Event, World, note};

impl World {
    /// Sends something when the node is greeted, which may be now. Over a new connection the greeting comes
    /// first.
    pub(super) fn intend(&mut self, client: usize, node: usize, tag: Tag) {
        match self.clients[client].links[node].state {
            State::Ready => self.perform(client, node, tag),
            State::Greeting => self.clients[client].links[node].intents.push(tag),
            State::Closed => {
                self.open(client, node);
                self.intend(client, node, tag);
            }
        }
    }

    fn open(&mut self, client: usize, node: usize) {
        let connection = self.id();
        let server = &self.servers[node];
        let refused = server.down_until > self.now;
        let process = server.process;
        let Link { key, reading, votes, parted_until, .. } = self.clients[client].links[node].clone();
        let state = State::Ready;
        let broken = refused;
        self.clients[client].links[node] =
            Link { state, connection, process, broken, key, votes, reading, parted_until, ..Link::new() };
        note!(self, "client {client} connects to node {node} ({connection})");
        if refused {
            let time = self.now + self.delay();
            self.at(time, Event::Cut { client, node, connection });
        }
        if self.rules.greeting || !self.clients[client].links[node].votes {
            self.greet(client, node);
        }
    }

    pub(super) fn greet(&mut self, client: usize, node: usize) {
        self.clients[client].links[node].state = State::Greeting;
        self.send(client, node, Tag::Greet, Request::Greet);
    }

    pub(super) fn send(&mut self, client: usize, node: usize, tag: Tag, request: Request) {
        let (delay, sent) = (self.delay(), self.local(client));
        let link = &mut self.clients[client].links[node];
        link.pending.push_back(tag);
        link.last_request = link.last_request.max(self.now.max(link.parted_until) + delay);
        let (connection, process, time) = (Some(link.connection), Some(link.process), link.last_request);
        let packet = Packet { client, node, connection, process, tag, sent, request: Rc::new(request) };
        if self.random.chance(self.plan.duplicates) {
            let process = self.random.chance(0.5).then_some(packet.process).flatten();
            let most = if self.random.chance(0.5) { self.plan.patience } else { 3 * self.plan.ttl };
            let later = time + self.random.within(0..most);
            self.at(later, Event::Arrive(Packet { connection: None, process, ..packet.clone() }));
        }
        self.at(time, Event::Arrive(packet));
    }

    /// Most messages are fast.
    fn delay(&mut self) -> u64 {
        let (fast, slow) = self.plan.delay;
        let most = if self.random.chance(self.plan.slow) { slow } else { fast };
        self.random.within(most / 4..most)
    }

    /// Whether this is the connection that the client has, and it lives.
    pub(super) fn is_open(&self, client: usize, node: usize, connection: u64) -> bool {
        let link = &self.clients[client].links[node];
        link.connection == connection && !link.broken && link.state != State::Closed
    }

    pub(super) fn arrive(&mut self, packet: Packet) {
        let Packet { client, node, connection, process, tag, sent, .. } = packet;
        let server = &self.servers[node];
        if server.down_until > self.now || process.is_some_and(|process| process != server.process) {
            return;
        }
        let open = connection.filter(|connection| self.is_open(client, node, *connection));
        if connection.is_some() && open.is_none() {
            // The connection has died under it: lost, or on its way for longer.
            if self.random.chance(0.5) {
                let later = self.now + self.random.within(0..2 * self.plan.ttl);
                self.at(later, Event::Arrive(Packet { connection: None, ..packet }));
            }
            return;
        }
        if open.is_none() {
            self.see(Sight::Stray);
        }
        let server = &mut self.servers[node];
        if open.is_some() && tag == Tag::Greet {
            server.node.listeners.insert(channel(client));
        }
        let request = &packet.request;
        let outcome = server.run(self.now, request, &self.keys, &self.plan, &self.rules, &mut self.sights);
        let Ok((reply, message)) = outcome else {
            return self.check(Err(format!("a key of another type on node {node}: {request:?}")));
        };
        let stray = if open.is_none() { " (stray)" } else { "" };
        note!(self, "node {node} <- client {client}{stray}: {request} -> {reply}");
        if let Some(connection) = open {
            let time = self.reply_time(client, node);
            self.at(time, Event::Answer { client, node, connection, tag, sent, reply });
        }
        if let Some((to, text)) = message {
            self.publish(node, &to, text);
        }
    }

    fn reply_time(&mut self, client: usize, node: usize) -> u64 {
        let delay = self.delay();
        let link = &mut self.clients[client].links[node];
        link.last_reply = link.last_reply.max(self.now.max(link.parted_until) + delay);
        link.last_reply
    }

    fn publish(&mut self, node: usize, to: &str, text: String) {
        let Some(client) = listener(to) else { return };
        let link = &self.clients[client].links[node];
        if link.state != State::Closed && !link.broken {
            let connection = link.connection;
            let time = self.reply_time(client, node);
            self.at(time, Event::Push { client, node, connection, text });
        }
    }

    pub(super) fn answer(
        &mut self,
        client: usize,
        node: usize,
        connection: u64,
        tag: Tag,
        sent: u64,
        reply: Reply,
    ) {
        if !self.is_open(client, node, connection) {
            return;
        }
        let now = self.local(client);
        self.clients[client].round_trip = now - sent;
        let link = &mut self.clients[client].links[node];
        let first = link.pending.pop_front();
        debug_assert_eq!(first, Some(tag), "replies come in order");
        if let Some(clock) = reply.clock() {
            link.reading = Some((clock, sent));
        }
        match (tag, reply) {
            (Tag::Greet, Reply::Greeted { run, node: key, .. }) => self.greeted(client, node, &run, &key),
            (Tag::Ask(trial), Reply::Vote(vote)) => self.voted(client, node, trial, vote),
            (Tag::Confirm(trial, token), reply) => self.confirmed(client, node, trial, token, &reply),
            (Tag::Extend(round), reply) => self.kept(client, node, round, &reply),
            (Tag::Undo(undo), _) => self.undone(client, node, undo),
            (tag, reply) => self.check(Err(format!("{reply:?} to {tag:?}"))),
        }
    }

    fn greeted(&mut self, client: usize, node: usize, run: &str, key: &str) {
        let (ttl, quarantine) = (self.plan.ttl / 1000, self.plan.quarantine / 1000);
        let ours = format!("{run} {ttl} {quarantine} {MEMBERS}");
        let link = &mut self.clients[client].links[node];
        link.votes = ours == key;
        link.key = ours.into();
        link.state = State::Ready;
        let intents = std::mem::take(&mut link.intents);
        if !link.votes {
            self.see(Sight::Quarantine);
        }
        for intent in intents {
            // One of them may greet again, or close the connection.
            self.intend(client, node, intent);
        }
    }

    /// A connection has ended, for the client. What it has not answered, it will not.
    pub(super) fn close(&mut self, client: usize, node: usize) {
        let link = &mut self.clients[client].links[node];
        if link.state == State::Closed {
            return;
        }
        link.state = State::Closed;
        link.broken = true;
        let unanswered: Vec<_> = link.pending.drain(..).chain(link.intents.drain(..)).collect();
        self.servers[node].node.listeners.remove(&channel(client));
        note!(self, "client {client} has no connection to node {node}");
        for tag in unanswered {
            self.unanswered(client, node, tag);
        }
    }
}
