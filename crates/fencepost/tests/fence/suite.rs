//! What every kind of resource promises.

use fencepost::fence::{Error, Fence, StaleToken};
use fencepost_testkit::Folder;

use crate::harness::{Database, bounded, calm, fresh, places, redis, token};

fn refusal(said: Result<(), Error>) -> Option<StaleToken> {
    said.err().map(|error| error.stale().unwrap_or_else(|| panic!("{error}")).clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_holder_is_refused_and_changes_nothing() {
    for place in places().await {
        let resource = place.fence.resource(fresh("stale"));
        let first = resource.activate(token(7)).await.unwrap();
        assert_eq!(first.read().await.unwrap(), None, "{}: nothing was written yet", place.kind);
        first.write("from 7").await.unwrap();
        first.write("again from 7").await.unwrap();
        let second = resource.activate(token(8)).await.unwrap();
        assert_eq!(second.read().await.unwrap().as_deref(), Some(b"again from 7".as_slice()));
        let expected = StaleToken::new(first.name().as_str(), token(7), token(8));
        assert_eq!(refusal(first.write("late").await), Some(expected.clone()), "{}", place.kind);
        assert_eq!(refusal(first.read().await.map(drop)), Some(expected.clone()), "{}", place.kind);
        assert_eq!(refusal(resource.activate(token(7)).await.map(drop)), Some(expected.clone()));
        assert_eq!(refusal(resource.write_once(token(7), "late").await), Some(expected));
        assert_eq!(
            second.read().await.unwrap().as_deref(),
            Some(b"again from 7".as_slice()),
            "{}",
            place.kind
        );
        second.write("from 8").await.unwrap();
        assert_eq!(second.read().await.unwrap().as_deref(), Some(b"from 8".as_slice()), "{}", place.kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_one_shot_token_has_one_effect() {
    for place in places().await {
        let resource = place.fence.resource(fresh("once"));
        resource.write_once(token(7), "sent").await.unwrap();
        let again = refusal(resource.write_once(token(7), "sent twice").await).unwrap();
        assert_eq!((again.presented, again.highest), (token(7), token(7)), "{}", place.kind);
        resource.write_once(token(9), "sent by the next").await.unwrap();
        assert_eq!(refusal(resource.write_once(token(8), "late").await).unwrap().highest, token(9));
        let active = resource.activate(token(9)).await.unwrap();
        assert_eq!(active.read().await.unwrap().as_deref(), Some(b"sent by the next".as_slice()));
        let activated = place.fence.resource(fresh("once"));
        activated.activate(token(7)).await.unwrap();
        let seen = refusal(activated.write_once(token(7), "x").await).unwrap();
        assert_eq!(seen.highest, token(7), "{}: an activated token was seen", place.kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_are_apart_whatever_their_names() {
    for place in places().await {
        let start = fresh("name");
        let names = ["a", "a.value", "a.guard", "A", "a/b", "../a", "{a}", "%7Ba%7D", "ä ö", "a\n", "'; --"];
        for (number, name) in names.iter().enumerate() {
            let resource = place.fence.resource(format!("{start}{name}"));
            let active = resource.activate(token(1000 - number as u64)).await.unwrap();
            active.write(name).await.unwrap();
        }
        for (number, name) in names.iter().enumerate() {
            let resource = place.fence.resource(format!("{start}{name}"));
            let active = resource.activate(token(1000 - number as u64)).await.unwrap();
            let value = active.read().await.unwrap();
            assert_eq!(value.as_deref(), Some(name.as_bytes()), "{}", place.kind);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_bytes_and_the_largest_token_survive() {
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    for place in places().await {
        let resource = place.fence.resource(fresh("bytes"));
        let active = resource.activate(token((1 << 53) - 1)).await.unwrap();
        for value in [&bytes[..], b"", b"\0", b"fencepost-fence 1 7 3\nabc"] {
            active.write(value).await.unwrap();
            assert_eq!(active.read().await.unwrap().as_deref(), Some(value), "{}", place.kind);
        }
        let late = refusal(resource.activate(token((1 << 53) - 2)).await.map(drop)).unwrap();
        assert_eq!((late.presented.get(), late.highest.get()), ((1 << 53) - 2, (1 << 53) - 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_the_newest_is_last() {
    for place in places().await {
        let name = fresh("crowd");
        let mut tasks = Vec::new();
        for number in 1..=24 {
            let resource = place.fence.resource(&name);
            tasks.push(tokio::spawn(async move {
                let Ok(active) = resource.activate(token(number)).await else { return };
                let _ = active.write(number.to_string()).await;
            }));
        }
        for task in tasks {
            bounded("all come to an end", task).await.unwrap();
        }
        let active = place.fence.resource(&name).activate(token(24)).await.unwrap();
        assert_eq!(active.read().await.unwrap().as_deref(), Some(b"24".as_slice()), "{}", place.kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_names_and_urls_are_refused_before_anything_happens() {
    for place in places().await {
        for name in ["", "a\0b", &"x".repeat(513)] {
            let error = place.fence.resource(name).activate(token(1)).await.unwrap_err();
            assert!(matches!(error, Error::Failed(fencepost::Error::Invalid { .. })), "{error:?}");
            assert!(error.to_string().contains("512"), "{error}");
        }
    }
    for url in [
        "etcd://h",
        "memory:x",
        "file:",
        "file://host/path",
        "redis://h?ttl=5s",
        "redis://a,b",
        "postgres://h/d?durable=no",
        "postgres://h/d?schema=x",
        "nonsense",
    ] {
        let error = Fence::connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Failed(fencepost::Error::Invalid { .. })), "{url}: {error:?}");
    }
}

#[test]
fn the_blocking_interface_refuses_the_same() {
    let folder = Folder::new("suite");
    let file = format!("file://{}", folder.path().display());
    let urls = ["memory:".to_owned(), file, calm(&redis().url()), Database::new().url()];
    for url in urls {
        let fence = fencepost::fence::blocking::Fence::connect(&url).unwrap();
        let resource = fence.resource(fresh("blocking"));
        let first = resource.activate(token(7)).unwrap();
        first.write("one").unwrap();
        resource.write_once(token(8), "two").unwrap();
        assert_eq!(refusal(first.write("late")).unwrap().highest, token(8));
        let second = resource.activate(token(8)).unwrap();
        assert_eq!(second.read().unwrap().as_deref(), Some(b"two".as_slice()));
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let inside = runtime.block_on(async { fencepost::fence::blocking::Fence::connect("memory:") });
    assert!(inside.unwrap_err().to_string().contains("async"));
}
