# Sourced by what serves a guest's port for commands: says READY, then runs each line from there in a subshell; what it
# printed, then `--- RC=STATUS`. PORT is the port where it is a serial line.
ports=(${PORT:-/dev/vport*})
exec 0<>"${ports[0]}" >&0 # it can be opened only once
[ ! -t 0 ] || stty raw -echo
set +e
echo READY
while read -r line; do (eval "$line") </dev/null 2>&1; echo "--- RC=$?"; done
