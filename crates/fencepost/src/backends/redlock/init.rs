//! `init`: declares a new deployment, or a change of one. For operators, never for programs: the nodes cannot tell whether
//! they are new or have just lost everything while locks are held.

use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::fleet::Fleet;
use super::node::Link;
use super::quorum::majority;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Result, Verdict, format_duration};

/// Operators are patient.
const PATIENCE: Duration = Duration::from_secs(5);

/// A channel that nobody is told of.
const CHANNEL: &str = "fencepost-init";

/// What a node's key says before anything is changed.
struct State {
    label: String,
    /// How many members its deployment has, and their fingerprint; `None` if the node is in none.
    members: Option<(usize, String)>,
    /// It is a member of exactly this deployment, with these parameters.
    same: bool,
    votes: bool,
    /// It has never voted, as far as it knows.
    new: bool,
}

pub(in crate::backends) async fn init(url: StoreUrl, reconfigure: bool) -> Result<Vec<String>> {
    let mut url = url;
    url.take("ttl");
    let fleet = Arc::new(Fleet::new(Config::from_url(url)?, Clock::system())?);
    let links = greet(&fleet, "look").await?;
    let states: Vec<_> = links.iter().map(|link| state(&fleet.config, link)).collect();
    let mode = if reconfigure { check_change(&fleet.config, &states)? } else { check_new(&states)? };
    let Some(mode) = mode else {
        return Ok(states.iter().map(|state| format!("{} is a member already", state.label)).collect());
    };
    let links = greet(&fleet, mode).await?;
    Ok(links.iter().map(|link| outcome(&fleet, link)).collect())
}

/// Connects to all nodes, none may be missing, and greets them.
async fn greet(fleet: &Arc<Fleet>, mode: &'static str) -> Result<Vec<Link>> {
    let connect = |node: usize| {
        let fleet = fleet.clone();
        tokio::spawn(async move {
            let (config, timeout) = (&fleet.config, fleet.config.timeout.max(PATIENCE));
            let (pool, inbox) = (Arc::default(), fleet.inbox.clone());
            let connect = fleet.nodes[node].connect(config, &pool, CHANNEL, mode, inbox, &fleet.clock);
            match tokio::time::timeout(timeout, connect).await {
                Ok(Ok(link)) => Ok(link),
                Ok(Err(error)) => Err(Verdict::of(&error)),
                Err(_) => Err(super::fleet::late()),
            }
        })
    };
    let connecting: Vec<_> = (0..fleet.len()).map(connect).collect();
    let (mut links, mut trouble, mut misfit) = (Vec::new(), Vec::new(), false);
    for (node, link) in fleet.nodes.iter().zip(connecting) {
        match link.await.unwrap_or_else(|_| Err(super::fleet::late())) {
            Ok(link) => links.push(link),
            Err(verdict) => {
                misfit |= matches!(verdict, Verdict::Refused { .. });
                trouble.push(format!("{} {verdict}", node.label()));
            }
        }
    }
    fleet.find_twins();
    for (node, twin) in fleet.nodes.iter().filter_map(|node| Some((node, node.twin()?))) {
        misfit = true;
        trouble.push(format!("{} {twin}", node.label()));
    }
    if trouble.is_empty() {
        return Ok(links);
    }
    let message = format!("every node must be reachable and usable for this; {}", trouble.join("; "));
    Err(match misfit {
        true => Error::config(message),
        false => Error::Unavailable { store: fleet.config.label.clone(), source: message.into() },
    })
}

fn state(config: &Config, link: &Link) -> State {
    let members = link.said.split(' ').nth(3);
    let members = members.and_then(|members| {
        let (size, _) = members.split_once('-')?;
        Some((size.parse().ok()?, members.to_owned()))
    });
    // All but the run, and what a quarantine appends.
    let terms = |text: &str| text.split(' ').skip(1).take(3).map(str::to_owned).collect::<Vec<_>>();
    let same = terms(&link.said) == terms(&link.votes);
    debug_assert!(link.votes.contains(&config.members));
    let new = link.said.is_empty() || link.said.ends_with(" new");
    State { label: link.node.label().to_owned(), members, same, votes: link.said == link.votes, new }
}

/// Whether this can be a new deployment. `None`: it exists, and there is nothing to do.
fn check_new(states: &[State]) -> Result<Option<&'static str>> {
    if states.iter().all(|state| state.votes) {
        return Ok(None);
    }
    if let Some(other) = states.iter().find(|state| state.members.is_some() && !state.same) {
        return Err(Error::config(format!(
            "{} belongs to another deployment, or to this one with other parameters; if it shall change, use `init --reconfigure`",
            other.label
        )));
    }
    // One that knows of votes it has given, as after a restart or a change, must wait for them to end.
    if let Some(used) = states.iter().find(|state| !state.new) {
        return Err(Error::config(format!(
            "this deployment is in use: {} {} in it; a node that was restarted, replaced or changed votes by itself when its \
             quarantine is over",
            used.label,
            if used.votes { "votes" } else { "has voted" }
        )));
    }
    Ok(Some("found"))
}

/// Whether the members or parameters can be changed to these. The old deployment must lose its majority by it: else
/// its clients would go on without noticing.
fn check_change(config: &Config, states: &[State]) -> Result<Option<&'static str>> {
    if states.iter().all(|state| state.same) {
        return Ok(None);
    }
    let mut old: Vec<&(usize, String)> =
        states.iter().filter(|state| !state.same).filter_map(|state| state.members.as_ref()).collect();
    if old.is_empty() && !states.iter().any(|state| state.same) {
        return Err(Error::config(
            "none of these nodes is in a deployment yet; declare a new one with `init`",
        ));
    }
    old.sort_unstable();
    for group in old.chunk_by(|a, b| a == b) {
        let (size, members) = group[0];
        // The same nodes with another max_ttl or quarantine are all here.
        let left = size.saturating_sub(group.len());
        if *members != config.members && left >= majority(*size) {
            return Err(Error::config(format!(
                "{left} of the {size} nodes of the old deployment are not in the new list, and are a majority: its clients would go \
                 on locking there; replace at most {} at a time",
                size - majority(*size)
            )));
        }
    }
    Ok(Some("reform"))
}

fn outcome(fleet: &Fleet, link: &Link) -> String {
    let label = link.node.label();
    if link.said == link.votes {
        return format!("{label} votes");
    }
    let time = link.node.time(fleet.clock.now());
    match fleet.config.standing(&link.said, &link.votes, time) {
        Some(Verdict::Quarantined { left, .. }) => format!("{label} votes in {}", format_duration(left)),
        Some(verdict) => format!("{label} {verdict}"),
        None => format!("{label} votes when it is greeted next"),
    }
}
