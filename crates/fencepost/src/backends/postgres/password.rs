//! The password of a URL that names none, as `psql` finds it: `PGPASSWORD`, else the first line that fits in
//! `PGPASSFILE` or `~/.pgpass`.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::secret::Password;
use crate::{Error, Result};

/// What a line of the file has to fit.
struct PasswordLookup<'a> {
    host: &'a str,
    port: u16,
    database: &'a str,
    user: &'a str,
}

/// The password for the first server of a configuration.
pub(super) fn find(server: &Config) -> Result<Option<Password>> {
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
        return Ok(Some(Password::new(password)));
    }
    let Some(path) = file() else { return Ok(None) };
    let shown = path.display();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::config(format!("the password file `{shown}`: {error}"))),
    };
    let Some(login) = login(server) else { return Ok(None) };
    let Some(password) = in_text(&text, &login) else { return Ok(None) };
    // Looked at only if it is needed: `psql` ignores such a file, and says so.
    if std::fs::metadata(&path).is_ok_and(|file| file.mode() & 0o077 != 0) {
        return Err(Error::config(format!(
            "the password file `{shown}` can be read by other users; close it with `chmod 600 {shown}`"
        )));
    }
    Ok(Some(Password::new(password)))
}

fn file() -> Option<PathBuf> {
    let named = std::env::var_os("PGPASSFILE").filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass")))
}

fn login(server: &Config) -> Option<PasswordLookup<'_>> {
    let host = match server.get_hosts().first()? {
        Host::Tcp(name) => name,
        Host::Unix(_) => "localhost",
    };
    let user = server.get_user()?;
    let (port, database) = (*server.get_ports().first().unwrap_or(&5432), server.get_dbname());
    Some(PasswordLookup { host, port, database: database.unwrap_or(user), user })
}

/// The password of the first line that fits.
fn in_text(text: &str, login: &PasswordLookup<'_>) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, port, database, user, password] = <[String; 5]>::try_from(fields).ok()?;
        let wanted = [login.host, &login.port.to_string(), login.database, login.user];
        let given = [host, port, database, user];
        given.iter().zip(wanted).all(|(given, wanted)| given == "*" || given == wanted).then_some(password)
    })
}

/// The fields of a line: up to the fifth, which is the rest. A backslash keeps the character after it.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut characters) = (vec![String::new()], line.chars());
    while let Some(character) = characters.next() {
        let count = fields.len();
        let Some(last) = fields.last_mut() else { break };
        match character {
            '\\' => last.extend(characters.next()),
            ':' if count < 5 => fields.push(String::new()),
            character => last.push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOGIN: PasswordLookup<'_> = PasswordLookup { host: "db", port: 5433, database: "app", user: "me" };

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# db:5433:app:me:no\nother:*:*:*:no\ndb:5433:app:me:p\\:w\\\\d:x\n*:*:*:*:later";
        assert_eq!(in_text(text, &LOGIN).unwrap(), r"p:w\d:x");
        assert_eq!(in_text("*:*:*:*:any", &LOGIN).unwrap(), "any");
        for none in ["", "db", "db:5433:app:me", "db:5432:app:me:no", "db:5433:app:you:no"] {
            assert_eq!(in_text(none, &LOGIN), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in ".{0,80}") {
            let _ = in_text(&text, &LOGIN);
        }

        #[test]
        fn what_is_escaped_reads_back(password in "[^\n\r\0]{1,20}") {
            let escaped = password.replace('\\', r"\\").replace(':', r"\:");
            prop_assert_eq!(in_text(&format!("*:*:*:*:{escaped}"), &LOGIN), Some(password));
        }
    }
}
