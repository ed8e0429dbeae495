//! A client as a process of its own, which does what it is told, one word at a time.

use std::process::Command;
use std::time::Duration;

use fencepost::{Guard, Locks, State};

use crate::family::{Family, say};
use crate::register::Register;

/// The test that children run.
pub(crate) const CHILD: &str = "children::child";

/// Starts a client of the store at this URL.
pub(crate) fn client(url: &str) -> Family {
    client_with(url, |_| {})
}

pub(crate) fn client_with(url: &str, change: impl FnOnce(&mut Command)) -> Family {
    let (client, said) = Family::start(CHILD, "obey", url, change);
    assert_eq!(said, "connected");
    client
}

/// Not a test of its own: what children do.
#[test]
fn child() {
    let Some((what, url)) = Family::task() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(&url).await.unwrap();
        match &*what {
            "obey" => obey(&locks).await,
            what => crate::embedded::act(what, &locks).await,
        }
    });
}

async fn obey(locks: &Locks) {
    say("connected");
    let (mut guard, mut active) = (None, None);
    while let Some(line) = next_line().await {
        let words: Vec<_> = line.split(' ').collect();
        let said = match words[..] {
            ["acquire", ttl] => granted(locks.lock("a").ttl(ms(ttl)).acquire().await.map(Some), &mut guard),
            ["try", ttl] => granted(locks.lock("a").ttl(ms(ttl)).try_acquire().await, &mut guard),
            ["extend"] => told(holding(&guard).extend().await),
            ["renewals"] => locks.stats().renewed.to_string(),
            ["state"] => match holding(&guard).state() {
                State::Lost(why) => format!("lost: {why}"),
                _ => format!("held for {} ms", holding(&guard).valid_for().unwrap().as_millis()),
            },
            ["release"] => told(guard.take().expect("a lock is held").release().await),
            ["activate", url] => match Register::activate(url, holding(&guard).token()).await {
                Ok(new) => {
                    active = Some(new);
                    "fine".to_owned()
                }
                Err(error) => error.to_string(),
            },
            ["write", value] => match active.as_ref().expect("it is active").write(value).await {
                Ok(()) => "fine".to_owned(),
                Err(error) if error.stale().is_some() => "stale".to_owned(),
                Err(error) => error.to_string(),
            },
            _ => panic!("a client cannot `{line}`"),
        };
        say(&said);
    }
}

/// The next word of the parent. The runtime goes on meanwhile.
async fn next_line() -> Option<String> {
    let read = || std::io::stdin().lines().next().map(Result::unwrap);
    tokio::task::spawn_blocking(read).await.unwrap()
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn holding(guard: &Option<Guard>) -> &Guard {
    guard.as_ref().expect("a lock is held")
}

fn granted(outcome: fencepost::Result<Option<Guard>>, guard: &mut Option<Guard>) -> String {
    match outcome {
        Ok(Some(new)) => guard.insert(new).token().to_string(),
        Ok(None) => "busy".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn told<T>(outcome: fencepost::Result<T>) -> String {
    outcome.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}
