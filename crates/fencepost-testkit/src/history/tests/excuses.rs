//! What a broken server explains, and what it does not.

use std::time::Duration;

use super::*;
use crate::local::{Blow, Kind};
use crate::{etcd, postgres, redis, zookeeper};

const REDIS: Kind = Kind(&redis::LOCAL);
const POSTGRES: Kind = Kind(&postgres::LOCAL);
const ETCD: Kind = Kind(&etcd::LOCAL_CLUSTER);
const ZOOKEEPER: Kind = Kind(&zookeeper::LOCAL_ENSEMBLE);

const TTL: Duration = Duration::from_secs(2);

fn fault(target: Target, from: u64, to: u64, excuse: Option<Excuse>) -> Fault {
    Fault {
        kind: "blow".to_owned(),
        target,
        from: ms(from),
        struck: Some(ms(from)),
        to: Some(ms(to)),
        excuse,
    }
}

fn server(from: u64, to: u64, excuse: Option<Excuse>) -> Fault {
    fault(Target::Server("server 2".to_owned()), from, to, excuse)
}

/// Whether all that these events break is legitimate.
fn excused(events: &[Event], faults: &[Fault]) -> bool {
    let (_, violations) = Checker::check(events, faults);
    assert!(!violations.is_empty());
    violations.iter().all(|violation| violation.excused.is_some())
}

/// Client 1 is granted a lock at `first` for a ttl, client 2 at `second`, and both hold it for `both`.
fn two(first: u64, second: u64, both: u64) -> Vec<Event> {
    vec![
        invoke(first - 100, 1),
        acquired(first, 1, 7, first + 2000),
        invoke(first, 2),
        acquired(second, 2, 8, second + 2000),
        released(second + both, 1, first + 2000),
        released(second + both + 50, 2, second + 2000),
    ]
}

#[test]
fn what_was_granted_when_all_servers_were_well_has_no_excuse() {
    let well = [
        invoke(1400, 1),
        acquired(1600, 1, 7, 3600),
        invoke(1500, 2),
        acquired(1700, 2, 8, 3700),
        released(3400, 1, 3600),
        released(3450, 2, 3700),
    ];
    for (kind, blow) in
        [(ZOOKEEPER, Blow::Kill), (ETCD, Blow::Pause), (REDIS, Blow::Empty), (POSTGRES, Blow::Kill)]
    {
        assert!(!excused(&well, &[server(1000, 1500, kind.excuse(blow, TTL, true))]), "{}", kind.0.name);
    }
}

#[test]
fn one_redis_that_forgot_explains_overlaps_with_what_it_had_granted_before() {
    let empty = |from, to| [server(from, to, REDIS.excuse(Blow::Empty, TTL, false))];
    assert!(excused(&two(500, 1200, 300), &empty(1000, 1100)));
    assert!(!excused(&two(500, 1200, 300), &empty(1300, 1400)), "it began before the fault");
    let renewed = event(1150, 1, What::Held { until: Some(ms(3140)) });
    assert!(
        !excused(&[two(500, 1200, 300), vec![renewed]].concat(), &empty(1000, 1100)),
        "it was renewed since"
    );
    let mut harmless = empty(1000, 1100);
    harmless[0].struck = None;
    assert!(!excused(&two(500, 1200, 300), &harmless), "it had no effect");
}

#[test]
fn an_etcd_leader_that_wakes_up_is_an_excuse_and_a_paused_follower_is_none() {
    let paused = |replaced| [server(1000, 2000, ETCD.excuse(Blow::Pause, TTL, replaced))];
    assert!(excused(&two(900, 2300, 300), &paused(true)));
    assert!(!excused(&two(900, 2300, 300), &paused(false)));
    assert!(!excused(&two(900, 1500, 300), &paused(true)), "it stood still");
}

#[test]
fn a_crash_of_postgres_explains_what_it_can_lose_and_whom_it_cannot_tell() {
    let crash = server(1000, 1100, POSTGRES.excuse(Blow::Kill, TTL, false));
    let stopped = |client| fault(Target::Client(client), 1010, 1800, None);
    assert!(excused(&two(600, 1200, 300), &[crash.clone(), stopped(1)]));
    assert!(!excused(&two(600, 1200, 300), &[crash.clone(), stopped(2)]), "the holder was told");
    assert!(!excused(&two(300, 1200, 300), &[crash.clone(), stopped(1)]), "its lease was on disk");
    let command = |first| {
        let mut events = two(first, 1200, 300);
        events[1].what = What::Acquired { token: 7, until: None };
        events[4].what = What::Released { until: None };
        events
    };
    assert!(excused(&command(600), std::slice::from_ref(&crash)), "its wrapper stood still");
    assert!(!excused(&command(300), std::slice::from_ref(&crash)), "its lease was on disk");
    let old = [
        invoke(0, 1),
        acquired(1, 1, 7, 10_000),
        invoke(2, 2),
        acquired(5600, 2, 8, 7600),
        released(6000, 1, 10_000),
        released(6100, 2, 7600),
    ];
    let late = server(5001, 5500, POSTGRES.excuse(Blow::Kill, TTL, false));
    assert!(!excused(&old, &[late]));
}

#[test]
fn a_zookeeper_server_explains_half_a_lease_and_no_more() {
    let killed = [server(1000, 1500, ZOOKEEPER.excuse(Blow::Kill, TTL, false))];
    assert!(excused(&two(900, 1600, 1000), &killed));
    assert!(!excused(&two(900, 1600, 1100), &killed));
}

#[test]
fn tokens_out_of_turn_have_the_excuses_of_exclusion_and_others_have_none() {
    let forgot = [server(1000, 1100, REDIS.excuse(Blow::Empty, TTL, false))];
    // Granted before the loss, and told late.
    let told_late = |asked| {
        [
            invoke(900, 1),
            invoke(asked, 2),
            acquired(1200, 1, 8, 3200),
            released(1201, 1, 3200),
            acquired(1300, 2, 7, 2950),
            released(1301, 2, 2950),
        ]
    };
    assert!(excused(&told_late(950), &forgot));
    assert!(!excused(&told_late(1150), &forgot), "it was asked for when all was well");
    assert!(!excused(&told_late(1250), &forgot), "it was asked for after the larger one was granted");
}

#[test]
fn a_lock_is_lost_early_only_if_something_was_broken() {
    let lost_to = |why: &str| {
        let lost = What::Lost { why: why.to_owned(), until: ms(1000) };
        [invoke(900, 1), acquired(1000, 1, 7, 3000), event(1500, 1, lost)]
    };
    let own = |client| fault(Target::Client(client), 1200, 1300, None);
    assert!(excused(&lost_to("taken"), &[server(1200, 1300, None)]));
    assert!(!excused(&lost_to("taken"), &[own(1)]), "what happens to a client takes no lock from it");
    assert!(excused(&lost_to("session ended"), &[own(1)]));
    assert!(!excused(&lost_to("session ended"), &[own(2)]), "it is somebody else's");
    assert!(!excused(&lost_to("taken"), &[server(1600, 1700, None)]), "it came later");
}
