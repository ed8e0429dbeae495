//! Processes that measure, started from here. This program plays their parts, too: `--play=locks URL`, and
//! the raw limits.

use std::io::{self, BufRead as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fencepost::Locks;
use fencepost_measure::{
    Client, Contender, Contest, Crowd, Holding, Turn, Worker, answer, contend_in_processes, serve,
};
use rustix::fs::FlockOperation;
use serde_json::{Value, json};

use crate::cycle::runtime;
use crate::raw::{self, Pushed, Token};
use crate::{etcd, growth, postgres, zookeeper};

/// Locks on a store.
pub(crate) fn locks(url: &str) -> Command {
    player("locks", url, 0)
}

/// A raw limit. Where two sides play different parts, `side` says which.
pub(crate) fn player(role: &str, target: &str, side: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([&format!("--play={role}"), target, &side.to_string()]);
    command
}

/// Two players, one for each side.
pub(crate) fn pair(role: &str, target: &str) -> [Command; 2] {
    [0, 1].map(|side| player(role, target, side))
}

/// Starts processes, and lets them contend.
pub(crate) fn contest(commands: impl IntoIterator<Item = Command>, contest: &Contest) -> Crowd {
    let crowd: io::Result<Crowd> = runtime().block_on(async {
        let mut workers = commands.into_iter().map(Worker::start).collect::<io::Result<Vec<_>>>()?;
        for worker in &mut workers {
            worker.ready().await?;
        }
        let crowd = contend_in_processes(&mut workers, contest).await?;
        for worker in workers {
            worker.end().await?;
        }
        Ok(crowd)
    });
    crowd.expect("a contest")
}

/// The part of one process.
pub(crate) fn play(role: &str, words: &[String]) {
    let target = words[0].as_str();
    let begins = words.get(1).is_some_and(|side| side == "0");
    let served = match role {
        "locks" => runtime().block_on(async {
            let locks = Locks::connect(target).await.expect("a store");
            let served = serve(&locks).await;
            locks.close().await;
            served
        }),
        "growth" => runtime().block_on(async {
            let locks = Locks::connect(target).await.expect("a store");
            growth::player::serve(&locks).await
        }),
        "token" => runtime().block_on(serve(&Tokens(target.parse().expect("an address")))),
        "pushed" => runtime().block_on(serve(&Scripted(target.parse().expect("an address")))),
        "flock" => runtime().block_on(serve(&Files(target.into()))),
        "zookeeper watch" => {
            take_part(|| zookeeper::pass_to_and_fro(target.parse().expect("an address"), begins))
        }
        "notify" => take_part(|| postgres::pass_to_and_fro(target, begins)),
        "etcd watch" => take_part(|| etcd::pass_to_and_fro(target, begins)),
        other => panic!("{other} is not a part to play"),
    };
    served.expect("somebody who listens");
}

/// As [`serve`] for a part that knows but one contest.
fn take_part(play: impl FnOnce() -> Vec<Turn>) -> io::Result<()> {
    answer("ready")?;
    io::stdin().lock().read_line(&mut String::new())?;
    let turns: Value = play().iter().map(Turn::value).collect();
    answer(json!({ "turns": [turns] }))
}

/// A token in a list, which a blocking pop waits for: no more than that can wake another process.
struct Tokens(SocketAddr);

struct OneToken(Token, String);

impl Client for Tokens {
    type Contender = OneToken;
    type Error = String;

    async fn contender(&self, name: &str) -> Result<OneToken, String> {
        Ok(OneToken(Token::connect(self.0), name.to_owned()))
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, String> {
        Err("a token is not held".to_owned())
    }
}

/// Blocks its process, which has nothing else to do.
impl Contender for OneToken {
    type Held = ();
    type Error = String;

    async fn acquire(&mut self) -> Result<(), String> {
        self.0.pop(&self.1);
        Ok(())
    }

    async fn release(&mut self, (): ()) -> Result<(), String> {
        self.0.push(&self.1);
        Ok(())
    }

    fn token((): &()) -> Option<u64> {
        None
    }
}

/// Our own script over a bare socket.
struct Scripted(SocketAddr);

impl Client for Scripted {
    type Contender = Pushed;
    type Error = String;

    async fn contender(&self, name: &str) -> Result<Pushed, String> {
        Ok(Pushed::connect(self.0, name))
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, String> {
        Err("its leases are not renewed".to_owned())
    }
}

/// Blocks its process, which has nothing else to do.
impl Contender for Pushed {
    type Held = u64;
    type Error = String;

    async fn acquire(&mut self) -> Result<u64, String> {
        Ok(Pushed::acquire(self))
    }

    async fn release(&mut self, token: u64) -> Result<(), String> {
        Pushed::release(self, token);
        Ok(())
    }

    fn token(token: &u64) -> Option<u64> {
        Some(*token)
    }
}

/// A folder with a bare lock file for each name.
struct Files(PathBuf);

struct BareFile(PathBuf);

impl Client for Files {
    type Contender = BareFile;
    type Error = String;

    async fn contender(&self, name: &str) -> Result<BareFile, String> {
        Ok(BareFile(self.0.join(name)))
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, String> {
        Err("files are not renewed".to_owned())
    }
}

/// Blocks its process, which has nothing else to do.
impl Contender for BareFile {
    type Held = std::os::fd::OwnedFd;
    type Error = String;

    async fn acquire(&mut self) -> Result<Self::Held, String> {
        let file = raw::open(&self.0);
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
        Ok(file)
    }

    async fn release(&mut self, held: Self::Held) -> Result<(), String> {
        rustix::fs::flock(&held, FlockOperation::Unlock).map_err(|error| error.to_string())?;
        // As the lock does: whoever waits goes first.
        std::thread::yield_now();
        Ok(())
    }

    fn token(_: &Self::Held) -> Option<u64> {
        None
    }
}
