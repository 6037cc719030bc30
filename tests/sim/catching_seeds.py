"""For each planted defect a seed whose run catches it.

A seed plays the same run until dice are added or thrown in another order. Where one no longer catches its defect the test searches, which
takes longer; `python -m tests.sim.catching_seeds` searches for all defects and prints this table anew.
"""

from __future__ import annotations

CATCHING_SEEDS = {
    "changelog_is_not_written": 3,
    "tombstones_are_not_written": 0,
    "tombstones_stand_behind_the_rows": 350,
    "position_is_one_too_far": 1,
    "ledger_does_not_say_what_was_not_held": 2,
    "ledger_forgets_closed_groups": 3,
    "replay_floor_is_too_high": 4,
    "clean_stop_forgets_replayable_groups": 99,
    "commit_does_not_wait_for_deliveries": 72,
    "positions_move_without_outputs": 1,
    "outputs_go_outside_the_transaction": 2,
    "nobody_is_fenced": 4,
    "every_fence_is_taken_for_a_time_out": 118,
    "group_metadata_is_refreshed_for_an_old_batch": 1,
    "transaction_in_doubt_is_written_again": 444,
    "ticks_are_written_without_positions": 2,
    "no_new_epoch_after_doubt": 45,
    "suspicion_is_not_heeded": 190,
    "restore_is_bounded_by_the_last_stable_offset": 14,
    "committed_offsets_are_not_stable": 65,
    "end_offsets_are_asked_first": 65,
    "restore_ends_at_the_last_record_seen": 3,
    "restore_reads_uncommitted": 0,
    "age_begins_anew_with_a_restore": 8,
    "generation_is_not_restored": 11,
    "memory_of_closed_groups_is_not_restored": 1,
    "clock_is_not_restored": 1,
    "deadlines_are_not_scheduled_after_a_restore": 4,
    "restore_that_is_overtaken_blames_the_logs": 440,
    "replay_ignores_closed_groups": 3,
    "replay_ignores_what_was_not_held": 4,
    "replay_remembers_no_more_closed_groups_than_the_worker": 15,
    "replay_knows_closed_groups_by_id_without_position": 38,
    "replay_window_is_cut_too_early": 8,
    "reopened_groups_stay_replayable": 11,
    "emptied_ledger_is_taken_for_a_new_one": 20,
    "offset_that_was_reset_is_believed": 1,
    "replay_does_not_look_where_the_input_begins": 25,
    "hole_in_the_ledger_is_not_seen": 25,
    "paused_partitions_are_never_resumed": 3,
    "memory_limit_is_not_heeded": 82,
    "no_restore_after_an_abort": 10,
    "no_seek_after_an_abort": 1,
    "half_applied_batch_is_kept": 129,
    "revoked_partitions_keep_their_state": 1,
    "expiry_by_the_wall_clock_during_backlog": 2,
    "end_offset_is_asked_before_the_clock": 315,
    "asking_again_waits_for_the_wall_clock": 656,
    "every_append_time_is_believed": 17,
    "append_time_that_leaps_tells_the_time": 26,
    "what_a_command_changed_is_not_written": 32,
    "group_that_a_command_changed_stays_replayable": 1,
    "ledger_forgets_commands": 3,
    "position_of_commands_is_not_committed": 1,
    "commands_are_read_from_the_start_after_every_restore": 0,
    "tick_does_not_wait_for_commands": 94,
    "commands_do_not_wait_for_what_came_before_them": 2,
    "commands_that_waited_are_kept_when_their_partition_goes": 3,
    "cancel_of_an_id_that_is_not_open_is_answered_and_forgotten": 4,
    "partial_unit_comes_out_before_its_components_are_available": 311,
    "release_does_not_wait_until_what_it_delivers_is_available": 238,
    "the_last_claim_counts": 53,
    "a_placement_ends_while_its_group_is_open": 11,
    "claims_are_not_read_back": 83,
    "ordered_units_do_not_wait": 31,
    "lines_of_ordered_units_are_not_restored": 54,
    "unit_of_a_route_stays_in_the_default_topic_too": 5,
    "last_route_that_accepts_a_unit_wins": 19,
    "producer_is_kept_after_a_clean_abort": 280,
    "only_broken_connections_are_doubtful": 37,
    "deaf_producer_is_used": 3,
    "full_send_buffer_drops_the_record": 126,
    "commands_are_not_sought_back": 8,
    "blocked_partition_is_not_tried_again": 82,
    "restore_keeps_what_went_meanwhile": 16,
    "what_a_smaller_poll_leaves_is_not_read_again": 165,
    "restore_resumes_what_is_paused_for_want_of_memory": 16,
    "partition_that_was_paused_when_it_went_is_never_read_again": 22,
    "promoted_components_lose_what_their_headers_said": 8,
    "component_that_a_command_took_out_keeps_its_row": 52,
    "unit_that_fits_no_record_is_remembered_as_delivered": 0,
    "replayable_groups_outlive_their_bounds_but_age": 7,
    "idle_partition_keeps_its_replayable_groups": 49,
    "replay_reads_under_the_newest_settings": 181,
    "replay_forgets_what_was_left_in_the_input": 22,
    "rows_that_the_changelog_lost_are_not_missed": 20,
    "lost_offsets_are_taken_for_a_first_start": 28,
    "refused_records_lose_their_key": 0,
    "components_given_up_lose_the_headers_they_came_with": 2,
    "every_expired_group_goes_to_errors": 5,
    "outcome_of_a_group_that_never_opened_is_not_reported": 2,
    "unit_goes_where_its_key_hashes": 26,
    "row_of_a_rule_is_lost_in_a_restore": 0,
    "unknown_rows_are_refused_without_reading_the_rules": 5,
    "component_ids_are_forgotten_in_a_restore": 0,
}


def main() -> None:
    from tests.sim.test_simulated_defects import SEARCHED, SEEDS, search

    for name in SEARCHED:
        kept = CATCHING_SEEDS.get(name)
        seeds = range(SEEDS) if kept is None else (kept, *range(SEEDS))
        print(f'    "{name}": {search(name, seeds)},', flush=True)


if __name__ == "__main__":
    main()
