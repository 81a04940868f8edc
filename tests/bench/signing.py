"""Measures the line with signed requests against the same line without.

One signs requests as it publishes them and verifies consumed ones; the other does neither. Once both are the whole line,
and once `line`'s, which ends where a request is stored: there little else is done for a request.
"""

import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.bench.line import LineResult, our_side, send_through
from tests.bench.pairs import Comparison, compare
from tests.bench.whole_lines import compare_lines, whole_line
from tests.servers.rabbitmq import RabbitMQServer
from tests.signing import KeyPair


async def measure(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Webhooks per second, from the first request to the last hand-over."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        directory, pair = Path(name), KeyPair()
        private, public = str(pair.write(directory)), directory / "verify.json"
        pair.publish(public)
        passages: dict[str, list[LineResult]] = {"signed": [], "unsigned": []}

        async def pass_through(way: str, number: int, signing_keys: str, verify_keys: str) -> float:
            name = f"{way}.{number}"
            side = our_side(directory, name, signing_keys=signing_keys, verify_keys=verify_keys)
            result = await send_through(side, vhost.url, directory, exchange=name, queue=name, count=count)
            if number >= 0:
                passages[way].append(result)
            return result.per_second

        def note() -> str:
            signed, unsigned = passages["signed"], passages["unsigned"]
            pairs = list(zip(signed, unsigned, strict=True))
            shares = sorted(_both(a) / _both(b) - 1 for a, b in pairs)
            ratios = sorted(a.per_second / b.per_second for a, b in pairs)
            return (
                f"ratios of the pairs from {ratios[0]:.2f}x to {ratios[-1]:.2f}x; "
                f"signing costs the receiver {_more(signed, unsigned, 'receiver_microseconds')} "
                f"and the consumer {_more(signed, unsigned, 'consumer_microseconds')}: "
                f"{statistics.median(shares):+.1%} of both (pairs from {shares[0]:+.1%} to {shares[-1]:+.1%})"
            )

        return await compare(
            "line up to the store, signed, against the same unsigned",
            ours=lambda number: pass_through("signed", number, private, str(public)),
            yardstick=lambda number: pass_through("unsigned", number, "", ""),
            rounds=rounds,
            goal=0.95,
            note=note,
        )


async def measure_runs(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Runs per second, from the first webhook to the end of the last job."""
    async with AsyncExitStack() as stack:
        directory, pair = Path(stack.enter_context(tempfile.TemporaryDirectory())), KeyPair()
        public = directory / "verify.json"
        settings = {"SIGNING_KEYS": str(pair.write(directory)), "VERIFY_KEYS": str(public)}
        pair.publish(public)
        signed = await stack.enter_async_context(whole_line(server, directory, "signed", settings))
        unsigned = await stack.enter_async_context(whole_line(server, directory, "unsigned", {}))
        return await compare_lines(
            "whole line with real jobs, signed, against the same unsigned",
            "signed",
            signed,
            unsigned,
            count=count,
            rounds=rounds,
            goal=0.95,
        )


def _both(result: LineResult) -> float:
    return result.receiver_microseconds + result.consumer_microseconds


def _more(signed: list[LineResult], unsigned: list[LineResult], part: str) -> str:
    """What signing adds to a part, in the median of the pairs."""
    pairs = [(getattr(a, part), getattr(b, part)) for a, b in zip(signed, unsigned, strict=True)]
    more = statistics.median(a - b for a, b in pairs)
    return (
        f"{more:+.0f} us of processor for each webhook, beside {statistics.median(b for _, b in pairs):.0f}"
    )
