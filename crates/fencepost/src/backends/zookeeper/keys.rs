//! Where locks are: `CHROOT/PREFIX/NAME/_c_OWNER-lock-SEQUENCE`, as Curator's `InterProcessMutex` names its
//! nodes. kazoo's `…__lock__SEQUENCE` nodes stand in the same queue.

use crate::{Name, Owner, text};

/// What stands between the identity of a contender and its number.
const MARKS: [&str; 2] = ["-lock-", "__lock__"];

/// From this number on a folder serves nobody. The server's counter does not wrap: it stays at 2^31 - 1, with
/// a stray
/// -2^31 in between, and nobody can tell any more who came first. Requests under way must not get that far.
const LAST: i32 = i32::MAX - (1 << 20);

/// The folder that has a folder for each name.
pub(super) fn base(chroot: &str, prefix: &str) -> String {
    let parts = chroot.split('/').chain(prefix.split('/')).filter(|part| !part.is_empty());
    parts.map(|part| format!("/{part}")).collect()
}

/// The folder whose children contend for a name.
pub(super) fn folder(base: &str, name: &Name) -> String {
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

/// The path of a contender's node; the server appends the number.
pub(super) fn new_node(folder: &str, owner: Owner) -> String {
    format!("{folder}/_c_{owner}{}", MARKS[0])
}

/// A node that contends for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    node: String,
    sequence: i32,
}

impl Contender {
    /// Reads a child's name; `None` if it is not a contender.
    pub(super) fn parse(node: &str) -> Option<Self> {
        let (at, mark) = MARKS.iter().filter_map(|mark| Some((node.rfind(mark)?, mark))).max()?;
        let digits = &node[at + mark.len()..];
        // Ten characters at least; an eleventh can only be the sign of a counter at its end.
        let bare = digits.strip_prefix('-').unwrap_or(digits);
        if digits.len() < 10 || bare.len() > 10 || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self { node: node.to_owned(), sequence: digits.parse().ok()? })
    }

    pub(super) fn path(&self, folder: &str) -> String {
        format!("{folder}/{}", self.node)
    }

    /// Whose it is; `None` for clients of other make.
    pub(super) fn owner(&self) -> Option<Owner> {
        let owner = self.node.strip_prefix("_c_")?.split_once(MARKS[0])?.0;
        owner.parse().ok()
    }
}

/// The contenders among the children of a name, first come first.
pub(super) fn queue(children: &[String]) -> Vec<Contender> {
    let mut queue: Vec<_> = children.iter().filter_map(|child| Contender::parse(child)).collect();
    // A number below zero comes from a counter at its end, so it is after all others.
    queue.sort_by_key(|contender| (contender.sequence < 0, contender.sequence));
    queue
}

/// Whether the folder's counter is near its end: then the order of the queue is not to be trusted.
pub(super) fn is_used_up(queue: &[Contender]) -> bool {
    queue.iter().any(|contender| contender.sequence < 0 || contender.sequence >= LAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn contenders_of_every_make_stand_in_one_queue() {
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
        let queue = queue(&children.map(str::to_owned));
        let nodes: Vec<_> = queue.iter().map(|contender| contender.node.as_str()).collect();
        assert_eq!(nodes, [ours.as_str(), "5e1f__lock__0000000004", "_c_2bd1-lock-0000000010"]);
        assert_eq!(queue.iter().map(Contender::owner).collect::<Vec<_>>(), [Some(owner), None, None]);
    }

    #[test]
    fn a_folder_whose_counter_is_near_its_end_is_used_up() {
        let used_up = |number: i32| {
            is_used_up(&queue(&["x-lock-0000000001".to_owned(), format!("y-lock-{number:010}")]))
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
        assert_eq!(folder("/l", &Name::new("..").unwrap()), "/l/%2E%2E");
    }

    proptest! {
        #[test]
        fn every_name_has_a_node_of_its_own(text in "[^\\x00]{1,60}") {
            let given = Name::new(&text).unwrap();
            let path = folder("/l", &given);
            let child = path.strip_prefix("/l/").unwrap();
            prop_assert!(!child.contains('/') && child != "." && child != "..");
            prop_assert_eq!(name(child), Some(given));
        }

        #[test]
        fn no_child_makes_it_panic(
            node in ".{0,40}",
            numbers in proptest::collection::vec(any::<i32>(), 0..40),
        ) {
            let _ = Contender::parse(&node).map(|contender| contender.owner());
            let nodes: Vec<_> = numbers.iter().map(|number| format!("x-lock-{number:010}")).collect();
            prop_assert!(queue(&nodes).len() <= nodes.len());
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
            let queue = queue(&nodes);
            prop_assert!(!is_used_up(&queue));
            let queue: Vec<_> = queue.into_iter().map(|contender| contender.node).collect();
            prop_assert_eq!(queue, created);
        }
    }
}
