//! Promise 7: each kind of trouble has an error of its own, that names the holder and never a password.

use fencepost::{Error, Locks};

#[tokio::test]
async fn a_bad_url_is_invalid_and_says_what_would_be_right() {
    for (url, word) in [
        ("", "scheme"),
        ("localhost", "scheme"),
        ("mongodb://localhost", "known are"),
        ("redis://localhost:port", "host"),
        ("redis://localhost?tll=5s", "`ttl`"),
        ("redis://localhost?ttl=5", "duration"),
        ("redis://localhost?ttl=1ms", "ttl"),
        ("memory:?x=1", "`ttl`"),
        ("file:?x=1", "`ttl`"),
    ] {
        let error = Locks::connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
    }
}
