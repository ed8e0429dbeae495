//! Everything that can happen next: the world's part of it here, the clients' in `client.rs`.

use crate::client::Client;
use crate::row::read_row_letter;
use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sight, Sights};
use crate::server::Server;
use crate::state::{Heirs, LONG, Message, Phase, Place, ROWS, Request, State, TERM, TTL};

/// One thing that happens. Numbers are owners.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // read in traces
pub(crate) enum Step {
    Start(u8),
    /// The server runs the next request of a connection; the second one is whether it is deceived about ended ones.
    Serve(u8, bool),
    ServeLate(u8, bool),
    /// The client reads the next message of its connection.
    Read(u8),
    ReadStray(u8),
    LookAtLetter(u8),
    LookAtNews(u8),
    Ask(u8),
    GiveUp(u8),
    Renew(u8),
    GiveBack(u8),
    Pass(u8),
    SendRelease(u8),
    HandOver {
        from: u8,
        to: Heirs,
    },
    AbortRelease(u8),
    /// The connection ends; a push that was under way may still come out of it.
    Break(u8, bool),
    Reconnect(u8),
    Revoke,
    ReadRowLetter,
    Tick,
    /// The key expires within its last tick.
    ExpireEarly,
    /// The key disappears before its time.
    Vanish,
}

pub(crate) struct Next {
    pub(crate) step: Step,
    pub(crate) state: State,
    pub(crate) broken: Option<Promise>,
}

/// What a search begins with.
pub(crate) fn start(limits: &Limits) -> State {
    let (mut state, mut sights, rules) = (limits.start(), Sights::default(), &Rules::ALL);
    let together = limits.processes.iter().take_while(|process| **process == limits.processes[0]).count();
    for me in (0..together).filter(|_| limits.begun) {
        let mut client = Client { state: &mut state, rules, limits, sights: &mut sights, me, broken: None };
        client.start();
        if let Some(request) = state.owners[me].up.pop() {
            let mut server = Server { state: &mut state, rules, deceived: false, sights: &mut sights };
            let reply = server.run(u8::try_from(me).unwrap_or(0), request);
            state.owners[me].down.push(reply);
            Client { state: &mut state, rules, limits, sights: &mut sights, me, broken: None }.read();
        }
    }
    state
}

