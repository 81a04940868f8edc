"""`solstice topology`: the exchanges and queues on the broker."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import Field

from solstice_cli.local import local_broker_url
from solstice_cli.output.dead_letters import confirm
from solstice_cli.output.migrations import (
    MigrationProgress,
    done_document,
    plan_document,
    print_done,
    print_nothing,
    print_plans,
)
from solstice_cli.output.topology_differences import check_document, exit_for, print_differences
from solstice_common.broker import granted_rights, open_broker, read_topology
from solstice_common.broker.rabbitmq.migration.migration_plan import QueueMigration
from solstice_common.broker.rabbitmq.migration.queue_migration import MigrationPlan, MigrationResult, planned
from solstice_common.broker.rabbitmq.migration.queue_migration import migrate as migrate_queue
from solstice_common.broker.topology_check import topology_differences
from solstice_common.cli.options import FOR_PASSWORDS, with_settings
from solstice_common.cli.output import AsJson, note_when_slow, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.errors import ConfigurationError
from solstice_common.rights.rights_check import comparable_rights, rights_differences, targets_of
from solstice_common.rights.role_users import user_of, users_of_roles
from solstice_common.rights.roles import Role
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import (
    BROKER_URL_DESCRIPTION,
    BrokerSettings,
    known_broker_url,
    without_password,
)
from solstice_common.topology import Topology, full_topology
from solstice_common.values.quantities import quantity

app = typer.Typer(
    help="Exchanges and queues: show, declare, check, migrate; the users for them.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)

CONNECT_SECONDS = 10.0


class LocalBrokerSettings(BrokerSettings):
    """The broker; by default the embedded one that `solstice up` uses."""

    amqp_url: SecretUrl = Field(
        default_factory=local_broker_url,
        description=BROKER_URL_DESCRIPTION,
    )


@app.command()
@with_settings(LocalBrokerSettings)
def show(
    settings: BrokerSettings,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the expected topology. The broker is not contacted."""
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
    as_json: AsJson = False,
) -> None:
    """Create what is missing at the broker. Nothing that exists changes."""
    topology = full_topology(settings)

    async def work() -> str:
        async with open_broker(settings.amqp_url, name="solstice topology") as broker:
            await broker.ready(CONNECT_SECONDS)
            await broker.declare(topology)
            return broker.url

    with note_when_slow(f"the broker at {without_password(settings.amqp_url)}"):
        url = asyncio.run(work())
    if as_json:
        print_json({"broker": url, "declared": True})
    else:
        typer.echo(f"declared {len(topology.exchanges)} exchanges and {len(topology.queues)} queues on {url}")


ManagementUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="MANAGEMENT_URL",
        help=f"RabbitMQ's management API, perhaps with the user of an operator. (MANAGEMENT_URL{FOR_PASSWORDS})",
        show_envvar=False,
        show_default="http://HOST:15672",
    ),
]


