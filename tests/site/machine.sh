# The first process of a machine: machine.sh FOLDER DEBIAN LAYER, in new mount, PID and network namespaces.
# LAYER is what the machine has above Debian's packages, DEBIAN those packages, and below is this machine's own system.
set -eu
folder=$1 debian=$2 layer=$3

mount -t tmpfs -o mode=755 site "$folder"
mkdir "$folder/above" "$folder/work" "$folder/system"
cp -a "$layer" "$folder/layer" # what lies in the system's own folders cannot be laid over them
layer=$folder/layer
mount --bind /usr "$folder/system"
lay() { # what is written to it stays in the machine
    mkdir "$folder/above/$1" "$folder/work/$1"
    mount -t overlay overlay -o "lowerdir=$2,upperdir=$folder/above/$1,workdir=$folder/work/$1" "/$1"
}
lay usr "$layer/usr:$debian/usr:/usr"
mount -t overlay overlay -o "lowerdir=$debian/lib:$debian/usr/lib:$folder/system/lib" /usr/lib
lay etc "$layer/etc:$debian/etc:/etc"
lay var "$layer/var:$debian/var:/var"
mount -t tmpfs -o mode=755 run /run
mkdir /run/lock
mount -t proc proc /proc
ip link set lo up
: > /run/runs

# It waits for all children, those of others too: who starts a service in the background leaves it to the first process.
while :; do
    sleep 3600 &
    wait $!
done
