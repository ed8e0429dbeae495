//! Servers that are started for an example, on free ports and in temporary folders, and that end with it,
//! however it ends.

use fencepost_testkit::{postgres, redis};

use crate::Result;

/// Starts a Redis.
///
/// # Errors
/// If it is not installed.
pub fn redis() -> Result<redis::Server> {
    if redis::is_installed() {
        println!("Starting a Redis for this example.");
        return Ok(redis::Server::start());
    }
    Err(missing("redis-server", "redis-server", "redis://host"))
}

/// Starts a PostgreSQL.
///
/// # Errors
/// If it is not installed.
pub fn postgres() -> Result<&'static postgres::Server> {
    if postgres::is_installed() {
        println!("Starting a PostgreSQL for this example.");
        return Ok(postgres::Server::shared());
    }
    Err(missing("PostgreSQL", "postgresql", "postgres://user@host/database"))
}

fn missing(server: &str, package: &str, url: &str) -> Box<dyn std::error::Error + Send + Sync> {
    format!(
        "{server} is not installed, and this example starts one; install it with `make deps` or `apt-get \
        install {package}`, \
         or name a server of your own by `--store {url}`"
    )
    .into()
}
