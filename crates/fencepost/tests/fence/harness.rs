//! Places to keep resources in, one of each kind.

#[path = "../common/waiting.rs"]
mod waiting;

use std::process::Output;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::FencingToken;
use fencepost::fence::Fence;
use fencepost_testkit::{Folder, postgres, redis};
use tokio_postgres::{Client, NoTls};

pub(crate) use self::waiting::{bounded, until};

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// A name that no other test uses.
pub(crate) fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}:{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The Redis server that tests share. It ends with the process.
pub(crate) fn redis() -> &'static redis::Server {
    static SERVER: OnceLock<redis::Server> = OnceLock::new();
    SERVER.get_or_init(redis::Server::start)
}

/// A URL with a timeout that a busy machine does not exceed.
pub(crate) fn calm(url: &str) -> String {
    format!("{url}?timeout=20s")
}

/// Somewhere to keep resources, and what has to live as long.
pub(crate) struct Place {
    pub(crate) kind: &'static str,
    pub(crate) fence: Fence,
    _folder: Option<Folder>,
}

/// One of each kind.
pub(crate) async fn places() -> Vec<Place> {
    let folder = Folder::new("fence");
    let file = format!("file://{}", folder.path().join("values").display());
    let urls = [
        ("memory", "memory:".to_owned(), None),
        ("file", calm(&file), Some(folder)),
        ("redis", calm(&redis().url()), None),
        ("postgres", Database::new().url(), None),
    ];
    let mut places = Vec::new();
    for (kind, url, folder) in urls {
        places.push(Place { kind, fence: Fence::connect(&url).await.unwrap(), _folder: folder });
    }
    places
}

/// A new database on the server that all tests share.
pub(crate) struct Database {
    pub(crate) server: &'static postgres::Server,
    pub(crate) name: String,
}

impl Database {
    pub(crate) fn new() -> Self {
        let server = postgres::Server::shared();
        Self { server, name: server.create_database() }
    }

    /// With the schema of `fence.sql`, installed by psql as anybody would.
    pub(crate) fn prepared() -> Self {
        let database = Self::new();
        database.install();
        database
    }

    pub(crate) fn install(&self) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fence/fence.sql");
        let output = self.server.psql_command(&self.name).args(["-1", "-f", file]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn url(&self) -> String {
        calm(&self.server.url(&self.name))
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.name, sql)
    }

    /// What psql says to SQL that is refused, with error codes.
    pub(crate) fn refused(&self, sql: &str) -> String {
        let Output { status, stderr, .. } = self
            .server
            .psql_command(&self.name)
            .args(["-v", "VERBOSITY=verbose", "-c", sql])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&stderr).into_owned();
        assert!(!status.success(), "{sql} was accepted");
        text
    }

    pub(crate) async fn client(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.server.url(&self.name), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}
