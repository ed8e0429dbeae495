//! One peer in a process of its own, measured by the same loops as Fencepost: `fencepost-peers PEER
//! ADDRESS…`.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rslock")]
mod rslock;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use fencepost_measure::serve;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // The same runtime as that of Fencepost's worker.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.map_err(Error::from).and_then(|runtime| runtime.block_on(run(&words)));
    // Not by returning: what a peer left in the background may take its time.
    std::process::exit(match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    });
}

async fn run(words: &[String]) -> Result<(), Error> {
    let (peer, addresses) = words.split_first().ok_or("usage: fencepost-peers PEER ADDRESS…")?;
    match peer.as_str() {
        #[cfg(feature = "rslock")]
        "rslock" => serve(&rslock::Peer::new(addresses)).await?,
        #[cfg(feature = "etcd")]
        "etcd-client" => serve(&etcd::Peer::connect(&addresses[0]).await?).await?,
        #[cfg(feature = "zookeeper")]
        "zookeeper-client" => serve(&zookeeper::Peer::connect(&addresses[0]).await?).await?,
        #[cfg(feature = "postgres")]
        "tokio-postgres" => serve(&postgres::Advisory(addresses[0].clone())).await?,
        #[cfg(feature = "postgres")]
        "sqlx" => serve(&postgres::Sqlx(addresses[0].clone())).await?,
        other => return Err(format!("`{other}` was not built").into()),
    }
    Ok(())
}

/// What a peer says that keeps no lock by itself.
#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "postgres"))]
fn no_renewal() -> Error {
    "it holds locks by its session alone; that is not measured".into()
}
