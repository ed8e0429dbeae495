//! `init`: declares a new deployment, or a change of one. For operators, never for programs: the nodes cannot
//! tell whether they are new or have just lost everything while locks are held.

use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::nodes::Nodes;
use super::quarantine::Standing;
use super::quorum::majority;
use super::session::{GreetMode, Session};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Result, Verdict, format_duration};

/// Operators are patient.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a node's key says before anything is changed.
struct Membership {
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
    let mut config = Config::from_url(url)?;
    config.timeout = config.timeout.max(PATIENCE);
    let (_, sessions) = greet(&config, GreetMode::LOOK).await?;
    let nodes: Vec<_> = sessions.iter().map(|session| membership(session)).collect();
    let mode = if reconfigure { check_change(&config, &nodes)? } else { check_new(&nodes)? };
    let Some(mode) = mode else {
        return Ok(nodes.iter().map(|node| format!("{} is a member already", node.label)).collect());
    };
    let (nodes, sessions) = greet(&config, mode).await?;
    Ok(sessions.iter().map(|session| outcome(&nodes, session)).collect())
}

/// Connects to all nodes, none may be missing, and greets them.
async fn greet(config: &Config, mode: GreetMode) -> Result<(Arc<Nodes>, Vec<Arc<Session>>)> {
    let nodes = Arc::new(Nodes::new(config.clone(), Clock::system(), mode)?);
    let found = nodes.sessions(nodes.deadline(), config.timeout).await;
    let (mut sessions, mut trouble, mut refused) = (Vec::new(), Vec::new(), false);
    for (node, session) in nodes.each.iter().zip(found) {
        match session.and_then(|session| node.duplicate().map_or(Ok(session), Err)) {
            Ok(session) => sessions.push(session),
            Err(verdict) => {
                refused |= matches!(verdict, Verdict::Refused { .. });
                trouble.push(format!("{} {verdict}", node.label()));
            }
        }
    }
    if trouble.is_empty() {
        return Ok((nodes, sessions));
    }
    let message = format!("every node must be reachable and usable for this; {}", trouble.join("; "));
    Err(match refused {
        true => Error::config(message),
        false => Error::Unavailable { store: config.label.clone(), source: message.into() },
    })
}

fn membership(session: &Session) -> Membership {
    let node_key = session.node_key.as_str();
    let members = node_key.split(' ').nth(3).and_then(|members| {
        let (size, _) = members.split_once('-')?;
        Some((size.parse().ok()?, members.to_owned()))
    });
    // All but the run, and what a quarantine appends.
    let terms = |text: &str| text.split(' ').skip(1).take(3).map(str::to_owned).collect::<Vec<_>>();
    Membership {
        label: session.node.label().to_owned(),
        members,
        same: terms(node_key) == terms(&session.votes),
        votes: node_key == session.votes,
        new: node_key.is_empty() || node_key.ends_with(" new"),
    }
}

/// Whether this can be a new deployment. `None`: it exists, and there is nothing to do.
fn check_new(nodes: &[Membership]) -> Result<Option<GreetMode>> {
    if nodes.iter().all(|node| node.votes) {
        return Ok(None);
    }
    if let Some(other) = nodes.iter().find(|node| node.members.is_some() && !node.same) {
        return Err(Error::config(format!(
            "{} belongs to another deployment, or to this one with other parameters; to change that, use \
             `init --reconfigure`",
            other.label
        )));
    }
    // One that knows of votes it has given, as after a restart or a change, must wait for them to end.
    if let Some(used) = nodes.iter().find(|node| !node.new) {
        return Err(Error::config(format!(
            "this deployment is in use: {} {} in it; a node that was restarted, replaced or changed votes by \
             itself when its quarantine is over",
            used.label,
            if used.votes { "votes" } else { "has voted" }
        )));
    }
    Ok(Some(GreetMode::FOUND))
}

/// Whether the members or parameters can be changed to these. The old deployment must lose its majority by
/// that, or its clients would go on without noticing.
fn check_change(config: &Config, nodes: &[Membership]) -> Result<Option<GreetMode>> {
    if nodes.iter().all(|node| node.same) {
        return Ok(None);
    }
    let mut old: Vec<&(usize, String)> =
        nodes.iter().filter(|node| !node.same).filter_map(|node| node.members.as_ref()).collect();
    if old.is_empty() && !nodes.iter().any(|node| node.same) {
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
                "{left} of the {size} nodes of the old deployment are not in the new list, and are a \
                 majority: its clients would go on locking there; replace at most {} at a time",
                size - majority(*size)
            )));
        }
    }
    Ok(Some(GreetMode::REFORM))
}

fn outcome(nodes: &Nodes, session: &Session) -> String {
    let label = session.node.label();
    match session.standing(&session.node_key, &nodes.config, nodes.clock.now()) {
        Standing::Votes => format!("{label} votes"),
        Standing::GreetFirst(_) => format!("{label} votes when it is greeted next"),
        Standing::Refused(Verdict::Quarantined { left, .. }) => {
            format!("{label} votes in {}", format_duration(left))
        }
        Standing::Refused(verdict) => format!("{label} {verdict}"),
    }
}
