# Writes the files of a job's artifacts and outputs to the disk solstice-out of its VM: archives of tar one after the other, and an
# archive of the file `whole` behind them, unless something failed.
#
# Any POSIX shell runs this, as the last step of the job. Lines for its artifacts follow (handing_out.py).

set +e
# Patterns are about bytes, also where they are no text.
LC_ALL=C
export LC_ALL
own=/run/solstice
outputs=

# The processes of the job. Those of the kernel, and those that have ended, have no command line.
others() {
    for each in /proc/[0-9]*; do
        if read -r words <"$each/cmdline" || [ -n "$words" ]; then
            case $words in
                *"$own/agent"* | *"$own/log"* | *"$own/steps/artifacts"* | "") ;;
                *) echo "${each#/proc/}" ;;
            esac
        fi
    done 2>/dev/null
}

# End them, as they have ended everywhere before files are taken. What goes on nevertheless harms its own job.
end_others() {
    tries=0
    found=$(others)
    while [ -n "$found" ] && [ "$tries" -lt 50 ]; do
        kill -KILL $found 2>/dev/null
        sleep 0.1
        tries=$((tries + 1))
        found=$(others)
    done
}

found() {
    [ -e "$1" ] || [ -L "$1" ]
}

# For sockets there is no type in a tar: a device without a number stands for each.
pack() {
    [ $# = 0 ] || find "$@" \( ! -type s -o -exec sh -c 'rm "$1" && mknod "$1" c 0 0' sh {} \; \) \
        -exec tar -cf - {} +
}

# The file of outputs is beside the archives of files; `outputs` is its folder.
pack_outputs() {
    [ -z "$outputs" ] || ! found "$outputs/solstice-output" || tar -cf - -C "$outputs" solstice-output
}

hand_out() {
    for each in /sys/block/*; do
        serial=
        read -r serial <"$each/serial"
        if [ "$serial" = solstice-out ]; then disk=/dev/${each##*/}; fi
    done 2>/dev/null
    : >"$own/whole"
    {
        if pack_outputs && pack "$@"; then tar -cf - -C "$own" whole; fi
    } | dd of="$disk" bs=65536 iflag=fullblock conv=fsync 2>"$own/words" || cat "$own/words" >&2
}

end_others