@app.command()
@with_settings(LocalBrokerSettings)
def check(
    settings: BrokerSettings,
    *,
    management_url: ManagementUrl = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose permissions to check.", show_default="the user of the URL"),
    ] = None,
    role: Annotated[
        list[Role] | None,
        typer.Option("--role", help="Compare this user's rights with those of the role; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the broker with what must be there, and name each difference with its remedy.

    With --role, compare the rights of a user with those of its roles: what it lacks, and what it may do beyond them. RabbitMQ
    and Redis tell that to an administrator, NATS to the user of the URL.

    Changes nothing. Exit 1 when something differs.
    """
    where = without_password(settings.amqp_url)
    if role:
        _check_rights(settings, role, user, management_url, as_json=as_json)
        return
    topology = full_topology(settings)
    split = full_topology(settings.model_copy(update={"amqp_priorities": "split"}))
    with note_when_slow(f"the broker at {where}"):
        on_broker = asyncio.run(
            read_topology(settings.amqp_url, split, management_url=management_url, user=user)
        )
    differences = topology_differences(topology, on_broker, left=split)
    if as_json:
        print_json({**check_document(where, differences), "unknown": list(on_broker.unknown)})
    else:
        print_differences(
            differences,
            none=f"{len(topology.exchanges)} exchanges and {len(topology.queues)} queues on {where}: as they must be",
        )
        for sentence in on_broker.unknown:
            typer.echo(f"not checked: {sentence}", err=True)
    exit_for(differences)


def _check_rights(
    settings: BrokerSettings,
    roles: Sequence[Role],
    user: str | None,
    management_url: str | None,
    *,
    as_json: bool,
) -> None:
    url = settings.amqp_url
    name = user or user_of(url)
    if not name:
        raise ConfigurationError("--role: AMQP_URL names no user whose rights to compare: name one by --user")
    needed, where = users_of_roles(settings, name, roles), without_password(url)
    with note_when_slow(f"the broker at {where}"):
        granted = asyncio.run(
            granted_rights(url, comparable_rights(settings, name), user=name, management_url=management_url)
        )
    differences = rights_differences(needed, granted)
    if as_json:
        print_json(
            {
                **check_document(where, differences),
                "user": name,
                "roles": list(roles),
                "may": targets_of(granted),
                "lacks": targets_of(needed.single - granted),
                "beyond": targets_of(granted - needed.single),
            }
        )
    else:
        print_differences(
            differences,
            none=f"user {name} on {where}: has the rights of {' and '.join(roles)}, and no others",
        )
    exit_for(differences)


@app.command()
@with_settings(LocalBrokerSettings)
def users(
    settings: BrokerSettings,
    *,
    role: Annotated[
        list[Role] | None, typer.Option("--role", help="Only this role; may be repeated.", show_default="all")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One user with all of these roles.", show_default="one for each"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the commands that make users with no more rights than their roles need.

    The broker is not contacted.
    """
    roles = role or list(Role)
    named = [(user, roles)] if user else [(each.value, [each]) for each in roles]
    made = [users_of_roles(settings, name, its_roles) for name, its_roles in named]
    if as_json:
        print_json({"users": [each.document() for each in made]})
        return
    for each in made:
        for purpose in each.purposes:
            typer.echo(f"# {purpose}")
        typer.echo("\n".join(each.lines))


@app.command()
@with_settings(LocalBrokerSettings)
def migrate(
    settings: BrokerSettings,
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help="Only this one; may be repeated."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="OLD", help="The name that the one --queue has had until now."),
    ] = None,
    management_url: ManagementUrl = None,
    counts_lag: Annotated[
        float,
        typer.Option(
            min=2,
            metavar="SECONDS",
            help="How old RabbitMQ's counts may be: twice collect_statistics_interval, and one.",
        ),
    ] = 11.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give live queues of RabbitMQ the arguments that the settings ask for, or another name.

    Services run on, and no message is lost. Interrupted at any moment, the next run goes on.

    Exits 1 when a queue is refused, or services must be restarted before the rest can be done. Other brokers have no
    types of queues: there is nothing to migrate (exit 0; with --from 2).
    """
    where = without_password(settings.amqp_url)
    transport = known_broker_url(settings.amqp_url)
    if transport != "rabbitmq":
        if source is not None:
            raise ConfigurationError(
                f"--from: {transport} cannot rename a queue: let {source} run empty before the services use the new name"
            )
        print_nothing(transport, where, as_json=as_json)
        return
    migrations = _migrations(full_topology(settings), queue or (), source)
    with note_when_slow(f"the broker at {where}"):
        plans = asyncio.run(_plans(settings, migrations, management_url))
    if not as_json:
        print_plans(plans, where)
    refused = any(plan.refusals for _, plan in plans)
    todo = [each for each, plan in plans if plan.steps]
    if refused or dry_run or not todo:
        if as_json:
            print_json({"broker": where, "plan": plan_document(plans), "migrated": []})
        raise typer.Exit(Exit.FAILED if refused else Exit.OK)
    confirm(f"Migrate {quantity(len(todo), 'queue')}?", yes=yes)
    done = asyncio.run(_migrate_all(settings, todo, management_url, counts_lag, quiet=as_json))
    if as_json:
        print_json({"broker": where, "plan": plan_document(plans), "migrated": done_document(done)})
    else:
        print_done(done, _new_settings(settings, renamed=source is not None))
    if any(each.consumers_left for _, each in done):
        raise typer.Exit(Exit.FAILED)


async def _plans(
    settings: BrokerSettings, migrations: Sequence[QueueMigration], management_url: str | None
) -> list[tuple[QueueMigration, MigrationPlan]]:
    return [
        (each, await planned(settings.amqp_url, each, management_url=management_url)) for each in migrations
    ]


async def _migrate_all(
    settings: BrokerSettings,
    migrations: Sequence[QueueMigration],
    management_url: str | None,
    counts_lag_seconds: float,
    *,
    quiet: bool,
) -> list[tuple[QueueMigration, MigrationResult]]:
    observer = MigrationProgress(quiet=quiet)
    return [
        (
            each,
            await migrate_queue(
                settings.amqp_url,
                each,
                management_url=management_url,
                counts_lag_seconds=counts_lag_seconds,
                observer=observer,
            ),
        )
        for each in migrations
    ]


def _new_settings(settings: BrokerSettings, *, renamed: bool) -> list[str]:
    """Return the settings that the services need from now on."""
    names = [f"AMQP_QUEUE={settings.amqp_queue}", f"AMQP_DLQ={settings.amqp_dlq}"] if renamed else []
    return [f"AMQP_QUEUE_TYPE={settings.amqp_queue_type}", *names]


def _migrations(topology: Topology, chosen: Sequence[str], source: str | None) -> list[QueueMigration]:
    known = {each.name: each for each in topology.queues}
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigurationError(f"--queue: {unknown[0]!r} is not a queue of Solstice CI: {', '.join(known)}")
    if source is not None and len(chosen) != 1:
        raise ConfigurationError("--from: say with one --queue which queue has had that name")
    exchanges = {each.name: each for each in topology.exchanges}
    bindings = {each.queue: each for each in topology.bindings}
    return [
        QueueMigration(
            source=source or name,
            target=known[name],
            exchange=exchanges[bindings[name].exchange],
            routing_key=bindings[name].routing_key,
        )
        for name in (chosen or known)
    ]
