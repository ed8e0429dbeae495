//! `generate`: shell completions and man pages for packagers, lists for scripts.

use std::io::Write;

use clap::CommandFactory;

use super::man;
use crate::args::{Cli, Generate};
use crate::completion;
use crate::exit::{Outcome, system};

pub(super) fn run(what: Generate) -> Outcome {
    match what {
        Generate::Completions { shell } => {
            let mut script = Vec::new();
            completion::script(&shell.to_string(), &mut script).map_err(system("writing the script"))?;
            std::io::stdout().write_all(&script).map_err(system("writing to stdout"))?;
        }
        #[cfg(feature = "torture")]
        Generate::LocalStores => {
            let names: Vec<_> = fencepost_testkit::local::STORES.iter().map(|kind| kind.0.name).collect();
            writeln!(std::io::stdout(), "{}", names.join(" ")).map_err(system("writing to stdout"))?;
        }
        Generate::Man { dir } => {
            std::fs::create_dir_all(&dir).map_err(system("creating the directory"))?;
            man::write(Cli::command(), &dir).map_err(system("writing the man pages"))?;
        }
    }
    Ok(0)
}
