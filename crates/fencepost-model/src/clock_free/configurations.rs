//! What is searched. The small ones run with every test; the large ones, marked as ignored, with `make
//! model`.

use super::client::Rule;
use super::model::{ClockFree, Scripts};
use super::mutants::Rule as Mutant;
use crate::search::search;

/// More states than any of these has.
const MOST: usize = 400_000_000;

/// A test each: the model, how many nodes (and attempts), what differs from the plain one, what it must come
/// to.
macro_rules! searches {
    ($(
        $(#[$attribute:meta])*
        $test:ident: $model:ident<$($size:literal),+> $plain:ident { $($change:tt)* }
            $verdict:ident $(($rule:literal))?;
    )*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $test() {
                let name = stringify!($test).replace('_', " ");
                let model = $model::<$($size),+> { $($change)* ..$model::$plain };
                search(&model, MOST).$verdict(&name $(, $rule)?);
            }
        )*
    };
}

mod production {
    use super::*;

    searches! {
        three_nodes_two_attempts: ClockFree<3, 2> PLAIN {} must_hold;
        three_nodes_two_attempts_in_full: ClockFree<3, 2> PLAIN { in_full: true, } must_hold;
        three_nodes_three_attempts: ClockFree<3, 3> PLAIN {} must_hold;
        #[ignore = "large"]
        three_nodes_four_attempts: ClockFree<3, 4> PLAIN {} must_hold;
        five_nodes_two_attempts: ClockFree<5, 2> PLAIN {} must_hold;

        #[ignore = "large"]
        three_nodes_two_attempts_one_node_first_in_full: ClockFree<3, 2> PLAIN {
            in_full: true, in_order: true,
        } must_hold;

        three_nodes_two_attempts_any_proposals: ClockFree<3, 2> PLAIN { proposals: &[0, 2, 4], } must_hold;
        #[ignore = "large"]
        three_nodes_three_attempts_any_proposals: ClockFree<3, 3> PLAIN { proposals: &[0, 2, 4], } must_hold;
        three_nodes_two_attempts_redelivered: ClockFree<3, 2> PLAIN { redeliveries: 1, } must_hold;

        three_nodes_two_attempts_in_a_crowd: ClockFree<3, 2> PLAIN { crowd: 4, } must_hold;
        #[ignore = "large"]
        three_nodes_two_attempts_redelivered_in_a_crowd: ClockFree<3, 2> PLAIN {
            crowd: 3, redeliveries: 1,
        } must_hold;
        #[ignore = "large"]
        five_nodes_two_attempts_in_a_crowd: ClockFree<5, 2> PLAIN { crowd: 3, } must_hold;

        #[ignore = "large"]
        three_nodes_two_attempts_extended_in_full: ClockFree<3, 2> PLAIN {
            in_full: true, extends: true,
        } must_hold;
        three_nodes_three_attempts_extended: ClockFree<3, 3> PLAIN { extends: true, } must_hold;
        #[ignore = "large"]
        three_nodes_four_attempts_extended: ClockFree<3, 4> PLAIN { extends: true, } must_hold;

        #[ignore = "large"]
        three_nodes_an_attempt_and_a_revocation_in_full: ClockFree<3, 2> PLAIN {
            in_full: true, revocations: 1,
        } must_hold;
        #[ignore = "large"]
        three_nodes_two_revocations_in_full: ClockFree<3, 2> PLAIN {
            in_full: true, revocations: 2,
        } must_hold;
    }
}

mod whatever_clients_do {
    use super::super::any_token::{AnyToken, Scripts};
    use super::*;

    const WITHOUT_COUNTER: Scripts = Scripts::ConfirmWithoutCounter;
    const WITHOUT_KEY: Scripts = Scripts::ConfirmWithoutKey;

    searches! {
        three_nodes_never_the_same: AnyToken<3> SAME {} must_hold;
        three_nodes_never_falling: AnyToken<3> FALLING {} must_hold;
        five_nodes_never_the_same: AnyToken<5> SAME {} must_hold;
        five_nodes_never_falling: AnyToken<5> FALLING {} must_hold;
        four_nodes_never_the_same: AnyToken<4> SAME {} must_hold;
        four_nodes_never_falling: AnyToken<4> FALLING {} must_hold;
        seven_nodes_never_the_same: AnyToken<7> SAME {} must_hold;
        seven_nodes_never_falling: AnyToken<7> FALLING {} must_hold;
        #[ignore = "large"]
        nine_nodes_never_the_same: AnyToken<9> SAME {} must_hold;
        #[ignore = "large"]
        nine_nodes_never_falling: AnyToken<9> FALLING {} must_hold;

        the_same_without_the_counter: AnyToken<3> SAME { scripts: WITHOUT_COUNTER, } must_break("UNIQUE");
        falling_without_the_counter: AnyToken<3> FALLING { scripts: WITHOUT_COUNTER, } must_break("ORDER");
        the_same_without_the_key: AnyToken<3> SAME { scripts: WITHOUT_KEY, } must_break("UNIQUE");
    }
}

/// Each must be found out.
mod wrong {
    use super::*;

    searches! {
        token_of_the_first_grant: ClockFree<3, 2> PLAIN {
            rule: Rule::Mutant(Mutant::First),
        } must_break("UNIQUE");
        largest_without_confirmation: ClockFree<3, 2> PLAIN {
            rule: Rule::Mutant(Mutant::Largest),
        } must_break("UNIQUE");
        largest_that_a_majority_reaches: ClockFree<3, 2> PLAIN {
            rule: Rule::Mutant(Mutant::MajorityReaches),
        } must_break("UNIQUE");
        written_back_to_any_of_three: ClockFree<3, 2> PLAIN {
            rule: Rule::Mutant(Mutant::WriteBack), scripts: Scripts::ConfirmWithoutKey,
        } must_break("UNIQUE");
        written_back_to_any_of_five: ClockFree<5, 2> PLAIN {
            rule: Rule::Mutant(Mutant::WriteBack), scripts: Scripts::ConfirmWithoutKey,
        } must_break("UNIQUE");
        confirmed_without_the_key: ClockFree<3, 2> PLAIN {
            scripts: Scripts::ConfirmWithoutKey,
        } must_break("UNIQUE");
        counter_taken_back_on_failure: ClockFree<3, 3> PLAIN {
            scripts: Scripts::DecrementOnFailure,
        } must_break("UNIQUE");
        empty_restart: ClockFree<3, 2> PLAIN { restarts: 1, } must_break("UNIQUE");
        confirmed_without_the_counter: ClockFree<3, 2> PLAIN {
            redeliveries: 1, scripts: Scripts::ConfirmWithoutCounter,
        } must_break("UNIQUE");
        second_grant_taken_for_a_confirmation: ClockFree<3, 2> PLAIN {
            redeliveries: 1, rule: Rule::Mutant(Mutant::SecondGrantConfirms),
        } must_break("UNIQUE");
        votes_counted_by_reply: ClockFree<3, 2> PLAIN {
            redeliveries: 1, rule: Rule::Mutant(Mutant::CountsReplies),
        } must_break("UNIQUE");
        confirmations_of_a_smaller_token_kept: ClockFree<3, 3> PLAIN {
            rule: Rule::Mutant(Mutant::KeepsAcks),
        } must_break("UNIQUE");
        revocations_that_look_alike: ClockFree<3, 2> PLAIN {
            revocations: 2, scripts: Scripts::RevocationsAreAlike,
        } must_break("UNIQUE");
    }
}
