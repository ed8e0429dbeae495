//! Where the master is, by a majority of the listed sentinels.
//!
//! A server that was master and comes back takes itself for one, for some ten seconds, until the sentinels
//! make it a replica. So neither its word is enough, nor that of a few sentinels that were away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::config::Sentinels;
use crate::backends::common::stream;
use crate::backends::common::tls::Tls;
use crate::backends::redis::driver::connection::Connection;
use crate::backends::redis::driver::resp::Value;
use crate::{Error, Result};

/// What one sentinel said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// The master is there.
    Master(String, u16),
    /// It knows no service of that name, but these.
    NoSuchService(Vec<String>),
    /// It does not let us ask.
    Refused(String),
    Silent(String),
}

/// Asks all sentinels at once, each for at most `patience`, until a majority has said the same.
pub(in crate::backends::redis) async fn master(
    sentinels: &Sentinels,
    label: &str,
    patience: Duration,
) -> Result<(String, u16)> {
    let mut asked = JoinSet::new();
    let sentinels = Arc::new(sentinels.clone());
    for index in 0..sentinels.hosts.len() {
        let sentinels = sentinels.clone();
        asked.spawn(async move {
            let said = tokio::time::timeout(patience, ask(&sentinels, index)).await;
            let silent = || Said::Silent("no answer".to_owned());
            (index, said.unwrap_or_else(|_| Ok(silent())).unwrap_or_else(Said::Silent))
        });
    }
    let mut said = BTreeMap::new();
    while let Some(Ok((index, answer))) = asked.join_next().await {
        said.insert(index, answer);
        if let Some(decided) = decide(&sentinels, &said, label) {
            return decided;
        }
    }
    let each = sentinels.hosts.iter().enumerate().map(|(index, (host, port))| {
        let said = match said.get(&index) {
            Some(Said::Master(at, port)) => format!("says {at}:{port}"),
            Some(Said::NoSuchService(_)) => format!("knows no service `{}`", sentinels.service),
            Some(Said::Refused(why) | Said::Silent(why)) => why.clone(),
            None => "no answer".to_owned(),
        };
        format!("{host}:{port} {said}")
    });
    let each = each.collect::<Vec<_>>().join("; ");
    Err(Error::unavailable(label, format!("no majority of the sentinels names a master: {each}")))
}

/// What a majority says, if one has said the same.
fn decide(sentinels: &Sentinels, said: &BTreeMap<usize, Said>, label: &str) -> Option<Result<(String, u16)>> {
    let majority = sentinels.hosts.len() / 2 + 1;
    let count = |is: &dyn Fn(&Said) -> bool| said.values().filter(|said| is(said)).count();
    for one in said.values() {
        if let Said::Master(host, port) = one
            && count(&|other| other == one) >= majority
        {
            return Some(Ok((host.clone(), *port)));
        }
    }
    if count(&|said| matches!(said, Said::NoSuchService(_))) >= majority {
        let mut known: Vec<_> = said
            .values()
            .filter_map(|said| if let Said::NoSuchService(names) = said { Some(names) } else { None })
            .flatten()
            .map(|name| format!("`{name}`"))
            .collect();
        known.sort_unstable();
        known.dedup();
        let known = match known.is_empty() {
            true => "none".to_owned(),
            false => known.join(", "),
        };
        let service = &sentinels.service;
        return Some(Err(Error::config(format!(
            "{label}: the sentinels know no service `{service}`; they know {known}"
        ))));
    }
    if count(&|said| matches!(said, Said::Refused(_))) >= majority {
        let why = said.values().find_map(|said| if let Said::Refused(why) = said { Some(why) } else { None });
        let why = why.map_or("", String::as_str);
        return Some(Err(Error::config(format!("{label}: the sentinels do not tell the master: {why}"))));
    }
    None
}

/// Asks one sentinel. An error is a reason why it is silent.
async fn ask(sentinels: &Sentinels, index: usize) -> Result<Said, String> {
    let (host, port) = &sentinels.hosts[index];
    let tls = sentinels.tls.as_ref().map(|settings| Tls::new(settings, host, None)).transpose();
    let tls = tls.map_err(|error| error.to_string())?;
    let stream = stream::connect(host, *port, tls.as_ref()).await.map_err(|error| error.to_string())?;
    let (connection, drive) = Connection::new(stream, |_| {});
    let asked = async {
        let login = match &sentinels.password {
            None => None,
            Some(password) => {
                let user = sentinels.user.as_deref().unwrap_or("default");
                Some(connection.command(&["AUTH", user, password.reveal()])?)
            }
        };
        let address = connection.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &sentinels.service])?;
        let ended = |_| connection.why_ended();
        if let Some(login) = login
            && let Value::Error(text) = login.await.map_err(ended)?
        {
            return Ok(refused(sentinels, &text));
        }
        match address.await.map_err(ended)? {
            Value::Nil => {
                let known = connection.command(&["SENTINEL", "MASTERS"])?.await.map_err(ended)?;
                Ok(Said::NoSuchService(services(&known)))
            }
            Value::Error(text) => Ok(refused(sentinels, &text)),
            Value::List(words) => {
                let words: Vec<_> = words.iter().filter_map(Value::as_text).collect();
                let read = || match words[..] {
                    [host, port] => Some(Said::Master(host.to_owned(), port.parse().ok()?)),
                    _ => None,
                };
                read().ok_or_else(|| "an answer that makes no sense".to_owned())
            }
            _ => Err("an answer that makes no sense".to_owned()),
        }
    };
    tokio::select! {
        biased;
        said = asked => said,
        () = drive => Err(connection.why_ended()),
    }
}

