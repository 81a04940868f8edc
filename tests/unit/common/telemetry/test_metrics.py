"""Metrics come from declarations in a class body."""

from enum import StrEnum

from solstice_common.telemetry.metrics import MetricsTable, counter, gauge, histogram


class Drink(StrEnum):
    TEA = "tea"
    COFFEE = "coffee"


class Kitchen(MetricsTable):
    orders = counter(
        "kitchen_orders_total", "Orders.", labels=("drink", "reason"), at_zero=((Drink.TEA, "thirst"),)
    )
    drinks = counter("kitchen_drinks_total", "Drinks made.", labels=("drink",), at_zero=Drink)
    kettles = gauge("kitchen_kettles", "Kettles that are on.")
    waits = histogram("kitchen_wait_seconds", "Time from an order to its drink.", buckets=(1, 5))


def samples(kitchen: Kitchen) -> set[str]:
    text = kitchen.text().decode()
    return {line for line in text.splitlines() if line.startswith("kitchen_") and "_created" not in line}


def test_metric_is_rendered_as_declared() -> None:
    kitchen = Kitchen()
    kitchen.orders.labels("coffee", "").inc(2)
    kitchen.kettles.set(3)
    kitchen.waits.observe(2)
    assert samples(kitchen) == {
        'kitchen_orders_total{drink="tea",reason="thirst"} 0.0',
        'kitchen_orders_total{drink="coffee",reason=""} 2.0',
        'kitchen_drinks_total{drink="tea"} 0.0',
        'kitchen_drinks_total{drink="coffee"} 0.0',
        "kitchen_kettles 3.0",
        'kitchen_wait_seconds_bucket{le="1.0"} 0.0',
        'kitchen_wait_seconds_bucket{le="5.0"} 1.0',
        'kitchen_wait_seconds_bucket{le="+Inf"} 1.0',
        "kitchen_wait_seconds_count 1.0",
        "kitchen_wait_seconds_sum 2.0",
    }


def test_documentation_lists_declarations_in_order() -> None:
    assert [(metric.name, metric.type, metric.labels, metric.help) for metric in Kitchen.declared()] == [
        ("kitchen_orders_total", "counter", ("drink", "reason"), "Orders."),
        ("kitchen_drinks_total", "counter", ("drink",), "Drinks made."),
        ("kitchen_kettles", "gauge", (), "Kettles that are on."),
        ("kitchen_wait_seconds", "histogram", (), "Time from an order to its drink."),
    ]


def test_two_tables_count_apart() -> None:
    one, other = Kitchen(), Kitchen()
    one.drinks.labels(Drink.TEA).inc()
    assert 'kitchen_drinks_total{drink="tea"} 0.0' in samples(other)


def test_a_child_class_has_the_metrics_of_its_parent() -> None:
    class Parent(MetricsTable):
        runs = counter("solstice_runs_total", "Runs.")

    class Child(Parent):
        """A table with nothing of its own."""

    child = Child()
    child.runs.inc()
    assert b"solstice_runs_total 1.0" in child.text()
