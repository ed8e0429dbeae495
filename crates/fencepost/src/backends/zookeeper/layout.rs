//! Where locks are: `CHROOT/PREFIX/NAME/_c_OWNER-lock-SEQUENCE`, as Curator's `InterProcessMutex` names its nodes.
//! kazoo's `…__lock__SEQUENCE` nodes stand in the same line.

use crate::{Name, Owner, text};

/// What stands between the identity of a contender and its number.
const MARKS: [&str; 2] = ["-lock-", "__lock__"];

/// The folder that has a folder for each name.
pub(super) fn base(chroot: &str, prefix: &str) -> String {
    let mut out = String::new();
    for part in chroot.split('/').chain(prefix.split('/')).filter(|part| !part.is_empty()) {
        out.push('/');
        out.push_str(part);
    }
    out
}

/// From this number on a folder serves nobody. The server's counter does not wrap: it stays at 2^31 - 1, with a stray
/// -2^31 in between, and who came first cannot be told any more. This many nodes before, nobody is hurt yet.
const LAST: i32 = i32::MAX - (1 << 20);

/// The node whose children contend for a name.
pub(super) fn parent(base: &str, name: &Name) -> String {
    // Neither a single dot nor two are a node's name.
    let encoded = match name.as_str() {
        dots @ ("." | "..") => dots.replace('.', "%2E"),
        name => text::encode(name, b":"),
    };
    format!("{base}/{encoded}")
}

/// The name that a child of the base folder stands for.
pub(super) fn name(child: &str) -> Option<Name> {
    text::decode(child).and_then(|name| Name::new(&name).ok())
}

/// What a contender's node is to be called; the server adds the number.
pub(super) fn stem(parent: &str, owner: Owner) -> String {
    format!("{parent}/_c_{owner}{}", MARKS[0])
}

/// A node that contends for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) node: String,
    sequence: i32,
}

impl Contender {
    /// Reads a child's name; `None` if it is not a contender.
    pub(super) fn parse(node: &str) -> Option<Self> {
        let (at, mark) = MARKS.iter().filter_map(|mark| Some((node.rfind(mark)?, mark))).max()?;
        let digits = &node[at + mark.len()..];
        // Ten characters at least; the eleventh can only be the sign of a counter that is at its end.
        let bare = digits.strip_prefix('-').unwrap_or(digits);
        if digits.len() < 10 || bare.len() > 10 || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self { node: node.to_owned(), sequence: digits.parse().ok()? })
    }

    /// Whose it is; `None` for a client of other make, and for Curator's own.
    pub(super) fn owner(&self) -> Option<Owner> {
        let owner = self.node.strip_prefix("_c_")?.split_once(MARKS[0])?.0;
        owner.parse().ok()
    }
}

/// The contenders among the children of a name, first come first.
pub(super) fn line(children: &[String]) -> Vec<Contender> {
    let mut line: Vec<_> = children.iter().filter_map(|child| Contender::parse(child)).collect();
    // A number below zero comes from a counter at its end, so behind all others.
    line.sort_by_key(|contender| (contender.sequence < 0, contender.sequence));
    line
}

/// Whether the folder's counter is near its end: then the order of a line is not to be trusted.
pub(super) fn is_used_up(line: &[Contender]) -> bool {
    line.iter().any(|contender| contender.sequence < 0 || contender.sequence >= LAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn contenders_of_every_make_stand_in_one_line() {
        let owner = Owner::fresh();
        let ours = format!("_c_{owner}-lock-0000000003");
        let children = [
            "_c_2bd1-lock-0000000010",
            &ours,
            "5e1f__lock__0000000004",
            "lease-0000000001",
            "-lock-1",
            "x-lock-00000000010",
        ];
        let line = line(&children.map(str::to_owned));
        let nodes: Vec<_> = line.iter().map(|contender| contender.node.as_str()).collect();
        assert_eq!(nodes, [ours.as_str(), "5e1f__lock__0000000004", "_c_2bd1-lock-0000000010"]);
        assert_eq!(line.iter().map(Contender::owner).collect::<Vec<_>>(), [Some(owner), None, None]);
    }

    #[test]
    fn a_folder_whose_counter_is_near_its_end_is_used_up() {
        let used_up = |number: i32| {
            is_used_up(&line(&["x-lock-0000000001".to_owned(), format!("y-lock-{number:010}")]))
        };
        for number in [i32::MAX, i32::MIN, -1, i32::MAX - (1 << 20)] {
            assert!(used_up(number), "{number}");
        }
        for number in [0, 2, i32::MAX - (1 << 20) - 1] {
            assert!(!used_up(number), "{number}");
        }
    }

    #[test]
    fn the_folder_is_made_of_chroot_and_prefix() {
        assert_eq!(base("/app/x/", "locks"), "/app/x/locks");
        assert_eq!(base("", "a/b"), "/a/b");
        assert_eq!(base("/", ""), "");
        assert_eq!(parent("/l", &Name::new("..").unwrap()), "/l/%2E%2E");
    }

    proptest! {
        #[test]
        fn every_name_has_a_node_of_its_own(text in "[^\\x00]{1,60}") {
            let given = Name::new(&text).unwrap();
            let path = parent("/l", &given);
            let child = path.strip_prefix("/l/").unwrap();
            prop_assert!(!child.contains('/') && child != "." && child != "..");
            prop_assert_eq!(name(child), Some(given));
        }

        #[test]
        fn no_child_makes_it_panic(node in ".{0,40}", numbers in proptest::collection::vec(any::<i32>(), 0..40)) {
            let _ = Contender::parse(&node).map(|contender| contender.owner());
            let nodes: Vec<_> = numbers.iter().map(|number| format!("x-lock-{number:010}")).collect();
            prop_assert!(line(&nodes).len() <= nodes.len());
        }

        #[test]
        fn the_order_is_that_of_creation(
            first in 0..LAST - 20_000,
            steps in proptest::collection::vec(1i32..1000, 1..20),
            turn in 0usize..20,
        ) {
            let mut sequence = first;
            let mut nodes = Vec::new();
            for step in steps {
                nodes.push(format!("x-lock-{sequence:010}"));
                sequence += step;
            }
            let created = nodes.clone();
            let middle = turn % nodes.len();
            nodes.rotate_left(middle);
            let line = line(&nodes);
            prop_assert!(!is_used_up(&line));
            let line: Vec<_> = line.into_iter().map(|contender| contender.node).collect();
            prop_assert_eq!(line, created);
        }
    }
}
