//! The promises of Fencepost as functions, for every store and for somebody else's: [`conformance!`] makes a
//! test of each. They wait for conditions, never for time, and compare the order of events, never durations:
//! a
//! slow machine makes them slow, not wrong.
//!
//! [`conformance!`]: crate::conformance!

#![allow(clippy::unwrap_used, missing_docs)]

// The promises.
pub mod cancellation;
pub mod deadline;
pub mod errors;
pub mod identity;
pub mod loss_in_time;
pub mod no_orphans;
pub mod token_order;
pub mod wakeup_is_a_hint;

// What they stand on.
pub mod blocking;
pub mod detach;
pub mod exclusion;
pub mod force_release;
pub mod handles;
pub mod listing;
pub mod names;
pub mod retry;
pub mod scope;
pub mod sets;

mod harness;

pub use harness::{
    Harness, IN_VAIN, LONG, Logged, Needs, SHORT, TestStore, becomes_free, bounded, ms, patient, run, take,
    until,
};

/// Makes a module of tests that hold a store to every promise: `conformance!(mine, start)`, where `start` is
/// a
/// function that returns a [`Harness`](crate::conformance::Harness).
#[macro_export]
macro_rules! conformance {
    ($store:ident, $start:expr) => {
        mod $store {
            $crate::conformance! { @ $start;
            mod cancellation {
                acquire_of_a_free_lock_may_be_dropped_at_any_await: Nothing;
                acquire_of_a_held_lock_may_be_dropped_at_any_await: Nothing;
                acquire_may_be_dropped_while_the_lock_is_handed_over: Nothing;
                a_dropped_waiter_does_not_hold_up_the_next: Nothing;
                a_dropped_acquire_is_undone_when_close_returns: Nothing;
                a_dropped_waiter_is_gone_when_close_returns: Nothing;
                try_acquire_may_be_dropped_at_any_await: Nothing;
                extend_may_be_dropped_at_any_await: Nothing;
                release_may_be_dropped_at_any_await: Nothing;
                detach_may_be_dropped_at_any_await: Nothing;
                attach_may_be_dropped_at_any_await: Nothing;
                scope_may_be_dropped_at_any_await: Nothing;
                a_lock_set_may_be_dropped_at_any_await: Nothing;
                a_dropped_guard_releases: Nothing;
                a_guard_dropped_on_a_plain_thread_releases: Nothing;
                a_guard_dropped_with_its_runtime_releases: Nothing;
                a_waiter_dropped_with_its_runtime_leaves_the_queue: Nothing;
                locks_outlive_the_runtime_they_were_connected_on: Nothing;
            }
            mod deadline {
                a_wait_ends_at_its_deadline_though_the_store_stands_still: Leases;
                an_extension_ends_with_the_lease_though_the_store_stands_still: Leases;
                a_wait_ends_at_its_deadline: Nothing;
                one_deadline_bounds_a_whole_set: Nothing;
            }
            mod errors {
                busy_names_the_holder: Nothing;
                timeout_names_the_holder: Nothing;
                no_password_is_shown_to_a_developer_or_in_an_error: Nothing;
                bad_names_and_options_are_refused_before_anything_is_done: Nothing;
            }
            mod identity {
                a_late_release_does_not_touch_the_next_holder: Leases;
                a_late_drop_does_not_touch_the_next_holder: Leases;
                a_late_extension_does_not_touch_the_next_holder: Leases;
                an_extension_never_creates_a_lock_again: Leases;
                every_acquisition_has_an_owner_of_its_own: Nothing;
            }
            mod loss_in_time {
                a_guard_is_at_risk_and_then_lost_when_the_store_stops: Leases;
                a_lost_guard_stays_lost_when_the_store_comes_back: Leases;
                a_lock_that_is_not_renewed_is_at_risk_and_then_expired: Leases;
                a_removed_lock_is_lost_at_the_next_renewal: Leases;
                an_extension_never_shortens: Leases;
                an_extension_of_a_lost_lock_says_so: Leases;
                renewal_keeps_a_lock_far_beyond_its_ttl: Nothing;
                a_lock_is_given_back_at_its_max_hold: Nothing;
            }
            mod no_orphans {
                a_hundred_names_leave_no_lock_behind: Nothing;
            }
            mod token_order {
                tokens_grow_across_expiry: Leases;
                tokens_grow_across_releases: Nothing;
                tokens_grow_across_dropped_guards: Nothing;
                tokens_grow_across_reconnects: Nothing;
                tokens_grow_across_abandoned_attempts: Nothing;
                the_token_of_a_force_release_lies_between_the_victim_and_the_next: Nothing;
            }
            mod wakeup_is_a_hint {
                a_waiter_gets_a_lock_that_expired_without_a_word: Leases;
                a_waiter_gets_a_lock_that_was_removed_without_a_word: Leases;
                a_try_that_slips_in_before_a_waiter_breaks_nothing: Nothing;
            }
            mod blocking {
                threads_exclude_each_other_without_a_runtime: Nothing;
            }
            mod detach {
                a_detached_lock_stays_held_and_can_be_attached_from_its_text: Detach;
                a_handle_is_good_for_nothing_after_the_release: Detach;
                an_attached_lock_keeps_its_token_and_is_renewed: Detach;
                a_detached_lock_ends_with_its_ttl: Detach;
                a_store_that_cannot_detach_says_so_and_releases: NoDetach;
            }
            mod exclusion {
                only_one_of_fifty_tasks_is_inside_at_a_time: Nothing;
                a_held_lock_is_none_for_a_try_and_free_after_its_release: Nothing;
                one_connection_excludes_another: Nothing;
                a_waiter_gets_the_lock_when_it_is_released: Nothing;
                a_waiter_gets_the_lock_when_the_guard_is_dropped: Nothing;
                different_names_do_not_exclude_each_other: Nothing;
            }
            mod force_release {
                the_victim_learns_the_reason: Nothing;
                with_now_the_lock_is_free_while_the_victim_still_lives: Nothing;
                a_lock_that_nobody_holds_cannot_be_taken_back: Nothing;
                a_politely_revoked_lock_is_not_free_before_its_holder_lets_go: Nothing;
                a_force_release_that_names_a_token_takes_the_lock_from_nobody_else: Nothing;
            }
            mod handles {
                of_two_that_attach_one_handle_the_second_is_told_that_it_is_taken: Detach;
                a_handle_renews_as_often_as_it_likes_and_then_releases: Detach;
                a_forged_token_in_a_handle_is_refused_and_changes_nothing: Detach;
                what_a_store_shows_makes_no_handle: Detach;
                a_release_by_handle_is_the_answer_to_a_force_release: Detach;
                a_renewal_by_handle_never_shortens_the_lease: Detach;
                a_guard_beside_a_renewal_by_handle_still_hears_of_a_force_release: Detach;
                an_attached_guard_whose_lock_was_attached_again_leaves_it_as_well: Detach;
                an_attached_guard_that_is_asked_to_let_go_holds_the_lock_until_it_does: Detach;
                a_guard_whose_lock_was_attached_leaves_it_to_the_next: DetachedLeases;
            }
            mod listing {
                show_says_who_holds_a_lock_and_why: Nothing;
                list_is_sorted_and_cut_to_the_prefix: Nothing;
                nobody_is_shown_after_the_release: Nothing;
                waiters_are_shown_in_order_of_arrival_until_they_wait_no_more: Nothing;
            }
            mod names {
                any_text_is_a_name_of_its_own: Nothing;
            }
            mod retry {
                a_schedule_that_ends_ends_the_wait: Nothing;
                a_schedule_finds_the_lock_when_it_is_free: Nothing;
                a_deadline_bounds_a_schedule_without_end: Nothing;
            }
            mod scope {
                a_scope_releases_and_returns_what_the_work_returned: Nothing;
                a_scope_whose_work_fails_releases_and_returns_its_error: Nothing;
                a_scope_of_several_locks_holds_them_all_and_releases_them: Nothing;
                a_scope_that_panics_releases: Nothing;
                the_work_is_dropped_when_the_lock_is_lost: Nothing;
                work_inside_a_held_guard_keeps_the_guard: Nothing;
            }
            mod sets {
                a_set_holds_every_name_with_a_token_of_its_own: Nothing;
                a_set_holds_nothing_if_one_name_is_not_free: Nothing;
                sets_in_any_order_never_wait_for_each_other: Nothing;
                a_set_is_lost_when_one_of_its_locks_is: Nothing;
            }
            }
        }
    };
    (@ $start:expr; $(mod $promise:ident { $($test:ident: $needs:ident;)+ })+) => {
        $(
            mod $promise {
                use super::super::*;
                use $crate::conformance::{$promise as promise, Needs, run};
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $test() {
                        run(($start)(), Needs::$needs, promise::$test).await;
                    }
                )+
            }
        )+
    };
}
