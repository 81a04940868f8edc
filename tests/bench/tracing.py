"""Measures the line with every run traced against the same line untraced.

The traced one sends to a collector that answers and reads nothing.
"""

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.bench.pairs import Comparison
from tests.bench.processes import role
from tests.bench.whole_lines import compare_lines, whole_line
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import RabbitMQServer

SPANS_PER_RUN: Final = 7
"""Those of the orchestrator; the two of a request are sent by the other service, sooner."""


async def measure(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Runs per second, from the first webhook to the end of the last job."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (port,) = free_ports(1)
        collector = await stack.enter_async_context(role("collector", port=port))
        await collector.answer()
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        traced = await stack.enter_async_context(
            whole_line(server, directory, "traced", settings, spans_per_run=SPANS_PER_RUN)
        )
        untraced = await stack.enter_async_context(whole_line(server, directory, "untraced", {}))
        return await compare_lines(
            "whole line with real jobs, every run traced, against the same untraced",
            "traced",
            traced,
            untraced,
            count=count,
            rounds=rounds,
            goal=0.97,
        )
