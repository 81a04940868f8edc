# Recipes of Solstice CI. On a fresh machine use ./just, which brings uv and just itself.

set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments

export UV_PYTHON_DOWNLOADS := "never"
export UV_NO_PROGRESS := "1"
# As pip does on most systems: a certificate that the machine trusts is good enough for us.
export UV_SYSTEM_CERTS := env("UV_SYSTEM_CERTS", "1")
# uv's cache and the checkout may lie on two file systems.
export UV_LINK_MODE := env("UV_LINK_MODE", "copy")
# Every command and service is a process of its own; without compiled files each would compile all that it imports again.
export PYTHONDONTWRITEBYTECODE := ""
export VIRTUAL_ENV := justfile_directory() / ".venv"
export PATH := justfile_directory() / ".venv/bin:" + justfile_directory() / ".tools/bin:" + env("PATH")

[private]
default:
    @just --list --unsorted --list-heading $'Solstice CI\n'

# Build a real commit through the whole line, and show it
[group("try it")]
demo *ARGS: install
    @python -m solstice_cli.demo "$@"

# The same with a small project in containers: a matrix of jobs, each with a service beside it (it brings podman on Debian)
[group("try it")]
demo-containers *ARGS: install
    @python -m solstice_cli.demo --containers "$@"

# Start forge-integration and orchestrator on the embedded default, and stay up
[group("try it")]
up *ARGS: install
    @solstice up "$@"

# The solstice command: ./just solstice runs --json
[group("try it")]
solstice *ARGS: install
    @solstice "$@"

# RabbitMQ, PostgreSQL, both services, Prometheus and Grafana in containers: stack up, status, logs or down
[group("try it")]
stack *ARGS: install
    @compose/stack/run "$@"

# Every test, against real servers (it brings them up itself), four at a time; ARGS go to pytest
[group("work on it")]
test *ARGS: install
    #!/usr/bin/env bash
    set -uo pipefail
    if [[ $# -gt 0 ]]; then
        # What tests print is lost in another process.
        workers=4; [[ " $* " == *" -s "* ]] && workers=0
        exec python -m pytest -n $workers --dist worksteal "$@"
    fi
    # What compares rates, measures answers or needs both processors runs by itself.
    python -m pytest -m alone tests/chaos; alone=$?
    [[ $alone -eq 2 ]] && exit 2  # interrupted
    python -m pytest -n 4 --dist worksteal -m "not alone"; others=$?
    exit $(( alone > others ? alone : others ))

# Formatting, lint, types, and the boundaries between modules
[group("work on it")]
check: install
    #!/usr/bin/env bash
    set -uo pipefail
    failed=0
    run() { echo "$*" >&2; "$@" || failed=1; }
    run ruff format --check .
    run ruff check .
    # Every test can be collected, too: beside mypy, which uses one processor. Each of the workers that run the tests finds
    # compiled then what it would compile itself.
    collected=$(mktemp); trap 'rm -f "$collected"' EXIT
    python -m pytest --collect-only -qq >"$collected" 2>&1 & collecting=$!
    run mypy
    run lint-imports
    wait "$collecting" || { echo "pytest --collect-only -qq" >&2; tail -n 40 "$collected" >&2; failed=1; }
    exit "$failed"

# Put the code into its one format, and fix what ruff can fix
[group("work on it")]
fmt: install
    ruff format .
    ruff check --fix-only .

# Write what the code declares (settings, metrics, log events) into the reference pages
[group("work on it")]
docs: install
    @python -m tests.reference
    @python -m tests.dashboards

# Throughput and latency beside plain aio-pika; never part of the tests
[group("work on it")]
bench *ARGS: install
    @python -m tests.bench "$@"

# Many tiny jobs through real services, and whether anything of them is left behind; never part of the tests
[group("work on it")]
soak *ARGS: install
    @python -m tests.soak "$@"

# Change one thing at a time in MODULES (or those that differ from --base), and see which changes no test notices
[group("work on it")]
mutate *ARGS: install
    @python -m tests.mutation "$@"

# The Python environment in .venv, exactly as pinned; does nothing when nothing changed
[group("set up")]
install:
    @[ -x .tools/bin/uv ] || ./just --version >/dev/null
    @if ! cat .tools/python requirements.txt pyproject.toml | cmp -s - .venv/installed; then \
        echo "just: installing the pinned packages into .venv" >&2; \
        [ -x .venv/bin/python ] && [ "$(head -n 1 .venv/installed 2>/dev/null)" = "$(cat .tools/python)" ] || \
            uv venv --quiet --clear --python "$(cat .tools/python)" .venv; \
        uv pip sync --quiet --require-hashes requirements.txt || { \
            echo "just: uv could not; trying pip, which may know a mirror that uv does not" >&2; \
            "$(cat .tools/python)" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check \
                --no-input --require-hashes --requirement requirements.txt; \
        }; \
        uv pip install --quiet --no-deps --no-build-isolation --editable .; \
        cat .tools/python requirements.txt pyproject.toml > .venv/installed; \
    fi

# A wheel in dist/ that works without this checkout, for pip and `uv tool install`
[group("set up")]
wheel *ARGS: install
    @python -m hatchling build --target wheel "$@"

# The images of both services, with docker or podman, from a new wheel
[group("set up")]
images: install
    rm -rf dist && python -m hatchling build --target wheel
    compose/build-images

# Resolve the newest versions that fit pyproject.toml and pin them with hashes
[group("set up")]
lock *ARGS: install
    uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-header --group dev --output-file requirements.txt pyproject.toml "$@"
    { echo '# What ./just needs before there is anything else. Made by `./just lock`.'; \
      printf 'rust-just\nuv\n' | uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate - ; } > requirements-tools.new
    mv requirements-tools.new requirements-tools.txt

# Remove what the recipes made, but not the tools
[group("set up")]
clean:
    rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
    find common services tests -name __pycache__ -type d -prune -exec rm -rf {} +