fn refused(sentinels: &Sentinels, text: &str) -> Said {
    // An unknown command is quoted with its arguments.
    let text = text.split(", with args").next().unwrap_or_default();
    let hidden = sentinels.password.as_ref().map(|password| password.hide_in(text));
    let text = hidden.as_deref().unwrap_or(text);
    match text.split(' ').next().unwrap_or_default() {
        "LOADING" | "BUSY" => Said::Silent(text.to_owned()),
        "WRONGPASS" | "NOAUTH" | "NOPERM" => {
            Said::Refused(format!("{text}; give `sentinel_user` and `sentinel_password` in the URL"))
        }
        _ if text.contains("max number of clients") => Said::Silent(text.to_owned()),
        _ if text.contains("unknown command") => {
            Said::Refused(format!("{text}; the URL names sentinels, mostly at port 26379, and no Redis"))
        }
        _ => Said::Refused(text.to_owned()),
    }
}

/// The names of the services that a sentinel knows.
fn services(masters: &Value) -> Vec<String> {
    let name = |master: &Value| {
        let words = match master {
            Value::List(words) => words.as_slice(),
            _ => return None,
        };
        let at = words.chunks_exact(2).find(|pair| pair[0].as_text() == Some("name"))?;
        at[1].as_text().map(str::to_owned)
    };
    masters.as_list().unwrap_or_default().iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redis::config::{Address, Config};
    use crate::url::StoreUrl;

    fn decided(url: &str, said: &[Said]) -> Option<Result<(String, u16)>> {
        let config = Config::from_url(StoreUrl::parse(url).unwrap()).unwrap();
        let Address::Sentinel(sentinels) = config.address else { panic!("{url}") };
        decide(&sentinels, &said.iter().cloned().enumerate().collect(), "store")
    }

    const THREE: &str = "redis+sentinel://a,b,c/s";

    #[test]
    fn a_majority_of_the_listed_ones_decides() {
        let at = |host: &str| Said::Master(host.to_owned(), 1);
        let silent = || Said::Silent(String::new());
        assert!(decided(THREE, &[at("x")]).is_none(), "one of three that has answered");
        assert!(decided(THREE, &[at("x"), silent(), silent()]).is_none());
        assert!(decided(THREE, &[at("x"), at("y"), silent()]).is_none());
        assert_eq!(decided(THREE, &[at("x"), at("y"), at("y")]).unwrap().unwrap().0, "y");
        assert_eq!(decided("redis+sentinel://a/s", &[at("x")]).unwrap().unwrap().0, "x");
        let four = "redis+sentinel://a,b,c,d/s";
        assert!(decided(four, &[at("x"), at("x"), at("y"), at("y")]).is_none());
    }

    #[test]
    fn a_sentinel_that_has_too_many_clients_is_an_outage() {
        let config = Config::from_url(StoreUrl::parse(THREE).unwrap()).unwrap();
        let Address::Sentinel(sentinels) = config.address else { panic!("{THREE}") };
        let said = refused(&sentinels, "ERR max number of clients reached");
        assert!(matches!(said, Said::Silent(_)), "{said:?}");
    }

    #[test]
    fn what_a_majority_refuses_is_no_outage() {
        let no = |names: &[&str]| Said::NoSuchService(names.iter().map(|&name| name.to_owned()).collect());
        let message = |said: &[Said]| match decided(THREE, said) {
            Some(Err(Error::Config { message })) => message,
            other => panic!("{other:?}"),
        };
        assert!(message(&[no(&["main"]), no(&["main", "old"])]).ends_with("they know `main`, `old`"));
        assert!(message(&[no(&[]), no(&[])]).ends_with("they know none"));
        let refused = || Said::Refused("NOAUTH x".to_owned());
        assert!(message(&[refused(), refused()]).contains("NOAUTH"));
        assert!(decided(THREE, &[refused(), no(&[])]).is_none());
    }
}
