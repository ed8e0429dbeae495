//! `generate`: shell completions and man pages for packagers, tables for documents, lists for scripts.

use std::io::Write;

use clap::CommandFactory;
use fencepost::StoreKind;

use crate::args::{Cli, Generate};
use crate::exit::{Outcome, system};

pub(super) fn run(what: Generate) -> Outcome {
    match what {
        Generate::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
            std::io::stdout().write_all(&script).map_err(system("writing to stdout"))?;
        }
        Generate::Parameters { url } => {
            let mut table = "| parameter | default | what it sets |\n|---|---|---|\n".to_owned();
            for parameter in StoreKind::of(&url)?.parameters {
                let cell = |text: &str| text.replace('|', "\\|");
                let default = Some(parameter.default).filter(|text| !text.is_empty());
                let default = default.map(|text| format!("`{}`", cell(text))).unwrap_or_default();
                table += &format!("| `{}` | {default} | {} |\n", parameter.name, cell(parameter.help));
            }
            std::io::stdout().write_all(table.as_bytes()).map_err(system("writing to stdout"))?;
        }
        #[cfg(feature = "torture")]
        Generate::LocalStores => {
            let names: Vec<_> = fencepost_testkit::local::STORES.iter().map(|kind| kind.0.name).collect();
            writeln!(std::io::stdout(), "{}", names.join(" ")).map_err(system("writing to stdout"))?;
        }
        Generate::Man { dir } => {
            std::fs::create_dir_all(&dir).map_err(system("creating the directory"))?;
            clap_mangen::generate_to(Cli::command(), &dir).map_err(system("writing the man pages"))?;
        }
    }
    Ok(0)
}
