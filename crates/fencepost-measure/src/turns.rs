//! With contention: several for one name, each of whom writes down its turns.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, Contender};
use crate::serve::now;

/// One time that the lock was held. The moments are of a clock that all processes share, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Grows from turn to turn; 0 where there is no such number.
    pub token: u64,
    /// When acquire was called.
    pub asked: u64,
    /// When it returned.
    pub acquired: u64,
    /// When release was called.
    pub released: u64,
}

impl Turn {
    /// As programs say it: an array of four numbers.
    pub fn value(&self) -> Value {
        json!([self.token, self.asked, self.acquired, self.released])
    }

    /// From what [`value`](Self::value) made.
    pub fn parse(value: &Value) -> Option<Self> {
        let number = |place: usize| value.get(place)?.as_u64();
        Some(Self { token: number(0)?, asked: number(1)?, acquired: number(2)?, released: number(3)? })
    }
}

/// What contenders do.
#[derive(Clone, Debug)]
pub struct Contest {
    /// The one name.
    pub name: String,
    /// How many of them each process has.
    pub contenders: usize,
    /// How long each holds the lock; if they are polite, up to so long, by chance.
    pub hold: Duration,
    /// How long they go on.
    pub lasts: Duration,
    /// A file in which each turn leaves a byte, if they are polite: who has released the lock stays away
    /// until another one has had it. Otherwise a waiter that polls is seldom faster than who has just
    /// released it.
    pub polite: Option<PathBuf>,
}

impl Contest {
    /// The command that makes a process contend.
    pub fn command(&self) -> String {
        let Self { name, contenders, hold, lasts, polite } = self;
        let polite = polite.as_deref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
        format!("contend {name} {contenders} {} {} {polite}", hold.as_secs_f64(), lasts.as_secs_f64())
    }

    /// From what [`command`](Self::command) made.
    pub fn parse(command: &str) -> Option<Self> {
        let words: Vec<_> = command.split(' ').collect();
        let ["contend", name, contenders, hold, lasts, polite] = words[..] else { return None };
        let seconds = |word: &str| Duration::try_from_secs_f64(word.parse().ok()?).ok();
        Some(Self {
            name: name.to_owned(),
            contenders: contenders.parse().ok()?,
            hold: seconds(hold)?,
            lasts: seconds(lasts)?,
            polite: (polite != "-").then(|| PathBuf::from(polite)),
        })
    }

    /// By chance where the waiters may poll: a hold of one length would meet the same point of their period
    /// each time.
    fn hold(&self) -> Duration {
        if self.polite.is_none() {
            return self.hold;
        }
        // No more than what the clock says below a millisecond decides.
        self.hold.mul_f64((now() % 1_000_000) as f64 / 1e6)
    }
}

/// Contends in this process; the turns of each contender.
///
/// # Errors
///
/// The first that a contender met.
pub async fn contend<C: Client>(client: &C, contest: &Contest) -> Result<Vec<Vec<Turn>>, C::Error> {
    let mut contenders = Vec::new();
    for _ in 0..contest.contenders {
        contenders.push(client.contender(&contest.name).await?);
    }
    let end = Instant::now() + contest.lasts;
    let mut running = JoinSet::new();
    for contender in contenders {
        running.spawn(take_turns(contender, contest.clone(), end));
    }
    let mut turns = Vec::new();
    while let Some(ended) = running.join_next().await {
        turns.push(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
    }
    Ok(turns)
}

async fn take_turns<C: Contender>(
    mut contender: C,
    contest: Contest,
    end: Instant,
) -> Result<Vec<Turn>, C::Error> {
    let mut turns = Vec::new();
    while Instant::now() < end {
        let asked = now();
        let held = contender.acquire().await?;
        let (token, acquired) = (C::token(&held).unwrap_or(0), now());
        let mine = contest.polite.as_deref().map(mark);
        let hold = contest.hold();
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        let released = now();
        contender.release(held).await?;
        turns.push(Turn { token, asked, acquired, released });
        if let (Some(path), Some(mine)) = (&contest.polite, mine) {
            while size(path) == mine && Instant::now() < end {
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
        }
        // A store that never waits must not keep the others from their turn.
        tokio::task::yield_now().await;
    }
    Ok(turns)
}

/// Adds a byte, as the holder; the file's size from then on is the number of the turn.
fn mark(path: &Path) -> u64 {
    if let Ok(mut file) = OpenOptions::new().append(true).open(path) {
        let _ = file.write_all(b".");
    }
    size(path)
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_turn_and_a_contest_are_read_as_they_were_written() {
        let turn = Turn { token: 7, asked: 8, acquired: 9, released: u64::MAX };
        assert_eq!(Turn::parse(&turn.value()), Some(turn));
        assert_eq!(Turn::parse(&json!([7, 8, 9])), None);
        assert_eq!(Turn::parse(&json!("ready")), None);
        let contest = Contest {
            name: "bench:1:wake".to_owned(),
            contenders: 8,
            hold: Duration::from_millis(5),
            lasts: Duration::from_secs(2),
            polite: Some(PathBuf::from("/tmp/turns")),
        };
        for contest in [Contest { polite: None, ..contest.clone() }, contest] {
            let command = contest.command();
            assert_eq!(Contest::parse(&command).unwrap().command(), command);
        }
        assert!(Contest::parse("contend x 8 -1 2 -").is_none());
    }
}
