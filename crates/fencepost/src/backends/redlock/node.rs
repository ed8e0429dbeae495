//! One node, as this process sees it: how to reach it, what its clock says, and connections to it that have been
//! greeted.
//!
//! Votes only ever go over connections that we opened and greeted ourselves. A connection ends with the server's process,
//! so a server that was restarted, and may have lost data, is always met by a greeting first.

use std::iter;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::Config;
use crate::backends::redis::driver::batch::{BatchedScript as Stepper, Step};
use crate::backends::redis::driver::connection::{Call, Connection, Reply};
use crate::backends::redis::driver::connector::Connector as Dial;
use crate::backends::redis::driver::pool::Pool;
use crate::backends::redis::driver::push::PushRouter as Inbox;
use crate::backends::redis::driver::resp::{Part, Value};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;
use crate::{Error, Result, Verdict, format_duration};

/// The scripts, in the order of [`SCRIPTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Turn,
    Hold,
    Attach,
    Revoke,
}

const SCRIPTS: [&str; 4] = [
    include_str!("scripts/ops.lua"),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/hold.lua")),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/attach.lua")),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/revoke.lua")),
];

const GREET: &str = include_str!("scripts/greet.lua");

/// Steps that one call makes.
const MOST_STEPS: usize = 64;

/// A node's clock that differs by more than this from what it should be has leapt.
const LEAP: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) dial: Dial,
    known: Mutex<Known>,
}

/// What is known of a node.
#[derive(Debug, Default)]
struct Known {
    /// Which run of the server answered the last greeting.
    run: Option<String>,
    /// Another node that is the same server.
    twin: Option<String>,
    /// The last reading in microseconds, and between which moments it was taken.
    reading: Option<(u64, Moment, Moment)>,
    /// The reading that bounds the clock best: at this moment it showed no more than that.
    bound: Option<(u64, Moment)>,
    /// The clock has leapt: its leases may end early, so its votes do not count until then.
    distrusted_until: Option<Moment>,
}

impl Known {
    /// The latest that the clock can show now, by the best reading.
    fn latest(&self, now: Moment) -> Option<u64> {
        self.bound.map(|(reading, sent)| reading + micros(now.since(sent)))
    }
}