/// All that can happen in a state.
pub(crate) fn all(from: &State, rules: &Rules, limits: &Limits, sights: &mut Sights, next: &mut Vec<Next>) {
    let mut to = |step, state: State, broken| next.push(Next { step, state, broken });
    let deceptions: &[bool] = match from.owners.iter().all(|owner| owner.connected) {
        true => &[false],
        false => &[false, true],
    };
    for (index, owner) in (0u8..).zip(&from.owners).take(limits.processes.len()) {
        let at = usize::from(index);
        for deceived in deceptions.iter().copied() {
            if !owner.up.is_empty() {
                let mut state = *from;
                if let Some(request) = state.owners[at].up.pop() {
                    let reply = Server { state: &mut state, rules, deceived, sights }.run(index, request);
                    if state.owners[at].phase != Phase::Gone {
                        state.owners[at].down.push(reply);
                    }
                    // Who only waits for this to be done has nothing to delay.
                    if matches!(reply, Message::Released(_) | Message::Left(_)) {
                        let mut client =
                            Client { state: &mut state, rules, limits, sights, me: at, broken: None };
                        while !client.state.owners[at].down.is_empty() {
                            client.read();
                        }
                    }
                    to(Step::Serve(index, deceived), state, None);
                }
            }
            if !owner.late.is_empty() {
                let mut state = *from;
                if let Some(request) = state.owners[at].late.pop() {
                    Server { state: &mut state, rules, deceived, sights }.run(index, request);
                    sights.note(Sight::LateRequestServed);
                    to(Step::ServeLate(index, deceived), state, None);
                }
            }
        }
        let mut act = |step, action: &dyn Fn(&mut Client<'_>)| {
            let mut state = *from;
            let mut client = Client { state: &mut state, rules, limits, sights, me: at, broken: None };
            action(&mut client);
            let broken = client.broken;
            to(step, state, broken);
        };
        if !owner.down.is_empty() {
            act(Step::Read(index), &|client| client.read());
        }
        if owner.stray.is_some() {
            act(Step::ReadStray(index), &|client| client.read_stray());
        }
        let can_send = owner.connected && owner.up.len() < 3;
        match owner.phase {
            Phase::Idle if can_send && limits.may_start(from, at) => {
                act(Step::Start(index), &|client| client.start())
            }
            Phase::Waiting => {
                if owner.letter.is_some() {
                    act(Step::LookAtLetter(index), &|client| client.look_at_letter());
                }
                if matches!(owner.place, Place::Granted { .. }) {
                    act(Step::LookAtNews(index), &|client| client.look_at_news());
                }
                if owner.asks > 0 && can_send {
                    act(Step::Ask(index), &|client| client.ask());
                }
            }
            Phase::Holding if owner.renewals > 0 && !owner.renewing && can_send => {
                act(Step::Renew(index), &|client| client.renew());
            }
            Phase::Giving if can_send => {
                let may_choose = |heir: &u8| {
                    owner.also.is_none() && owner.may_choose(from, limits, at, usize::from(*heir))
                };
                let members = (0..ROWS).filter(may_choose).fold(0, |members, heir| members | 1 << heir);
                for first in (0..ROWS).filter(|heir| members >> heir & 1 == 1) {
                    let row = rules.row_value(index, owner.rows, first);
                    let to = Heirs { first, members, turns: 0, row };
                    for turns in if limits.last_turns { 0 } else { to.count() }..=to.count() {
                        let to = Heirs { turns, ..to };
                        act(Step::HandOver { from: index, to }, &|client| client.hand_over(to));
                    }
                }
                if members == 0 {
                    act(Step::SendRelease(index), &|client| client.release());
                }
            }
            Phase::Releasing if from.aborts > 0 && can_send => {
                act(Step::AbortRelease(index), &|client| client.abort_release());
            }
            Phase::Gone if !rules.owner_is_fresh && owner.lives > 0 && can_send => {
                act(Step::Start(index), &|client| client.start_again());
            }
            _ => {}
        }
        if owner.phase == Phase::Lost || owner.phase == Phase::Holding && !owner.renewing {
            act(Step::GiveBack(index), &|client| client.give_back());
        }
        let has_lock = matches!(owner.phase, Phase::Holding | Phase::Lost);
        if has_lock && from.row.is_some_and(|row| owner.turn == Some(row.turn)) {
            act(Step::Pass(index), &|client| client.pass());
        }
        if matches!(owner.phase, Phase::Asking | Phase::Waiting | Phase::Quitting) && from.cancels > 0 {
            act(Step::GiveUp(index), &|client| {
                client.state.cancels -= 1;
                client.give_up();
            });
        }
        if owner.connected
            && from.breaks > 0
            && limits.breakers.contains(&index)
            && !matches!(owner.phase, Phase::Idle | Phase::Gone)
        {
            act(Step::Break(index, false), &|client| client.lose_connection(false));
            if owner.down.iter().any(Message::is_push) {
                act(Step::Break(index, true), &|client| client.lose_connection(true));
            }
        }
        if !owner.connected {
            act(Step::Reconnect(index), &|client| client.reconnect());
        }
    }
    if from.revocations > 0 && from.key.is_some_and(|key| !key.revoked) {
        for deceived in deceptions.iter().copied() {
            let mut state = *from;
            state.revocations -= 1;
            Server { state: &mut state, rules, deceived, sights }.revoke(limits.revoke_now);
            to(Step::Revoke, state, None);
        }
    }
    if from.row_letter.is_some_and(|letter| !letter.read) {
        let mut state = *from;
        read_row_letter(&mut state);
        sights.note(Sight::RowRevoked);
        to(Step::ReadRowLetter, state, None);
    }
    if from.vanishings > 0 && from.key.is_some() {
        to(Step::Vanish, State { key: None, vanishings: from.vanishings - 1, ..*from }, None);
    }
    if from.key.is_some_and(|key| key.left <= 1) {
        to(Step::ExpireEarly, State { key: None, ..*from }, None);
    }
    to(Step::Tick, tick(from, rules, sights), None);
}

fn tick(from: &State, rules: &Rules, sights: &mut Sights) -> State {
    let mut state = *from;
    state.key = state.key.map(|key| crate::state::Key { left: key.left.saturating_sub(1), ..key });
    state.key = state.key.filter(|key| key.left > 0);
    if let Some(row) = &mut state.row {
        row.age = (row.age + 1).min(TTL);
    }
    for owner in &mut state.owners {
        // Older than this makes no difference.
        let oldest = match owner.phase {
            Phase::Asking => TTL,
            Phase::Waiting if owner.counter.is_some() => TERM,
            Phase::Releasing if owner.to.is_some() => TTL,
            Phase::Holding | Phase::Lost if owner.renewing => LONG,
            _ => 0,
        };
        owner.age = (owner.age + 1).min(oldest);
        if let Place::Granted { token, age, row } = owner.place {
            owner.place = Place::Granted { token, age: (age + 1).min(TTL), row };
        }
        if owner.phase == Phase::Holding {
            owner.left -= 1;
            if owner.left == 0 {
                owner.phase = Phase::Lost;
                // Nobody waits for the answer any more.
                owner.renewing &= !rules.lost_is_final;
                sights.note(Sight::LostInTime);
            }
        }
    }
    state
}

impl Request {
    /// Whether this may still hand the lock to an owner.
    pub(crate) fn hands_to(self, owner: usize) -> bool {
        matches!(self, Self::HandOver { to, .. } if usize::from(to.first) == owner)
    }
}
