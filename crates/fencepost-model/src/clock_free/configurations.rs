//! What is searched. The small ones run with every test; the large ones, marked as ignored, with `make model`.

use super::any_token::AnyToken;
use super::client::Rule;
use super::model::{ClockFree, Scripts};
use super::mutants::Rule as Mutant;
use crate::search::search;

/// More states than any of these has.
const MOST: usize = 400_000_000;

/// One test a line: the model, how many nodes and attempts, what differs from the plain one, and what it must come to.
macro_rules! searches {
    ($($(#[$attribute:meta])* $test:ident: $model:ident <$($size:literal),+> { $($change:tt)* } $verdict:ident $(($rule:literal))?;)*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $test() {
                let name = stringify!($test).replace('_', " ");
                let model = $model::<$($size),+> { $($change)*, ..$model::PLAIN };
                search(&model, MOST).$verdict(&name $(, $rule)?);
            }
        )*
    };
}

mod production {
    use super::*;

    searches! {
        three_nodes_two_attempts: ClockFree<3, 2> { in_full: false } must_hold;
        three_nodes_two_attempts_in_full: ClockFree<3, 2> { in_full: true } must_hold;
        three_nodes_three_attempts: ClockFree<3, 3> { in_full: false } must_hold;
        #[ignore = "large"]
        three_nodes_four_attempts: ClockFree<3, 4> { in_full: false } must_hold;
        five_nodes_two_attempts: ClockFree<5, 2> { in_full: false } must_hold;
        #[ignore = "large"]
        five_nodes_three_attempts: ClockFree<5, 3> { in_full: false } must_hold;

        #[ignore = "large"]
        three_nodes_two_attempts_one_node_first_in_full: ClockFree<3, 2> { in_full: true, in_order: true } must_hold;

        three_nodes_two_attempts_any_proposals: ClockFree<3, 2> { proposals: &[0, 2, 4] } must_hold;
        #[ignore = "large"]
        three_nodes_three_attempts_any_proposals: ClockFree<3, 3> { proposals: &[0, 2, 4] } must_hold;
        three_nodes_two_attempts_redelivered: ClockFree<3, 2> { redeliveries: 1 } must_hold;
        #[ignore = "large"]
        three_nodes_two_attempts_redelivered_twice: ClockFree<3, 2> { redeliveries: 2 } must_hold;
        #[ignore = "large"]
        three_nodes_three_attempts_redelivered: ClockFree<3, 3> { redeliveries: 1 } must_hold;
        #[ignore = "large"]
        five_nodes_two_attempts_redelivered: ClockFree<5, 2> { redeliveries: 1 } must_hold;
        #[ignore = "large"]
        three_nodes_two_attempts_redelivered_in_full: ClockFree<3, 2> { in_full: true, redeliveries: 1 } must_hold;

        three_nodes_two_attempts_in_a_crowd: ClockFree<3, 2> { crowd: 4 } must_hold;
        #[ignore = "large"]
        three_nodes_two_attempts_redelivered_in_a_crowd: ClockFree<3, 2> { crowd: 4, redeliveries: 1 } must_hold;
        #[ignore = "large"]
        five_nodes_two_attempts_in_a_crowd: ClockFree<5, 2> { crowd: 4 } must_hold;

        #[ignore = "large"]
        three_nodes_two_attempts_extended_in_full: ClockFree<3, 2> { in_full: true, extends: true } must_hold;
        three_nodes_three_attempts_extended: ClockFree<3, 3> { extends: true } must_hold;
        #[ignore = "large"]
        three_nodes_four_attempts_extended: ClockFree<3, 4> { extends: true } must_hold;

        #[ignore = "large"]
        three_nodes_an_attempt_and_a_revocation_in_full: ClockFree<3, 2> { in_full: true, revocations: 1 } must_hold;
        #[ignore = "large"]
        three_nodes_two_attempts_and_a_revocation_in_full: ClockFree<3, 3> { in_full: true, revocations: 1 } must_hold;
        three_nodes_two_revocations_in_full: ClockFree<3, 2> { in_full: true, revocations: 2 } must_hold;
    }
}

mod whatever_clients_do {
    use super::*;

    searches! {
        three_nodes: AnyToken<3> { largest: 4 } must_hold;
        five_nodes: AnyToken<5> { largest: 3 } must_hold;
        #[ignore = "large"]
        three_nodes_up_to_ten: AnyToken<3> { largest: 10 } must_hold;
        #[ignore = "large"]
        five_nodes_up_to_five: AnyToken<5> { largest: 5 } must_hold;
        #[ignore = "large"]
        seven_nodes: AnyToken<7> { largest: 3 } must_hold;
        a_confirmation_without_the_counter_breaks_it: AnyToken<3> { without_counter: true } must_break("UNIQUE");
    }
}

/// Each must be found out.
mod wrong {
    use super::*;

    searches! {
        token_of_the_first_grant: ClockFree<3, 2> { rule: Rule::Mutant(Mutant::First) } must_break("UNIQUE");
        largest_without_confirmation: ClockFree<3, 2> { rule: Rule::Mutant(Mutant::Largest) } must_break("UNIQUE");
        largest_that_a_majority_reaches: ClockFree<3, 2> { rule: Rule::Mutant(Mutant::MajorityReaches) } must_break("UNIQUE");
        written_back_to_any_of_three: ClockFree<3, 2> {
            rule: Rule::Mutant(Mutant::WriteBack), scripts: Scripts::ConfirmWithoutKey
        } must_break("UNIQUE");
        written_back_to_any_of_five: ClockFree<5, 2> {
            rule: Rule::Mutant(Mutant::WriteBack), scripts: Scripts::ConfirmWithoutKey
        } must_break("UNIQUE");
        confirmed_without_the_key: ClockFree<3, 2> { scripts: Scripts::ConfirmWithoutKey } must_break("UNIQUE");
        counter_taken_back_on_failure: ClockFree<3, 3> { scripts: Scripts::DecrementOnFailure } must_break("UNIQUE");
        empty_restart: ClockFree<3, 2> { restarts: 1 } must_break("UNIQUE");
        confirmed_without_the_counter: ClockFree<3, 2> {
            redeliveries: 1, scripts: Scripts::ConfirmWithoutCounter
        } must_break("UNIQUE");
        second_grant_taken_for_a_confirmation: ClockFree<3, 2> {
            redeliveries: 1, rule: Rule::Mutant(Mutant::SecondGrantConfirms)
        } must_break("UNIQUE");
        votes_counted_by_reply: ClockFree<3, 2> {
            redeliveries: 1, rule: Rule::Mutant(Mutant::CountsReplies)
        } must_break("UNIQUE");
        confirmations_of_a_smaller_token_kept: ClockFree<3, 3> { rule: Rule::Mutant(Mutant::KeepsAcks) } must_break("UNIQUE");
        revocations_that_look_alike: ClockFree<3, 2> {
            revocations: 2, scripts: Scripts::RevocationsAreAlike
        } must_break("UNIQUE");
    }
}
