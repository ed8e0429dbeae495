//! The `fencepost` command: arguments in, one `match` from result to exit code out.

#[cfg(not(target_os = "linux"))]
compile_error!("the command line needs Linux (signalfd, timerfd, subreapers); the library does not");

mod args;
mod cmd;
mod completion;
mod exit;
mod guardian;
mod log;
mod output;
mod signals;
mod store;
mod terminal;
#[cfg(feature = "torture")]
mod torture;
mod version;
mod waiting;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use args::Cli;
use exit::Failure;
use output::Console;

fn main() -> ExitCode {
    completion::answer();
    let matches = args::command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let console = Console::new(&cli.global);
    match cmd::dispatch(cli, console) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            console.fail(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Help and version are answers; everything else clap has to say is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let before_command = std::env::args_os().take_while(|argument| argument != "--");
    if before_command.into_iter().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let message = text.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
        Console::plain_json().fail(&Failure::Usage(message));
    } else {
        let _ = error.print();
    }
    ExitCode::from(exit::USAGE)
}
