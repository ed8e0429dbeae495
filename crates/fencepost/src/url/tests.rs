use super::*;
use proptest::prelude::*;

fn host(name: &str, port: Option<u16>) -> Host {
    Host { name: name.to_owned(), port, scheme: None, login: None }
}

#[test]
fn the_nodes_of_redlock_have_schemes_and_logins() {
    let url = StoreUrl::parse("redlock://me:p%2C1@a:1,b,:p2@c/2?ttl=5s").unwrap();
    let login = |user: Option<&str>, password: &str| {
        Some((user.map(str::to_owned), Some(Password::new(password.to_owned()))))
    };
    let logins: Vec<_> = url.hosts.iter().map(|host| host.login.clone()).collect();
    assert_eq!(logins, [login(Some("me"), "p,1"), login(Some("me"), "p,1"), login(None, "p2")]);
    assert_eq!((url.path.as_str(), url.to_string().as_str()), ("/2", "redlock://a:1,b,c/2"));
    let url = StoreUrl::parse("redlock:redis://a:1,rediss://u:s3cret@b/,c?x=1").unwrap();
    let schemes: Vec<_> = url.hosts.iter().map(|host| host.scheme.as_deref()).collect();
    assert_eq!(schemes, [Some("redis"), Some("rediss"), None]);
    assert!(!format!("{url} {url:?} {:?}", url.hosts).contains("s3cret"));
    for text in ["redlock://a,,b", "redlock:a/b,c,d", "redlock://u:s3,cret@a,b,c", "redlock:"] {
        let message = StoreUrl::parse(text).unwrap_err().to_string();
        assert!(message.contains("commas") && !message.contains("cret"), "{message}");
    }
}

#[test]
fn every_form_is_taken_apart() {
    let url = StoreUrl::parse("redis://me:p%40s:s@example.org:7000/3?ttl=5s").unwrap();
    assert_eq!((url.scheme.as_str(), url.path.as_str()), ("redis", "/3"));
    assert_eq!(
        (url.user.as_deref(), url.password.as_ref().map(Password::reveal)),
        (Some("me"), Some("p@s:s"))
    );
    assert_eq!(url.hosts, [host("example.org", Some(7000))]);
    let url = StoreUrl::parse("redlock://a:1,b,[::1]:3").unwrap();
    assert_eq!(url.hosts, [host("a", Some(1)), host("b", None), host("::1", Some(3))]);
    assert_eq!(url.to_string(), "redlock://a:1,b,[::1]:3");
    for (text, path) in [
        ("file:", ""),
        ("file:locks", "locks"),
        ("file:///var/lock", "/var/lock"),
        ("file:/var/lock", "/var/lock"),
        ("file:a%20b?ttl=1s", "a b"),
        ("redis+unix:///run/redis.sock", "/run/redis.sock"),
    ] {
        assert_eq!(StoreUrl::parse(text).unwrap().path, path, "{text}");
    }
    let url = StoreUrl::parse("redis://:secret@h").unwrap();
    assert_eq!((url.user, url.password.as_ref().map(Password::reveal)), (None, Some("secret")));
}

#[test]
fn broken_urls_are_refused() {
    for text in
        ["", "redis", "redis://h:port", "redis://[::1", "redis://a,,b", "redis://h?x", "redis://h?a=1&a=2"]
    {
        assert!(matches!(StoreUrl::parse(text), Err(Error::Invalid { .. })), "{text}");
    }
}

#[test]
fn a_password_that_should_have_been_escaped_is_not_quoted() {
    for text in [
        "redis://u:s3cret/pw@h",
        "redis://:s3cret/pw@h",
        "redis://u:123/s3cret@h",
        "redis://u:s3cret?a=b@h",
        "redis://u:12?s3cret=b@h",
        "redis://u:s3cret/pw",
        "redlock:redis://a,redis://b,redis://u:12?s3cret=x@c",
    ] {
        let message = StoreUrl::parse(text).unwrap_err().to_string();
        assert!(!message.contains("s3cret"), "{message}");
    }
}

#[test]
fn an_unknown_parameter_names_the_known_ones() {
    let mut url = StoreUrl::parse("redis://h?ttl=5s&tll=3s").unwrap();
    assert_eq!(url.take_duration("ttl").unwrap(), Some(Duration::from_secs(5)));
    assert_eq!(url.take("prefix"), None);
    let message = url.finish().unwrap_err().to_string();
    assert!(message.contains("`tll`") && message.contains("`prefix`, `ttl`"), "{message}");
}

/// Texts that are nearly URLs of a scheme, with the password `s3cret`.
pub(crate) fn nearly_a_url(schemes: &str) -> impl Strategy<Value = String> + use<> {
    let login = "([a-z%]{0,3}(:s3cret)?@)?";
    let hosts = "[a-c0-9:,.\\[\\]%@ -]{0,14}";
    let path = "(/[a-z0-9/%.:]{0,10})?";
    let name = "(ttl|timeout|prefix|db|keys|allow|ca|cert|key|server_name|max_ttl|quarantine|drift|deployment\
                |schema|lock_delay|durable|sequence|sslmode|mode|x)";
    let value = "[a-z0-9%.,-]{0,8}";
    let text = format!("({schemes}):/?/?{login}{hosts}{path}(\\?({name}={value}&?){{0,4}})?");
    proptest::string::string_regex(&text).unwrap()
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,60}", url in nearly_a_url("[a-z+]{0,8}")) {
        for text in [text, url] {
            if let Ok(mut url) = StoreUrl::parse(&text) {
                let _ = (url.take("prefix"), url.take_duration("ttl"), url.finish());
            }
        }
    }

    #[test]
    fn a_password_is_never_printed(secret in "[a-z]{12}", rest in "[ -~]{0,20}") {
        let text = format!("redis://u:{secret}@{rest}");
        match StoreUrl::parse(&text) {
            Ok(url) => {
                let shown = format!("{url} {url:?}");
                prop_assert!(!shown.contains(&secret) || rest.contains('/') && rest.contains('@'));
            }
            Err(error) => prop_assert!(!error.to_string().contains(&secret)),
        }
    }
}
