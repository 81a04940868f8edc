# Sourced: sets `engine` to docker where it answers, else to podman. STACK_ENGINE names one.
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

engine=${STACK_ENGINE:-}
if [ -z "$engine" ]; then
    if docker info >/dev/null 2>&1; then engine=docker
    elif command -v podman >/dev/null; then engine=podman
    else fail "there is neither a docker that answers nor podman on this machine"
    fi
fi
case $engine in docker | podman) ;; *) fail "STACK_ENGINE is docker or podman, not '$engine'" ;; esac
