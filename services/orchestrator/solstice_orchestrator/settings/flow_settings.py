"""The settings that let intake and starts follow how fast the work is done."""

from pydantic import Field

from solstice_common.settings import SolsticeSettings


class FlowSettings(SolsticeSettings):
    """How much the store takes from the queue, and a worker from the store."""

    max_backlog: int = Field(
        default=100_000,
        ge=0,
        description="With so many runs to plan and jobs that wait, requests stay in the queue until a fifth is done; "
        "0: all are taken.",
    )
    intake_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Requests stay in the queue, too, once the runs and jobs that wait would take so long at the present speed of "
        "all workers; never above MAX_BACKLOG, and 100 always wait here. 0: MAX_BACKLOG alone decides.",
    )
    start_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Fewer jobs are checked out at once while a checkout takes longer, and one more for each round that does not while "
        "jobs wait; never more than GOVERNOR allows. 0: as many as GOVERNOR allows.",
    )
