"""`solstice topology`: the exchanges and queues on the broker."""

import asyncio
from typing import Annotated

import typer
from pydantic import Field

from solstice_cli.local import local_broker_url
from solstice_common.broker import open_broker
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import print_json, said_when_slow
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.settings import BrokerSettings, without_password
from solstice_common.topology import full_topology

app = typer.Typer(
    help="The exchanges and queues on the broker.", no_args_is_help=True, context_settings=CONTEXT_SETTINGS
)

CONNECT_SECONDS = 10.0


class LocalBrokerSettings(BrokerSettings):
    """The broker; without a word about it, the embedded one that `solstice up` uses."""

    amqp_url: str = Field(
        default_factory=local_broker_url,
        description="Broker: amqp:// or amqps:// for RabbitMQ, sqlite:///FILE for the embedded one.",
    )


@app.command()
@with_settings(LocalBrokerSettings)
def show(
    settings: BrokerSettings,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what there must be on the broker; asks nobody."""
    topology = full_topology(settings)
    if as_json:
        print_json(
            {
                "exchanges": [{"name": e.name, "type": e.kind, "durable": True} for e in topology.exchanges],
                "queues": [
                    {"name": q.name, "durable": True, "arguments": dict(q.arguments)} for q in topology.queues
                ],
                "bindings": [
                    {"exchange": b.exchange, "queue": b.queue, "routing_key": b.routing_key}
                    for b in topology.bindings
                ],
            }
        )
        return
    for exchange in topology.exchanges:
        typer.echo(f"exchange  {exchange.name}  {exchange.kind}, durable")
    for queue in topology.queues:
        arguments = ", ".join(f"{name}={value}" for name, value in sorted(queue.arguments.items()))
        typer.echo(f"queue     {queue.name}  durable{', ' if arguments else ''}{arguments}")
    for binding in topology.bindings:
        typer.echo(f"binding   {binding.exchange} -> {binding.queue}  key {binding.routing_key!r}")


@app.command()
@with_settings(LocalBrokerSettings)
def declare(
    settings: BrokerSettings,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make sure that everything is there; safe to repeat, changes nothing that exists."""
    topology = full_topology(settings)

    async def work() -> str:
        async with open_broker(settings.amqp_url, name="solstice topology") as broker:
            await broker.ready(CONNECT_SECONDS)
            await broker.declare(topology)
            return broker.url

    with said_when_slow(f"the broker at {without_password(settings.amqp_url)}"):
        url = asyncio.run(work())
    if as_json:
        print_json({"broker": url, "declared": True})
    else:
        typer.echo(f"declared {len(topology.exchanges)} exchanges and {len(topology.queues)} queues on {url}")
