//! The password of a URL that names none, as `psql` finds it: `PGPASSWORD`, else the first line that fits in
//! `PGPASSFILE` or `~/.pgpass`. A file that cannot be read has none: most servers ask for no password.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::secret::Password;
use crate::{Error, Result};

/// Where a server's socket is unless it is told otherwise. The file calls that `localhost`.
const SOCKET_FOLDERS: [&str; 3] = ["/run/postgresql", "/var/run/postgresql", "/tmp"];

/// What a line of the file has to fit.
struct PasswordLookup<'a> {
    host: &'a str,
    port: u16,
    database: &'a str,
    user: &'a str,
}

/// The password for the servers of a configuration.
pub(super) fn find(server: &Config) -> Result<Option<Password>> {
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
        return Ok(Some(Password::new(password)));
    }
    let Some(path) = file() else { return Ok(None) };
    let Some(text) = read(&path) else { return Ok(None) };
    let mut passwords: Vec<_> = lookups(server).iter().map(|lookup| in_text(&text, lookup)).collect();
    passwords.dedup();
    let shown = path.display();
    match passwords.as_slice() {
        [None] | [] => Ok(None),
        [Some(_)] if std::fs::metadata(&path).is_ok_and(|file| file.mode() & 0o077 != 0) => {
            Err(Error::config(format!(
                "the password file `{shown}` can be read by other users; close it with `chmod 600 {shown}`"
            )))
        }
        [Some(password)] => Ok(Some(Password::new(password.clone()))),
        _ => Err(Error::config(format!(
            "the password file `{shown}` has different passwords for the hosts of this URL; give one in the \
             URL or in PGPASSWORD"
        ))),
    }
}

fn file() -> Option<PathBuf> {
    let named = std::env::var_os("PGPASSFILE").filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass")))
}

/// The text of a plain file. Another kind may keep us waiting.
fn read(path: &Path) -> Option<String> {
    let is_file = std::fs::metadata(path).is_ok_and(|file| file.is_file());
    let text = is_file.then(|| std::fs::read(path))?;
    text.ok().map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// One for each host.
fn lookups(server: &Config) -> Vec<PasswordLookup<'_>> {
    let Some(user) = server.get_user() else { return Vec::new() };
    let (ports, database) = (server.get_ports(), server.get_dbname().unwrap_or(user));
    server
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let host = match host {
                Host::Tcp(name) => name.as_str(),
                Host::Unix(folder) => folder.to_str().unwrap_or_default(),
            };
            let host = if SOCKET_FOLDERS.contains(&host) { "localhost" } else { host };
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            PasswordLookup { host, port, database, user }
        })
        .collect()
}

/// The password of the first line that fits.
fn in_text(text: &str, lookup: &PasswordLookup<'_>) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, port, database, user, password, ..] = fields.as_slice() else { return None };
        let wanted = [lookup.host, &lookup.port.to_string(), lookup.database, lookup.user];
        let fits = |(raw, wanted): (&&str, &str)| *raw == "*" || plain(raw) == wanted;
        [host, port, database, user].into_iter().zip(wanted).all(fits).then(|| plain(password))
    })
}

/// The fields of a line as they stand there. A backslash keeps the character after it.
fn fields(line: &str) -> Vec<&str> {
    let (mut fields, mut start, mut kept) = (Vec::new(), 0, false);
    for (at, character) in line.char_indices() {
        match character {
            _ if kept => kept = false,
            '\\' => kept = true,
            ':' => {
                fields.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    fields.push(&line[start..]);
    fields
}

/// A field without its backslashes.
fn plain(field: &str) -> String {
    let (mut out, mut characters) = (String::new(), field.chars());
    while let Some(character) = characters.next() {
        out.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOOKUP: PasswordLookup<'_> = PasswordLookup { host: "db", port: 5433, database: "app", user: "me" };

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let lines = ["other:*:*:*:no", r"\*:*:*:*:no", r"db:5433:app:me:p\:w\\d:x", "*:*:*:*:no"];
        let text = &lines.join("\n");
        assert_eq!(in_text(text, &LOOKUP).unwrap(), r"p:w\d");
        assert_eq!(in_text("*:*:*:*:any", &LOOKUP).unwrap(), "any");
        for none in ["", "db", "db:5433:app:me", "db:5432:app:me:no", "db:5433:app:you:no"] {
            assert_eq!(in_text(none, &LOOKUP), None, "{none}");
        }
    }

    #[test]
    fn each_host_has_its_own_and_a_usual_socket_is_localhost() {
        let server: Config = "host=a,/run/postgresql,/srv/x port=1,2,3 user=me dbname=d".parse().unwrap();
        let found: Vec<_> = lookups(&server).iter().map(|lookup| (lookup.host, lookup.port)).collect();
        assert_eq!(found, [("a", 1), ("localhost", 2), ("/srv/x", 3)]);
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in ".{0,80}") {
            let _ = in_text(&text, &LOOKUP);
        }

        #[test]
        fn what_is_escaped_reads_back(password in "[^\n\r\0]{1,20}") {
            let escaped = password.replace('\\', r"\\").replace(':', r"\:");
            prop_assert_eq!(in_text(&format!("*:*:*:*:{escaped}"), &LOOKUP), Some(password));
        }
    }
}
