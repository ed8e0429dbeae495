//! Every store is held to the promises of Fencepost, which `fencepost_testkit::conformance` has as functions.
//!
//! Tests are named `store::promise::what_is_promised`.

use fencepost_testkit::conformance::Harness;
use fencepost_testkit::local::Kind;

fencepost_testkit::conformance!(memory, fencepost_testkit::memory::harness);

macro_rules! on {
    ($($store:ident $name:literal),+ $(,)?) => {
        $( fencepost_testkit::conformance!($store, || harness($name)); )+
    };
}

fencepost_testkit::for_each_store!(on);

fn harness(name: &str) -> Harness {
    (name.parse::<Kind>().expect("a store of the test kit").row().harness)()
}
