//! What the examples share: servers that are started for them, and processes that each play a part.

#![allow(clippy::print_stdout)]

mod folder;
mod process;
mod servers;

use std::process::ExitCode;

pub use folder::Folder;
pub use process::{Process, die_with_parent, listen, tell};
pub use servers::{postgres, redis};

/// Examples fail with a sentence.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Turns the end of an example into its exit code; what went wrong goes to stderr.
pub fn exit(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            // Drivers keep the reason one level down.
            let mut source = error.source();
            while let Some(reason) = source.filter(|reason| !error.to_string().contains(&reason.to_string()))
            {
                eprint!(": {reason}");
                source = reason.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

/// Runs async code to its end on this thread.
///
/// # Errors
/// Those of the code, or that no runtime could be made.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
