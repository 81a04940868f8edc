"""A part of an id finds one run or job, or names the candidates."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ConfigurationError, ServiceRefused

RUNS = ["0193aaaa-0000-7000-8000-000000000001", "0193bbbb-0000-7000-8000-000000000002"]
JOBS = ["0193cccc-0000-7000-8000-000000000003", "0193aaab-0000-7000-8000-000000000004"]


def answer(request: httpx2.Request) -> httpx2.Response:
    """An orchestrator that knows two runs and two jobs."""
    match request.url.path.split("/")[3:]:
        case ["runs"]:
            return httpx2.Response(200, json={"runs": [{"run_id": known} for known in RUNS], "next": None})
        case ["jobs"]:
            return httpx2.Response(200, json={"jobs": [{"job_id": known} for known in JOBS]})
        case ["runs", known] if known in RUNS:
            return httpx2.Response(200, json={"run_id": known})
        case ["jobs", known] if known in JOBS:
            return httpx2.Response(200, json={"job_id": known})
        case _:
            return httpx2.Response(404, json={"error": {"code": "not_found", "message": "no"}})


@pytest.fixture
async def api() -> AsyncIterator[OrchestratorClient]:
    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(answer), base_url="http://o.example"
    ) as http:
        yield OrchestratorClient("http://o.example", http, 1.0)


@pytest.mark.parametrize(
    ("typed", "kind", "found"),
    [
        (RUNS[0], "run", RUNS[0]),
        (JOBS[0], "job", JOBS[0]),
        ("0193bb", "run", RUNS[1]),
        ("0193CC", "job", JOBS[0]),
        (" 0193aaaa ", "run", RUNS[0]),
        ("00000004", "job", JOBS[1]),
    ],
    ids=["whole run", "whole job", "beginning of a run", "capitals", "spaces around", "end of a job"],
)
async def test_id_is_found(api: OrchestratorClient, typed: str, kind: str, found: str) -> None:
    known, document = await find(api, typed)
    assert (known, document[f"{kind}_id"]) == (kind, found)


async def test_part_that_fits_several_names_them(api: OrchestratorClient) -> None:
    with pytest.raises(ConfigurationError, match=r"fits 2 ids: run 0193aaaa.*, job 0193aaab"):
        await find(api, "0193aaa")


async def test_only_the_wanted_kind_counts(api: OrchestratorClient) -> None:
    kind, document = await find(api, "0193aaa", ("run",))
    assert (kind, document["run_id"]) == ("run", RUNS[0])


@pytest.mark.parametrize("typed", ["01", "latest", "../runs", "zz-zz", ""])
async def test_an_invalid_id_is_reported(api: OrchestratorClient, typed: str) -> None:
    with pytest.raises(ConfigurationError, match="is no id"):
        await find(api, typed)


@pytest.mark.parametrize("typed", ["dead", "dead0000-0000-7000-8000-000000000001"], ids=["prefix", "whole"])
async def test_unknown_id_is_reported_as_unknown(api: OrchestratorClient, typed: str) -> None:
    with pytest.raises(ServiceRefused, match=r"no run or job|begins or ends with"):
        await find(api, typed)
