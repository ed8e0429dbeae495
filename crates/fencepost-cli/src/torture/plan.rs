//! What a run does, decided before anything starts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fencepost::StoreKind;
use fencepost_testkit::history::Moment;
use fencepost_testkit::local::Blow;

use super::Route;
use crate::args::Torture;
use crate::exit::Failure;

/// A ttl short enough for many leases to end in a minute.
const TTL: Duration = Duration::from_secs(2);

/// How long it may take until another server has taken over, all in all.
const FAILOVER: Duration = Duration::from_secs(20);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A client stands still.
    Pause,
    /// A client is killed.
    Kill,
    /// A client's links are cut, stuck, slow or one-way.
    Cut,
    /// The same for a server that was started for the run.
    Server(Blow),
}

impl Fault {
    pub(crate) const ALL: [Self; 8] = [
        Self::Pause,
        Self::Kill,
        Self::Cut,
        Self::Server(Blow::Pause),
        Self::Server(Blow::Kill),
        Self::Server(Blow::Empty),
        Self::Server(Blow::Failover),
        Self::Server(Blow::Reshard),
    ];

    /// What a fault was dealt as, by the kind that was noted. Cuts come in several manners.
    pub(crate) fn named(kind: &str) -> Self {
        Self::ALL.into_iter().find(|fault| fault.name() == kind).unwrap_or(Self::Cut)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::Server(Blow::Pause) => "server-pause",
            Self::Server(Blow::Kill) => "server-kill",
            Self::Server(Blow::Empty) => "server-empty",
            Self::Server(Blow::Failover) => "server-failover",
            Self::Server(Blow::Reshard) => "server-reshard",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|fault| fault.name()).collect();
        let found = Self::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| format!("no such fault; known are none, {}", names.join(", ")))
    }
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The store. It may hold a password: never print it.
    pub(crate) url: String,
    pub(crate) local: Option<fencepost_testkit::local::Kind>,
    pub(crate) clients: u32,
    pub(crate) locks: usize,
    pub(crate) ttl: Duration,
    /// How long clients wait for the lock that they wait for longest.
    pub(super) patience: Duration,
    pub(crate) lasts: Duration,
    pub(crate) faults: Vec<Fault>,
    /// What every name of this run starts with.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    /// The way through proxies, if links are cut.
    pub(super) route: Option<Route>,
    /// What people should know before they read the results.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// What the arguments ask for, on the store at `url`; without one, on a store that is started next, see
    /// [`on`](Self::on).
    pub(crate) fn new(args: &Torture, url: Option<String>) -> Result<Self, Failure> {
        let remote = url.as_deref().unwrap_or_default();
        let shortest = StoreKind::of(remote).map_or(Duration::ZERO, |store| store.shortest_ttl);
        let ttl = args.ttl.unwrap_or_else(|| TTL.max(shortest * 3 / 2));
        if ttl < Duration::from_millis(200) {
            return Err(Failure::Usage(
                "a ttl below 200ms ends by itself on a busy machine; take a longer one".to_owned(),
            ));
        }
        // Local servers are at a port each, without TLS. Those that take over from each other tell clients
        // where they are.
        let blows = args.local.map(|kind| kind.0.blows).unwrap_or_default();
        let takes_over = blows.contains(&Blow::Failover);
        let route = Route::find(match (takes_over, blows.is_empty()) {
            (true, _) => "redis+cluster://127.0.0.1",
            (false, false) => "redis://127.0.0.1",
            (false, true) => remote,
        });
        // Longer than an outage, where that is not short.
        let patience = ttl * 4 + if takes_over { FAILOVER } else { Duration::ZERO };
        let mut notes = Vec::new();
        let faults = faults(args, route.as_ref().err(), &mut notes)?;
        let seed = Moment::now().0 ^ u64::from(std::process::id()).rotate_left(40);
        #[allow(clippy::cast_possible_truncation)]
        let run = super::dice::Dice::new(seed).roll() as u32;
        let plan = Self {
            url: String::new(),
            local: args.local,
            clients: args.clients,
            locks: args.clients.div_ceil(2) as usize,
            ttl,
            patience,
            lasts: Duration::from_secs_f64(args.minutes * 60.0),
            faults,
            prefix: format!("torture:{run:08x}:"),
            seed,
            route: None,
            notes,
        };
        Ok(plan.on(url.unwrap_or_default()))
    }

    /// The same plan, on the store at `url`.
    pub(crate) fn on(mut self, url: String) -> Self {
        self.route = Route::find(&url).ok().filter(|_| self.deals(Fault::Cut));
        self.url = url;
        self
    }

    /// Whether a kind of fault is dealt.
    pub(crate) fn deals(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// The faults that were asked for, or all that fit.
fn faults(
    args: &Torture,
    uncuttable: Option<&String>,
    notes: &mut Vec<String>,
) -> Result<Vec<Fault>, Failure> {
    let blows = args.local.map(|kind| kind.0.blows).unwrap_or_default();
    let Some(asked) = &args.faults else {
        let mut faults = vec![Fault::Pause, Fault::Kill];
        match uncuttable {
            None => faults.push(Fault::Cut),
            Some(why) => notes.push(format!("no links are cut: {why}")),
        }
        faults.extend(blows.iter().map(|blow| Fault::Server(*blow)));
        return Ok(faults);
    };
    let mut faults: Vec<Fault> = Vec::new();
    for name in asked.split(',').map(str::trim).filter(|name| *name != "none") {
        let fault = name.parse().map_err(|error| Failure::Usage(format!("`{name}`: {error}")))?;
        match (fault, uncuttable) {
            (Fault::Cut, Some(why)) => {
                return Err(Failure::Usage(format!("`cut` is not possible here: {why}")));
            }
            (Fault::Server(_), _) if args.local.is_none() => {
                return Err(Failure::Usage(format!(
                    "`{fault}` is for servers that are started for the run; add `--local`"
                )));
            }
            (Fault::Server(blow), _) if !blows.contains(&blow) => {
                return Err(Failure::Usage(format!(
                    "`{fault}` is not possible here: the store promises nothing for it"
                )));
            }
            _ if faults.contains(&fault) => {}
            _ => faults.push(fault),
        }
    }
    Ok(faults)
}
