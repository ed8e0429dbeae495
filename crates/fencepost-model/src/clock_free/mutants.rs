//! Clients that are wrong in one point each. The search must find out, or it shows nothing about the right
//! one.

use crate::quorum::{Attempt, AttemptReply, Confirm, NextStep, NodeSet, VoteState, majority};

/// What a mutant does otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Takes the value of whoever grants first for the token.
    First,
    /// Takes the largest value for the token and asks nobody to confirm it.
    Largest,
    /// Takes the largest value that a majority of the grants reach, and asks nobody to confirm it.
    MajorityReaches,
    /// Writes the largest value back to any nodes, not only to those that granted.
    WriteBack,
    /// Still counts what confirmed a smaller token.
    KeepsAcks,
    /// Counts a node that answers twice as two.
    CountsReplies,
    /// Takes a second grant, with a counter not below the token, for a confirmation.
    SecondGrantConfirms,
}

impl Rule {
    /// Whether a second grant of a node can change anything.
    pub(crate) fn hears_again(self) -> bool {
        matches!(self, Self::CountsReplies | Self::SecondGrantConfirms)
    }
}

type Client<const N: usize> = Attempt<u8, [VoteState; N]>;

/// As `Attempt::hear`. `extra` is one bit a node: it confirmed what it was not asked for, or answered twice.
pub(super) fn hear<const N: usize>(
    rule: Rule,
    client: &mut Client<N>,
    extra: &mut u8,
    node: usize,
    answer: AttemptReply,
) -> NextStep {
    if client.decided {
        return NextStep::Wait;
    }
    match (answer, client.votes[node]) {
        (AttemptReply::Granted(value), VoteState::Asked) => grant(rule, client, node, value),
        (AttemptReply::Granted(value), VoteState::Granted { .. }) if rule == Rule::CountsReplies => {
            *extra |= 1 << node;
            grant(rule, client, node, value);
        }
        (AttemptReply::Granted(value), VoteState::Granted { value: first, confirm: Confirm::Asked })
            if rule == Rule::SecondGrantConfirms && value >= client.token =>
        {
            client.votes[node] = VoteState::Granted { value: first, confirm: Confirm::Yes };
        }
        (AttemptReply::Confirmed(token), _) if rule == Rule::WriteBack && token == client.token => {
            *extra |= 1 << node;
        }
        (AttemptReply::Confirmed(token), VoteState::Granted { value, confirm: Confirm::Asked })
            if token == client.token || rule == Rule::KeepsAcks =>
        {
            client.votes[node] = VoteState::Granted { value, confirm: Confirm::Yes };
        }
        _ => return NextStep::Wait,
    }
    step(rule, client, *extra)
}

fn grant<const N: usize>(rule: Rule, client: &mut Client<N>, node: usize, value: u64) {
    client.votes[node] = VoteState::Granted { value, confirm: Confirm::No };
    match rule {
        Rule::First if client.token != 0 => return,
        _ if value <= client.token => return,
        _ => client.token = value,
    }
    for seat in &mut client.votes {
        if let VoteState::Granted { confirm, .. } = seat
            && !(rule == Rule::KeepsAcks && *confirm == Confirm::Yes)
        {
            *confirm = Confirm::No;
        }
    }
}

fn step<const N: usize>(rule: Rule, client: &mut Client<N>, extra: u8) -> NextStep {
    let (mut values, mut confirmed) = (Vec::new(), 0);
    for (node, seat) in client.votes.iter().enumerate() {
        let again = usize::from(extra >> node & 1);
        if let VoteState::Granted { value, confirm } = *seat {
            let sure = value == client.token || confirm == Confirm::Yes;
            values.push(value);
            match rule {
                Rule::CountsReplies => {
                    values.extend((again == 1).then_some(value));
                    confirmed += usize::from(sure) * (1 + again);
                }
                _ => confirmed += usize::from(sure).max(again),
            }
        } else {
            confirmed += again;
        }
    }
    if values.len() < majority(N) {
        return NextStep::Wait;
    }
    values.sort_unstable();
    match rule {
        Rule::First | Rule::Largest => win(client),
        Rule::MajorityReaches => {
            client.token = values[values.len() - majority(N)];
            win(client)
        }
        _ if confirmed >= majority(N) => win(client),
        _ => ask(rule, client),
    }
}

fn win<const N: usize>(client: &mut Client<N>) -> NextStep {
    client.decided = true;
    NextStep::Won { token: client.token }
}

fn ask<const N: usize>(rule: Rule, client: &mut Client<N>) -> NextStep {
    let mut nodes = NodeSet::default();
    for (node, seat) in client.votes.iter_mut().enumerate() {
        match seat {
            VoteState::Granted { value, confirm } if *value < client.token && *confirm == Confirm::No => {
                *confirm = Confirm::Asked;
                nodes.insert(node);
            }
            VoteState::Asked if rule == Rule::WriteBack => nodes.insert(node),
            _ => {}
        }
    }
    match nodes.is_empty() {
        true => NextStep::Wait,
        false => NextStep::Confirm { token: client.token, nodes },
    }
}
