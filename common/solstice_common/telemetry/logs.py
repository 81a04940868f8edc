"""Configures structured logs: text on a terminal, JSON elsewhere.

Each log event is one dotted fact in the past tense, with its fields.
"""

import logging
import sys
from typing import Literal

import structlog

Format = Literal["auto", "console", "json"]


def configure_logs(form: Format = "auto", level: str = "info") -> None:
    """Send every log event, ours and the libraries', to standard error in one form."""
    as_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if as_console
        # Without the values of variables: secrets and whole payloads are among them.
        else [
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(),
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    # No form of ours shows these, and each event would look them up: docs.python.org/3/howto/logging.html#optimization.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Our own events say what happens to a link to RabbitMQ; aiormq adds a trace to every failed attempt.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
