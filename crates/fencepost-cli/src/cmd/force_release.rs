//! `force-release`: takes a lock away from its holder, for operators.

use std::io::{self, BufRead, IsTerminal, Write};

use fencepost::{Error, ForceRelease, Holder, Locks};
use serde_json::json;

use crate::args;
use crate::exit::{self, Failure, Outcome, system};
use crate::output::{Console, one_line, shown};

pub(super) async fn run(args: &args::ForceRelease, locks: &Locks, console: Console) -> Outcome {
    let name = args.target.name(locks)?;
    let name = name.as_str();
    let reason = args.reason.as_str();
    let mut how = if args.now { ForceRelease::now(reason) } else { ForceRelease::ask(reason) };
    how.token = args.token;
    if how.token.is_none() && io::stdin().is_terminal() && io::stderr().is_terminal() {
        let Some(holder) = locks.show(name).await? else { return nobody(name, console) };
        if !agreed(name, &holder)? {
            console.note("nothing was done");
            return Ok(exit::DECLINED);
        }
        how.token = holder.token;
        if holder.token.is_none() {
            // A foreign holder has nothing to name it by. Who asks for long may not answer for the next one.
            match locks.show(name).await? {
                Some(now) if now.token.is_none() => {}
                Some(now) => {
                    return Err(Error::changed(&now.name.clone(), now).into());
                }
                None => return nobody(name, console),
            }
        }
    }
    let Some(revoked) = locks.force_release(name, how).await? else { return nobody(name, console) };
    let (token, holder) = (revoked.token, &revoked.holder);
    let json = json!({ "name": name, "freed": revoked.freed, "token": token, "holder": holder });
    console.result(&json, || {
        let (lock, victim) = (format!("lock `{}`", shown(name)), described(holder));
        let what = if revoked.freed {
            format!("{lock} is free; it was taken from {victim}")
        } else {
            format!(
                "{lock} was asked back from {victim}\nit is free when the holder lets go or its lease ends"
            )
        };
        format!(
            "{what}\ntoken {token}\nactivate this token at the resource that the lock protects: \
             only that keeps the old holder from writing there"
        )
    })?;
    Ok(0)
}

fn nobody(name: &str, console: Console) -> Outcome {
    let json = json!({ "name": name, "freed": false, "token": null, "holder": null });
    console.result(&json, || format!("nobody holds lock `{}`; nothing was done", shown(name)))?;
    Ok(0)
}

/// Asks whoever sits at the terminal.
fn agreed(name: &str, holder: &Holder) -> Result<bool, Failure> {
    let mut stderr = io::stderr().lock();
    let question = format!("take lock `{}` from {}? [y/N] ", shown(name), described(holder));
    stderr.write_all(question.as_bytes()).map_err(system("asking"))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(system("reading the answer"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A holder with its token: what an operator compares.
fn described(holder: &Holder) -> String {
    let token = holder.token.map(|token| format!("token {token}, ")).unwrap_or_default();
    one_line(&format!("{token}{holder}")).into_owned()
}
