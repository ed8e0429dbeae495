//! Man pages: what `--help` says, in the order in which it says it.

use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Writes a page of the command and of each subcommand that is not hidden.
pub(super) fn write(command: Command, dir: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_page(subcommand, dir)?;
    }
    write_page(&command, dir)
}

fn write_page(command: &Command, dir: &Path) -> io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    let mut page = command.clone().override_usage(usage.trim_start_matches("Usage: ").to_owned());
    // Its first paragraph is the section NAME.
    let description = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    if let Some((_, rest)) = description.split_once("\n\n") {
        page = page.long_about(rest.to_owned());
    }
    let (arguments, options) = (page.clone().mut_args(positional), page.clone().mut_args(not_positional));
    let has_subcommands = page.get_subcommands().any(|subcommand| !subcommand.is_hide_set());

    let man = Man::new(page).source(concat!("fencepost ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    Man::new(arguments).render_options_section(&mut text)?;
    Man::new(options).render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    let notes = command.get_after_long_help().or(command.get_after_help());
    sections(&notes.map(ToString::to_string).unwrap_or_default()).to_writer(&mut text)?;
    std::fs::write(dir.join(man.get_filename()), text)
}

/// Hides an option. clap_mangen has arguments behind the options, `--help` in front of them.
fn positional(argument: Arg) -> Arg {
    let hidden = argument.is_hide_set() || !argument.is_positional();
    argument.help_heading("Arguments").hide(hidden)
}

/// Hides what is not an option.
fn not_positional(argument: Arg) -> Arg {
    let hidden = argument.is_hide_set() || argument.is_positional();
    argument.hide(hidden)
}

/// What stands below the options in `--help`: blocks with a title each. Examples keep their lines.
fn sections(help: &str) -> Roff {
    let mut roff = Roff::new();
    for block in help.split("\n\n").filter(|block| !block.is_empty()) {
        let Some((title, lines)) = block.split_once(":\n") else {
            roff.control("PP", []).text([roman(block)]);
            continue;
        };
        roff.control("SH", [title.to_uppercase().as_str()]);
        if title.starts_with("Example") {
            roff.control("nf", []);
            for line in lines.lines() {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []);
            continue;
        }
        for line in lines.lines() {
            // `64  wrong usage`.
            match line.trim_start().split_once("  ") {
                Some((code, meaning)) => {
                    roff.control("TP", ["4"]).text([bold(code)]).text([roman(meaning.trim_start())])
                }
                None => roff.text([roman(line.trim_start())]),
            };
        }
    }
    roff
}
