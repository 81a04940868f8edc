#!/bin/sh
# Runs the steps of a job in its VM. Any POSIX shell runs this; see processes/vm_host.py for what it says.
#
# As `init` of the kernel it first finds the image's disk, whose name is in the variable SOLSTICE_ROOT (of the kernel's
# command line), and goes on there as process 1. Without that variable the initramfs is all there is.
#
# With `beside`, as cloud-init starts it, it goes on as process 1 of a namespace of its own, beside the init system of the image.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
own=/run/solstice

# The file of /dev for the device whose file of /sys/$1 named $2 has the content $3.
device() {
    for each in /sys/"$1"/*; do
        # The kernel writes a serial number without the end of its line.
        found=
        read -r found <"$each/$2"
        if [ "$found" = "$3" ]; then
            echo "/dev/${each##*/}"
            return 0
        fi
    done 2>/dev/null
    return 1
}

# Load modules by their names, as a distribution's initramfs or root has them.
load() {
    for each in virtio_pci virtio_blk virtio_console virtio_net ext4; do
        modprobe "$each"
    done 2>/dev/null
}

boot() {
    mkdir -p /proc /sys /dev /run /root
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t devtmpfs dev /dev 2>/dev/null
    for each in /modules/*.ko; do
        if [ -e "$each" ]; then insmod "$each"; fi
    done
    if [ -d /lib/modules ]; then load; fi
    tree=
    if [ -n "${SOLSTICE_ROOT-}" ]; then
        tree=/root
        mount -o rw "$SOLSTICE_ROOT" /root || reboot -f
        for each in proc sys dev; do mount -o move "/$each" "/root/$each"; done
    fi
    mount -t tmpfs -o mode=755 run "$tree/run"
    mkdir -p "$tree$own" "$tree/dev/pts" "$tree/dev/shm"
    mount -t devpts devpts "$tree/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$tree/dev/shm"
    ln -s /proc/self/fd "$tree/dev/fd" 2>/dev/null
    ln -s fd/1 "$tree/dev/stdout" 2>/dev/null
    ln -s fd/2 "$tree/dev/stderr" 2>/dev/null
    cat "$0" >"$tree$own/agent"
    if [ -n "$tree" ]; then exec switch_root /root /bin/sh "$own/agent" booted; fi
    exec /bin/sh "$own/agent" booted
}

beside() {
    # Nothing that systemd knows about units is to end a job, also not what it does where memory was short.
    echo 0 >/sys/fs/cgroup/cgroup.procs
    unshare -p -f --mount-proc /bin/sh "$own/agent" booted
    # The job has ended its agent.
    poweroff -f || echo o >/proc/sysrq-trigger
}

# The processes that the kernel has ended for lack of memory.
killed() {
    count=0
    while read -r name value; do
        if [ "$name" = oom_kill ]; then count=$value; fi
    done </proc/vmstat
    echo "$count"
}

# Say that $1 has ended with the status $2 and $3 killed processes. All that was written before comes before the mark.
ended() {
    printf '\000%s %s\n' "$token" "$1" >&4
    echo "end $1 $2 $3" >&3
}

step() {
    before=$(killed)
    /bin/sh "$own/step" </dev/null >&4 2>&4 3>&- 4>&- 5>&-
    ended "$1" "$?" "$(($(killed) - before))"
}

# Whether a process of the job runs. Those of the kernel, and those that have ended, have no command line.
busy() {
    for each in /proc/[0-9]*; do
        if read -r words <"$each/cmdline" || [ -n "$words" ]; then
            case $words in
                *"$own/agent"* | *"$own/log"* | "") ;;
                *) return 0 ;;
            esac
        fi
    done 2>/dev/null
    return 1
}

end_all() {
    trap : TERM INT HUP QUIT
    while busy; do sleep 0.1 || break; done
    ended term 0 0
}

listen() {
    trap : TERM INT HUP QUIT
    while read -r word number size <&3; do
        case $word in
            step)
                dd bs="$size" count=1 iflag=fullblock <&3 >"$own/step" 2>/dev/null
                echo "$number" >&5
                ;;
            term)
                kill -TERM -1
                end_all &
                ;;
        esac
    done
}

if [ "${1-}" = beside ]; then
    beside </dev/null >/dev/null 2>&1 &
    exit
fi
if [ "${1-}" != booted ] && [ $$ = 1 ]; then boot; fi
hostname ci 2>/dev/null
mkdir -p "$own" /workspace /home/ci
mkdir -p -m 1777 /tmp
if ! device class/virtio-ports name solstice.control >/dev/null; then load; fi
# The names of ports come a moment after their driver, and each is at its end until the other side is connected.
until control=$(device class/virtio-ports name solstice.control); do sleep 0.1; done
until log=$(device class/virtio-ports name solstice.log); do sleep 0.1; done
exec 3<>"$control"
mkfifo -m 622 "$own/log"
exec 4<>"$own/log"
(trap '' TERM INT HUP QUIT; exec cat "$own/log" >"$log" 3>&- 4>&-) &
until read -r hello token <&3 && [ "$hello" = hello ]; do sleep 0.1; done
until job=$(device block serial solstice-job); do sleep 0.1; done
if ! why=$(tar -xf "$job" -C / 2>&1); then
    echo "broken the workspace could not be unpacked: $(echo "$why" | tail -n 1)" >&3
    exec sleep 1000
fi
if [ -n "${SOLSTICE_NETWORK-}" ]; then
    # Addresses of QEMU's user network, and the name server of what is behind it.
    { ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 && ip route add default via 10.0.2.2; } 2>/dev/null
    echo nameserver 10.0.3.3 >/etc/resolv.conf
fi
(ip link set lo up || ifconfig lo up) 2>/dev/null
# Steps run in the foreground: what a shell runs beside itself ignores SIGINT.
mkfifo -m 600 "$own/next"
exec 5<>"$own/next"
trap : TERM INT HUP QUIT
listen &
echo ready >&3
while read -r number <&5; do step "$number"; done