fn same_server(twin: &str) -> String {
    format!(
        "is the same server as {twin}; every node must be a server of its own, best on a machine of its own"
    )
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Node {
    pub(super) fn new(index: usize, dial: Dial) -> Self {
        Self { index, dial, known: Mutex::default() }
    }

    pub(super) fn label(&self) -> &str {
        &self.dial.config.label
    }

    /// The latest that the node's clock can show now, in microseconds, unless it has leapt.
    pub(super) fn time(&self, now: Moment) -> u64 {
        lock(&self.known).latest(now).unwrap_or(0)
    }

    /// The earliest that it can show now.
    pub(super) fn time_at_least(&self, now: Moment) -> u64 {
        lock(&self.known).reading.map_or(0, |(reading, _, answered)| reading + micros(now.since(answered)))
    }

    /// Takes in a reading of the node's clock that came with the answer to a request.
    pub(super) fn read_clock(&self, reading: u64, sent: Moment, now: Moment, config: &Config) {
        let mut known = lock(&self.known);
        if let Some((before, asked, answered)) = known.reading {
            let passed = Duration::from_micros(reading.abs_diff(before));
            let (least, most) = (sent.since(answered), now.since(asked));
            let back = reading < before;
            // An answer that is read late, because its runtime was busy, may be older than the one before.
            let older = answered.since(sent);
            if back && passed > older + older / 100 + LEAP
                || !back && (passed > most + most / 100 + LEAP || passed + least / 100 + LEAP < least)
            {
                tracing::warn!(
                    node = self.label(), passed = %format_duration(passed), backwards = back,
                    expected = %format_duration(most),
                    "the clock of this node has leapt: leases there may end early or late, so its votes do not count for the \
                     length of a quarantine; see that its clock is slewed, not stepped"
                );
                known.distrusted_until = Some(now.plus(config.quarantine));
                known.bound = None;
            }
        }
        known.reading = Some((reading, sent, now));
        // A slow answer says little: it was read at any time since the request was sent.
        let best = known
            .latest(now)
            .is_none_or(|latest| latest < reading || latest > reading + micros(now.since(sent)));
        if best {
            known.bound = Some((reading, sent));
        }
    }

    /// Why the node's votes do not count, whatever it says.
    pub(super) fn objection(&self, now: Moment) -> Option<Verdict> {
        let known = lock(&self.known);
        if let Some(twin) = &known.twin {
            return Some(Verdict::Refused { why: same_server(twin) });
        }
        let left = known.distrusted_until?.since(now);
        (!left.is_zero()).then(|| Verdict::Quarantined { left, why: "its clock has leapt".to_owned() })
    }

    pub(super) fn run(&self) -> Option<String> {
        lock(&self.known).run.clone()
    }

    /// What is wrong if the same server is in the list under another name, too.
    pub(super) fn twin(&self) -> Option<String> {
        lock(&self.known).twin.as_deref().map(same_server)
    }

    /// Notes which other node, if any, is the same server.
    pub(super) fn set_twin(&self, twin: Option<&Self>) {
        lock(&self.known).twin = twin.map(|twin| twin.label().to_owned());
    }

    /// Opens and greets a connection. `mode` says what the greeting shall settle.
    pub(super) async fn connect(
        self: &Arc<Self>,
        config: &Config,
        pool: &Arc<Pool>,
        channel: &str,
        mode: &str,
        inbox: Arc<Inbox>,
        clock: &Clock,
    ) -> Result<Link> {
        let stream = self.dial.open().await?;
        let connection = Connection::start(pool, stream, move |push| inbox.deliver(&push));
        let sent = clock.now();
        let [max_ttl, quarantine] =
            [config.max_ttl, config.quarantine].map(|span| span.as_millis().to_string());
        let greet = ["EVAL", GREET, "1", &config.node_key, &max_ttl, &quarantine, &config.members, mode];
        let greeting = self.dial.greet(&connection, Some(channel), &SCRIPTS, &greet).await?;
        let Some((run, said, time)) = greeted(&greeting.last) else {
            return Err(Error::Backend {
                store: self.label().to_owned(),
                source: format!("a greeting that makes no sense: {:?}", greeting.last).into(),
            });
        };
        self.read_clock(time, sent, clock.now(), config);
        lock(&self.known).run = Some(run.to_owned());
        let votes = format!("{run} {max_ttl} {quarantine} {}", config.members);
        tracing::debug!(node = self.label(), run, said, "connected");
        let said = said.to_owned();
        let stepper = Arc::new(Stepper {
            name: greeting.scripts[Script::Turn as usize].clone(),
            key: config.node_key.clone(),
            arguments: [votes.clone(), config.bound_us.clone()],
            most: MOST_STEPS,
        });
        let (scripts, loaded) = (greeting.scripts, Mutex::new([sent; SCRIPTS.len()]));
        Ok(Link { node: self.clone(), connection, votes, said, scripts, stepper, loaded })
    }
}

fn greeted(value: &Value) -> Option<(&str, &str, u64)> {
    let [run, said, time] = value.as_list()? else { return None };
    Some((run.as_text()?, said.as_text()?, u64::try_from(time.as_int()?).ok()?))
}

/// A greeted connection to one node.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: Arc<Node>,
    connection: Connection,
    /// What the node key is while this run of the server votes in our deployment.
    pub(super) votes: String,
    /// What the node key was after the greeting.
    pub(super) said: String,
    scripts: Vec<String>,
    stepper: Arc<Stepper>,
    /// When each script was last loaded.
    loaded: Mutex<[Moment; SCRIPTS.len()]>,
}

impl Link {
    /// Takes a lock or gives one back; never waits. `call` is not called if this fails.
    pub(super) fn step(&self, step: &Step<'_>, sent: Moment, call: Call) -> Result<(), String> {
        self.connection.join(&self.stepper, step, sent, call)
    }

    /// Sends a script; never waits. `call` is not called if this fails.
    pub(super) fn eval(
        &self,
        script: Script,
        keys: &[&str],
        arguments: &[&str],
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        self.eval_parts(script, &[Part::Words(keys)], &[Part::Words(arguments)], sent, call)
    }

