"""Read the nodes `job` and `defaults` into drafts with positions. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.domain.handing_spec import OutputSpec
from solstice_orchestrator.domain.jobs import (
    ArtifactSpec,
    CacheSpec,
    Concurrency,
    GroupMode,
    JobSpec,
    ReportSpec,
    StepSpec,
)
from solstice_orchestrator.workflow.checkout_node import NO_PROPERTIES, CheckoutProperties, read_checkout
from solstice_orchestrator.workflow.conditions.condition_node import (
    AFTER_SUCCESS,
    NO_CONDITION,
    JobIf,
    StepIf,
    read_if,
    read_step_if,
)
from solstice_orchestrator.workflow.conditions.expression import PLAIN, Vocabulary
from solstice_orchestrator.workflow.container_node import SIZES, ContainerProperties, read_container
from solstice_orchestrator.workflow.env_node import VARIABLE, read_env
from solstice_orchestrator.workflow.job_files.artifact_node import read_artifacts, read_reports
from solstice_orchestrator.workflow.job_files.cache_node import read_caches, with_caches
from solstice_orchestrator.workflow.job_files.needed_node import (
    ArtifactRequest,
    needed_artifacts,
    read_needed,
)
from solstice_orchestrator.workflow.job_files.output_node import needed_outputs, read_outputs
from solstice_orchestrator.workflow.job_template import (
    NO_TEMPLATES,
    USE,
    JobTemplate,
    with_template,
)
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.matrix import (
    NO_MATRIX,
    PARALLEL,
    MatrixCombination,
    combinations,
    in_parts,
)
from solstice_orchestrator.workflow.service_node import ServiceNode, read_services, with_services
from solstice_orchestrator.workflow.shape import (
    MAX_LINE,
    children,
    duration,
    expect_arguments,
    expect_childless,
    identifier,
    line,
    one_of,
    properties,
    text,
    truth,
    whole_number,
)
from solstice_orchestrator.workflow.step_command import DIRECTORY, SHELL, step_command

MAX_NAME: Final = 100
MAX_LABEL: Final = 63
"""The same limit as `runs_on` of a request."""
MAX_STEPS: Final = 100
MAX_RETRIES: Final = 5
MAX_SECRETS: Final = 50
DEFAULT_TIMEOUT_SECONDS: Final = 3600.0

_LIMITS: Final = ("runs-on", "timeout", "no-output-timeout", "retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProperties:
    """The properties of a job or of `defaults`; None where one is not given."""

    runs_on: str | None = None
    timeout_seconds: float | None = None
    no_output_seconds: float | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """Values for jobs that do not give their own."""

    limits: JobProperties = field(default_factory=JobProperties)
    checkout: CheckoutProperties = NO_PROPERTIES
    container: ContainerProperties = field(default_factory=ContainerProperties)
    services: Sequence[ServiceNode] = ()
    caches: tuple[CacheSpec, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """A job as written, for one combination of its matrix.

    It keeps the positions that later checks may report.
    """

    written: str
    """Its name in the file."""
    position: SourcePosition
    """The position of that name."""
    combination: MatrixCombination
    limits: JobProperties
    condition: JobIf
    env: Mapping[str, str]
    needs: tuple[tuple[str, SourcePosition], ...]
    concurrency: Concurrency | None
    steps: tuple[StepSpec, ...]
    secrets: tuple[str, ...] = ()
    checkout: CheckoutProperties | None = None
    """None: that of `defaults`."""
    container: ContainerProperties = field(default_factory=ContainerProperties)
    services: Sequence[ServiceNode] = ()
    artifacts: tuple[ArtifactSpec, ...] = ()
    caches: tuple[CacheSpec, ...] = ()
    artifact_requests: tuple[ArtifactRequest, ...] = ()
    reports: tuple[ReportSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()

    @property
    def name(self) -> str:
        return self.combination.name(self.written)

    def spec(
        self, defaults: JobDefaults, default_runs_on: str, jobs: Mapping[str, Sequence["JobDraft"]]
    ) -> JobSpec:
        """Return the finished job; `jobs` are all of the file by their written names."""
        needed = {written: jobs[written] for written, _ in self.needs}
        own, rest = self.limits, defaults.limits
        return JobSpec(
            name=self.name,
            runs_on=own.runs_on or rest.runs_on or default_runs_on,
            steps=self.steps,
            needs=tuple(job.name for each in needed.values() for job in each),
            env=MappingProxyType({**defaults.env, **self.combination.env, **self.env}),
            timeout_seconds=own.timeout_seconds or rest.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
            condition=self.condition.needs,
            retries=next((each for each in (own.retries, rest.retries) if each is not None), 0),
            no_output_seconds=own.no_output_seconds or rest.no_output_seconds,
            concurrency=self.concurrency,
            matrix=self.combination.shown,
            secrets=self.secrets,
            checkout=(self.checkout or defaults.checkout).spec(defaults.checkout),
            container=with_services(
                self.container.spec(defaults.container), self.services, defaults.services
            ),
            artifacts=self.artifacts,
            outputs=self.outputs,
            needed_outputs=needed_outputs(needed, self.position),
            needed_artifacts=needed_artifacts(self.artifact_requests, needed),
            caches=with_caches(self.caches, defaults.caches, self.position),
            reports=self.reports,
        )


def read_defaults(node: KdlNode) -> JobDefaults:
    """Read a `defaults` node."""
    expect_arguments(node, 0, "'defaults' takes no arguments")
    values = properties(node, (*_LIMITS, *SIZES))
    container = read_container(node, values, NO_MATRIX.fill)
    env: Mapping[str, str] = MappingProxyType({})
    checkout = NO_PROPERTIES
    once = ("env", "checkout", "image")
    for child in children(node, (*once, "service", "cache"), "in 'defaults'", once=once):
        if child.name == "env":
            env = read_env(child, NO_MATRIX.fill)
        elif child.name == "checkout":
            checkout = read_checkout(child)
    return JobDefaults(
        limits=_properties(values, NO_MATRIX),
        checkout=checkout,
        container=container,
        services=read_services(node, NO_MATRIX.fill),
        caches=read_caches(node, NO_MATRIX.fill),
        env=env,
    )


def read_jobs(
    node: KdlNode, vocabulary: Vocabulary = PLAIN, templates: Mapping[str, JobTemplate] = NO_TEMPLATES
) -> Sequence[JobDraft]:
    """Read a `job` node: one draft, or several. `vocabulary`: what each `if` may name.

    There is one for every combination of its matrix and each of its parallel jobs.
    """
    node, parameters = with_template(node, templates)
    matrix = next((child for child in node.children if child.name == "matrix"), None)
    parallel = next((item.value for item in node.properties if item.name == PARALLEL), None)
    each = combinations(matrix) if matrix else [NO_MATRIX]
    return [
        _job(node, replace(combination, parameters=parameters), vocabulary)
        for combination in (in_parts(parallel, each) if parallel else each)
    ]


def read_concurrency(node: KdlNode, combination: MatrixCombination = NO_MATRIX) -> Concurrency:
    """Read a `concurrency` node."""
    rule = 'concurrency takes the name of one group: concurrency "deploy"'
    expect_arguments(node, 1, rule)
    expect_childless(node)
    values = properties(node, ("mode",))
    value = node.arguments[0]
    group = combination.fill(line(value, "the name of a group"), value.position)
    if len(group) > MAX_LINE:
        raise value.position.problem(f"the name of a group has at most {MAX_LINE} characters")
    mode = one_of(values["mode"], "mode", tuple(GroupMode)) if "mode" in values else GroupMode.QUEUE
    return Concurrency(group=group, mode=GroupMode(mode))


def _job(node: KdlNode, combination: MatrixCombination, vocabulary: Vocabulary) -> JobDraft:
    expect_arguments(node, 1, 'a job has one name: job "test" { ... }')
    written = identifier(node.arguments[0], "the name of a job", MAX_NAME)
    if len(combination.name(written)) > MAX_NAME:
        raise node.arguments[0].position.problem(
            f"the name of a job and the values of its matrix have at most {MAX_NAME} characters together"
        )
    values = properties(node, (*_LIMITS, *SIZES, "if", PARALLEL, DIRECTORY, SHELL, USE))
    container = read_container(node, values, combination.fill)
    env: Mapping[str, str] = MappingProxyType({})
    needs: list[tuple[str, SourcePosition]] = []
    steps: list[StepSpec] = []
    step_ifs: list[StepIf] = []
    concurrency: Concurrency | None = None
    secrets: list[str] = []
    checkout: CheckoutProperties | None = None
    once = ("env", "matrix", "concurrency", "checkout", "image")
    for child in children(
        node,
        (
            "step",
            "needs",
            "env",
            "matrix",
            "concurrency",
            "secret",
            "checkout",
            "image",
            "service",
            "artifact",
            "artifacts",
            "output",
            "cache",
            "report",
        ),
        "in a job",
        once=once,
    ):
        match child.name:
            case "checkout":
                checkout = read_checkout(child)
            case "env":
                env = read_env(child, combination.fill)
            case "needs":
                needs.extend(_needs(child, [name for name, _ in needs]))
            case "secret":
                secrets.extend(_secrets(child, secrets))
            case "concurrency":
                concurrency = read_concurrency(child, combination)
            case "step":
                steps.append(_step(child, len(steps) + 1, combination, values))
                step_ifs.append(_step_if(child, combination, vocabulary))
            case _:
                pass
    if not steps:
        raise node.position.problem(f'the job {written!r} has no steps: step "unit tests" run="..."')
    return JobDraft(
        written=written,
        position=node.arguments[0].position,
        combination=combination,
        limits=_properties(values, combination),
        condition=_job_if(
            values.get("if"),
            step_ifs,
            combination,
            replace(vocabulary, needs=[name for name, _ in needs]),
        ),
        env=env,
        needs=tuple(needs),
        concurrency=concurrency,
        steps=tuple(steps),
        secrets=tuple(secrets),
        checkout=checkout,
        container=container,
        services=read_services(node, combination.fill),
        artifacts=read_artifacts(node, combination.fill),
        caches=read_caches(node, combination.fill),
        outputs=read_outputs(node, combination.fill),
        artifact_requests=read_needed(node, combination.fill),
        reports=read_reports(node, combination.fill),
    )


def _job_if(
    value: KdlValue | None,
    of_steps: Sequence[StepIf],
    combination: MatrixCombination,
    vocabulary: Vocabulary,
) -> JobIf:
    condition = read_if(value, combination, vocabulary) if value else NO_CONDITION
    is_plain = all(each is AFTER_SUCCESS for each in of_steps)
    return condition if is_plain else replace(condition, steps=tuple(of_steps))


def _step_if(node: KdlNode, combination: MatrixCombination, vocabulary: Vocabulary) -> StepIf:
    value = next((item.value for item in node.properties if item.name == "if"), None)
    return read_step_if(value, combination, vocabulary) if value else AFTER_SUCCESS


def _properties(values: Mapping[str, KdlValue], combination: MatrixCombination) -> JobProperties:
    label, silence = values.get("runs-on"), values.get("no-output-timeout")
    return JobProperties(
        runs_on=identifier(label, "a label", MAX_LABEL, fill=combination.fill) if label else None,
        timeout_seconds=duration(values["timeout"]) if "timeout" in values else None,
        no_output_seconds=duration(silence) if silence else None,
        retries=whole_number(values["retries"], "retries", MAX_RETRIES) if "retries" in values else None,
    )


def _step(
    node: KdlNode, number: int, combination: MatrixCombination, of_job: Mapping[str, KdlValue]
) -> StepSpec:
    if number > MAX_STEPS:
        raise node.position.problem(f"a job may have {MAX_STEPS} steps, no more")
    values = properties(node, ("run", "timeout", "if", "continue", DIRECTORY, SHELL))
    if len(node.arguments) > 1:
        raise node.arguments[1].position.problem('a step has one name, and run="..." is what it does')
    if "run" not in values:
        raise node.position.problem('a step needs run="...", the command to run')
    name = f"step {number}"
    if node.arguments:
        title = node.arguments[0]
        name = combination.fill(line(title, "the name of a step"), title.position)[:MAX_LINE]
    env: Mapping[str, str] = MappingProxyType({})
    secrets: list[str] = []
    for child in children(node, ("env", "secret"), "in a step", once=("env",)):
        if child.name == "env":
            env = read_env(child, combination.fill)
        else:
            secrets.extend(_secrets(child, secrets))
    timeout = duration(values["timeout"]) if "timeout" in values else None
    run = step_command(values["run"], {**of_job, **values}, combination.fill)
    return StepSpec(
        name=name,
        run=run,
        env=env,
        timeout_seconds=timeout,
        secrets=tuple(secrets),
        may_fail="continue" in values and truth(values["continue"], "continue is #true or #false"),
    )


def _needs(node: KdlNode, known: Collection[str]) -> Iterator[tuple[str, SourcePosition]]:
    properties(node, ())
    expect_childless(node)
    if not node.arguments:
        raise node.position.problem('needs takes the names of jobs: needs "lint" "build"')
    seen = set(known)
    for argument in node.arguments:
        name = text(argument, "the name of a needed job")
        if name in seen:
            raise argument.position.problem(f"{name!r} is needed already; once is enough")
        seen.add(name)
        yield name, argument.position


def _secrets(node: KdlNode, known: Collection[str]) -> Iterator[str]:
    properties(node, ())
    expect_childless(node)
    if not node.arguments:
        raise node.position.problem("secret takes the names of secrets: secret DEPLOY_KEY")
    seen = set(known)
    for argument in node.arguments:
        name = text(argument, "the name of a secret")
        if not VARIABLE.fullmatch(name) or name.startswith("SOLSTICE_"):
            raise argument.position.problem(
                f"{name!r} cannot name a secret, which becomes a variable: letters, digits and '_', not first a digit, "
                "and not SOLSTICE_..."
            )
        if name in seen:
            raise argument.position.problem(f"the secret {name!r} is named already; once is enough")
        if len(seen) == MAX_SECRETS:
            raise argument.position.problem(f"{MAX_SECRETS} secrets may be named here, no more")
        seen.add(name)
        yield name
