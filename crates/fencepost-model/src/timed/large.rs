//! Large configurations.

use super::rules::{BASE, Keep, Rules};
use crate::search::search;

fn holds(name: &str, rules: Rules) {
    search(&rules, 60_000_000).must_hold(name);
}
const WILD: Rules = Rules { client_clock: [4, -4, 0], ..BASE };

#[test]
#[ignore]
fn l1() { holds("three attempts, a restart, wild", Rules { attempts: 3, restarts: 1, ..WILD }); }
#[test]
#[ignore]
fn l2() { holds("three attempts, a restart", Rules { attempts: 3, restarts: 1, ..BASE }); }
#[test]
#[ignore]
fn l3() { holds("two attempts, 3 restart, 3 rounds end 8", Rules { restarts: 3, rounds: 3, end: 8, ..WILD }); }
#[test]
#[ignore]
fn l4() { holds("s6", Rules { attempts: 3, client: [0,0,1], ..BASE }); }
#[test]
#[ignore]
fn l5() { holds("three attempts, a restart, 1 ext", Rules { attempts: 3, restarts: 1, rounds: 1, ..BASE }); }
#[test]
#[ignore]
fn l6() { holds("explicit 1 restart wild", Rules { restarts: 1, keep: Keep::Everything, ..WILD }); }

#[test]
#[ignore]
fn l7() { holds("s6 releases", Rules { attempts: 3, client: [0,0,1], keep: Keep::Releases, ..BASE }); }
#[test]
#[ignore]
fn l8() { holds("releases, restart, wild", Rules { restarts: 1, keep: Keep::Releases, ..WILD }); }
