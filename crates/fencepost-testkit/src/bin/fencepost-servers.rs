//! Starts servers for tests in other languages, on demand: a command a line on stdin, an answer a line on
//! stdout. All servers end when stdin does, and with this process, however it ends.
//!
//! `redis`, `fleet COUNT`, `postgres`, `etcd` and `zookeeper` start one and answer with its URL. `pause URL`,
//! `resume URL`, `kill URL` and `restart URL` are for a single Redis.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};

use fencepost_testkit::{etcd, postgres, redis, zookeeper};

#[derive(Default)]
struct Servers {
    redis: HashMap<String, redis::Server>,
    fleets: Vec<redis::Fleet>,
    etcd: Vec<etcd::Cluster>,
    zookeeper: Vec<zookeeper::Server>,
}

impl Servers {
    fn obey(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            ["redis"] => {
                let server = redis::Server::start();
                let url = server.url();
                self.redis.insert(url.clone(), server);
                Ok(url)
            }
            ["fleet", count] => {
                let count = count.parse().map_err(|_| format!("`{count}` is no number of servers"))?;
                self.fleets.push(redis::Fleet::start(count));
                Ok(self.fleets.last().map(redis::Fleet::url).unwrap_or_default())
            }
            ["postgres"] => {
                let server = postgres::Server::shared();
                Ok(server.url(&server.create_database()))
            }
            ["etcd"] => {
                self.etcd.push(etcd::Cluster::start(1));
                Ok(self.etcd.last().map(etcd::Cluster::url).unwrap_or_default())
            }
            ["zookeeper"] => {
                self.zookeeper.push(zookeeper::Server::start());
                Ok(self.zookeeper.last().map(zookeeper::Server::url).unwrap_or_default())
            }
            [what @ ("pause" | "resume" | "kill" | "restart"), url] => {
                let server = self.redis.get_mut(*url).ok_or_else(|| format!("no Redis at `{url}`"))?;
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
