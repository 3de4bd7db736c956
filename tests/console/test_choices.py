"""The transition table is the one of docs/operations: no more, no less."""

from __future__ import annotations

from console.choices import (
    HOLDING_STATES,
    OPEN_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    UNSENT_STATES,
    JobState,
)


def test_every_state_is_in_the_table_and_terminal_states_lead_nowhere():
    assert set(TRANSITIONS) == set(JobState)
    assert {state for state, after in TRANSITIONS.items() if not after} == TERMINAL_STATES


def test_nothing_leads_back_once_it_was_sent():
    for state in (JobState.DISPATCHED, JobState.RECONCILING):
        assert not TRANSITIONS[state] & UNSENT_STATES
    assert JobState.DISPATCHED not in TRANSITIONS[JobState.RECONCILING]


def test_only_reconciling_can_be_interrupted_and_only_unsent_jobs_go_back():
    into = {to: {state for state in JobState if to in TRANSITIONS[state]} for to in JobState}
    assert into[JobState.INTERRUPTED] == {JobState.RECONCILING}
    assert into[JobState.ACCEPTED] == {JobState.CLAIMED}
    assert into[JobState.DISPATCHED] == {JobState.CLAIMED}
    assert into[JobState.SUCCEEDED] == {JobState.DISPATCHED, JobState.RECONCILING}


def test_open_holding_and_terminal_divide_the_states():
    assert set(JobState) == OPEN_STATES | TERMINAL_STATES
    assert HOLDING_STATES < OPEN_STATES
