"""Every known trap of RabbitMQ 3.10 to 4.3 that concerns us, with its tests.

Traps of its Python clients are among them.

A trap that the design avoids altogether (no robust connection, no `async with message.process()`, no job
inside a consumer's callback) is tested by its effect on a user of the broker.
"""

import re
from pathlib import Path
from typing import Final

import pytest

EVERY_VERSION = True

TESTS: Final = Path(__file__).resolve().parents[4]

PUBLISHING = "integration/common/broker/rabbitmq/test_rabbitmq_publishing.py"
CONSUMING = "integration/common/broker/rabbitmq/test_rabbitmq_consuming.py"
LINKS = "integration/common/broker/rabbitmq/test_rabbitmq_links.py"
ACKS = "unit/common/broker/rabbitmq/test_rabbitmq_acks.py"
CONFIRMS = "unit/common/broker/rabbitmq/test_rabbitmq_publisher.py"
WIRE = "unit/common/broker/rabbitmq/test_rabbitmq_wire.py"
CONTRACT = "contract/test_broker.py"

TRAPS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "a publish that waits when the heartbeat fails raises CancelledError; a TaskGroup ends without a word": (
        (PUBLISHING, "test_a_publish_that_waits_when_the_heartbeat_dies_ends_unknown_and_its_task_goes_on"),
        (WIRE, "test_any_error_of_aiormq_is_a_lost_link"),
        (WIRE, "test_a_cancellation_of_ours_stays_one"),
    ),
    "returns are correlated by message id: two in flight with the same one mix up their outcomes": (
        (PUBLISHING, "test_unroutable_and_routable_publishes_in_flight_together_keep_their_own_outcomes"),
        (CONFIRMS, "test_returns_in_flight_together_reach_their_own_messages"),
        (CONTRACT, "test_every_publish_attempt_has_its_own_message_id"),
    ),
    "an unroutable mandatory publish raises nothing by default": (
        (PUBLISHING, "test_unroutable_and_routable_publishes_in_flight_together_keep_their_own_outcomes"),
    ),
    "a lost connection cancels what runs in the consumer's callbacks": (
        (CONSUMING, "test_acks_of_a_lost_connection_are_harmless"),
    ),
    "a delivery comes again while its first copy is being worked on": (
        (CONSUMING, "test_acks_of_a_lost_connection_are_harmless"),
        (CONSUMING, "test_a_blocked_event_loop_costs_a_redelivery_and_no_more"),
    ),
    "a drain by cancellation rejects without requeue: healthy jobs become dead letters": (
        (CONSUMING, "test_leaving_hands_everything_back_and_nothing_to_the_dead_letters"),
        (CONSUMING, "test_an_error_in_the_body_hands_everything_back_too"),
    ),
    "nack(requeue) does not count toward the delivery limit since 4.3: a poison message goes round forever": (
        (CONSUMING, "test_retrying_forever_ends_in_the_dead_letters_by_the_brokers_own_limit"),
        (ACKS, "test_a_multiple_never_covers_what_was_refused"),
    ),
    "prefetched deliveries of a closed channel count one failure each": (
        (CONSUMING, "test_leaving_hands_everything_back_and_nothing_to_the_dead_letters"),
        (ACKS, "test_giving_back_is_one_frame"),
    ),
    "a consumer that the broker cancelled (timeout, deleted queue) is renewed under the same tag, which 4.3 refuses": (
        (CONSUMING, "test_acks_of_a_channel_the_broker_closed_are_harmless"),
        (CONSUMING, "test_a_queue_that_stays_deleted_is_declared_again"),
    ),
    "a consumer is silently deaf after a reconnect, connection and channel open": (
        (LINKS, "test_many_faults_under_load_lose_nothing_that_was_confirmed"),
        (LINKS, "test_connections_closed_by_an_operator_come_back"),
        (LINKS, "test_a_broker_that_comes_back_empty_gets_everything_declared_again"),
    ),
    "a publish that timed out may arrive later, or not": (
        (PUBLISHING, "test_a_blocked_broker_is_reported_and_what_was_not_sent_never_arrives"),
        (PUBLISHING, "test_not_connected_ends_unknown_with_the_reason_and_is_not_sent_later"),
        (CONTRACT, "test_a_publish_that_is_cancelled_does_not_disturb_the_others"),
    ),
    "one inequivalent declaration after a reconnect fails forever and takes the other channels with it": (
        (LINKS, "test_a_queue_that_became_another_while_we_were_away_stops_only_its_own_consumer"),
        (LINKS, "test_an_inequivalent_queue_names_both_sides_and_leaves_the_connection_usable"),
        (LINKS, "test_an_inequivalent_exchange_is_a_mismatch_too"),
    ),
    "random faults under load": (
        (LINKS, "test_many_faults_under_load_lose_nothing_that_was_confirmed"),
        (LINKS, "test_a_restart_in_the_middle_of_publishing_and_consuming_loses_nothing"),
        (LINKS, "test_a_killed_broker_loses_nothing_it_confirmed"),
    ),
    "a missing exchange closes the channel: all publishes in flight fail though some were taken": (
        (PUBLISHING, "test_a_missing_exchange_rejects_its_own_messages_and_the_channel_recovers"),
        (CONFIRMS, "test_only_what_the_broker_blames_is_rejected"),
        (CONFIRMS, "test_an_exchange_deleted_meanwhile_may_have_taken_all_but_the_last"),
    ),
    "a full queue with reject-publish answers with a nack": (
        (PUBLISHING, "test_a_full_queue_rejects"),
        (CONFIRMS, "test_confirms_out_of_order_and_overlapping_settle_each_message_once"),
    ),
    "a message above the server's limit closes the channel, and would again at every retry": (
        (PUBLISHING, "test_a_message_above_the_servers_limit_is_rejected_not_unknown_forever"),
        (CONFIRMS, "test_a_message_that_is_too_large_is_rejected"),
    ),
    "a blocked connection takes no acks and answers no declaration; there is no public sign of it": (
        (PUBLISHING, "test_a_blocked_broker_is_reported_and_what_was_not_sent_never_arrives"),
        (PUBLISHING, "test_acks_and_declarations_work_during_an_alarm"),
    ),
    "one connection for both directions": (
        (LINKS, "test_there_is_a_connection_for_each_direction_under_a_name_a_person_finds"),
    ),
    "a connect loop swallows cancellation: the process never ends": (
        (LINKS, "test_a_cancelled_process_that_is_still_connecting_ends"),
        (LINKS, "test_cancellation_at_any_moment_of_opening_ends_it"),
        (LINKS, "test_closing_while_connecting_does_not_hang"),
        (WIRE, "test_a_cancellation_that_came_together_with_the_answer_is_not_forgotten"),
    ),
    "a broker that hangs up before its first frame is read raises StopAsyncIteration: nobody connects again": (
        (LINKS, "test_a_broker_that_has_hung_up_before_we_read_is_outlived"),
        (LINKS, "test_another_server_at_the_address_is_survived"),
    ),
    "closing over a black hole takes as long as the heartbeat": (
        (LINKS, "test_closing_over_a_black_hole_is_bounded_and_ends_every_waiting_publish"),
    ),
    "a blocked event loop: the server drops us, acks fail, the delivery comes again": (
        (CONSUMING, "test_a_blocked_event_loop_costs_a_redelivery_and_no_more"),
    ),
    "a queue deleted and made again by an operator is declared with the old arguments before he can": (
        (CONSUMING, "test_a_queue_deleted_and_made_again_by_an_operator_is_consumed_again"),
    ),
    "ack(multiple) and single acks overlap: unknown delivery tag, and the whole channel is delivered again": (
        (ACKS, "test_every_delivery_is_settled_once_and_as_decided"),
        (CONSUMING, "test_acks_from_many_tasks_in_any_order_settle_everything_once"),
        (CONTRACT, "test_settling_again_changes_nothing"),
    ),
    "acks after a reconnect reach another delivery": (
        (CONSUMING, "test_acks_of_a_lost_connection_are_harmless"),
        (CONTRACT, "test_settling_after_leaving_changes_nothing_and_does_not_raise"),
    ),
    "counters and x-death that a client published are passed on as the broker's own": (
        (CONSUMING, "test_the_counters_a_client_put_on_a_message_are_not_believed"),
        (CONSUMING, "test_a_refused_message_keeps_its_properties_and_says_why"),
    ),
    "a dead letter that cannot be published is lost, with a dead-letter exchange nobody is bound to": (
        (CONSUMING, "test_a_message_whose_dead_letter_cannot_be_published_is_dead_lettered_by_the_broker"),
        (CONSUMING, "test_a_dead_letter_exchange_without_a_queue_loses_nothing"),
    ),
    "tables nested a thousand deep are passed on; a client that recurses into them dies at every delivery": (
        (
            "integration/common/broker/rabbitmq/test_hostile_headers.py",
            "test_a_message_with_a_thousand_nested_arrays_ends_no_orchestrator",
        ),
        (
            "integration/common/broker/rabbitmq/test_hostile_headers.py",
            "test_every_hostile_header_is_a_dead_letter_and_the_good_job_behind_it_is_taken",
        ),
    ),
    "headers larger than a frame cost the connection, again at every retry": (
        (
            "integration/common/broker/rabbitmq/test_hostile_headers.py",
            "test_headers_above_the_frame_are_refused_and_cost_no_connection",
        ),
    ),
    "classic queues of RabbitMQ 4 confirm before they sync, and a power cut loses what was confirmed": (
        (PUBLISHING, "test_a_confirm_that_promises_nothing_is_told_and_logged"),
        (
            "integration/common/broker/test_synced_confirms.py",
            "test_each_message_is_synced_before_its_confirm_exactly_where_that_is_declared",
        ),
    ),
    "a killed consumer": ((CONSUMING, "test_what_a_killed_consumer_held_comes_again_once"),),
    "the socket of a client that reconnects takes the port of the stopped server": (
        (WIRE, "test_a_socket_that_reached_itself_is_refused"),
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_has_the_tests_that_are_named_for_it(trap: str) -> None:
    for module, test in TRAPS[trap]:
        text = (TESTS / module).read_text()
        assert re.search(rf"\bdef {test}\(", text), f"{module} has no {test}"
