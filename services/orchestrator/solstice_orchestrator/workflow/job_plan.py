"""Plan the jobs of a request from its commit's files, or refuse them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from solstice_common.errors import InvalidWorkflow
from solstice_common.messages import JobRequestV1, Priority, Source
from solstice_orchestrator.domain.jobs import JobSpec, Reason, RunSpec, StepSpec
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted, is_vouched_for
from solstice_orchestrator.workflow.conditions.condition_node import NO_CONDITION
from solstice_orchestrator.workflow.conditions.facts import PATHS_NOT_READ, ChangedPaths, RunFacts
from solstice_orchestrator.workflow.conditions.inputs import InvalidInputs, given_values
from solstice_orchestrator.workflow.conditions.trigger import Trigger, TriggerEvent, trigger_of
from solstice_orchestrator.workflow.reader import Workflow, remembered_workflow

WORKFLOW_PATH: Final = ".solstice/workflow.kdl"
SCRIPT_PATH: Final = ".solstice/job.sh"
SCRIPT_JOB: Final = "job"
RUN_SCRIPT: Final = f"if [ -x {SCRIPT_PATH} ]; then exec ./{SCRIPT_PATH}; else exec sh {SCRIPT_PATH}; fi"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJobs:
    """The jobs of the run, in the order of the workflow file."""

    jobs: tuple[JobSpec, ...]
    run: RunSpec = field(default_factory=RunSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused:
    """The refusal of a plan; its `reason` decides whether it is tried again."""

    reason: Reason
    detail: str
    host_away: bool = False
    """Whether the git host gave no answer, or failed itself."""


def _any_label(_label: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRules:
    """The operator's settings for planning."""

    default_runs_on: str = "linux"
    """The label of jobs for which neither the workflow nor the request names one."""
    run_untrusted: bool = False
    """Whether untrusted code may run here (`runs_untrusted`)."""
    isolates: Callable[[str], bool] = _any_label
    """Whether jobs of a label are isolated, where untrusted code needs that."""
    run_approved: bool = False
    """Whether untrusted code may run that a person approved."""
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when they do not say."""


def runs_untrusted(setting: str, executor: str, *, isolates: bool) -> bool:
    """Return whether `UNTRUSTED_RUNS` lets all untrusted code run.

    The scripted executor runs no code.
    """
    return executor == "scripted" or setting == "run" or (setting == "isolated" and isolates)


def workflow_paths(request: JobRequestV1) -> Sequence[str]:
    """Paths of the files that may define the jobs; the first one that exists counts."""
    return (request.workflow_path,) if request.workflow_path else (WORKFLOW_PATH, SCRIPT_PATH)


def untrusted(request: JobRequestV1, rules: PlanningRules) -> PlanRefused | None:
    """Return the refusal of untrusted code that may not run here; None: it may."""
    if (
        rules.run_untrusted
        or is_trusted(request, rules.v1_trust)
        or (rules.run_approved and is_vouched_for(request))
    ):
        return None
    return PlanRefused(
        reason=Reason.NOT_TRUSTED,
        detail="the author of this code may not push to the repository, and the operator does not let it run here; "
        "UNTRUSTED_RUNS=approved lets it run once it is approved, UNTRUSTED_RUNS=isolated where jobs are isolated, "
        "UNTRUSTED_RUNS=run everywhere",
    )


def plan_jobs(
    request: JobRequestV1, files: Mapping[str, bytes], rules: PlanningRules, *, is_rerun: bool = False
) -> "PlannedJobs | PlanRefused | WorkflowWithPaths":
    """Plan the jobs that the commit's files and the request ask for.

    `is_rerun`: a person asked for this run again, so it is built in any case.
    """
    found = _workflow_of(request, files, rules)
    if isinstance(found, PlanRefused):
        return found
    refused = _untrusted_label(request, found, rules)
    if refused:
        return refused
    trigger = trigger_of(request)
    if is_rerun:
        trigger = replace(trigger, is_requested=True)
    open_plan = WorkflowWithPaths(request=request, trigger=trigger, path=found.path, workflow=found.workflow)
    return open_plan if found.workflow.needs_paths(trigger) else open_plan.planned(PATHS_NOT_READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowWithPaths:
    """A workflow that is read, and whose jobs depend on the changed paths."""

    request: JobRequestV1
    trigger: Trigger
    path: str
    """The workflow file."""
    workflow: Workflow

    def planned(self, changed: ChangedPaths) -> PlannedJobs | PlanRefused:
        """Plan the jobs with these changed paths: apply inputs, `on`, each `if`, and the priority."""
        workflow = self.workflow
        try:
            inputs = given_values(
                workflow.inputs,
                self.request.inputs or {},
                by_hand=self.trigger.event is TriggerEvent.MANUAL,
            )
        except InvalidInputs as error:
            return PlanRefused(reason=Reason.INVALID_WORKFLOW, detail=f"{self.path}: {error}")
        facts = RunFacts(trigger=self.trigger, inputs=inputs, changed=changed)
        if refusal := workflow.events.refusal(facts):
            return PlanRefused(reason=Reason.EVENT_NOT_BUILT, detail=f"{self.path}: {refusal}")
        priority = self.request.priority or Priority.DEFAULT
        variables = {spec.variable: inputs[name] for name, spec in workflow.inputs.items()}
        is_unknown = changed is not PATHS_NOT_READ and changed.unknown
        return PlannedJobs(
            jobs=tuple(
                replace(
                    workflow.conditions[job.name].applied(job, facts),
                    priority=priority,
                    env=MappingProxyType({**job.env, **variables}) if variables else job.env,
                    notice=f"everything counts as changed: {changed.unknown}" if is_unknown else "",
                )
                for job in workflow.jobs
            ),
            run=workflow.run,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundWorkflow:
    """The workflow of a commit, and the path of its file."""

    path: str
    workflow: Workflow


def _workflow_of(
    request: JobRequestV1, files: Mapping[str, bytes], rules: PlanningRules
) -> _FoundWorkflow | PlanRefused:
    path = next((path for path in workflow_paths(request) if path in files), None)
    if path is None:
        return PlanRefused(reason=Reason.INVALID_WORKFLOW, detail=_missing(request))
    runs_on = request.runs_on or rules.default_runs_on
    if path == SCRIPT_PATH:
        if request.workflow_job_id not in {None, SCRIPT_JOB}:
            return PlanRefused(
                reason=Reason.INVALID_WORKFLOW,
                detail=f"the request asks for the job {request.workflow_job_id!r}, but this commit has only {path}, "
                f"which is the job {SCRIPT_JOB!r}",
            )
        script = Workflow(jobs=(script_job(runs_on),), run=RunSpec(), conditions={SCRIPT_JOB: NO_CONDITION})
        return _FoundWorkflow(path=path, workflow=script)
    try:
        workflow = remembered_workflow(files[path], default_runs_on=runs_on, only=request.workflow_job_id)
    except InvalidWorkflow as error:
        return PlanRefused(reason=Reason.INVALID_WORKFLOW, detail=f"{path}: {error}")
    return _FoundWorkflow(path=path, workflow=workflow)


def _untrusted_label(
    request: JobRequestV1, found: _FoundWorkflow, rules: PlanningRules
) -> PlanRefused | None:
    """Return the refusal of untrusted code on a label that is not isolated.

    None: it may run.
    """
    if is_trusted(request, rules.v1_trust):
        return None
    label = next((job.runs_on for job in found.workflow.jobs if not rules.isolates(job.runs_on)), None)
    if label is None:
        return None
    return PlanRefused(
        reason=Reason.NOT_TRUSTED,
        detail=f"the author of this code may not push to the repository, and jobs of the label {label} are not "
        "isolated (EXECUTOR_MAP)",
    )


def script_job(runs_on: str) -> JobSpec:
    """Return the one job of a commit that has a script and no workflow file."""
    return JobSpec(name=SCRIPT_JOB, runs_on=runs_on, steps=(StepSpec(name=SCRIPT_PATH, run=RUN_SCRIPT),))


def _missing(request: JobRequestV1) -> str:
    if request.workflow_path:
        return f"this commit has no file {request.workflow_path}, which the request names as its workflow"
    return (
        f"this commit has neither {WORKFLOW_PATH} nor {SCRIPT_PATH}; add one of them: a workflow with jobs and steps, "
        "or a plain shell script"
    )