    /// The same for words that come in parts.
    pub(super) fn eval_parts(
        &self,
        script: Script,
        keys: &[Part<'_>],
        arguments: &[Part<'_>],
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        let count = keys.iter().map(|part| part.count()).sum::<usize>().to_string();
        let head = ["EVALSHA", &self.scripts[script as usize], &count];
        let words = keys.iter().chain(arguments).copied();
        self.connection.send_calling(iter::once(Part::Words(&head)).chain(words), sent, call)
    }

    /// Loads a script again that the server did not know of when it got a request sent at `asked`: once for all of that time.
    pub(super) fn load(&self, script: Script, asked: Moment, sent: Moment) {
        {
            let loaded = &mut lock(&self.loaded)[script as usize];
            if *loaded > asked {
                return;
            }
            *loaded = sent;
        }
        let words = ["SCRIPT", "LOAD", SCRIPTS[script as usize]];
        let _ = self.connection.send_calling(iter::once(Part::Words(&words)), sent, Box::new(drop));
    }

    /// Greets the node again: its node key is gone, or its quarantine is over.
    pub(super) fn greet(&self, config: &Config, sent: Moment) {
        let [max_ttl, quarantine] =
            [config.max_ttl, config.quarantine].map(|span| span.as_millis().to_string());
        let words = ["EVAL", GREET, "1", &config.node_key, &max_ttl, &quarantine, &config.members, "meet"];
        let _ = self.connection.send_calling(iter::once(Part::Words(&words)), sent, Box::new(drop));
    }

    /// Sends a plain command.
    pub(super) fn command(&self, words: &[&str]) -> Result<Reply, String> {
        self.connection.command(words)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    pub(super) fn why_ended(&self) -> String {
        self.connection.why_ended()
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    /// Whether the node keeps up with what it is asked; `None` if the connection has ended.
    pub(super) fn keeps_up(&self) -> Option<bool> {
        Some(self.connection.backlog()?.0 < MOST_UNANSWERED)
    }

    /// Whether a request has a chance over this connection.
    pub(super) fn condition(&self, now: Moment, timeout: Duration) -> Condition {
        let Some((_, oldest)) = self.connection.backlog() else { return Condition::Ended };
        if oldest.is_some_and(|sent| now.since(sent) > timeout) {
            return Condition::Stuck;
        }
        self.node.objection(now).map_or(Condition::Good, Condition::Out)
    }
}

/// A node that lags behind by so many requests is left out until it has caught up, if the others are a majority: callers
/// go on as soon as that has answered, so nothing else would bound what gathers for a slow one.
const MOST_UNANSWERED: usize = 1024;

pub(super) enum Condition {
    Good,
    /// Not to be asked for now.
    Out(Verdict),
    Ended,
    /// A request has been unanswered for too long.
    Stuck,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::url::StoreUrl;

    /// A connection to a server that never answers. It lasts as long as the other end.
    pub(in super::super) fn mute_link(node: &Arc<Node>) -> (Arc<Link>, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let connection = Connection::start(&Arc::default(), Box::new(ours), |_| {});
        let scripts = vec![String::new(); SCRIPTS.len()];
        let (votes, said, stepper) = Default::default();
        let loaded = Mutex::new([Moment::at(Duration::ZERO); SCRIPTS.len()]);
        (Arc::new(Link { node: node.clone(), connection, votes, said, scripts, stepper, loaded }), theirs)
    }

    fn node() -> (Node, Config) {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        let dial = Dial::new(config.nodes[0].clone()).unwrap();
        (Node::new(0, dial), config)
    }

    fn at(milliseconds: u64) -> Moment {
        Moment::at(Duration::from_millis(milliseconds))
    }

    /// What a clock shows that was at 1000 s in the beginning.
    fn shows(milliseconds: u64) -> u64 {
        1_000_000_000 + 1000 * milliseconds
    }

    #[test]
    fn a_slow_answer_does_not_loosen_the_bound_of_a_clock() {
        let (node, config) = node();
        node.read_clock(shows(1), at(0), at(2), &config);
        assert_eq!(node.time(at(100)), shows(101));
        node.read_clock(shows(5000), at(100), at(5001), &config);
        assert_eq!(node.time(at(6000)), shows(6001));
        // It goes a little faster than ours, and slower.
        node.read_clock(shows(7100), at(7000), at(7002), &config);
        assert_eq!(node.time(at(7002)), shows(7102));
        node.read_clock(shows(8000), at(8000), at(8001), &config);
        assert_eq!(node.time(at(8001)), shows(8001));
        assert_eq!(node.objection(at(8001)), None);
    }

    #[test]
    fn a_clock_that_leaps_is_noticed_both_ways() {
        for leapt in [shows(3_602_000), shows(2000) - 360_000_000] {
            let (node, config) = node();
            node.read_clock(shows(1), at(0), at(2), &config);
            node.read_clock(leapt, at(2000), at(2001), &config);
            assert!(matches!(node.objection(at(2001)), Some(Verdict::Quarantined { .. })));
            assert_eq!(node.time(at(2001)), leapt + 1000);
            assert_eq!(node.objection(at(2001).plus(config.quarantine)), None);
        }
    }

    #[test]
    fn an_answer_that_was_left_unread_for_a_while_is_no_leap() {
        let (node, config) = node();
        node.read_clock(shows(1), at(0), at(2), &config);
        node.read_clock(shows(9000), at(8999), at(9001), &config);
        node.read_clock(shows(1001), at(1000), at(9002), &config);
        assert_eq!(node.objection(at(9002)), None);
        assert_eq!(node.time(at(9002)), shows(9003));
        node.read_clock(shows(9100), at(9099), at(9101), &config);
        assert_eq!(node.objection(at(9101)), None);
    }
}
