//! Starts servers for tests in other languages, on demand: a command a line on stdin, an answer a line on
//! stdout. All servers end when stdin does, and with this process, however it ends.
//!
//! `stores` answers with the stores that `start STORE` knows; that starts one and answers with its URL.
//! `nodes COUNT` starts so many Redis, which are not declared to each other yet. `pause URL`, `resume URL`,
//! `kill URL` and `restart URL` are for the first server of what was started.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use fencepost_testkit::local::Local;
use fencepost_testkit::{for_each_store, redis};

macro_rules! stores {
    ($($store:ident $name:literal),+ $(,)?) => { &[$((stringify!($store), $name)),+] };
}

/// What tests call a store, and the test kit.
const STORES: &[(&str, &str)] = for_each_store!(stores);

/// The longest ttl that a test may ask for.
const TTL: Duration = Duration::from_secs(1200);

#[derive(Default)]
struct Servers {
    started: HashMap<String, Local>,
    nodes: Vec<redis::Nodes>,
}

impl Servers {
    fn obey(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            ["stores"] => Ok(STORES.iter().map(|(store, _)| *store).collect::<Vec<_>>().join(" ")),
            ["start", store] => {
                let name = STORES.iter().find(|(name, _)| name == store).map_or(*store, |(_, name)| name);
                let local = Local::start(name.parse()?, TTL);
                let url = local.url().to_owned();
                self.started.insert(url.clone(), local);
                Ok(url)
            }
            ["nodes", count] => {
                let count = count.parse().map_err(|_| format!("`{count}` is no number of servers"))?;
                self.nodes.push(redis::Nodes::start(count));
                Ok(self.nodes.last().map(redis::Nodes::url).unwrap_or_default())
            }
            [what @ ("pause" | "resume" | "kill" | "restart"), url] => {
                let local = self.started.get_mut(*url).ok_or_else(|| format!("nothing at `{url}`"))?;
                let server = local.server(0);
                match *what {
                    "pause" => server.pause(),
                    "resume" => server.resume(),
                    "kill" => server.kill(),
                    _ => server.restart(),
                }
                Ok("done".to_owned())
            }
            other => Err(format!("`{}` is no command", other.join(" "))),
        }
    }
}

fn main() -> std::io::Result<()> {
    let mut servers = Servers::default();
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        let answer = servers.obey(&words).unwrap_or_else(|error| format!("error: {error}"));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
