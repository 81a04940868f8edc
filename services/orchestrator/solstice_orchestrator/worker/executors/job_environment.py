"""The environment of a job's steps: of the orchestrator's own, only the variables listed here."""

import os
import pwd
from functools import cache

from solstice_orchestrator.worker.artifacts.outputs import FILE, VARIABLE
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.workspaces import Workspace


def environment(execution: Execution, workspace: Workspace, path: str) -> dict[str, str]:
    """Return the environment of every step.

    The workflow's `env` wins, except for the names SOLSTICE_*.
    """
    user = _name_of(os.getuid())
    return {
        "PATH": path,
        "HOME": str(workspace.home),
        "TMPDIR": str(workspace.temporary),
        "USER": user,
        "LOGNAME": user,
        **variables_of(execution, str(workspace.source), str(workspace.temporary)),
    }


def variables_of(execution: Execution, workspace: str, temporary: str) -> dict[str, str]:
    """Return the variables that are the same everywhere.

    The job finds its commit in `workspace`, and may write files in `temporary`.
    """
    request = execution.request
    known = {
        "SOLSTICE_REF": request.ref,
        "SOLSTICE_EVENT": request.event,
        "SOLSTICE_CHANGE_NUMBER": request.change_number,
        "SOLSTICE_REPOSITORY": request.repo_full_name,
    }
    return {
        "LANG": "C.UTF-8",
        "CI": "true",
        **({} if execution.traceparent is None else {"TRACEPARENT": execution.traceparent}),
        **execution.spec.env,
        "SOLSTICE": "true",
        "SOLSTICE_ATTEMPT": str(execution.attempt),
        "SOLSTICE_COMMIT_SHA": request.commit_sha,
        "SOLSTICE_JOB_ID": execution.job_id,
        "SOLSTICE_JOB_NAME": execution.spec.name,
        "SOLSTICE_REPO_URL": request.repo_url,
        "SOLSTICE_REQUEST_ID": request.request_id,
        "SOLSTICE_SOURCE": request.source.value,
        "SOLSTICE_WORKSPACE": workspace,
        **({VARIABLE: f"{temporary}/{FILE}"} if execution.spec.outputs else {}),
        **execution.given,
        **{name: str(value) for name, value in known.items() if value is not None},
    }


@cache
def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
