"""How often a core is started again, and who is blamed for its death."""

from __future__ import annotations

from octavo.engine.restarts import RestartBudget, Suspicion


def test_restarts_are_bounded_and_further_and_further_apart() -> None:
    budget = RestartBudget(5, 100.0)
    assert [budget.take(float(now)) for now in range(6)] == [0.0, 0.5, 1.0, 2.0, 4.0, None]
    # The first one is forgotten after the window, and one is free again.
    assert budget.take(99.9) is None
    assert budget.take(100.0) == 4.0
    assert budget.take(100.5) is None
    assert budget.take(500.0) == 0.0


def test_no_restarts_at_all() -> None:
    assert RestartBudget(0, 100.0).take(0.0) is None


def test_pauses_have_a_limit() -> None:
    budget = RestartBudget(50, 1e6)
    assert max(pause for now in range(50) if (pause := budget.take(float(now))) is not None) == 30.0


def test_who_was_there_twice_is_tried_alone_and_found_guilty() -> None:
    suspicion = Suspicion()
    assert suspicion.crashed(["a", "b", "poison"]) is None
    assert suspicion.next_trial() is None
    assert suspicion.crashed(["b", "poison", "c"]) is None
    assert suspicion.next_trial() == "b"
    assert suspicion.next_trial() == "b"
    assert suspicion.clear("b")
    assert suspicion.next_trial() == "poison"
    assert suspicion.crashed(["b", "poison"]) == "poison"
    assert suspicion.next_trial() is None
    # Nobody else carries anything over.
    assert suspicion.crashed(["b", "c"]) is None
    assert suspicion.next_trial() is None


def test_who_got_a_token_in_between_is_no_suspect() -> None:
    suspicion = Suspicion()
    suspicion.crashed(["a", "b"])
    assert not suspicion.clear("a")
    suspicion.crashed(["a", "b"])
    assert suspicion.next_trial() == "b"


def test_a_core_that_dies_before_the_trial_began_convicts_nobody() -> None:
    suspicion = Suspicion()
    suspicion.crashed(["a"])
    suspicion.crashed(["a"])
    assert suspicion.next_trial() == "a"
    assert suspicion.crashed([]) is None
    assert suspicion.next_trial() is None


def test_a_suspect_that_goes_away_is_forgotten() -> None:
    suspicion = Suspicion()
    suspicion.crashed(["a", "b"])
    suspicion.crashed(["a", "b"])
    assert not suspicion.clear("b")
    assert suspicion.next_trial() == "a"
    assert suspicion.clear("a")
    assert suspicion.next_trial() is None
